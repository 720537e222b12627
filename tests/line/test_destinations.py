"""Which phone numbers a channel and its providers are sent: of some countries, and no premium rates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from deliveryd.directory.base import NoDirectory
from deliveryd.model import Customer
from support.http_world import HttpWorld, accept, busy, cut_off
from support.messages import message
from support.virtual import CONFIG, VirtualSupervisor, live

TWO_PROVIDERS = (
    CONFIG.partition("[channels.sms]")[0]
    + """
[channels]
order = ["sms", "email"]
[channels.sms]
{channel}
[channels.sms.providers.one]
adapter = "http"
url = "http://one/sms"
country = "DE"
json = {{ to = "{{customer.phone|e164}}", text = "{{content.text}}" }}
retry = {{ attempts = 4, base = "10s", max = "10s" }}
breaker = {{ failures = 0 }}
{one}
[channels.sms.providers.two]
adapter = "http"
url = "http://two/sms"
json = {{ to = "{{customer.phone|e164|digits}}", text = "{{content.text}}" }}
{two}
[channels.email]
adapter = "http"
url = "http://mail/email"
json = {{ to = "{{customer.email}}", text = "{{content.body}}" }}
"""
)
SMS_ONLY = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
BOTH = json.dumps({"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "s", "body": "b"}}}})
GERMAN, AUSTRIAN, FRENCH, PREMIUM = "+4915112345678", "+436641234567", "+33612345678", "+499001234567"
PEOPLE = {
    1: {"phone": GERMAN, "email": "ann@example.com"},
    2: {"phone": AUSTRIAN, "email": "bob@example.com"},
    3: {"phone": FRENCH, "email": "eve@example.com"},
}


class Listed(NoDirectory):
    """Customers by their ids."""

    def __init__(self, people: Mapping[int, Mapping[str, str]]) -> None:
        self.people = people

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Any]:
        return {id_: Customer(id_, fields) if (fields := self.people.get(id_)) else None for id_ in ids}


class ServedWorld(HttpWorld):
    """Customers in three countries, each with one message of the same number; two providers for SMS."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.people = self.directory = Listed(PEOPLE)
        self.service.settings[1] = SMS_ONLY
        self.service.enqueue(*(message(id_, customer_id=id_) for id_ in PEOPLE))

    def serve(self, one: str = "", two: str = "", channel: str = "") -> None:
        """Write keys of the two providers, and of their channel."""
        self.write(TWO_PROVIDERS.format(one=one, two=two, channel=channel))

    @property
    def sent_to(self) -> set[tuple[str, str]]:
        """Which hosts were asked to send to whom."""
        return set(self.requests)

    @property
    def requests(self) -> list[tuple[str, str]]:
        """The same, in order, with repeats."""
        return [(each.url.host, json.loads(each.content)["to"]) for each in self.provider.requests]

    def details(self, id_: int) -> list[str]:
        """The details of the errors that the service received of a message."""
        own = [each for each in self.service.events if each["messageId"] == id_]
        return [each["details"] for each in own if each["status"] == "error"]


@pytest.fixture
def world(tmp_path: Path) -> ServedWorld:
    return ServedWorld(tmp_path)


def play(world: ServedWorld, scene: Callable[[VirtualSupervisor], Awaitable[None]]) -> None:
    """Play a scene with a running worker."""

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(3)
            await scene(worker)

    live(run)


async def reload(worker: VirtualSupervisor) -> None:
    assert worker.reloader is not None
    await worker.reloader.reload(accept_orphans=False)


def test_each_provider_gets_the_numbers_that_it_serves(world: ServedWorld) -> None:
    """By its country or by a prefix; a number that none serves ends with the reason of each."""
    world.serve(one='countries = ["DE"]', two='countries = ["CH"]\nprefixes = ["+43664"]')
    live(world.run_until_idle)
    assert world.sent_to == {("one", GERMAN), ("two", AUSTRIAN.removeprefix("+"))}
    assert world.details(3) == [
        "sms: "
        + ", ".join(
            f"a number in FR is not in channels.sms.providers.{keys}"
            for keys in ("one.countries", "two.countries or prefixes")
        )
    ]


def test_weights_of_a_country_decide_who_is_sent_its_numbers(world: ServedWorld) -> None:
    """One provider is cheap in Germany, and the other has Austria alone; a reload changes it."""
    world.serve(one="weights = { DE = 3, AT = 0 }", two='weights = { "DE" = 1 }')
    world.service.enqueue(*(message(id_, customer_id=1 + id_ % 3) for id_ in range(10, 310)))

    async def scene(worker: VirtualSupervisor) -> None:
        await trio.sleep(60)
        shares = Counter(world.requests)
        assert shares["one", GERMAN] == pytest.approx(75, abs=12)
        assert ("one", AUSTRIAN) not in shares
        assert shares["one", FRENCH] == pytest.approx(50, abs=12)
        world.serve(one="weights = { DE = 0 }")
        await reload(worker)
        world.service.enqueue(*(message(id_, customer_id=1) for id_ in range(400, 420)))
        await trio.sleep(60)
        assert Counter(world.requests)["one", GERMAN] == shares["one", GERMAN]

    play(world, scene)
    assert len(world.requests) == 3 + 300 + 20


def test_the_next_channel_takes_what_no_provider_serves(world: ServedWorld) -> None:
    world.service.settings[1] = BOTH
    world.serve(one='countries = ["DE"]', two='prefixes = ["+43"]')
    live(world.run_until_idle)
    assert ("mail", "eve@example.com") in world.sent_to
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in PEOPLE)


def test_a_channel_refuses_before_any_provider_is_asked(world: ServedWorld) -> None:
    """The error names the key and the country, and no number."""
    world.serve(channel='countries = ["DE", "AT"]')
    live(world.run_until_idle)
    assert {to.removeprefix("+") for _, to in world.sent_to} <= {GERMAN[1:], AUSTRIAN[1:]}
    assert world.service.statuses(3) == ["dequeued", "error"]
    assert world.details(3) == ["sms: a number in FR is not in channels.sms.countries"]


def test_a_number_has_to_be_in_the_channel_and_at_the_provider(world: ServedWorld) -> None:
    world.serve(channel='countries = ["DE", "AT"]', one='countries = ["DE", "FR"]', two='prefixes = ["+33"]')
    live(world.run_until_idle)
    assert world.sent_to == {("one", GERMAN)}
    assert "a number in AT is not in channels.sms.providers.one.countries" in world.details(2)[0]
    assert world.details(3) == ["sms: a number in FR is not in channels.sms.countries"]


@pytest.mark.parametrize("phone", [PREMIUM, "0900 1234567"])
def test_premium_rates_are_refused_unless_allowed(world: ServedWorld, phone: str) -> None:
    """Without any other rule, however the customer's number is written."""
    world.people.people = {1: {"phone": phone}}
    world.serve()
    live(world.run_until_idle)
    assert world.sent_to == set()
    reason = "a premium-rate number in DE, and channels.sms.allow_premium isn't set"
    assert reason in world.details(1)[0]
    world.serve(channel="allow_premium = true", two="enabled = false")
    world.service.enqueue(message(11, customer_id=1))
    live(world.run_until_idle)
    assert world.sent_to == {("one", PREMIUM)}


def test_a_number_without_its_country_code_is_sent_only_where_no_rule_is(world: ServedWorld) -> None:
    """Which country it is in can't be told, and so not that it may be sent to."""
    world.people.people = {1: {"phone": "0151 1234 5678"}}
    text = TWO_PROVIDERS.replace("|e164|digits", "").replace("|e164", "").replace('country = "DE"\n', "")
    world.write(text.format(channel='countries = ["DE"]', one="", two="enabled = false"))
    live(world.run_until_idle)
    assert world.sent_to == set()
    assert world.details(1) == [
        "sms: not surely a phone number with its country code, which channels.sms.countries needs"
    ]
    world.write(text.format(channel="", one="", two="enabled = false"))
    world.service.enqueue(message(11, customer_id=1))
    live(world.run_until_idle)
    assert world.sent_to == {("one", "0151 1234 5678")}


def test_what_waits_for_its_next_try_goes_elsewhere_when_a_reload_says_so(world: ServedWorld) -> None:
    """Its provider put it off; by the new configuration another one serves the number, or none does."""
    world.provider.answer = busy
    world.serve(two="enabled = false")

    async def scene(worker: VirtualSupervisor) -> None:
        before = len(world.requests)
        assert {host for host, _ in world.requests} == {"one"}
        world.provider.answer = accept
        world.serve(one='countries = ["DE"]', two='countries = ["AT"]')
        await reload(worker)
        await trio.sleep(60)
        assert set(world.requests[before:]) == {("one", GERMAN), ("two", AUSTRIAN[1:])}

    play(world, scene)
    assert world.service.statuses(3) == ["dequeued", "error"]
    assert "a number in FR is not in channels.sms.providers.two.countries" in world.details(3)[0]


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_in_doubt_is_repeated_where_it_was_sent(world: ServedWorld, restarts: bool) -> None:
    """Under its key, whatever numbers its provider is sent by now: another one would send it twice."""
    world.provider.answer = cut_off
    world.serve(two="enabled = false")

    async def scene(worker: VirtualSupervisor) -> None:
        before = len(world.requests)
        assert before >= len(PEOPLE)
        world.serve(one='countries = ["CH"]', channel='countries = ["CH"]')
        if not restarts:
            await reload(worker)
            world.provider.answer = accept
            await trio.sleep(60)
            assert set(world.requests[before:]) == {("one", each["phone"]) for each in PEOPLE.values()}

    play(world, scene)
    world.provider.answer = accept
    live(world.run_until_idle)
    assert {host for host, _ in world.requests} == {"one"}
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in PEOPLE)
    assert len(world.provider.keys) == len(PEOPLE)


def test_what_one_provider_alone_serves_waits_for_no_more_than_room_there(world: ServedWorld) -> None:
    """A backlog for one of several providers is sent as fast as for a single one."""
    text = TWO_PROVIDERS.format(
        one='countries = ["DE"]\nconcurrency = 1', two='prefixes = ["+43"]', channel=""
    )
    world.write(f"{text}\n[queue]\nmax_in_flight = 4\n")
    ids = range(101, 141)
    world.service.enqueue(*(message(id_, customer_id=1) for id_ in ids))
    assert live(world.run_until_idle) < 60
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in ids)


def test_a_reload_lifts_a_refusal_for_new_messages(world: ServedWorld) -> None:
    world.serve(channel='countries = ["DE", "AT"]', two="enabled = false")

    async def scene(worker: VirtualSupervisor) -> None:
        world.serve(channel='countries = ["DE", "AT", "FR"]', two="enabled = false")
        await reload(worker)
        world.service.enqueue(message(13, customer_id=3))
        await trio.sleep(60)

    play(world, scene)
    assert world.service.statuses(3) == ["dequeued", "error"]
    assert world.service.statuses(13) == ["dequeued", "sent"]


def test_of_several_devices_those_that_are_served_get_the_message(world: ServedWorld) -> None:
    """One by one; a customer none of whose numbers is served isn't reached there."""
    world.people.people = {1: {"phone": json.dumps([FRENCH, GERMAN, PREMIUM])}, 2: {"phone": f'["{FRENCH}"]'}}
    world.serve(one='devices = true\ncountries = ["DE"]', two="enabled = false")
    live(world.run_until_idle)
    assert world.sent_to == {("one", GERMAN)}
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert "a number in FR is not in channels.sms.providers.one.countries" in world.details(2)[0]


def test_the_rest_of_the_devices_stays_with_its_provider(world: ServedWorld) -> None:
    """Any of them may have the message, which is in doubt there."""
    world.people.people = {1: {"phone": json.dumps([FRENCH, GERMAN])}}
    world.serve(one="devices = true", two="enabled = false")

    def only_germany(request: httpx.Request) -> httpx.Response:
        return accept(request) if json.loads(request.content)["to"] == GERMAN else busy(request)

    world.provider.answer = only_germany

    async def scene(worker: VirtualSupervisor) -> None:
        before = len(world.requests)
        world.provider.answer = accept
        world.serve(one='devices = true\ncountries = ["DE"]', two="")
        await reload(worker)
        await trio.sleep(60)
        assert world.requests[before:] == [("one", FRENCH)]

    play(world, scene)
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_a_customer_without_a_number_is_not_reached(world: ServedWorld) -> None:
    """Nothing is sent where there is no number."""
    world.people.people = {1: {"name": "Ann"}}
    world.serve(channel='prefixes = ["+49"]')
    live(world.run_until_idle)
    assert world.sent_to == set()
    assert world.details(1) == ["sms: no address of the customer"]
