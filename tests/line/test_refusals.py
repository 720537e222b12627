"""A provider that refuses everything costs 20 messages of each template and no campaign (design 5)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, Expired, InDoubt, Refused, TryAgain, Verdict
from deliveryd.delivery import refusals
from deliveryd.delivery.dispatch_queue import DispatchQueue
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.refusals import MOST_IN_A_ROW, Refusals
from deliveryd.model import Transition, format_instant
from deliveryd.runtime.breaker import Breaker, BreakerPolicy
from support.endless import jumping_clock
from support.logs import LogLines, log_lines
from support.messages import message
from support.virtual import START, VirtualClock, VirtualSupervisor, VirtualWorld, live

pytestmark = pytest.mark.slow

SECOND = 1_000_000
QUARTER = 900.0
SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
NOT_FOUND = Refused("provider answered 404", "sms.example.com")


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    for settings_id in range(1, 10):
        world.service.settings[settings_id] = SMS
    return world


@pytest.fixture
def lines() -> Iterator[LogLines]:
    """What was logged of channels."""
    with log_lines("info") as logged:
        yield lambda: [line for line in logged() if line["event"].startswith("channel.")]


def enqueue(world: VirtualWorld, settings_id: int, ids: Iterable[int]) -> None:
    world.service.enqueue(*(message(id_, settings_id) for id_ in ids))


def hand_in(world: VirtualWorld, given: Iterable[tuple[int, int]]) -> None:
    """Put messages into the queue: their ids and settings."""
    world.service.enqueue(*(message(*each) for each in given))


def refusing(world: VirtualWorld, refuses: Callable[[Dispatch], bool], verdict: Verdict = NOT_FOUND) -> None:
    """The provider gives this verdict about some messages, and accepts the others."""
    world.channels["sms"].verdict = lambda dispatch: verdict if refuses(dispatch) else Accepted(dispatch.key)


def until(seconds: float) -> Callable[[Dispatch], bool]:
    return lambda _dispatch: trio.current_time() < seconds


def ends(world: VirtualWorld, ids: Iterable[int]) -> Counter[str]:
    """How many of these messages ended in which way, or are under way."""
    return Counter((world.service.statuses(id_) or ["-"])[-1] for id_ in ids)


def run_for(world: VirtualWorld, seconds: float) -> VirtualSupervisor:
    """Run a worker for so long; it is returned as it was."""
    supervisor = world.supervisor()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(seconds)
            supervisor.stop()

    live(run)
    return supervisor


# The line


def test_a_mistyped_path_costs_20_messages_and_the_rest_of_the_campaign_waits(
    world: VirtualWorld, lines: LogLines
) -> None:
    """Of 500 messages 480 are sent once the provider is mended, and one line of the log names the fault."""
    enqueue(world, 1, range(1, 501))
    refusing(world, until(QUARTER))
    seconds = live(world.run_until_idle)
    assert ends(world, range(1, 501)) == {"error": 20, "sent": 480}
    assert QUARTER < seconds < QUARTER + 120
    told = [line for line in lines() if line["level"] in ("warning", "error")]
    assert [(line["event"], line["channel"], line["reason"], line["host"]) for line in told] == [
        ("channel.misconfigured", "sms", "provider answered 404", "sms.example.com")
    ]
    assert [line["event"] for line in lines()][-1] == "channel.recovered"


def test_while_everything_is_refused_only_probes_leave_and_no_try_is_used_up(world: VirtualWorld) -> None:
    """The provider hears a probe a minute, and those that were probes are sent with the one try they have."""
    world.add("concurrency = 10\nretry = { attempts = 1 }\n")
    enqueue(world, 1, range(1, 301))
    refusing(world, until(QUARTER))
    live(world.run_until_idle)
    during = [at for at, _ in world.channels["sms"].attempts if at < QUARTER]
    assert len([at for at in during if at > 60]) < 35
    assert ends(world, range(1, 301)) == {"error": 20, "sent": 280}


def test_one_bad_template_waits_and_the_others_go_on(world: VirtualWorld, lines: LogLines) -> None:
    """Settings 1 are refused until somebody mends them; those of settings 2 don't notice."""
    world.service.enqueue(
        *(message(id_, 1 + id_ // 1000) for one in range(1, 201) for id_ in (one, 1000 + one))
    )
    refusing(world, lambda dispatch: dispatch.entry.settings_id == 1 and trio.current_time() < QUARTER)
    seconds = live(world.run_until_idle)
    assert QUARTER < seconds < QUARTER + 120
    assert ends(world, range(1, 201)) == {"error": 20, "sent": 180}
    assert ends(world, range(1001, 1201)) == {"sent": 200}
    assert max(at for at, one in world.channels["sms"].attempts if one.entry.settings_id == 2) < 30
    probes = [at for at, one in world.channels["sms"].attempts if one.entry.settings_id == 1 and at < QUARTER]
    assert 20 < len(probes) < 200
    assert [(line["event"], line["settings_id"], line["host"]) for line in lines()[:1]] == [
        ("channel.refuses_settings", 1, "sms.example.com")
    ]
    assert [line["event"] for line in lines()] == ["channel.refuses_settings", "channel.accepts_settings"]


def test_refusals_of_several_ids_are_the_channels_fault_and_the_others_arent_burned(
    world: VirtualWorld, lines: LogLines
) -> None:
    """Templates take turns and cost 60 messages in all; the others wait, and are sent when it is mended."""
    for settings_id in (1, 2, 3, 4):
        enqueue(world, settings_id, range(settings_id * 1000, settings_id * 1000 + 100))
    refusing(world, until(QUARTER))
    world.add("concurrency = 1\n")
    live(world.run_until_idle)
    ids = [id_ for settings_id in (1, 2, 3, 4) for id_ in range(settings_id * 1000, settings_id * 1000 + 100)]
    assert ends(world, ids) == {"error": 60, "sent": 340}
    assert [line["event"] for line in lines() if line["level"] == "error"] == ["channel.misconfigured"]


def test_two_templates_that_nobody_takes_stop_no_channel_that_takes_a_third(
    world: VirtualWorld, lines: LogLines
) -> None:
    for settings_id in (1, 2, 3):
        enqueue(world, settings_id, range(settings_id * 1000, settings_id * 1000 + 100))
    refusing(world, lambda dispatch: dispatch.entry.settings_id != 3)
    supervisor = run_for(world, 300)
    assert ends(world, range(3000, 3100)) == {"sent": 100}
    assert {line["event"] for line in lines()} == {"channel.refuses_settings"}
    lane = supervisor.parts.stations.dispatchers["sms"].terms.provider
    assert (lane.is_down, lane.refusals.waiting) == (False, {1, 2})


@pytest.mark.parametrize("first", [0, 900], ids=["together", "bad ones first"])
def test_thirty_templates_that_nobody_takes_stop_no_channel_that_takes_others(
    world: VirtualWorld, first: int
) -> None:
    """Each waits alone with probes of its own; messages of the others are sent at once.

    If the refused ones come before all others, these wait for their turn among the probes, once.
    """
    bad = range(1, 31)
    for settings_id in range(1, 42):
        world.service.settings[settings_id] = SMS
    world.add('[queue]\npoll_interval = "100ms"\nmax_poll_interval = "200ms"\n')
    refusing(world, lambda dispatch: dispatch.entry.settings_id in bad)
    hand_in(world, [(id_, 1 + id_ % 30) for id_ in range(1, first + 1)])
    begun = 60.0 if first else 0.0
    given: dict[int, float] = {}
    supervisor = world.supervisor()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(begun)
            for number in range(900):
                given[10_000 + number] = trio.current_time()
                hand_in(world, [(10_000 + number, 31 + number % 10), (20_000 + number, 1 + number % 30)])
                await trio.sleep(0.05)
            await trio.sleep(60.0)
            supervisor.stop()

    live(run)
    assert ends(world, given) == {"sent": 900}
    at = {one.entry.id: at for at, one in world.channels["sms"].attempts}
    patience = 65.0 if first else 2.0
    assert not {id_: at[id_] - since for id_, since in given.items() if at[id_] > since + patience}
    lane = supervisor.parts.stations.dispatchers["sms"].terms.provider
    assert (lane.is_down, lane.refusals.refuses_all, lane.refusals.waiting) == (False, False, set(bad))


def test_rare_messages_that_are_accepted_are_enough_to_keep_a_channel_open(
    world: VirtualWorld, lines: LogLines
) -> None:
    """One is accepted every 40 s; three templates that are refused between two of them wait each alone."""
    bad = range(1, 4)
    for settings_id in range(1, 5):
        world.service.settings[settings_id] = SMS
    refusing(world, lambda dispatch: dispatch.entry.settings_id in bad)
    supervisor = world.supervisor()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            for number in range(10):
                hand_in(world, [(10_000 + number, 4)])
                await trio.sleep(40.0)
                if number == 5:
                    hand_in(world, [(id_, 1 + id_ % 3) for id_ in range(1, 301)])
            supervisor.stop()

    live(run)
    assert ends(world, range(10_000, 10_010)) == {"sent": 10}
    assert [line["event"] for line in lines() if line["level"] == "error"] == []
    provider = supervisor.parts.stations.dispatchers["sms"].terms.provider
    assert (provider.refusals.refuses_all, provider.refusals.waiting) == (False, set(bad))


def test_when_one_message_is_accepted_the_channel_goes_on_and_a_template_still_refused_waits(
    world: VirtualWorld,
) -> None:
    """The provider is mended, and doesn't take settings 1 even so: 2 and 3 flow, and 1 sends probes."""
    for settings_id in (1, 2, 3):
        enqueue(world, settings_id, range(settings_id * 1000, settings_id * 1000 + 200))
    refusing(world, lambda dispatch: trio.current_time() < 600 or dispatch.entry.settings_id == 1)
    run_for(world, 900)
    assert ends(world, range(1000, 1200)) == {"error": 20, "dequeued": 180}
    for settings_id in (2, 3):
        ids = range(settings_id * 1000, settings_id * 1000 + 200)
        found = ends(world, ids)
        assert found["error"] <= 20
        assert found["sent"] == 200 - found["error"]


@pytest.mark.parametrize(
    "verdict",
    [Refused("the customer has no address on this channel"), Refused("550 at RCPT TO")],
    ids=["ours", "RCPT"],
)
def test_what_is_about_one_recipient_is_not_counted(
    world: VirtualWorld, lines: LogLines, verdict: Verdict
) -> None:
    enqueue(world, 1, range(1, 201))
    refusing(world, lambda _dispatch: True, verdict)
    assert live(world.run_until_idle) < 15
    assert ends(world, range(1, 201)) == {"error": 200}
    assert not lines()


def test_refusals_with_an_acceptance_among_them_hold_up_nobody(world: VirtualWorld, lines: LogLines) -> None:
    """A provider that knows every other number refuses as many as it likes."""
    enqueue(world, 1, range(1, 401))
    refusing(world, lambda dispatch: dispatch.entry.id % 2 == 0)
    assert live(world.run_until_idle) < 15
    assert ends(world, range(1, 401)) == {"error": 200, "sent": 200}
    assert not lines()


def test_what_waits_for_a_template_expires_in_time_and_holds_no_place(world: VirtualWorld) -> None:
    """The worker has ten places; 100 messages of a refused template leave them to others, and expire."""
    expires_at = START + 1000 * SECOND
    world.service.settings[1] = json.dumps(
        {"delivery": {"expiresAt": format_instant(expires_at)}, **json.loads(SMS)}
    )
    world.add("[queue]\nmax_in_flight = 10\n")
    enqueue(world, 1, range(1, 101))
    enqueue(world, 2, range(1001, 1101))
    refusing(world, lambda dispatch: dispatch.entry.settings_id == 1)
    assert live(world.run_until_idle) < 1070
    assert ends(world, range(1, 101)) == {"error": 100}
    assert ends(world, range(1001, 1101)) == {"sent": 100}
    late = [e for e in world.service.events if str(e.get("details", "")).startswith("expired")]
    assert len(late) == 80


def test_a_refused_repeat_of_what_may_have_arrived_waits_like_the_others(world: VirtualWorld) -> None:
    """It uses up no try, keeps its key, and is sent with it when the provider is mended."""
    world.add("retry = { attempts = 3 }\n")
    enqueue(world, 1, range(1, 101))
    keys: dict[int, set[str]] = {id_: set() for id_ in range(1, 6)}

    def verdict(dispatch: Dispatch) -> Verdict:
        tried = keys.get(dispatch.entry.id)
        if tried is not None:
            tried.add(dispatch.key)
            if not dispatch.entry.counted_tries:
                return InDoubt("provider answered 500")
        return NOT_FOUND if trio.current_time() < QUARTER else Accepted(dispatch.key)

    world.channels["sms"].verdict = verdict
    live(world.run_until_idle)
    assert ends(world, range(1, 6)) == {"sent": 5}
    assert {len(tried) for tried in keys.values()} == {1}
    assert ends(world, range(6, 101)) == {"error": 20, "sent": 75}


@pytest.mark.parametrize(
    "uncounted",
    [Refused("the customer has no address on this channel"), TryAgain("busy", only_this=True), InDoubt("?")],
    ids=["refused by itself", "try again", "in doubt"],
)
def test_a_probe_that_says_nothing_of_its_settings_is_soon_followed_by_another(
    world: VirtualWorld, uncounted: Verdict
) -> None:
    """With breaks of up to an hour, the others don't wait for as long because of one."""
    world.add('breaker = { pause = "1s", max_pause = "1h" }\n')
    enqueue(world, 1, range(1, 51))
    enqueue(world, 2, range(101, 103))
    given: list[int] = []

    def verdict(dispatch: Dispatch) -> Verdict:
        if dispatch.entry.settings_id == 2 or len(given) == 3:
            return Accepted(dispatch.key)
        if trio.current_time() < 10:
            return NOT_FOUND
        given.append(dispatch.entry.id)
        return uncounted

    world.channels["sms"].verdict = verdict
    assert live(world.run_until_idle) < 400
    assert len(given) == 3
    lost = 3 if isinstance(uncounted, Refused) else 0
    assert ends(world, range(1, 51)) == {"error": 20 + lost, "sent": 30 - lost}


def test_a_probe_that_expires_is_soon_followed_by_another(world: VirtualWorld) -> None:
    """Those whose time ran out when their turn came don't make the others wait for an hour."""
    world.add('breaker = { pause = "1s", max_pause = "1h" }\n')
    enqueue(world, 1, range(1, 51))
    enqueue(world, 2, range(101, 103))
    expired: list[int] = []

    def verdict(dispatch: Dispatch) -> Verdict:
        if dispatch.entry.settings_id == 2 or len(expired) == 3:
            return Accepted(dispatch.key)
        if trio.current_time() < 10:
            return NOT_FOUND
        expired.append(dispatch.entry.id)
        return Expired()

    world.channels["sms"].verdict = verdict
    assert live(world.run_until_idle) < 400
    assert ends(world, range(1, 51)) == {"error": 23, "sent": 27}


def test_another_failure_of_a_probe_neither_opens_nor_ends_anything(world: VirtualWorld) -> None:
    """503 in the middle of refusals is no acceptance: the campaign waits until something is accepted."""
    enqueue(world, 1, range(1, 201))

    def verdict(dispatch: Dispatch) -> Verdict:
        now = trio.current_time()
        if now < QUARTER:
            return TryAgain("provider answered 503") if 200 < now < 600 else NOT_FOUND
        return Accepted(dispatch.key)

    world.channels["sms"].verdict = verdict
    live(world.run_until_idle)
    assert ends(world, range(1, 201)) == {"error": 20, "sent": 180}


@pytest.mark.parametrize("others", [1, 0], ids=["one template", "everything"])
def test_many_messages_of_a_refused_template_cost_little_while_they_wait(
    world: VirtualWorld, others: int
) -> None:
    """3,000 of them are looked at a hundred times a second at most, and all go out once they may."""
    world.add("[queue]\nmax_waiting = 10000\n")
    enqueue(world, 2, range(10_001, 10_001 + others))
    enqueue(world, 1, range(1, 3001))
    refusing(world, lambda dispatch: dispatch.entry.settings_id == 1 and trio.current_time() < 90)
    looked_at: list[int] = []

    async def run() -> None:
        async with world.at_work() as supervisor:
            await trio.sleep(20)
            dispatcher = supervisor.parts.stations.dispatchers["sms"]
            offer = dispatcher.offer

            def counted(message: Delivery) -> Transition | None:
                looked_at.append(message.entry.id)
                return offer(message)

            dispatcher.offer = counted  # type: ignore[method-assign]
            await trio.sleep(40)
            dispatcher.offer = offer  # type: ignore[method-assign]
            await trio.sleep_until(90 + 60 + 60)

    live(run)
    assert ends(world, range(1, 3001)) == {"error": 20, "sent": 2980}
    assert len(looked_at) < 40 * 101


# The counts by themselves


def counting(scene: Callable[[Refusals, Breaker], None]) -> None:
    """Play a scene with the refusals of one channel, in virtual time."""

    async def play() -> None:
        policy = BreakerPolicy(10, 1.0, 60.0)
        breaker = Breaker(policy)
        scene(Refusals("sms", breaker, policy, DispatchQueue(VirtualClock())), breaker)

    trio.run(play, clock=jumping_clock())


def test_the_twentieth_refusal_in_a_row_makes_an_id_wait() -> None:
    def scene(counted: Refusals, _breaker: Breaker) -> None:
        counted.accepted(2)
        for _ in range(MOST_IN_A_ROW - 1):
            assert not counted.refused(1, NOT_FOUND)
        counted.accepted(1)
        for _ in range(MOST_IN_A_ROW - 1):
            assert not counted.refused(1, NOT_FOUND)
        assert not counted.waiting
        assert counted.refused(1, NOT_FOUND)
        assert counted.waiting == {1}
        assert not counted.may_probe(1)
        counted.accepted(1)
        assert not counted.waiting

    counting(scene)


def test_an_id_that_was_accepted_long_ago_is_not_in_use_any_more() -> None:
    """Ten minutes later the only id in use is the refused one, so that the channel is at fault."""

    async def play() -> None:
        policy = BreakerPolicy(10, 1.0, 60.0)
        breaker = Breaker(policy)
        counted = Refusals("sms", breaker, policy, DispatchQueue(VirtualClock()))
        counted.accepted(2)
        await trio.sleep(refusals.ACTIVE + 1)
        for _ in range(MOST_IN_A_ROW):
            counted.refused(1, NOT_FOUND)
        assert counted.refuses_all
        assert breaker.is_open

    trio.run(play, clock=jumping_clock())


def test_only_so_many_ids_are_counted() -> None:
    """A thousand and one ids, refused once each beside one that is accepted; then the first begins anew."""

    def scene(counted: Refusals, _breaker: Breaker) -> None:
        for _ in range(MOST_IN_A_ROW - 1):
            counted.refused(0, NOT_FOUND)
        for id_ in range(1, refusals.MOST_KEPT + 1):
            counted.refused(id_, NOT_FOUND)
            counted.accepted(-1)
        assert not counted.refused(0, NOT_FOUND)
        assert not counted.waiting

    counting(scene)
