"""Whether it matters for a message who its customer is, and routes with drawn settings and customers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveryd.delivery.choice import Choice, Idle, Sender
from deliveryd.delivery.message import UNRENDERED, Delivery
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.routing import ChannelRoute, Route, Router
from deliveryd.model import Customer, Entry, LanguageContent, Settings, Spent
from deliveryd.rendering.content import GreetingPolicy, compile_settings, general_stands_in, strict
from support.routes import (
    DOUBT,
    EXPIRY,
    MESSAGE,
    NOBODY,
    ORDER,
    ROUTES,
    blocks,
    content,
    details,
    needs_customer,
    routed,
)

# whether it matters who the customer is


NAME = "customer.name"


NEEDS: Mapping[str, tuple[Mapping[str, LanguageContent], Mapping[str, str], bool]] = {
    "nothing": ({"en": content(inApp="fine")}, {}, False),
    "an address": ({"en": content(sms="fine")}, {}, True),
    "an address of a channel that comes first": ({"en": content(inApp="a", sms="b")}, {}, False),
    "a name": ({"en": content(inApp="{customer.name}")}, {}, True),
    "a name that the message says": ({"en": content(inApp="{customer.name}")}, {NAME: "Ann"}, False),
    "a greeting": ({"en": content(inApp="{greeting}")}, {}, True),
    "a greeting that the message says": ({"en": content(inApp="{greeting}")}, {"greeting": "Hi"}, False),
    "a greeting that nobody has": (
        {"en": LanguageContent(blocks={"inApp": {"name": "{greeting}"}})}, {}, False,
    ),
    "a name in a channel that isn't chosen": (
        {"en": content(inApp="fine", email="{customer.name}")}, {}, False,
    ),
    "a language": ({"en": content(inApp="a"), "de": content(inApp="b")}, {}, True),
    "a language with another channel": ({"en": content(inApp="a"), "de": content(email="b")}, {}, True),
    "a language that can't be sent": ({"en": content(inApp="a"), "de": content(messenger="b")}, {}, False),
    "a language of nobody": ({"en": content(inApp="a"), "!": content(inApp="b")}, {}, False),
    "only another language than the configured": ({"de": content(inApp="a")}, {}, True),
    "nothing that could be sent to anybody": ({"en": content(messenger="a")}, {}, False),
}  # fmt: skip


@pytest.mark.parametrize("name", NEEDS)
def test_whether_it_matters_who_the_customer_is(name: str) -> None:
    """Only for a name, a greeting, an address, or a choice of languages."""
    languages, variables, needs = NEEDS[name]
    settings = compile_settings(Settings(2, None, languages))
    router = Router(ROUTES, ORDER, ("en", "uk"), NOBODY, Pauses())
    for _ in range(2):  # the second time it is remembered
        assert needs_customer(router, MESSAGE._replace(variables=variables), settings) is needs


def test_an_expired_message_needs_no_customer() -> None:
    """That it is over can be said without them."""
    settings = compile_settings(Settings(2, EXPIRY, {"en": content(sms="{customer.name}")}))
    router = Router(ROUTES, ORDER, ("en",), NOBODY, Pauses())
    assert needs_customer(router, MESSAGE, settings, EXPIRY)
    assert not needs_customer(router, MESSAGE, settings, EXPIRY + 1)


def test_the_general_greeting_for_everybody_needs_a_customer_only_for_a_name_in_it() -> None:
    """With `content.greeting_fallback` and no personal greeting, all are greeted alike."""
    router = Router(ROUTES, ORDER, ("en",), NOBODY, Pauses())
    for text, needs in (("Hello", False), ("Hello {customer.name}", True)):
        language = LanguageContent(text, None, {"inApp": {"name": "{greeting}"}})
        settings = compile_settings(Settings(2, None, {"en": language}), greetings=general_stands_in)
        assert needs_customer(router, MESSAGE, settings) is needs


def test_what_is_left_after_failures_decides() -> None:
    """A channel that is spent, or an attempt in doubt, leaves others that may need an address."""
    settings = compile_settings(Settings(2, None, {"en": content(inApp="a", sms="b")}))
    router = Router(ROUTES, ORDER, ("en",), NOBODY, Pauses())
    assert not needs_customer(router, MESSAGE, settings)
    assert needs_customer(router, MESSAGE._replace(spent=(Spent("inApp", "no"),)), settings)
    assert needs_customer(router, DOUBT, settings)
    assert not needs_customer(router, DOUBT._replace(provider="inApp"), settings)
    assert not needs_customer(router, DOUBT._replace(provider="fax"), settings)


def test_what_is_in_doubt_at_a_disabled_provider_goes_to_its_customer() -> None:
    """It is repeated there, to the address that it went to; no other provider of the channel is enabled."""
    sms = Choice({"sms": Sender(ROUTES["sms"].choice.senders["sms"].adapter, Idle(), is_enabled=False)})
    router = Router({**ROUTES, "sms": ChannelRoute("sms", sms)}, ORDER, ("en",), NOBODY, Pauses())
    settings = compile_settings(Settings(2, None, {"en": content(inApp="a", sms="b")}))
    assert not needs_customer(router, MESSAGE, settings)
    assert needs_customer(router, DOUBT, settings)


UNREADABLE = "can't be read"


TAGS = ("en", "de", "de-at", "pt", "pt-br", "uk")


unreadable = st.dictionaries(st.sampled_from(("sms", "inApp", "greetings")), st.just(UNREADABLE), max_size=2)


greeting_texts = st.sampled_from((None, "Hello", "Hello {customer.name}", "{city}"))


@st.composite
def contents(draw: st.DrawFn) -> Mapping[str, LanguageContent]:
    tags = draw(st.lists(st.sampled_from((*TAGS, "!")), max_size=4, unique=True))
    return {
        tag: LanguageContent(
            draw(greeting_texts), draw(greeting_texts), content(**draw(blocks)).blocks, draw(unreadable)
        )
        for tag in tags
    }


entries = st.builds(
    lambda variables, spent, doubt: MESSAGE._replace(
        variables=variables, spent=tuple(Spent(name, "no") for name in spent), **doubt
    ),
    st.dictionaries(st.sampled_from((NAME, "greeting", "city", "a{customer.name}b")), st.just("v")),
    st.lists(st.sampled_from(ORDER), max_size=2, unique=True),
    st.sampled_from(({}, {"provider": "sms", "doubt": "a-1"}, {"provider": "inApp", "doubt": "a-1"})),
)


customers = st.none() | st.builds(
    lambda fields: Customer(3, fields),
    st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(("Ann", " ")),
            "language": st.sampled_from((*TAGS, "DE-AT-1996", "fr", "")),
            "phone": st.just("1"),
            "email": st.just("a@b"),
        },
    ),
)


@pytest.mark.slow
@given(
    contents(), entries, st.tuples(customers, customers), st.sampled_from((strict, general_stands_in)),
    st.lists(st.sampled_from(TAGS), min_size=1, max_size=3, unique=True),
)  # fmt: skip
def test_a_message_that_needs_no_customer_is_the_same_whoever_they_are(
    languages: Mapping[str, LanguageContent],
    entry: Entry,
    people: tuple[Customer | None, Customer | None],
    greetings: GreetingPolicy,
    configured: list[str],
) -> None:
    """The same provider, language and text, or the same end, save for what was tried and couldn't be read."""
    router = Router(ROUTES, ORDER, configured, NOBODY, Pauses())
    settings = compile_settings(Settings(2, None, languages), greetings=greetings)
    first, second = (routed(router, entry, settings, customer) for customer in people)
    if needs_customer(router, entry, settings):
        return
    assert first.entry == second.entry
    assert _said(first) == _said(second)


@pytest.mark.slow
@given(contents(), entries, st.lists(st.sampled_from(TAGS), min_size=1, max_size=3, unique=True))
def test_a_customer_is_not_asked_for_in_vain(
    languages: Mapping[str, LanguageContent], entry: Entry, configured: list[str]
) -> None:
    """Where one is needed, two of them get different messages; or nobody gets a text."""
    router = Router(ROUTES, ORDER, configured, NOBODY, Pauses())
    settings = compile_settings(Settings(2, None, languages))
    if not needs_customer(router, entry, settings) or any("{" in key for key in entry.variables):
        return
    everything = {"phone": "1", "email": "a@b", "name": "Ann"}
    people = [
        Customer(
            3, {key: value for key, value in {**everything, "language": tag}.items() if key not in left_out}
        )
        for tag in ("", *TAGS)
        for left_out in (
            (),
            ("phone",),
            ("email",),
            ("phone", "email"),
            ("name",),
            ("phone", "email", "name"),
        )
    ]
    routes = [routed(router, entry, settings, each) for each in people]
    rendered = [route for route in routes if isinstance(route, Delivery) and route.rendered is not UNRENDERED]
    assert len(set(map(_said, routes))) > 1 or not rendered


def _said(route: Route) -> tuple[object, ...]:
    if not isinstance(route, Delivery):
        readable = [reason for reason in (details(route) or "").split("; ") if reason != UNREADABLE]
        return ("; ".join(readable).partition(" in ")[0],)
    return (route.provider, route.rendered.language, *route.rendered.fields.values())
