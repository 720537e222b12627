"""Cases: what the service's and the provider's answers can be made of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http import HTTPStatus

from hostile.host import Host, Trap
from hostile.inputs import HURTFUL, MEBI, NO_CLOCK_KNOWS, a_gigabyte, answering, deep, deep_object
from hostile.stage import Case, Stage
from support.patience import PATIENCE

UNAVAILABLE = {
    "queue": "queue.unavailable",
    "events": "events.unavailable",
    "settings": "settings.unavailable",
    "provider": "message.in_doubt",
}
"""The line of the log for each endpoint that gives no usable answer."""

LOST = {**UNAVAILABLE, "queue": "queue.batch_lost"}
"""The same where the request left, and no whole answer came: for the queue, a batch may be lost."""


TOO_LARGE = "settings.unusable"
"""Settings that are announced as too large."""


def meet(endpoint: str, trap: Trap, event: str, stage: Stage) -> str:
    """Set a trap until the log has told of it; the message that ran into it arrives in the end."""
    mark = stage.worker.mark()
    stage.host.traps[endpoint] = trap
    settings = stage.settings({"sms": {"text": "{word}"}}) if endpoint == "settings" else 1
    id_ = stage.message(settings=settings)
    if event:
        stage.worker.wait_for_line(event, mark)
        stage.host.traps.clear()
    assert stage.settled(id_) == ("error" if event == TOO_LARGE else "sent")
    return "nothing: the answer's body isn't read"


def offer(element: str, stage: Stage) -> str:
    """Have the queue give something that is no message, between two that are."""
    before = stage.message()
    stage.host.enqueue(element)
    after = stage.message()
    assert [stage.settled(before), stage.settled(after)] == ["sent", "sent"]
    return ""


def use(settings: bytes, stage: Stage) -> str:
    """Have a message ask for settings that can't be used."""
    id_ = stage.message(settings=stage.settings(settings))
    assert stage.settled(id_) == "error"
    return stage.host.details(id_)


def tried_again(busy: Trap, stage: Stage) -> str:
    """The provider surely doesn't have the message: it is tried again, and nothing is in doubt."""
    asked = stage.host.requests["provider"]
    stage.host.traps["provider"] = busy
    id_ = stage.message()
    stage.host.wait_for(lambda host: host.requests["provider"] > asked, PATIENCE)
    stage.host.traps.clear()
    assert stage.settled(id_) == "sent"
    return "tried again"


def followed_nowhere(endpoint: str, event: str, stage: Stage) -> str:
    """Redirect the worker to another host, which must never hear of it.

    A provider's is no event by itself: it accepts others, and the message waits.
    """
    with Host() as elsewhere:
        head = f"location: {elsewhere.url}/queue\r\n"
        redirect = answering(b"", HTTPStatus.TEMPORARY_REDIRECT, head)
        told = meet(endpoint, redirect, event, stage) if event else tried_again(redirect, stage)
        assert not elsewhere.requests
    return told


def hurtful_answers() -> Iterator[Case]:
    """Every answer that can't be used, from every endpoint."""
    for endpoint, usual in LOST.items():
        for name, trap in HURTFUL.items():
            event = TOO_LARGE if (endpoint, trap) == ("settings", a_gigabyte) else usual
            yield Case(f"{endpoint}: {name}", partial(meet, endpoint, trap, event), event)


def hurtful_json() -> Iterator[Case]:
    """JSON that takes more to read than to write."""
    for levels in (1000, 100_000):
        raw = deep(levels).decode()
        yield Case(f"queue: JSON {levels:,} deep", partial(offer, raw), "queue.element_malformed")
        open_end = answering(b"[" + deep_object(levels))
        yield Case(f"queue: JSON {levels:,} deep without an end", _queue(open_end), "queue.batch_lost")
        yield Case(f"events: JSON {levels:,} deep", _unread("events", deep(levels)))
        # The id is looked for in it; deeper than the parser goes it is no JSON.
        event = "message.in_doubt" if levels > 1000 else ""
        met = partial(meet, "provider", answering(deep(levels)), event)
        yield Case(f"provider: JSON {levels:,} deep", met, event)
        yield Case(
            f"settings: JSON {levels:,} deep",
            partial(use, b'{"content":' + deep(levels) + b"}"),
            "settings.unusable",
        )
    quotes = b"[" * 3000 + b'"' + b'\\"' * (MEBI // 2)
    yield Case("queue: a megabyte of quotes behind deep JSON", _queue(answering(quotes)), "queue.batch_lost")
    for piece in (b"{}", b"[]", b"1", b'{"a":1}'):
        body = b"[" + b",".join([piece] * (4 * MEBI // (len(piece) + 2))) + b"]"
        name = f"queue: 4 MB of {piece.decode()}"
        yield Case(name, _queue(answering(body)), "queue.batch_lost")
    yield Case(
        "queue: 5,000 elements that are no messages",
        _queue_once(b"[" + b",".join([b"{}"] * 5000) + b"]"),
        "queue.element_malformed",
        5,
    )
    yield Case(
        "queue: one text of 4 MB with a character beyond the BMP",
        _queue_once(('["\U0001f600' + "a" * (4 * MEBI - 10) + '"]').encode()),
        "queue.element_malformed",
        5,
    )
    languages = b",".join(b'"%x":[]' % number for number in range(150_000))
    yield Case(
        "settings: 150,000 languages", partial(use, b'{"content":{' + languages + b"}}"), "settings.unusable"
    )
    yield Case(
        "settings: 3 MB of text",
        partial(use, b'{"reference":"' + b"a" * (3 * MEBI) + b'","content":{}}'),
        "settings.unusable",
    )


def wrong_values() -> Iterator[Case]:
    """Values that JSON can write and nobody can use."""
    for name, raw in {
        "NaN": "NaN",
        "Infinity as an id": '{"id":Infinity,"settingsId":1,"customerId":1,"variables":{}}',
        "an id of 5,000 digits": f'{{"id":{"9" * 5000},"settingsId":1,"customerId":1,"variables":{{}}}}',
        "1e999 as an id": '{"id":1e999,"settingsId":1,"customerId":1,"variables":{}}',
        "half a surrogate pair in a variable": _with_variables('{"a":"\\ud800"}'),
        "half a surrogate pair in a name": _with_variables('{"\\ud800":"a"}'),
    }.items():
        yield Case(f"queue: {name}", partial(offer, raw), "queue.element_malformed")
    surrogate = b'{"content":{"en":{"sms":{"text":"\\ud800"}}}}'
    yield Case("settings: half a surrogate pair in a text", partial(use, surrogate), "settings.unusable")
    forged = b'{"content":{"en\\n<3>worker.died\\u001b[2J":{"sms":{}}}}'
    yield Case("settings: line breaks and escapes in a key", partial(use, forged), "settings.unusable")
    instant = b'{"delivery":{"expiresAt":"' + b"9" * MEBI + b'"},"content":{}}'
    yield Case("settings: an instant of a megabyte", partial(use, instant), "settings.unusable")


def redirects() -> Iterator[Case]:
    """Answers that lead to another host."""
    for endpoint, event in {**UNAVAILABLE, "provider": ""}.items():
        yield Case(
            f"{endpoint}: a redirect to another host", partial(followed_nowhere, endpoint, event), event
        )


def impossible_pauses() -> Iterator[Case]:
    """Answers that ask to be left alone until a year that no clock knows."""
    busy = answering(b"", HTTPStatus.SERVICE_UNAVAILABLE, NO_CLOCK_KNOWS)
    for endpoint in ("queue", "events", "settings"):
        event = UNAVAILABLE[endpoint]
        yield Case(f"{endpoint}: Retry-After in the year 10^20", partial(meet, endpoint, busy, event), event)
    yield Case("provider: Retry-After in the year 10^20", partial(tried_again, busy))


def _with_variables(variables: str) -> str:
    return f'{{"id":1,"settingsId":1,"customerId":1,"variables":{variables}}}'


def _queue(trap: Trap) -> partial[str]:
    return partial(meet, "queue", trap, "queue.batch_lost")


def _unread(endpoint: str, body: bytes) -> partial[str]:
    return partial(meet, endpoint, answering(body), "")


def _queue_once(body: bytes) -> partial[str]:
    return partial(meet, "queue", answering(body), "queue.element_malformed")
