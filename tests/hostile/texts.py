"""Cases: what messages, settings and customers can hold, down to what providers and mail servers get."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from urllib.parse import parse_qs, unquote, urlsplit

from hostile.stage import Case, Stage
from support.patience import PATIENCE

MEGA = 1_000_000
MAIL_HEADERS = {
    "from", "to", "subject", "date", "message-id", "auto-submitted", "x-deliveryd-message", "content-type",
    "content-transfer-encoding", "mime-version",
}  # fmt: skip


def deliver(blocks: Mapping[str, object], variables: str, stage: Stage, *, customer: int = 1) -> str:
    """Send a message of these blocks; what the error event says, or that it was sent."""
    id_ = stage.message(variables, stage.settings(blocks), customer)
    return "sent" if stage.settled(id_) == "sent" else stage.host.details(id_)[:100]


def sms(text: str) -> Mapping[str, object]:
    """A block with one text."""
    return {"sms": {"text": text}}


def arrives(variables: Mapping[str, object] | str, expected: str, stage: Stage) -> str:
    """A variable arrives at the provider as it was given, in UTF-8."""
    text = variables if isinstance(variables, str) else json.dumps(variables)
    id_ = stage.message(text, stage.settings(sms("{word}")))
    assert stage.settled(id_) == "sent"
    assert stage.payload(id_)["text"] == expected
    return "sent, as it was given"


def large_messages() -> Iterator[Case]:
    """Messages and templates of a size that nobody writes."""
    long = "\u20ac" * (MEGA // 3)
    one = json.dumps({"word": long}, ensure_ascii=False)
    yield Case("a message with a megabyte in one variable", partial(arrives, one, long))
    numbers = {f"{number:x}": 1 for number in range(100_000)}
    many = json.dumps({"word": "w", **numbers}, separators=(",", ":"))
    yield Case("a message with 100,000 variables", partial(arrives, many, "w"))
    names = "".join(f"{{n{number}}}" for number in range(100_000))
    yield Case("a template with 100,000 placeholders, none with a value", partial(deliver, sms(names), "{}"))
    same = json.dumps({"a": "1"})
    yield Case(
        "a template with 100,000 placeholders of one value", partial(deliver, sms("{a}" * 100_000), same)
    )
    bomb = json.dumps({"a": "x" * MEGA})
    yield Case("100,000 places for a value of a megabyte", partial(deliver, sms("{a}" * 100_000), bomb))
    greetings = {"greetings": {"personal": "{a}" * 1000}, **sms("{greeting}" * 1000)}
    yield Case(
        "1,000 greetings with 1,000 values each", partial(deliver, greetings, json.dumps({"a": "x" * 1000}))
    )
    braced = json.dumps({"{" * 10 + str(number): "x" for number in range(20_000)})
    yield Case("20,000 variables with braces in their names", partial(deliver, sms("{" * 400_000), braced))
    references = {"email": {"subject": "s", "body": "<p>&#" + "9" * 5000 + ";"}}
    yield Case("an HTML character with a number of 5,000 digits", partial(deliver, references, "{}"))
    html = {"email": {"subject": "s", "body": "<p>" + "<a href='" * 100_000}}
    yield Case("a mail of broken markup, a megabyte", partial(deliver, html, "{}"))


def strange_values() -> Iterator[Case]:
    """Values that are good JSON, and arrive as they are."""
    yield Case("a variable of 1e999", partial(arrives, '{"word": 1e999}', "1e999"))
    yield Case("a variable of 5,000 digits", partial(arrives, f'{{"word": {"7" * 5000}}}', "7" * 5000))
    yield Case("a variable that is given twice", partial(arrives, '{"word": "a", "word": "b"}', "b"))
    yield Case(
        "a variable with NUL, CR LF and U+2028",
        partial(arrives, {"word": "a\0\r\n\u2028b"}, "a\0\r\n\u2028b"),
    )
    yield Case(
        "a name with half a surrogate pair", partial(deliver, sms("{customer.name}"), "{}", customer=3)
    )
    yield Case("an address with half a surrogate pair", partial(deliver, sms("x"), "{}", customer=4))


def into_a_request(stage: Stage) -> str:
    """Line breaks in query and form stay data, and so does what a path may hold."""
    evil = "a b&c=d\r\nX-Evil: 1\r\n\r\nGET / HTTP/1.1\r\n\0\u2028"
    blocks = {"messenger": {"text": "{word}", "image": "{word}"}}
    assert deliver(blocks, json.dumps({"word": evil}), stage, customer=2) == "sent"
    sent = stage.host.sent[-1]
    address = urlsplit(sent.target)
    assert unquote(address.path.removeprefix("/sms/")) == "a b?c#d\u2028e&f=g"
    assert address.path.count("/") == 2
    assert parse_qs(address.query) == {"word": [evil]}
    assert parse_qs(sent.body.decode("ascii")) == {"text": [evil], "image": [evil]}
    assert "x-evil" not in dict(sent.headers)
    return "sent, encoded"


def into_a_header(evil: str, stage: Stage) -> str:
    """What no header may hold ends in an error instead."""
    button = {"messenger": {"text": "x", "button": {"text": "{word}", "url": "u"}}}
    told = deliver(button, json.dumps({"word": evil}), stage)
    assert told != "sent"
    return told


def out_of_a_path(customer: int, stage: Stage) -> str:
    """An address that would lead to another path, or holds a line break, ends in an error."""
    told = deliver({"messenger": {"text": "x"}}, "{}", stage, customer=customer)
    assert told != "sent"
    return told


def into_a_subject(evil: str, stage: Stage) -> str:
    """A subject brings no header of its own into the mail, whatever it holds."""
    before = len(stage.mail.mails)
    told = deliver({"email": {"subject": "{word}", "body": "b"}}, json.dumps({"word": evil}), stage)
    for mail in stage.mail.mails[before:]:
        assert set(mail.header_names) <= MAIL_HEADERS
    return told


def into_a_body(stage: Stage) -> str:
    """Lines of a body that look like the end of the mail, or like commands, stay in the body."""
    evil = "a\r\n.\r\nMAIL FROM:<x@y>\r\n.\n\r.\r\n"
    before = len(stage.mail.mails)
    assert deliver({"email": {"subject": "s", "body": "{word}"}}, json.dumps({"word": evil}), stage) == "sent"
    [mail] = stage.mail.mails[before:]
    assert mail.commands[0].startswith(b"MAIL FROM:<club@example.com>")
    assert any(b"MAIL FROM" in line for line in mail.lines)
    return "sent, dots doubled"


def into_an_envelope(customer: int, stage: Stage) -> str:
    """An address with anything else in it reaches no mail server."""
    before = len(stage.mail.mails)
    told = deliver({"email": {"subject": "s", "body": "b"}}, "{}", stage, customer=customer)
    assert told != "sent"
    assert len(stage.mail.mails) == before
    return told


def injections() -> Iterator[Case]:
    """Text that tries to become something else on its way."""
    yield Case("CR LF, NUL and U+2028 into query and form, U+2028 into a path", into_a_request)
    for name, evil in {
        "CR LF": "a\r\nX-Evil: 1",
        "NUL": "a\0",
        "U+2028": "a\u2028",
        "U+0085": "a\x85",
    }.items():
        yield Case(f"{name} into a header", partial(into_a_header, evil))
        yield Case(f"{name} into a subject", partial(into_a_subject, evil))
    for name, evil in {
        "an encoded line break": "=?utf-8?q?=0D=0ABcc:_evil=40example.com?=",
        "an encoded line break in base64": "=?utf-8?b?DQpCY2M6IGV2aWxAZXhhbXBsZS5jb20=?=",
        "a megabyte": "a " * (MEGA // 2),
    }.items():
        yield Case(f"{name} into a subject", partial(into_a_subject, evil))
    yield Case("a name with an encoded line break into a subject", partial(_name_into_a_subject))
    yield Case("dots and commands into a mail's body", into_a_body)
    yield Case("CR LF and a command into a mail address", partial(into_an_envelope, 5))
    yield Case("an encoded line break into a mail address", partial(into_an_envelope, 3))
    for customer, address in {6: '".."', 7: '"a/../b"', 8: "CR LF"}.items():
        yield Case(f"{address} as an address into a path", partial(out_of_a_path, customer))


def _name_into_a_subject(stage: Stage) -> str:
    before = len(stage.mail.mails)
    told = deliver({"email": {"subject": "{customer.name}", "body": "b"}}, "{}", stage, customer=6)
    [mail] = stage.mail.mails[before:]
    assert set(mail.header_names) <= MAIL_HEADERS
    return told


def many_settings(count: int, stage: Stage) -> str:
    """As many messages as settings ids, all at once: each is asked for once, over few connections."""
    asked = stage.host.requests["settings"]
    ids = [stage.message(settings=stage.settings(sms("{word}"))) for _ in range(count)]
    stage.host.wait_for(lambda host: all("sent" in host.statuses(id_) for id_ in reversed(ids)), PATIENCE)
    asked = stage.host.requests["settings"] - asked
    assert count <= asked < 1.1 * count
    return f"all sent; asked for settings {asked:,} times, over {stage.host.most_open} connections at most"
