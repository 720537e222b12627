"""Channels that reach some customers, and messages for them, for the tests of the router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import strategies as st

from deliveryd.channels.base import NO_ADDRESS, Dispatch, Found, Unknown, Verdict
from deliveryd.delivery.choice import Choice, Idle, Sender
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.routing import ChannelRoute, Route, Router
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.model import Customer, Entry, LanguageContent, Rendered, Settings, Transition, parse_instant
from deliveryd.rendering.content import CompiledSettings, compile_settings

EXPIRY = parse_instant("2030-01-01T00:00:00Z")


MESSAGE = Entry(1, 2, 3, {"city": "Graz"})


class Reaching:
    """A channel that needs an address of the customer, or none."""

    def __init__(self, needs: str | None) -> None:
        self._needs = needs
        self.customer_fields = frozenset([needs] if needs else [])

    devices_field: str | None = None
    lookup_after: float | None = None

    async def look_up(self, dispatch: Dispatch) -> Found:
        """Nothing was found."""
        return Unknown("not asked")

    def recipients(self, customer: Customer) -> tuple[str, ...]:
        return tuple(filter(None, [customer.fields.get("phone")]))

    def reaches(self, customer: Customer | None) -> bool:
        return self._needs is None or (customer is not None and bool(customer.fields.get(self._needs)))

    def unreached(self, customer: Customer | None) -> str:
        return NO_ADDRESS

    async def send(self, dispatch: Dispatch) -> Verdict:
        raise AssertionError("routing sends nothing")

    def preview(self, dispatch: Dispatch) -> str:
        raise AssertionError("routing shows nothing")

    async def probe(self) -> str | None:
        return None

    async def aclose(self) -> None:
        return


class Down(Idle):
    """The standing of a provider whose breaker is open."""

    is_down = has_failed = True

    def takes(self, _settings_id: int) -> bool:
        return False


ROUTES = {
    "inApp": ChannelRoute("inApp", Choice({"inApp": Sender(Reaching(None), Idle())})),
    "sms": ChannelRoute("sms", Choice({"sms": Sender(Reaching("phone"), Idle())})),
    "sms2": ChannelRoute("sms", Choice({"sms2": Sender(Reaching("phone"), Idle())})),
    "email": ChannelRoute("email", Choice({"email": Sender(Reaching("email"), Idle())})),
}


NOBODY = StoppedRecipients(b"key")


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


class Case(NamedTuple):
    """What there is; the provider and the language of the message, or the details of its error."""

    languages: Mapping[str, LanguageContent]
    customer: Customer | None
    goes: tuple[str, str] | str
    entry: Entry = MESSAGE
    configured: tuple[str, ...] = ("en", "uk")


DOUBT = MESSAGE._replace(provider="sms", doubt=True, stay_tries=1, counted_tries=1)


def route(case: Case, *, expires_at: int | None = None, now: int = 0) -> Route:
    router = Router(ROUTES, ORDER, case.configured, NOBODY, Pauses())
    settings = compile_settings(Settings(2, expires_at, case.languages))
    return routed(router, case.entry, settings, case.customer, now)


def routed(
    router: Router, entry: Entry, settings: CompiledSettings, customer: Customer | None, now: int = 0
) -> Route:
    """Route a message whose customer was looked up."""
    message = Delivery(entry, settings)
    message.of(customer)
    found = router.route(message, now)
    assert found is not None
    return found


def needs_customer(router: Router, entry: Entry, settings: CompiledSettings, now: int = 0) -> bool:
    """Whether the customer is to be looked up before a message can be routed."""
    return router.route(Delivery(entry, settings), now) is None


def details(found: Route) -> str | None:
    """The details of the `error` event of a message that can't be sent."""
    assert isinstance(found, Transition)
    (event,) = found.events
    return event.details


def delivery(
    entry: Entry, provider: str, customer: Customer | None = None, expires_at: int | None = None
) -> Delivery:
    """A message that was routed to a provider, with an empty text."""
    message = Delivery(entry, compile_settings(Settings(entry.settings_id, expires_at, {})))
    return message.to(provider, Rendered("sms", "en", {}), customer)


texts = st.sampled_from(("fine", "{customer.name}", "{greeting}", "{city}", "{other}", "{a{customer.name}b}"))


blocks = st.dictionaries(st.sampled_from(("sms", "email", "inApp", "messenger")), texts, max_size=3)
