"""A channel with several providers: how they share messages, and what happens while one of them is down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from deliveryd.channels.base import (
    Dispatch,
    InDoubt,
    Misconfigured,
    Refused,
    Stopped,
    TryAgain,
    Verdict,
)
from deliveryd.delivery.choice import Choice, Idle, Sender
from deliveryd.model import Customer, Entry, Spent
from support.messages import message
from support.routes import Down
from support.two_providers import (
    ACCEPTED,
    BOTH,
    BUSY,
    EMAIL,
    A,
    B,
    Provider,
    all_sent,
    enqueue,
    ids_of,
    sent_by,
    world_of_two,
)
from support.virtual import VirtualChannel, VirtualWorld, live

BY_A_GATEWAY = TryAgain("provider answered 503", may_have_arrived=True)


# the choice


class Named(VirtualChannel):
    """Reaches customers with a field."""

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field

    def reaches(self, customer: Customer | None) -> bool:
        return customer is not None and self.field in customer.fields


def choice(**weights: int) -> Choice:
    return Choice(
        {f"sms/{name}": Sender(VirtualChannel(), Idle(), weight) for name, weight in weights.items()}
    )


def entry(id_: int, **fields: Any) -> Entry:
    return Entry(id_, 1, 1, {})._replace(**fields)


def shares(of: Choice, ids: range = range(1, 10_001)) -> Mapping[str | None, float]:
    counts = Counter(of.provider_for(entry(id_), None) for id_ in ids)
    return {name: count / len(ids) for name, count in counts.items()}


@pytest.mark.parametrize(
    "weights", [{"a": 80, "b": 20}, {"a": 1, "b": 1}, {"a": 50, "b": 30, "c": 20}], ids=str
)
@pytest.mark.parametrize(
    "ids", [range(1, 10_001), range(-(2**63), -(2**63) + 10_000)], ids=["small", "large"]
)
def test_messages_are_shared_by_weight(weights: dict[str, int], ids: range) -> None:
    found = shares(choice(**weights), ids)
    for name, weight in weights.items():
        assert found[f"sms/{name}"] == pytest.approx(weight / sum(weights.values()), abs=0.02)


def test_a_message_keeps_its_provider_when_another_one_is_gone() -> None:
    """Only the messages of the one that is gone go elsewhere."""
    all_three, two = choice(a=50, b=30, c=20), choice(a=50, b=30)
    for id_ in range(1, 2000):
        before = all_three.provider_for(entry(id_), None)
        assert before == "sms/c" or two.provider_for(entry(id_), None) == before


def test_weight_0_is_taken_only_when_no_other_can() -> None:
    up = Choice({A: Sender(VirtualChannel(), Idle(), 1), B: Sender(VirtualChannel(), Idle(), 0)})
    assert shares(up) == {A: 1.0}
    down = Choice({A: Sender(VirtualChannel(), Down(), 1), B: Sender(VirtualChannel(), Idle(), 0)})
    assert shares(down) == {B: 1.0}


def test_when_all_are_down_messages_wait_where_they_would_have_gone() -> None:
    down = Choice({name: Sender(VirtualChannel(), Down(), weight) for name, weight in ((A, 80), (B, 20))})
    assert shares(down) == shares(choice(a=80, b=20))


def test_a_provider_that_is_not_enabled_takes_nothing_but_its_doubts() -> None:
    of = Choice(
        {A: Sender(VirtualChannel(), Idle(), 80, is_enabled=False), B: Sender(VirtualChannel(), Idle(), 20)}
    )
    assert shares(of) == {B: 1.0}
    assert of.provider_for(entry(1, provider=A, doubt=True, stay_tries=1), None) == A


def test_what_is_in_doubt_stays_although_its_provider_is_down() -> None:
    of = Choice({A: Sender(VirtualChannel(), Down(), 80), B: Sender(VirtualChannel(), Idle(), 20)})
    doubtful = entry(1, provider=A, doubt=True, stay_tries=1)
    assert of.provider_for(doubtful, None) == A
    assert not of.has_other_for(doubtful, A)
    assert of.has_other_for(entry(1, provider=A, stay_tries=1), A)


def test_a_spent_provider_leaves_the_others_and_an_ended_channel_none() -> None:
    of = choice(a=1, b=1)
    assert of.provider_for(entry(1, spent=(Spent(A, "no"),)), None) == B
    assert of.provider_for(entry(1, spent=(Spent(A, "no", ends_channel=True),)), None) is None
    assert of.provider_for(entry(1, spent=(Spent("email/a", "no", ends_channel=True),)), None) is not None


def test_only_providers_that_reach_the_customer_are_chosen() -> None:
    of = Choice({A: Sender(Named("phone"), Idle(), 99), B: Sender(Named("app"), Idle(), 1)})
    assert of.provider_for(entry(1), Customer(1, {"app": "x"})) == B
    assert of.provider_for(entry(1), Customer(1, {})) is None
    assert not of.can_move(entry(1, provider=B), Customer(1, {"app": "x"}), B)


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    return world_of_two(tmp_path)


def test_the_line_shares_messages_by_weight(world: VirtualWorld) -> None:
    enqueue(world, 1000)
    live(world.run_until_idle)
    assert all_sent(world, 1000)
    assert len(sent_by(world, A)) == pytest.approx(800, abs=40)
    assert len(sent_by(world, A)) + len(sent_by(world, B)) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("busy", [BUSY, BY_A_GATEWAY], ids=["busy", "503 of a gateway"])
def test_while_one_answers_503_the_other_takes_all_within_seconds_and_the_shares_return(
    world: VirtualWorld, busy: Verdict
) -> None:
    """Five minutes of it, with three messages a second before, meanwhile and after; nothing is sent twice."""
    down, up, end = 120.0, 420.0, 720.0
    given: dict[int, float] = {}
    taken: dict[int, float] = {}

    def answer(dispatch: Dispatch) -> Verdict:
        if down <= trio.current_time() < up:
            return busy
        taken.setdefault(dispatch.entry.id, trio.current_time())
        return ACCEPTED

    def accept(dispatch: Dispatch) -> Verdict:
        taken.setdefault(dispatch.entry.id, trio.current_time())
        return ACCEPTED

    world.channels[A].verdict, world.channels[B].verdict = answer, accept

    async def scene() -> None:
        async with world.at_work():
            while (now := trio.current_time()) < end:
                ids = [len(given) + number for number in (1, 2, 3)]
                given.update(dict.fromkeys(ids, now))
                world.service.enqueue(*(message(id_) for id_ in ids))
                await anyio.sleep(1.0)
            await anyio.sleep(30.0)

    live(scene)
    assert all_sent(world, len(given))
    late = {id_: taken[id_] - at for id_, at in given.items() if taken[id_] - at > 5.0}
    assert not late
    accepted = [id_ for at, each in sent_by(world, A) for id_ in [each.entry.id] if not down <= at < up]
    accepted += [each.entry.id for _, each in sent_by(world, B)]
    assert len(accepted) == len(set(accepted)) == len(given)
    before = {id_ for id_, at in given.items() if at < down - 10}
    after = {id_ for id_, at in given.items() if at > up + 70}
    for some in (before, after):
        assert len(ids_of(sent_by(world, A)) & some) / len(some) == pytest.approx(0.8, abs=0.06)
    probes = [at for at, _ in sent_by(world, A) if down + 10 < at < up]
    assert 3 < len(probes) < 40


@pytest.mark.slow
@pytest.mark.parametrize(
    "verdict",
    [BUSY, BY_A_GATEWAY, Misconfigured("provider answered 401")],
    ids=["busy", "503 of a gateway", "401"],
)
def test_what_waits_for_a_provider_goes_to_the_other_when_it_is_down(
    world: VirtualWorld, verdict: Verdict
) -> None:
    """Also what waits in the journal for its turn: more than there are places."""
    world.add("concurrency = 5\n[run]\n")
    enqueue(world, 3000)
    world.channels[A].verdict = lambda _: verdict
    seconds = live(world.run_until_idle)
    assert all_sent(world, 3000)
    assert seconds < 120


@pytest.mark.slow
def test_what_a_gateway_answered_503_for_does_not_come_back_to_it(world: VirtualWorld) -> None:
    """It may have arrived after all, and would have to say the same there."""
    enqueue(world, 100)
    seen: set[int] = set()

    def answer(dispatch: Dispatch) -> Verdict:
        if trio.current_time() > 30:
            return ACCEPTED
        seen.add(dispatch.entry.id)
        return BY_A_GATEWAY

    world.channels[A].verdict = answer
    world.channels[B].verdict = lambda dispatch: (
        TryAgain("busy", only_this=True)
        if dispatch.entry.id in seen and trio.current_time() < 90
        else ACCEPTED
    )
    live(world.run_until_idle)
    assert all_sent(world, 100)
    assert seen
    assert not [at for at, each in sent_by(world, A) if each.entry.id in seen and at > 30]


@pytest.mark.slow
def test_what_is_in_doubt_never_moves(world: VirtualWorld) -> None:
    """It is repeated where it was made, under its key, however long that provider is down."""
    enqueue(world, 200)
    world.channels[A].verdict = lambda _: InDoubt("cut off") if trio.current_time() < 600 else ACCEPTED
    live(world.run_until_idle)
    assert all_sent(world, 200)
    doubtful = ids_of([each for each in sent_by(world, A) if each[0] < 600])
    assert doubtful
    assert not doubtful & ids_of(sent_by(world, B))
    keys = {(each.entry.id, each.key) for _, each in sent_by(world, A)}
    assert len(keys) == len(ids_of(sent_by(world, A)))


@pytest.mark.slow
def test_a_provider_is_probed_while_another_one_that_is_down_has_all_messages(world: VirtualWorld) -> None:
    """Nothing waits for the one of weight 0, whose only message is held in doubt: it is tried as well."""
    text = world.path.read_text(encoding="utf-8").replace("weight = 20", 'weight = 0\non_in_doubt = "hold"')
    world.path.write_text(text.replace("breaker.failures = 5", "breaker.failures = 1"), encoding="utf-8")
    world.channels[A].verdict = lambda _: Misconfigured("provider answered 401")
    world.channels[B].verdict = lambda each: InDoubt("cut off") if each.entry.id == 1 else ACCEPTED

    async def scene() -> None:
        async with world.at_work():
            enqueue(world, 1)
            await anyio.sleep(30.0)
            world.service.enqueue(*(message(id_) for id_ in range(2, 102)))
            await anyio.sleep(300.0)

    live(scene)
    assert {id_: world.service.statuses(id_)[-1] for id_ in range(2, 102)} == dict.fromkeys(
        range(2, 102), "sent"
    )


@pytest.mark.slow
def test_no_message_is_used_as_a_probe_while_no_connection_can_be_made(world: VirtualWorld) -> None:
    provider = world.channels[A]
    assert isinstance(provider, Provider)
    enqueue(world, 100)
    provider.verdict = lambda _: BUSY if trio.current_time() < 300 else ACCEPTED
    provider.reachable = False

    async def scene() -> None:
        async with world.at_work():
            await anyio.sleep(60.0)
            assert provider.connections > 3
            assert all(at < 30 for at, _ in provider.attempts)
            provider.reachable = True
            for first in (101, 201):
                await anyio.sleep(300.0)
                world.service.enqueue(*(message(id_) for id_ in range(first, first + 100)))
            await anyio.sleep(120.0)

    live(scene)
    assert all_sent(world, 300)
    assert len(ids_of(provider.attempts) & set(range(201, 301))) == pytest.approx(80, abs=15)


@pytest.mark.parametrize(
    ("verdict", "ways", "details"),
    [
        (Refused("provider answered 400", "a"), [A, B], None),
        (Refused("21610", ends_channel=True), [A, "email"], None),
        (Stopped("blocked"), [A, "email"], None),
        (TryAgain("busy", only_this=True), [A, A, B], None),
    ],
    ids=["refused by a status", "refused by a table", "stopped", "tries spent"],
)
def test_a_verdict_leads_to_the_next_provider_or_ends_the_channel(
    world: VirtualWorld, verdict: Verdict, ways: list[str], details: str | None
) -> None:
    world.path.write_text(world.path.read_text().replace("weight = 20\n", "weight = 0\nretry.attempts = 2\n"))
    world.path.write_text(
        world.path.read_text().replace("weight = 80\n", "weight = 80\nretry.attempts = 2\n")
    )
    world.add(EMAIL)
    world.service.settings[1] = json.dumps(BOTH)
    world.channels[A].verdict = lambda _: verdict
    enqueue(world, 1)
    live(world.run_until_idle)
    attempts = sorted((at, name) for name in (A, B, "email") for at, _ in sent_by(world, name))
    assert [name for _, name in attempts] == ways
    assert all_sent(world, 1)


def test_a_channel_without_an_enabled_provider_is_named_in_the_error(world: VirtualWorld) -> None:
    """The settings have content for it: nothing is wrong with them."""
    world.path.write_text(world.path.read_text().replace("weight =", "enabled = false\nweight ="))
    enqueue(world, 1)
    live(world.run_until_idle)
    assert [event.get("details") for event in world.service.events_of(1)] == [
        None,
        "sms: no provider is enabled",
    ]


def test_the_error_names_the_reason_of_each_provider(world: VirtualWorld) -> None:
    world.channels[A].verdict = lambda _: Refused("not a number")
    world.channels[B].verdict = lambda _: Refused("unknown", "b")
    enqueue(world, 1)
    live(world.run_until_idle)
    (error,) = [event for event in world.service.events if event["status"] == "error"]
    assert sorted(error["details"].split("; ")) == ["sms/a: not a number", "sms/b: unknown"]


def test_a_provider_that_comes_back_knows_the_message_by_its_first_key(world: VirtualWorld) -> None:
    """From a to b, which goes down too, and back to a: under the key that a had first."""
    enqueue(world, 20)
    world.channels[A].verdict = lambda _: BUSY if trio.current_time() < 30 else ACCEPTED
    world.channels[B].verdict = lambda _: BUSY
    live(world.run_until_idle)
    assert all_sent(world, 20)
    by_message: dict[int, set[str]] = {}
    for _, each in sent_by(world, A):
        by_message.setdefault(each.entry.id, set()).add(each.key)
    assert all(len(keys) == 1 for keys in by_message.values())
