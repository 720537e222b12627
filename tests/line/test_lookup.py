"""A doubt settled by asking the provider: before a repeat, and by an operator's order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from anyio.from_thread import start_blocking_portal
from pydantic import ValidationError

from deliveryd.channels.base import (
    Accepted,
    AskLater,
    Dispatch,
    Found,
    InDoubt,
    NotTaken,
    Taken,
    Unknown,
    Verdict,
)
from deliveryd.channels.http.ask_options import LookupOptions
from deliveryd.channels.http.asking import read_lookup
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.http.wire import WireResponse
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.reader import file_reader
from deliveryd.model import SECOND, format_instant
from deliveryd.states import State
from deliveryd.testing.gateway import (
    Act,
    Disconnect,
    Gateway,
    GatewayRequest,
    Reply,
    closed_port,
    open_gateway,
)
from deliveryd.testing.samples import dispatch, opened
from deliveryd.transitions import CHANGED
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import command
from support.virtual import START, VirtualWorld, live
from support.world import World, open_world

SMS = {"to": "{customer.phone}", "text": "{content.text}", "ref": "{message.key}"}
LOOKUP: dict[str, Any] = {
    "url": "http://127.0.0.1:1/batches",
    "query": {"client_reference": "{message.key}"},
    "headers": {"Authorization": "Bearer {secret.token}"},
    "provider_id": "/batches/0/id",
    "after": "0s",
    "answers": [
        {"status": [200], "where": [{"at": "/batches/0/id", "matches": "."}], "verdict": "taken"},
        {"status": [200], "where": [{"at": "/count", "is": [0]}], "verdict": "not_taken"},
        {"status": ["4xx"], "verdict": "unknown"},
    ],
}
HI = dispatch("sms", {"text": "hello"}, key="ns-42-1")


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("s3cret")
    return str(path)


def options(**lookup: Any) -> HttpChannelOptions:
    given = {"url": "http://h/", "json": SMS, "lookup": {**LOOKUP, "headers": {}, **lookup}}
    return HttpChannelOptions.model_validate(given)


# the adapter


@pytest.mark.anyio
async def test_the_question_about_a_message(token: str) -> None:
    """By its key, with the secrets, and without an idempotency key: nothing is sent."""
    async with open_gateway() as gateway:
        gateway.respond = lambda _request: Reply(200, b'{"count": 1, "batches": [{"id": "01FC"}]}')
        lookup = {**LOOKUP, "url": f"{gateway.url}/batches?page=1"}
        given = {"url": gateway.url, "json": SMS, "lookup": lookup, "secrets": {"token": token}}
        async with opened("http", given, block="sms") as channel:
            assert channel.lookup_after == 0.0
            assert await channel.look_up(HI) == Taken("01FC")
        [seen] = gateway.seen
        assert (seen.method, seen.target) == ("GET", "/batches?page=1&client_reference=ns-42-1")
        assert seen.headers["authorization"] == "Bearer s3cret"
        assert "idempotency-key" not in seen.headers


@pytest.mark.anyio
async def test_a_question_with_a_body() -> None:
    """By POST, in JSON."""
    lookup = {**LOOKUP, "query": None, "headers": {}, "method": "POST", "json": {"id": "{message.id}"}}
    async with open_gateway() as gateway:
        given = {"url": gateway.url, "json": SMS, "lookup": {**lookup, "url": gateway.url}}
        async with opened("http", given, block="sms") as channel:
            await channel.look_up(HI)
        assert (gateway.seen[0].method, gateway.json()) == ("POST", {"id": 42})


ASKED = "asked whether it has the message, the provider answered"


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, b'{"count": 1, "batches": [{"id": "b"}]}', Taken("b")),
        (200, b'{"count": 0, "batches": []}', NotTaken()),
        (200, b"OK", Unknown(f"{ASKED} 200")),
        (404, b"", Unknown(f"{ASKED} 404")),
        (404, b"<html>", AskLater(f"{ASKED} 404 with a page, which isn't about the message")),
        *((status, b"", AskLater(f"{ASKED} {status}")) for status in (302, 401, 403, 405, 407, 429, 500)),
    ],
)
def test_what_an_answer_says(status: int, body: bytes, found: Found) -> None:
    """An answer of another kind says nothing; after one about the question it is asked again."""
    lookup = options().lookup
    assert lookup is not None
    assert read_lookup(lookup, WireResponse(status, {}, body)) == found


@pytest.mark.parametrize(("status", "verdict"), [(404, "not_taken"), (200, "taken")])
def test_a_page_does_not_say_whether_the_provider_has_a_message(status: int, verdict: str) -> None:
    """A portal that answers for it would have the message repeated, or forgotten."""
    options = LookupOptions.model_validate(
        {"url": "http://h/{message.key}", "answers": [{"status": [status], "verdict": verdict}]}
    )
    found = read_lookup(options, WireResponse(status, {}, b"<html><body>Welcome</body></html>"))
    assert isinstance(found, AskLater)
    assert not isinstance(read_lookup(options, WireResponse(status, {}, b"")), AskLater)


@pytest.mark.anyio
async def test_a_provider_that_cannot_be_asked_now() -> None:
    """No answer is no answer."""
    lookup = {**LOOKUP, "headers": {}, "url": f"http://127.0.0.1:{await closed_port()}/"}
    given = {"url": "http://127.0.0.1:1/", "json": SMS, "lookup": lookup}
    async with opened("http", given, block="sms") as channel:
        assert isinstance(await channel.look_up(HI), AskLater)
    async with opened("http", {"url": "http://127.0.0.1:1/", "json": SMS}, block="sms") as channel:
        assert channel.lookup_after is None
        assert await channel.look_up(HI) == Unknown("the provider can't be asked")


@pytest.mark.parametrize(
    ("lookup", "problem"),
    [
        ({"query": {"status": "sent"}}, "a provider is asked by {message.key}, {message.id} or"),
        ({"query": {"id": "{message.providerId}"}}, "set provider_id to its place in the answer"),
        ({"query": {"k": "{message.key}", "to": "{customer.phone}"}}, "settled without {customer.phone}"),
        ({"query": {"k": "{message.key}", "t": "{secret.none}"}}, "isn't defined in secrets"),
        ({"json": {"k": "{message.key}"}}, "needs query instead of json"),
        ({"after": "2h"}, "must be at most 1h"),
        ({"answers": []}, "at least 1 item"),
        ({"answers": [{"status": [200], "verdict": "accepted"}]}, "taken"),
        ({"answers": [{"status": ["2xx", 200], "verdict": "taken"}] * 2}, "row 2 never applies"),
        ({"headers": {"Idempotency-Key": "{message.key}"}}, "is set by the adapter"),
        ({"url": "ftp://h/{message.key}"}, "http"),
    ],
)
def test_lookups_that_cannot_be_configured(lookup: dict[str, Any], problem: str) -> None:
    """Each with the reason."""
    with pytest.raises(ValidationError) as error:
        options(**lookup)
    assert problem in str(error.value)


def test_the_providers_id_is_known_in_lookup_only() -> None:
    """Before the message was sent there is none."""
    with pytest.raises(ValidationError, match="known before the message was sent"):
        HttpChannelOptions.model_validate({"url": "http://h/", "json": {"id": "{message.providerId}"}})


BY_ID = {
    "url": "http://127.0.0.1:1/{message.providerId}",
    "answers": [{"status": [200], "verdict": "taken"}],
}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (Reply(500, b'{"id": "m-1"}'), "m-1"),
        (Reply(202, b'{"id": "m-2", "state": "?"}'), "m-2"),
        (Reply(502, b"<html>"), None),
    ],
)
async def test_an_answer_in_doubt_may_have_the_providers_id(answer: Reply, found: str | None) -> None:
    """A 5xx, or one whose row says in_doubt; the provider is asked by it, and can't be without one."""
    async with open_gateway() as gateway:
        gateway.respond = lambda request: answer if request.method == "POST" else Reply(200, b"{}")
        given = {
            "url": gateway.url, "json": SMS, "provider_id": "/id",
            "answers": [{"status": [202], "verdict": "in_doubt"}],
            "lookup": {**BY_ID, "url": f"{gateway.url}/messages/{{message.providerId}}"},
        }  # fmt: skip
        async with opened("http", given, block="sms") as channel:
            verdict = await channel.send(HI)
            assert isinstance(verdict, InDoubt)
            assert verdict.provider_id == found
            answered = await channel.look_up(HI._replace(provider_id=found))
        if found is None:
            assert answered == Unknown("the provider gave no id by which it can be asked")
        else:
            assert answered == Taken()
            assert gateway.seen[-1].target == f"/messages/{found}"


@pytest.mark.anyio
async def test_the_head_of_an_answer_that_breaks_off_may_have_the_providers_id() -> None:
    """An answer whose body is lost is in doubt all the same."""
    async with open_gateway() as gateway:
        head = b"HTTP/1.1 201 Created\r\nX-Id: m-3\r\nContent-Length: 99\r\n\r\n{"
        gateway.respond = lambda _request: Disconnect(head)
        given = {"url": gateway.url, "json": SMS, "provider_id": "header:X-Id"}
        async with opened("http", given, block="sms") as channel:
            verdict = await channel.send(HI)
    assert isinstance(verdict, InDoubt)
    assert verdict.provider_id == "m-3"


def test_a_secret_of_the_question_needs_tls(token: str) -> None:
    """As one of the message does."""
    given = {"url": "https://h/", "json": SMS, "secrets": {"token": token}}
    lookup = {**LOOKUP, "url": "http://sms.example.com/"}
    made = HttpChannelOptions.model_validate({**given, "lookup": lookup})
    assert made.problems("sms")[0].startswith("lookup.url: ")


# the line


@pytest.fixture
def virtual(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.add(
        """
retry = { attempts = 4, base = "1s", max = "1s" }
[channels.sms.lookup]
url = "http://provider/{message.key}"
answers = [{ status = [200], verdict = "taken" }]
[channels.email]
adapter = "smtp"
host = "mail.example.com"
sender = "a@example.com"
"""
    )
    world.service.settings[1] = json.dumps(
        {"content": {"en": {"sms": {"text": "hi"}, "email": {"subject": "s", "body": "b"}}}}
    )
    world.service.enqueue(message(1))
    world.channels["sms"].lookup_after = 60.0
    return world


def ask(world: VirtualWorld, *found: Found) -> None:
    """Let the first attempt be in doubt, the others accepted, and the provider say these."""
    channel, answers = world.channels["sms"], list(found)
    channel.verdict = lambda _: InDoubt("cut off") if len(channel.attempts) == 1 else Accepted("second")
    channel.found = lambda _: answers.pop(0)
    live(world.run_until_idle)


def test_what_the_provider_has_is_sent_without_a_repeat(virtual: VirtualWorld) -> None:
    """Asked a minute after the doubt, under the key of the try."""
    ask(virtual, Taken("first"))
    channel = virtual.channels["sms"]
    [(sent, first)], [(asked, question)] = channel.attempts, channel.asked
    assert question.key == first.key
    assert asked - sent >= 60
    assert virtual.service.statuses(1) == ["dequeued", "sent"]
    attempts = file_reader(virtual.folder / "journal.db").lives([1])[0].attempts
    assert [(each.verdict, each.provider_id, each.reason) for each in attempts] == [
        ("in_doubt", None, "cut off"),
        ("accepted", "first", "settled by asking the provider, which has it"),
    ]


def test_a_question_has_the_id_that_the_provider_gave_in_its_doubtful_answer(virtual: VirtualWorld) -> None:
    """As the journal keeps it, over a restart too."""
    channel = virtual.channels["sms"]
    channel.verdict = lambda _: InDoubt("500", provider_id="m-9")
    channel.found = lambda _: Taken("m-9")

    async def story() -> None:
        with trio.move_on_after(30):
            await virtual.run_until_idle()
        await virtual.run_until_idle()

    live(story)
    assert [question.provider_id for _, question in channel.asked] == ["m-9"]
    assert virtual.service.statuses(1) == ["dequeued", "sent"]


@pytest.mark.parametrize("found", [NotTaken(), Unknown("who knows")])
def test_what_the_provider_does_not_have_is_repeated_there(virtual: VirtualWorld, found: Found) -> None:
    """Under the same key, and by no other channel; an answer that says nothing changes nothing."""
    ask(virtual, found)
    channel = virtual.channels["sms"]
    assert len(channel.asked) == 1
    assert len({dispatch.key for _, dispatch in channel.attempts}) == 1
    assert len(channel.attempts) == 2
    assert not virtual.channels["email"].attempts
    assert virtual.service.statuses(1) == ["dequeued", "sent"]


def test_a_provider_that_cannot_be_asked_is_asked_again(virtual: VirtualWorld) -> None:
    """Nothing is repeated meanwhile."""
    ask(virtual, AskLater("503", 100.0), AskLater("503"), Taken("p"))
    channel = virtual.channels["sms"]
    (first, second, third), [_] = [at for at, _ in channel.asked], channel.attempts
    assert second - first >= 100
    assert third - second >= 60
    assert virtual.service.statuses(1) == ["dequeued", "sent"]


@pytest.mark.slow
@pytest.mark.parametrize("found", [Taken("p"), NotTaken()])
def test_questions_while_the_lookup_is_down_use_up_no_try(virtual: VirtualWorld, found: Found) -> None:
    """Of four tries one was made: after thirty questions the message is found there, or repeated."""
    ask(virtual, *[AskLater("503")] * 30, found)
    assert len(virtual.channels["sms"].asked) == 31
    assert len(virtual.channels["sms"].attempts) == (1 if isinstance(found, Taken) else 2)
    assert not virtual.channels["email"].attempts
    assert virtual.service.statuses(1) == ["dequeued", "sent"]
    assert virtual.journal_rows("SELECT counted_tries FROM message") == [(2,)]


@pytest.mark.slow
def test_the_pause_between_questions_grows(virtual: VirtualWorld) -> None:
    """Up to `retry.max`, as between tries, and never below `after`."""
    virtual.write(virtual.path.read_text().replace('base = "1s", max = "1s"', 'base = "1m", max = "16m"'))
    ask(virtual, *[AskLater("503")] * 8, Taken("p"))
    asked = [at for at, _ in virtual.channels["sms"].asked]
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[0] >= 60
    assert 480 <= pauses[-1] <= 961


@pytest.mark.slow
@pytest.mark.parametrize("after", [None, 3000.0])
def test_what_expires_while_the_lookup_is_down_says_so(virtual: VirtualWorld, after: float | None) -> None:
    """The questions end with the message, however long the provider asks to wait for the next one."""
    settings = json.loads(str(virtual.service.settings[1]))
    expires_at = format_instant(START + 600 * SECOND)
    virtual.service.settings[1] = json.dumps({**settings, "delivery": {"expiresAt": expires_at}})
    ask(virtual, *[AskLater("503", after)] * 60)
    [event] = [event for event in virtual.service.events if event["status"] == "error"]
    assert event["details"] == f"expired at {expires_at}; sms: outcome unknown"
    assert event["timestamp"] < format_instant(START + 605 * SECOND)


@pytest.mark.parametrize("attempts", [1, 4])
@pytest.mark.parametrize("found", [Taken("p"), NotTaken()])
def test_an_order_to_repeat_stands_until_the_provider_could_be_asked(
    virtual: VirtualWorld, found: Found, attempts: int
) -> None:
    """With on_in_doubt = "hold", also when all tries are used up: a question is none, nothing was sent."""
    text = virtual.path.read_text().replace("attempts = 4", f"attempts = {attempts}")
    virtual.write(text.replace("[channels.sms]\n", '[channels.sms]\non_in_doubt = "hold"\n'))
    channel, answers = virtual.channels["sms"], [AskLater("503", 100.0), AskLater("503"), found]
    channel.verdict = lambda _: InDoubt("cut off") if len(channel.attempts) == 1 else Accepted("second")
    channel.found = lambda _: answers.pop(0)

    async def run() -> None:
        async with virtual.at_work() as worker:
            await trio.sleep(5)
            assert virtual.journal_rows("SELECT state FROM message") == [(State.IN_DOUBT,)]
            order = Order(Action.RESEND, ItemKind.MESSAGE, ("1",))
            assert (await worker.parts.recorder.decide(order, ["sms"])).done == ("1",)
            await trio.sleep(600)

    live(run)
    assert not answers
    assert len(channel.attempts) == (1 if isinstance(found, Taken) else 2)
    assert virtual.service.statuses(1) == ["dequeued", "sent"]


# after a kill


async def killed_in_its_attempt(world: VirtualWorld) -> None:
    """Run a worker, and end it in the middle of the first attempt, before it can record an outcome."""
    channel = world.channels["sms"]
    send = channel.send

    async def hang(dispatch: Dispatch) -> Verdict:
        scope.cancel()
        await trio.sleep_forever()
        raise AssertionError

    channel.send = hang  # type: ignore[method-assign]
    with trio.CancelScope() as scope:
        await world.run_until_idle()
    channel.send = send  # type: ignore[method-assign]


Blocks = Mapping[str, Mapping[str, str]]
TEMPLATES = pytest.mark.parametrize(
    "blocks",
    [{"sms": {"text": "other words"}}, {"sms": {"text": "hi {nobody}"}}, {"inApp": {"name": "n"}}],
    ids=["other words", "a value is missing", "no block"],
)
"""What became of the template of a message that said `hi`."""


def ask_after_a_kill(world: VirtualWorld, blocks: Blocks, *found: Found) -> None:
    """Change the template after a kill in the first attempt; then the provider says these."""
    channel, answers = world.channels["sms"], list(found)
    live(lambda: killed_in_its_attempt(world))
    world.service.settings[1] = json.dumps({"content": {"en": blocks}})
    shutil.rmtree(world.folder / "cache")
    channel.found = lambda _: answers.pop(0)
    live(world.run_until_idle)
    assert not answers


@TEMPLATES
def test_after_a_kill_with_changed_templates_the_provider_is_asked(
    virtual: VirtualWorld, blocks: Blocks
) -> None:
    """What it has is sent, though it couldn't be repeated; questions in vain are asked again."""
    ask_after_a_kill(virtual, blocks, AskLater("503"), Taken("first"))
    assert not virtual.channels["sms"].attempts
    assert virtual.service.statuses(1) == ["dequeued", "sent"]


@TEMPLATES
@pytest.mark.parametrize("found", [NotTaken(), Unknown("who knows")])
def test_what_says_something_else_is_held_after_the_question(
    virtual: VirtualWorld, blocks: Blocks, found: Found
) -> None:
    """A listing may lag, and the same key with other words would be another message."""
    ask_after_a_kill(virtual, blocks, AskLater("503"), found)
    assert not virtual.channels["sms"].attempts
    assert virtual.service.statuses(1) == ["dequeued"]
    assert virtual.journal_rows("SELECT state, counted_tries FROM message") == [(State.IN_DOUBT, 0)]
    attempts = file_reader(virtual.folder / "journal.db").lives([1])[0].attempts
    is_rendered = blocks == {"sms": {"text": "other words"}}
    reason = CHANGED if is_rendered else "not repeated: it can't be rendered again ("
    assert (attempts[-1].reason or "").startswith(reason)


def test_a_kill_in_a_question_leaves_what_the_try_said_known(virtual: VirtualWorld) -> None:
    """An intent for a question says nothing of new words, which are not taken for the old ones then."""
    channel = virtual.channels["sms"]
    live(lambda: killed_in_its_attempt(virtual))
    virtual.service.settings[1] = json.dumps(sms_settings())
    shutil.rmtree(virtual.folder / "cache")

    async def killed_in_the_question() -> None:
        async def hang(dispatch: Dispatch) -> Found:
            scope.cancel()
            await trio.sleep_forever()
            raise AssertionError

        look_up, channel.look_up = channel.look_up, hang  # type: ignore[method-assign]
        with trio.CancelScope() as scope:
            await virtual.run_until_idle()
        channel.look_up = look_up  # type: ignore[method-assign]

    live(killed_in_the_question)
    channel.found = lambda _: NotTaken()
    live(virtual.run_until_idle)
    assert not channel.attempts
    assert virtual.journal_rows("SELECT state FROM message") == [(State.IN_DOUBT,)]


def test_an_adapter_that_raises_is_asked_again(virtual: VirtualWorld) -> None:
    """As in an attempt, it must not take the worker with it."""
    channel = virtual.channels["sms"]

    def fail(_dispatch: Dispatch) -> Found:
        channel.found = lambda _: Taken("p")
        raise RuntimeError

    channel.verdict = lambda _: InDoubt("cut off")
    channel.found = fail
    live(virtual.run_until_idle)
    assert len(channel.asked) == 2
    assert virtual.service.statuses(1) == ["dequeued", "sent"]


# an operator's order


@pytest.fixture
def bank() -> Iterator[Gateway]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_gateway()) as gateway,
    ):
        yield gateway


@pytest.mark.slow
def test_an_operator_lets_the_provider_be_asked(tmp_path: Path, bank: Gateway) -> None:
    """What it has is settled, what it doesn't have is resent, and the rest stays held with its reason."""

    def respond(request: GatewayRequest) -> Act:
        if request.method == "POST":
            return Disconnect()
        number = int(request.target.rpartition("/")[2])
        return (Reply(200, b'{"id": "had"}'), Reply(404), Reply(410))[number - 1]

    bank.respond = respond
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        world.change(f'url = "{world.sandbox.base_url}/sms"', f'url = "{bank.url}/sms"')
        world.add(LOOKUP_BY_ID.format(url=bank.url))
        world.state.enqueue(*(message(id_) for id_ in (1, 2, 3)))
        assert world.start("--until-idle").wait(PATIENCE) == 1, world.log()
        assert settle(world, "--ask", "--all", "--dry-run") == {
            "what": "would settle by asking",
            "sent": ["message:1"],
            "resent": ["message:2"],
            "skipped": {"message:3": "asked whether it has the message, the provider answered 410"},
        }
        assert settle(world, "--ask", 1, 2, 9) == {
            "what": "settle by asking",
            "sent": ["message:1"],
            "resent": ["message:2"],
            "skipped": {"message:9": "it isn't held in doubt"},
        }
        assert world.rows("SELECT id, state FROM message ORDER BY id") == [
            (1, State.SENT), (2, State.WAITING), (3, State.IN_DOUBT),
        ]  # fmt: skip
        neither = command("in-doubt", "settle", "--config", world.config, "--all")
        assert (neither.status, "give --as or --ask" in neither.err) == (2, True)


LOOKUP_BY_ID = """on_in_doubt = "hold"

[channels.sms.lookup]
url = "{url}/{{message.id}}"
after = "0s"
provider_id = "/id"
answers = [
    {{ status = [200], verdict = "taken" }},
    {{ status = [404], verdict = "not_taken" }},
]
"""


def settle(world: World, *arguments: object) -> Any:
    return command("in-doubt", "settle", "--config", world.config, "--json", *arguments).data
