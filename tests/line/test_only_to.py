"""Whom an installation sends to: everybody else ends with one error, and no provider is asked for them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from deliveryd.delivery.safety import NOT_ON_THE_LIST, OUTSIDE_OF_THE_SHARE, position_of
from deliveryd.directory.base import NoDirectory
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.model import Customer, Transition
from deliveryd.states import State
from support.http_world import HttpWorld, accept, busy, cut_off
from support.messages import message
from support.virtual import CONFIG, VirtualSupervisor, live

CHANNELS = (
    CONFIG.partition("[channels.sms]")[0]
    + """
[channels]
order = ["sms", "email"]
[channels.sms]
adapter = "http"
url = "http://provider/sms"
country = "DE"
json = { to = "{customer.phone|e164|digits}", text = "{content.text}" }
retry = { attempts = 4, base = "10s", max = "10s" }
breaker = { failures = 0 }
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { to = "{customer.email}", text = "{content.body}" }
"""
)
BOTH = json.dumps({"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "s", "body": "b"}}}})
PEOPLE = {
    1: {"phone": "0151 1234 5678", "email": "ann@example.com"},
    2: {"phone": "0171 1234 5678", "email": "Bob <bob@EXAMPLE.org>"},
    3: {"phone": "0171 8765 4321"},
}


class People(NoDirectory):
    """Customers by their ids. It counts how often it is asked."""

    def __init__(self, people: Mapping[int, Mapping[str, str]]) -> None:
        self.people = people
        self.asked = 0

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Any]:
        self.asked += 1
        return {id_: Customer(id_, fields) if (fields := self.people.get(id_)) else None for id_ in ids}


class LimitedWorld(HttpWorld):
    """Three customers who can be reached by SMS or e-mail, each with one message of the same number."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.people = self.directory = People(PEOPLE)
        self.service.settings[1] = BOTH
        self.limit("")
        self.service.enqueue(*(message(id_, customer_id=id_) for id_ in PEOPLE))

    def limit(self, keys: str) -> None:
        """Write the table `[safety]`; an empty one limits nothing."""
        self.write(f"{CHANNELS}\n[safety]\n{keys}\n")

    @property
    def sent_to(self) -> list[str]:
        """Whom the providers were asked to send to."""
        return [json.loads(request.content)["to"] for request in self.provider.requests]

    def details(self, id_: int) -> list[str]:
        """The details of the errors that the service heard of a message."""
        own = [each for each in self.service.events if each["messageId"] == id_]
        return [each["details"] for each in own if each["status"] == "error"]

    def state_of(self, id_: int) -> object:
        """The state of a message in the journal."""
        rows = self.journal_rows("SELECT id, state FROM message")
        return next(state for found, state in rows if found == id_)

    @property
    def last_reason(self) -> str:
        """The reason of the latest try of the first message."""
        return str(self.journal_rows("SELECT reason FROM unaccepted WHERE message_id = 1")[-1][0])


@pytest.fixture
def world(tmp_path: Path) -> LimitedWorld:
    return LimitedWorld(tmp_path)


def play(world: LimitedWorld, scene: Callable[[VirtualSupervisor], Awaitable[None]]) -> None:
    """Play a scene with a running worker."""

    async def run() -> None:
        async with world.at_work() as worker:
            await trio.sleep(3)
            await scene(worker)

    live(run)


async def reload(worker: VirtualSupervisor) -> None:
    assert worker.reloader is not None
    await worker.reloader.reload(accept_orphans=False)


IN_DOUBT, FAILED = 5, 8


@pytest.mark.parametrize(
    ("entry", "to"),
    [
        ("+4915112345678", "4915112345678"),
        ("+4915*", "4915112345678"),
        ("customer:1", "4915112345678"),
        ("ANN@example.com", "ann@example.com"),
        ("*@Example.COM", "ann@example.com"),
    ],
)
def test_everybody_else_ends_with_one_error_and_no_provider_is_asked(
    world: LimitedWorld, entry: str, to: str
) -> None:
    """An address allows the channel that it belongs to, and no other one."""
    world.limit(f'only_to = ["{entry}"]')
    live(world.run_until_idle)
    assert world.sent_to == [to]
    assert world.service.statuses(1) == ["dequeued", "sent"]
    for id_ in (2, 3):
        assert world.service.statuses(id_) == ["dequeued", "error"]
        assert world.details(id_) == [NOT_ON_THE_LIST]


def test_a_list_of_customers_alone_asks_for_nobody_else(world: LimitedWorld) -> None:
    """Whoever isn't on it isn't looked up: the directory may be another company's."""
    world.limit('only_to = ["customer:4"]')
    live(world.run_until_idle)
    assert world.people.asked == 0
    assert [world.details(id_) for id_ in PEOPLE] == [[NOT_ON_THE_LIST]] * 3


def test_a_channel_whose_address_is_not_on_the_list_is_passed_over(world: LimitedWorld) -> None:
    """If the one that is has no content, the error says so of each channel."""
    world.limit('only_to = ["bob@example.org"]')
    world.service.settings[1] = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
    live(world.run_until_idle)
    assert world.sent_to == []
    assert world.details(2) == [f"sms: {NOT_ON_THE_LIST}"]
    assert world.details(3) == [NOT_ON_THE_LIST]


def test_a_share_ends_the_others_with_a_reason_of_its_own(world: LimitedWorld) -> None:
    """A customer on the list is sent to besides."""
    lowest = min(PEOPLE, key=position_of)
    others = [id_ for id_ in PEOPLE if id_ != lowest]
    percentage = position_of(lowest) / 2**32 * 100 + 0.001
    world.limit(f'share = "{percentage:.3f}%"\nonly_to = ["customer:{others[0]}"]')
    live(world.run_until_idle)
    for id_ in (lowest, others[0]):
        assert world.service.statuses(id_) == ["dequeued", "sent"]
    assert world.details(others[1]) == [OUTSIDE_OF_THE_SHARE]
    assert len(world.sent_to) == 2


def test_what_waits_for_its_next_try_ends_when_a_reload_names_others(world: LimitedWorld) -> None:
    """Also what its provider only put off, and may have all the same."""
    world.provider.answer = busy

    async def scene(worker: VirtualSupervisor) -> None:
        before = len(world.sent_to)
        assert before >= 3
        world.provider.answer = accept
        world.limit('only_to = ["customer:3"]')
        await reload(worker)
        await trio.sleep(60)
        assert set(world.sent_to[before:]) == {"4917187654321"}

    play(world, scene)
    assert world.service.statuses(3) == ["dequeued", "sent"]
    for id_ in (1, 2):
        assert world.service.statuses(id_) == ["dequeued", "error"]
        assert NOT_ON_THE_LIST in world.details(id_)[0]


def test_a_reload_reaches_what_has_its_intent_already(
    world: LimitedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look is right before the request, not before the commit of the intent."""

    async def scene(worker: VirtualSupervisor) -> None:
        before = len(world.sent_to)
        dispatcher = worker.parts.stations.dispatchers["sms"]
        record = dispatcher._record

        async def reload_meanwhile(steps: Sequence[Transition]) -> Collection[int]:
            settled = await record(steps)
            if any(step.entry.id == 11 and step.after is State.SENDING for step in steps):
                world.limit('only_to = ["customer:3"]')
                await reload(worker)
            return settled

        monkeypatch.setattr(dispatcher, "_record", reload_meanwhile)
        world.service.enqueue(message(11, customer_id=1))
        await trio.sleep(60)
        assert world.sent_to[before:] == []

    play(world, scene)
    assert world.details(11) == [NOT_ON_THE_LIST]


@pytest.mark.parametrize("policy", ["resend", "hold"])
def test_what_is_in_doubt_is_held_and_not_repeated(world: LimitedWorld, policy: str) -> None:
    """Through a restart with another list and an operator's order; allowed again, it keeps its key."""
    world.provider.answer = cut_off
    whole = CHANNELS.replace('country = "DE"', f'country = "DE"\non_in_doubt = "{policy}"') + "[safety]\n"
    world.write(whole)

    async def until_in_doubt() -> None:
        async with world.at_work():
            await trio.sleep(5)

    live(until_in_doubt)
    before = len(world.sent_to)
    assert before == len(PEOPLE)
    world.provider.answer = accept

    world.write(whole + 'only_to = ["customer:4"]\n')
    live(world.run_until_idle)
    assert world.state_of(1) == IN_DOUBT
    assert len(world.sent_to) == before
    assert world.service.statuses(1) == ["dequeued"]

    async def ordered(worker: VirtualSupervisor) -> None:
        await trio.sleep(30)  # at a start the policy decides anew
        await order(worker, Action.RESEND)
        await trio.sleep(60)

    play(world, ordered)
    assert world.state_of(1) == IN_DOUBT
    assert len(world.sent_to) == before
    assert NOT_ON_THE_LIST in world.last_reason

    world.write(whole + 'only_to = ["customer:1"]\n')
    play(world, ordered if policy == "hold" else idle)
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert world.sent_to[before:] == ["4915112345678"]
    assert len(world.provider.keys) == before


async def idle(_worker: VirtualSupervisor) -> None:
    await trio.sleep(60)


async def order(worker: VirtualSupervisor, verb: Action) -> None:
    """Give an order about the first message, as the control socket does."""
    parts = worker.parts
    given = Order(verb, ItemKind.MESSAGE, ("1",), "ops", None, "a test")
    assert (await parts.recorder.decide(given, parts.stations.dispatchers)).done


def test_what_is_in_doubt_is_repeated_when_a_reload_allows_it(world: LimitedWorld) -> None:
    world.provider.answer = cut_off

    async def scene(worker: VirtualSupervisor) -> None:
        world.limit('only_to = ["customer:3"]')
        await reload(worker)
        await trio.sleep(200)
        before = len(world.sent_to)
        assert world.state_of(1) == IN_DOUBT
        world.provider.answer = accept
        world.limit("")
        await reload(worker)
        await trio.sleep(60)
        assert "4915112345678" in world.sent_to[before:]

    play(world, scene)
    for id_ in (1, 2):
        assert world.service.statuses(id_) == ["dequeued", "sent"]


def test_a_message_that_failed_does_not_pass_by_an_order_to_begin_anew(world: LimitedWorld) -> None:
    world.provider.answer = lambda _request: httpx.Response(400)
    live(world.run_until_idle)
    assert world.state_of(1) == FAILED
    before = len(world.sent_to)
    world.provider.answer = accept
    world.limit('only_to = ["customer:3"]')

    async def ordered(worker: VirtualSupervisor) -> None:
        await order(worker, Action.BEGIN_ANEW)
        await trio.sleep(60)

    play(world, ordered)
    assert len(world.sent_to) == before
    assert world.details(1)[-1] == NOT_ON_THE_LIST


def test_of_several_devices_those_on_the_list_get_the_message(world: LimitedWorld) -> None:
    world.people.people = {1: {"phones": '["0151 1234 5678", "0171 1234 5678"]'}, 2: {"phones": "0171 1"}}
    text = CHANNELS.replace("customer.phone|", "customer.phones|")
    text = text.replace('country = "DE"', 'country = "DE"\ndevices = true')
    world.write(text + '\n[safety]\nonly_to = ["+4915*"]\n')
    live(world.run_until_idle)
    assert world.sent_to == ["4915112345678"]
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert world.details(2) == [NOT_ON_THE_LIST]
