"""Routing: which language and which channel a message takes, as a table of cases of design 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from deliveryd.channels.base import Dispatch, Verdict
from deliveryd.model import Customer, Entry, LanguageContent, Settings, parse_instant
from deliveryd.rendering.content import compile_settings
from deliveryd.routing import Road, Routed, Router, Unsendable, expired, is_expired

EXPIRY = parse_instant("2030-01-01T00:00:00Z")
MESSAGE = Entry(1, 2, 3, {"city": "Graz"})


class Reaching:
    """A channel that needs an address of the customer, or none."""

    def __init__(self, needs: str | None) -> None:
        self._needs = needs

    def reaches(self, customer: Customer | None) -> bool:
        return self._needs is None or (customer is not None and bool(customer.fields.get(self._needs)))

    async def send(self, dispatch: Dispatch) -> Verdict:
        raise AssertionError("routing sends nothing")

    def preview(self, dispatch: Dispatch) -> str:
        raise AssertionError("routing shows nothing")

    async def probe(self) -> str | None:
        return None

    async def aclose(self) -> None:
        return


ROADS = {
    "inApp": Road("inApp", Reaching(None)),
    "sms": Road("sms", Reaching("phone")),
    "sms2": Road("sms", Reaching("phone")),
    "email": Road("email", Reaching("email")),
}
ORDER = ("inApp", "messenger", "sms", "sms2", "email")


def content(**blocks: str) -> LanguageContent:
    """A language whose blocks say one text each."""
    names = {"sms": "text", "email": "body", "inApp": "name", "messenger": "text"}
    extra = {"email": {"subject": "s"}}
    return LanguageContent(
        "Hello", None, {block: {**extra.get(block, {}), names[block]: text} for block, text in blocks.items()}
    )


def customer(**fields: str) -> Customer:
    return Customer(3, fields)


ALL = {"phone": "1", "email": "a@b"}


class Case(NamedTuple):
    """What there is; over which lane and in which language the message goes, or the details of its error."""

    languages: Mapping[str, LanguageContent]
    customer: Customer | None
    goes: tuple[str, str] | str
    entry: Entry = MESSAGE
    configured: tuple[str, ...] = ("en", "uk")


EN = content(sms="en")
EVERYTHING = content(sms="a", email="b", inApp="c", messenger="d")
DOUBT = MESSAGE._replace(lane="sms", doubt="a-1", attempts=1, tries=1)

CASES = {
    # languages
    "the customer's language": Case(
        {"en": EN, "de": content(sms="de")}, customer(language="de", **ALL), ("sms", "de")
    ),
    "no language of the customer": Case({"en": EN, "de": EN}, customer(**ALL), ("sms", "en")),
    "a blank language": Case({"en": EN}, customer(language=" ", **ALL), ("sms", "en")),
    "a language without content": Case({"en": EN}, customer(language="fr", **ALL), ("sms", "en")),
    "the configured languages in order": Case({"uk": EN, "fr": EN}, customer(**ALL), ("sms", "uk")),
    "a region falls back to its language": Case(
        {"pt": EN, "en": EN}, customer(language="pt-BR", **ALL), ("sms", "pt")
    ),
    "a region of its own comes first": Case(
        {"pt": EN, "pt-BR": EN}, customer(language="pt_br", **ALL), ("sms", "pt-br")
    ),
    "another region is no fallback": Case(
        {"pt-PT": EN, "en": EN}, customer(language="pt-BR", **ALL), ("sms", "en")
    ),
    "configured regions fall back too": Case(
        {"de": EN}, customer(**ALL), ("sms", "de"), configured=("de-AT",)
    ),
    "capital letters": Case({"EN": EN}, customer(language="En", **ALL), ("sms", "en")),
    "a language that is none": Case({"en": EN}, customer(language="!", **ALL), "not a language tag: '!'"),
    "a language without a usable block is passed over": Case(
        {"de": content(email="only"), "en": EN}, customer(language="de", phone="1"), ("sms", "en")
    ),
    "a language without any block is passed over": Case(
        {"de": LanguageContent(), "en": EN}, customer(language="de", **ALL), ("sms", "en")
    ),
    "a language whose channel isn't configured is passed over": Case(
        {"de": content(messenger="m"), "en": EN}, customer(language="de", **ALL), ("sms", "en")
    ),
    "the language counts before the channel": Case(
        {"de": content(email="e"), "en": EVERYTHING}, customer(language="de", **ALL), ("email", "de")
    ),
    "none left": Case(
        {"fr": EN}, customer(language="de", **ALL), "no content for a configured channel in de, en, uk"
    ),
    "no language at all": Case({}, None, "no content for a configured channel in en, uk"),
    # channels
    "the first of the order": Case({"en": EVERYTHING}, customer(**ALL), ("inApp", "en")),
    "a channel without a block": Case({"en": content(email="e")}, customer(**ALL), ("email", "en")),
    "a channel without an address": Case(
        {"en": content(sms="s", email="e")}, customer(email="a@b"), ("email", "en")
    ),
    "an unknown customer": Case({"en": EVERYTHING}, None, ("inApp", "en")),
    "an unknown customer without a channel": Case(
        {"en": content(sms="s", email="e")},
        None,
        "sms: no address of the customer; sms2: no address of the customer; email: no address",
    ),
    # what failed before
    "a spent channel": Case(
        {"en": EVERYTHING},
        customer(**ALL),
        ("sms", "en"),
        MESSAGE._replace(spent=(("inApp", "refused"),)),
    ),
    "two lanes of one block": Case(
        {"en": content(sms="s")}, customer(**ALL), ("sms2", "en"), MESSAGE._replace(spent=(("sms", "no"),))
    ),
    "a spent channel in another language": Case(
        {"de": content(sms="s"), "en": content(sms="s", email="e")},
        customer(language="de", **ALL),
        ("email", "en"),
        MESSAGE._replace(spent=(("sms", "no"), ("sms2", "no"))),
    ),
    "all spent": Case(
        {"en": content(sms="s")},
        customer(**ALL),
        "sms: not a number; sms2: blocked",
        MESSAGE._replace(spent=(("sms", "not a number"), ("sms2", "blocked"))),
    ),
    "spent and unreachable": Case(
        {"en": content(sms="s", email="e")},
        customer(phone="1"),
        "sms: no; sms2: no; email: no address of the customer",
        MESSAGE._replace(spent=(("sms", "no"), ("sms2", "no"))),
    ),
    "a spent channel that isn't configured any more": Case(
        {"en": content(sms="s")}, customer(**ALL), ("sms", "en"), MESSAGE._replace(spent=(("fax", "no"),))
    ),
    # in doubt
    "doubt stays on its lane": Case({"en": EVERYTHING}, customer(**ALL), ("sms", "en"), DOUBT),
    "doubt on a lane that is spent": Case(
        {"en": EVERYTHING}, customer(**ALL), ("sms", "en"), DOUBT._replace(spent=(("inApp", "no"),))
    ),
    "doubt without a block any more": Case(
        {"en": content(inApp="a", email="e")},
        customer(**ALL),
        "sms: the outcome is unknown, and the attempt can't be repeated",
        DOUBT,
    ),
    "doubt without an address any more": Case(
        {"en": EVERYTHING},
        customer(email="a@b"),
        "inApp: no; sms: the outcome is unknown, and the attempt can't be repeated",
        DOUBT._replace(spent=(("inApp", "no"),)),
    ),
    "doubt on a lane that is gone": Case(
        {"en": EVERYTHING},
        customer(**ALL),
        "fax: the outcome is unknown, and the attempt can't be repeated",
        DOUBT._replace(lane="fax"),
    ),
    # what it says
    "a missing value": Case(
        {"en": content(sms="{city} {order.id} {b}")}, customer(**ALL), "missing placeholders: order.id, b"
    ),
    "a missing value is no reason for another channel": Case(
        {"en": content(sms="{b}", email="fine")}, customer(**ALL), "missing placeholders: b"
    ),
    "a broken subject": Case(
        {
            "en": LanguageContent(blocks={"email": {"subject": "{city}", "body": "b"}}),
        },
        customer(**ALL),
        "email.subject would hold a line break",
        MESSAGE._replace(variables={"city": "a\nb"}),
    ),
}


def route(case: Case, *, expires_at: int | None = None, now: int = 0) -> Routed | Unsendable:
    router = Router(ROADS, ORDER, case.configured)
    settings = compile_settings(Settings(2, expires_at, case.languages))
    return router.route(case.entry, settings, case.customer, now)


@pytest.mark.parametrize("name", CASES)
def test_where_a_message_goes(name: str) -> None:
    """Language and lane, or the details of the error event."""
    case = CASES[name]
    found = route(case)
    if isinstance(case.goes, str):
        assert isinstance(found, Unsendable)
        assert found.entry == case.entry
        assert found.details.startswith(case.goes.split(" would")[0])
        return
    assert isinstance(found, Routed)
    assert (found.lane, found.rendered.language) == case.goes
    assert found.rendered.block == ROADS[found.lane].block
    assert found.customer is case.customer


@pytest.mark.parametrize(
    ("now", "sent"), [(EXPIRY - 1, True), (EXPIRY, True), (EXPIRY + 1, False), (EXPIRY + 10**15, False)]
)
def test_a_message_expires_after_its_instant(now: int, sent: bool) -> None:
    """At the very instant it may still be sent, a microsecond later it may not."""
    found = route(CASES["the first of the order"], expires_at=EXPIRY, now=now)
    assert is_expired(EXPIRY, now) is not sent
    if sent:
        assert isinstance(found, Routed)
        assert found.expires_at == EXPIRY
    else:
        assert found == Unsendable(MESSAGE, "expired at 2030-01-01T00:00:00.000000Z")
        assert expired(EXPIRY) == "expired at 2030-01-01T00:00:00.000000Z"


def test_without_an_expiry_nothing_expires() -> None:
    """A delivery without a constraint can be made at any time."""
    assert isinstance(route(CASES["the first of the order"], now=2**62), Routed)
    assert not is_expired(None, 2**62)


def test_expiry_counts_before_everything_else() -> None:
    """An expired message is told as expired, whatever else is wrong with it."""
    for case in CASES.values():
        found = route(case, expires_at=EXPIRY, now=EXPIRY + 1)
        assert isinstance(found, Unsendable)
        assert found.details.startswith("expired at ")


@pytest.mark.parametrize(
    ("lane", "tries", "expected"),
    [(None, 0, 0), ("sms", 3, 3), ("inApp", 3, 0)],
    ids=["new", "same", "other"],
)
def test_tries_are_counted_per_lane(lane: str | None, tries: int, expected: int) -> None:
    """On the lane that it is bound to a message keeps its tries, on another one they begin anew."""
    case = CASES["the customer's language"]
    found = route(case._replace(entry=MESSAGE._replace(lane=lane, tries=tries, attempts=7)))
    assert isinstance(found, Routed)
    assert (found.entry.lane, found.entry.tries, found.entry.attempts) == ("sms", expected, 7)


def test_the_order_names_only_what_is_configured() -> None:
    """Channels of `order` that aren't configured are no channels; configured ones outside it aren't used."""
    router = Router(ROADS, ("messenger", "email"), ("en",))
    settings = compile_settings(Settings(2, None, {"en": EVERYTHING}))
    found: Any = router.route(MESSAGE, settings, customer(**ALL), 0)
    assert found.lane == "email"
