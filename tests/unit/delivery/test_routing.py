"""Routing: which language and which channel a message takes, as a table of cases of design 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from deliveryd.channels.sms_text import SmsRules
from deliveryd.delivery.choice import Choice, Idle, Sender
from deliveryd.delivery.message import UNRENDERED, Delivery, is_expired
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.routing import ChannelRoute, Route, Router
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.model import Content, Customer, Entry, LanguageContent, Rendered, Settings, Spent, Transition
from deliveryd.rendering.content import compile_settings
from deliveryd.states import State
from deliveryd.transitions import expiry_details
from support.routes import (
    DOUBT,
    EXPIRY,
    MESSAGE,
    NOBODY,
    ORDER,
    ROUTES,
    Case,
    Down,
    Reaching,
    content,
    customer,
    details,
    needs_customer,
    route,
    routed,
)


def flawed(language: LanguageContent, **reasons: str) -> LanguageContent:
    """The same language, of which blocks can't be read."""
    return replace(language, unreadable=reasons)


ALL = {"phone": "1", "email": "a@b"}


EN = content(sms="en")


EVERYTHING = content(sms="a", email="b", inApp="c", messenger="d")


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
        "sms: no address of the customer; sms2: no address of the customer; "
        "email: no address of the customer",
    ),
    # what failed before
    "a spent channel": Case(
        {"en": EVERYTHING},
        customer(**ALL),
        ("sms", "en"),
        MESSAGE._replace(spent=(Spent("inApp", "refused"),)),
    ),
    "two channels of one block": Case(
        {"en": content(sms="s")},
        customer(**ALL),
        ("sms2", "en"),
        MESSAGE._replace(spent=(Spent("sms", "no"),)),
    ),
    "a spent channel in another language": Case(
        {"de": content(sms="s"), "en": content(sms="s", email="e")},
        customer(language="de", **ALL),
        ("email", "en"),
        MESSAGE._replace(spent=(Spent("sms", "no"), Spent("sms2", "no"))),
    ),
    "all spent": Case(
        {"en": content(sms="s")},
        customer(**ALL),
        "sms: not a number; sms2: blocked",
        MESSAGE._replace(spent=(Spent("sms", "not a number"), Spent("sms2", "blocked"))),
    ),
    "spent and unreachable": Case(
        {"en": content(sms="s", email="e")},
        customer(phone="1"),
        "sms: no; sms2: no; email: no address of the customer",
        MESSAGE._replace(spent=(Spent("sms", "no"), Spent("sms2", "no"))),
    ),
    "a spent channel that isn't configured any more": Case(
        {"en": content(sms="s")},
        customer(**ALL),
        ("sms", "en"),
        MESSAGE._replace(spent=(Spent("fax", "no"),)),
    ),
    # in doubt
    "doubt stays at its provider": Case({"en": EVERYTHING}, customer(**ALL), ("sms", "en"), DOUBT),
    "doubt at a provider that is spent": Case(
        {"en": EVERYTHING}, customer(**ALL), ("sms", "en"), DOUBT._replace(spent=(Spent("inApp", "no"),))
    ),
    "doubt without a block any more": Case(
        {"en": content(inApp="a", email="e")}, customer(**ALL), ("sms", ""), DOUBT
    ),
    "doubt without an address any more": Case(
        {"en": EVERYTHING},
        customer(email="a@b"),
        ("sms", ""),
        DOUBT._replace(spent=(Spent("inApp", "no"),)),
    ),
    "doubt without a value any more": Case({"en": content(sms="{b}")}, customer(**ALL), ("sms", ""), DOUBT),
    # what it says
    "a missing value": Case(
        {"en": content(sms="{city} {order.id} {b}")}, customer(**ALL), "missing placeholders: order.id, b"
    ),
    "a missing value is no reason for another channel": Case(
        {"en": content(sms="{b}", email="fine")}, customer(**ALL), "missing placeholders: b"
    ),
    "a missing value after another channel": Case(
        {"en": content(sms="{b}", email="fine")},
        customer(**ALL),
        "inApp: no; sms: missing placeholders: b",
        MESSAGE._replace(spent=(Spent("inApp", "no"),)),
    ),
    # what can't be read
    "a block that can't be read and a channel that is spent": Case(
        {"de": flawed(content(sms="s"), email="de.email"), "en": flawed(LanguageContent(), email="en.email")},
        customer(language="de", **ALL),
        "sms: no; sms2: blocked; de.email; en.email",
        MESSAGE._replace(spent=(Spent("sms", "no"), Spent("sms2", "blocked"))),
    ),
    "a block that can't be read and one without an address": Case(
        {"en": flawed(content(sms="s"), inApp="en.inApp", email="en.email")},
        customer(),
        "sms: no address of the customer; sms2: no address of the customer; en.inApp; en.email",
    ),
    "a block of a language that isn't the customer's": Case(
        {"en": content(email="e"), "fr": flawed(content(sms="s"), email="not told")},
        customer(),
        "email: no address of the customer",
    ),
    "many blocks that can't be read": Case(
        {tag: flawed(LanguageContent(), email=tag) for tag in ("de", "en", "es", "fr", "it", "pt", "uk")},
        customer(**ALL),
        "no content for a configured channel in en, uk; en; uk; de; es; fr; and 2 more",
    ),
    "a missing value behind blocks that can't be read": Case(
        {
            "de": flawed(LanguageContent(), sms="de.sms"),
            "en": flawed(content(sms="{b}"), inApp="en.inApp", email="not told"),
        },
        customer(language="de", **ALL),
        "missing placeholders: b; de.sms; en.inApp",
    ),
    "a greeting that can't be read": Case(
        {"en": flawed(LanguageContent(blocks={"sms": {"text": "{greeting}"}}), greetings="en.greetings")},
        customer(**ALL),
        "missing placeholders: greeting; en.greetings",
    ),
    "a greeting that can't be read, and isn't missing": Case(
        {"en": flawed(content(sms="{b}"), greetings="not told")}, customer(**ALL), "missing placeholders: b"
    ),
    "doubt on a block that can't be read": Case(
        {"en": flawed(content(email="e"), sms="en.sms")},
        customer(**ALL),
        ("sms", ""),
        DOUBT,
    ),
    "a broken subject": Case(
        {
            "en": LanguageContent(blocks={"email": {"subject": "{city}", "body": "b"}}),
        },
        customer(**ALL),
        "email.subject holds a line break",
        MESSAGE._replace(variables={"city": "a\nb"}),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_where_a_message_goes(name: str) -> None:
    """Language and provider, or the details of the error event.

    What is in doubt and can't be rendered any more says nothing there: its provider may be asked for it.
    """
    case = CASES[name]
    found = route(case)
    if isinstance(case.goes, str):
        assert (found.entry, details(found)) == (case.entry, case.goes)
        return
    assert isinstance(found, Delivery)
    assert (found.provider, found.rendered.language) == case.goes
    if found.rendered is not UNRENDERED:
        assert found.rendered.block == ROUTES[found.provider].block
    assert found.customer is case.customer


def test_what_is_in_doubt_at_a_provider_that_is_gone_is_held() -> None:
    """Nobody else can settle it; an operator can."""
    found = route(Case({"en": EVERYTHING}, customer(**ALL), "", DOUBT._replace(provider="fax")))
    assert isinstance(found, Transition)
    assert (found.after, found.events) == (State.IN_DOUBT, ())


@pytest.mark.parametrize(
    ("now", "sent"), [(EXPIRY - 1, True), (EXPIRY, True), (EXPIRY + 1, False), (EXPIRY + 10**15, False)]
)
def test_a_message_expires_after_its_instant(now: int, sent: bool) -> None:
    """At the very instant it may still be sent, a microsecond later it may not."""
    found = route(CASES["the first of the order"], expires_at=EXPIRY, now=now)
    assert is_expired(EXPIRY, now) is not sent
    if sent:
        assert isinstance(found, Delivery)
        assert found.expires_at == EXPIRY
    else:
        assert details(found) == "expired at 2030-01-01T00:00:00.000000Z"
        assert expiry_details(EXPIRY) == "expired at 2030-01-01T00:00:00.000000Z"


def test_without_an_expiry_nothing_expires() -> None:
    """A delivery without a constraint can be made at any time."""
    assert isinstance(route(CASES["the first of the order"], now=2**62), Delivery)
    assert not is_expired(None, 2**62)


def test_expiry_counts_before_everything_else() -> None:
    """An expired message is told as expired, after what was tried, whatever else is wrong with it."""
    for case in CASES.values():
        found = route(case, expires_at=EXPIRY, now=EXPIRY + 1)
        reasons = "".join(f"{channel}: {reason}; " for channel, reason, _ in case.entry.spent)
        doubt = f"; {case.entry.provider}: outcome unknown" if case.entry.doubt else ""
        assert details(found) == f"{reasons}expired at 2030-01-01T00:00:00.000000Z{doubt}"


@pytest.mark.parametrize(
    ("provider", "tries", "expected"),
    [(None, 0, 0), ("sms", 3, 3), ("inApp", 3, 0)],
    ids=["new", "same", "other"],
)
def test_tries_and_keys_are_those_of_one_provider(provider: str | None, tries: int, expected: int) -> None:
    """At the provider that it is bound to, a message keeps its tries and key; at another one both are new."""
    case = CASES["the customer's language"]
    found = route(
        case._replace(entry=MESSAGE._replace(provider=provider, counted_tries=tries, stay=3, stay_tries=4))
    )
    assert isinstance(found, Delivery)
    assert (found.bound.provider, found.bound.counted_tries) == ("sms", expected)
    assert (found.bound.stay, found.bound.stay_tries) == ((3, 4) if provider == "sms" else (4, 0))


def test_the_order_names_only_what_is_configured() -> None:
    """Channels of `order` that aren't configured are no channels; configured ones outside it aren't used."""
    router = Router(ROUTES, ("messenger", "email"), ("en",), NOBODY, Pauses())
    settings = compile_settings(Settings(2, None, {"en": EVERYTHING}))
    found: Any = routed(router, MESSAGE, settings, customer(**ALL))
    assert found.provider == "email"


LONG = "x" * 161


SMS_ONLY = {"en": content(sms=LONG)}


SMS_FIRST = {"en": content(sms=LONG, email="hi"), "de": content(sms="kurz")}


def route_sms(
    rules: SmsRules,
    languages: Mapping[str, LanguageContent],
    entry: Entry = MESSAGE,
    address: Customer | None = None,
) -> Route:
    """Route over a channel with these rules, and e-mail."""
    routes = {"sms": ROUTES["sms"]._replace(sms=rules), "email": ROUTES["email"]}
    settings = compile_settings(Settings(2, None, languages))
    router = Router(routes, ORDER, ["en", "de"], NOBODY, Pauses())
    return routed(router, entry, settings, address or customer(**ALL))


def test_a_text_of_too_many_parts_takes_the_next_channel() -> None:
    """Over `max_parts` the message takes the next channel, not the same one in another language."""
    found = route_sms(SmsRules(1, transliterate=False), SMS_FIRST)
    assert isinstance(found, Delivery)
    assert (found.provider, found.rendered.language) == ("email", "en")
    assert found.entry == MESSAGE


def test_a_text_of_as_many_parts_as_allowed_is_sent() -> None:
    """`max_parts` is the most that may be sent."""
    found = route_sms(SmsRules(2, transliterate=False), SMS_FIRST)
    assert isinstance(found, Delivery)
    assert found.provider == "sms"


@pytest.mark.parametrize(
    ("languages", "fields", "why"),
    [
        (SMS_ONLY, ALL, "sms: 2 SMS parts, more than max_parts = 1"),
        (
            SMS_FIRST,
            {"phone": "1"},
            "sms: 2 SMS parts, more than max_parts = 1; email: no address of the customer",
        ),
        (SMS_FIRST, {"email": "a@b"}, None),
        (
            {"en": content(sms=LONG, email="{gone}")},
            ALL,
            "sms: 2 SMS parts, more than max_parts = 1; missing placeholders: gone",
        ),
    ],
)
def test_without_a_next_channel_the_parts_are_the_reason(
    languages: Mapping[str, LanguageContent], fields: dict[str, str], why: str | None
) -> None:
    """The `error` event names the parts beside the reasons of the other channels."""
    found = route_sms(SmsRules(1, transliterate=False), languages, address=customer(**fields))
    if why is None:
        assert isinstance(found, Delivery)
    else:
        assert details(found) == why


def test_what_its_provider_did_not_take_goes_to_the_other_one_though_the_first_channel_is_down() -> None:
    routes = {
        "inApp": ChannelRoute("inApp", Choice({"inApp": Sender(Reaching(None), Down())})),
        "sms": ChannelRoute(
            "sms",
            Choice({"sms/a": Sender(Reaching(None), Down()), "sms/b": Sender(Reaching(None), Idle())}),
        ),
    }
    said = Content(Rendered("sms", "en", {"text": "before"}), {})
    entry = MESSAGE._replace(content=said, via="sms/a", stay_tries=1)
    settings = compile_settings(Settings(2, None, {"en": content(inApp="now", sms="now")}))
    found = routed(Router(routes, ORDER, ["en"], NOBODY, Pauses()), entry, settings, None)
    assert isinstance(found, Delivery)
    assert (found.provider, found.rendered.fields) == ("sms/b", {"text": "now"})


@pytest.mark.parametrize("is_reached", [False, True])
def test_what_may_have_arrived_goes_past_a_channel_that_is_given_up(is_reached: bool) -> None:
    """Also where another of its providers would take a message as its probe."""
    first = Down()
    first.takes = lambda _settings_id: is_reached  # type: ignore[method-assign]
    sms = Choice({"sms/a": Sender(Reaching(None), first), "sms/b": Sender(Reaching(None), Down())})
    sms.give_up({"sms/a", "sms/b"})
    routes = {"sms": ChannelRoute("sms", sms), "email": ROUTES["email"]}
    said = Content(Rendered("sms", "en", {"text": "before"}), {})
    entry = MESSAGE._replace(content=said, via="sms/b", stay_tries=1)
    settings = compile_settings(Settings(2, None, {"en": content(sms="now", email="now")}))
    router = Router(routes, ("sms", "email"), ["en"], NOBODY, Pauses())
    found = routed(router, entry, settings, customer(email="a@b.example"))
    assert isinstance(found, Delivery)
    assert found.provider == "email"


def test_what_is_in_doubt_needs_no_customer_though_its_channel_is_given_up() -> None:
    """It is repeated at its provider only, whose repeats a slow directory mustn't hold up."""
    sms = Choice({"sms": Sender(Reaching(None), Down())})
    sms.give_up({"sms"})
    router = Router(
        {"sms": ChannelRoute("sms", sms), "email": ROUTES["email"]}, ORDER, ["en"], NOBODY, Pauses()
    )
    settings = compile_settings(Settings(2, None, {"en": content(sms="hi", email="hi")}))
    assert needs_customer(router, MESSAGE, settings)
    assert not needs_customer(router, MESSAGE._replace(provider="sms", stay_tries=1, doubt=True), settings)


def test_what_is_in_doubt_is_repeated_whatever_its_length() -> None:
    """A limit that was set afterwards doesn't keep a doubt from being settled at its provider."""
    doubtful = MESSAGE._replace(provider="sms", stay_tries=1, doubt=True)
    found = route_sms(SmsRules(1, transliterate=False), SMS_FIRST, doubtful)
    assert isinstance(found, Delivery)
    assert found.provider == "sms"


def test_transliteration_comes_before_the_count() -> None:
    """Typography that would have cost a part is replaced, in the text that is sent."""
    languages = {"en": content(sms="It\u2019s " + "y" * 100)}
    found = route_sms(SmsRules(1, transliterate=True), languages)
    assert isinstance(found, Delivery)
    assert found.rendered.fields == {"text": "It's " + "y" * 100}
    assert details(route_sms(SmsRules(1, transliterate=False), languages))


def test_a_limit_of_parts_makes_the_customer_matter() -> None:
    """A message that may take the next channel needs its customer, though the first needs no address."""
    channel_route = ChannelRoute(
        "sms", Choice({"sms": Sender(Reaching(None), Idle())}), SmsRules(1, transliterate=False)
    )
    settings = compile_settings(Settings(2, None, {"en": content(sms="hi", email="hi")}))

    for sms, needs in ((channel_route, True), (channel_route._replace(sms=None), False)):
        router = Router({"sms": sms, "email": ROUTES["email"]}, ORDER, ["en"], NOBODY, Pauses())
        assert needs_customer(router, MESSAGE, settings) is needs


def test_who_stopped_a_channel_takes_the_next_one() -> None:
    """At the address that they stopped; without another channel, the event says why."""
    settings = compile_settings(Settings(2, None, {"en": content(sms="a", email="b")}))
    stopped = StoppedRecipients(b"key")
    router = Router(ROUTES, ("sms", "email"), ("en",), stopped, Pauses())
    stopped.stop("sms", "+44 20", 1, "blocked")
    ann = Customer(3, {"phone": "+4420", "email": "ann@example.com"})
    found = [
        routed(router, MESSAGE, settings, customer)
        for customer in (ann, Customer(4, {**ann.fields, "phone": "+4421"}), Customer(5, {"phone": "+4420"}))
    ]
    assert [each.provider for each in found if isinstance(each, Delivery)] == ["email", "sms"]
    assert details(found[2]) == "the recipient is suppressed on sms; email: no address of the customer"
    doubt = MESSAGE._replace(provider="sms", stay_tries=1, doubt=True)
    repeated = routed(router, doubt, settings, ann)
    assert isinstance(repeated, Delivery), "only the provider can settle what may have arrived"
