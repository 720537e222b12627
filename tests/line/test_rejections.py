"""What 401 and 403 say: of the message while its provider accepts others, else of the provider (design 5)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Misconfigured, TryAgain, Verdict
from deliveryd.delivery import refusals
from support.logs import LogLines, log_lines
from support.messages import message
from support.two_providers import A, B, sent_by, world_of_two
from support.virtual import VirtualChannel, VirtualSupervisor, VirtualWorld, live

pytestmark = pytest.mark.slow

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
FORBIDDEN = Misconfigured("provider answered 403", "sms.example.com")
UNAUTHORIZED = Misconfigured("provider answered 401", "sms.example.com")
TRIES = 6
RETRIES = f"retry = {{ attempts = {TRIES} }}\n"


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.add(RETRIES + '[queue]\npoll_interval = "100ms"\nmax_poll_interval = "200ms"\n')
    for settings_id in (1, 2):
        world.service.settings[settings_id] = SMS
    return world


@pytest.fixture
def lines() -> Iterator[LogLines]:
    """What was logged of channels, warnings and errors."""
    with log_lines("warning") as logged:
        yield lambda: [line for line in logged() if line["event"].startswith("channel.")]


def rejecting(channel: VirtualChannel, bad: Collection[int], verdict: Verdict = FORBIDDEN) -> None:
    """The provider rejects these messages, and accepts all others."""
    channel.verdict = lambda dispatch: verdict if dispatch.entry.id in bad else Accepted(dispatch.key)


def requests(channel: VirtualChannel, ids: Collection[int]) -> Counter[int]:
    """How many requests there were for each of these messages."""
    return Counter(one.entry.id for _, one in channel.attempts if one.entry.id in ids)


def play(world: VirtualWorld, stages: Iterable[tuple[float, list[tuple[int, int]]]]) -> VirtualSupervisor:
    """Run a worker: at these seconds the queue gets messages (id, settings); it ends when all have ended."""
    supervisor = world.supervisor()
    ids: list[int] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            for at, given in stages:
                await trio.sleep_until(at)
                ids.extend(id_ for id_, _ in given)
                world.service.enqueue(*(message(id_, settings_id) for id_, settings_id in given))
            while ends(world, ids).keys() - {"sent", "error"}:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(10.0)
            supervisor.stop()

    live(run)
    return supervisor


def flow(seconds: int, each: int) -> list[tuple[float, list[tuple[int, int]]]]:
    """Healthy messages from 1000 on: so many in each tenth of a second."""
    return [(at / 10, [(1000 + at * each + n, 1) for n in range(each)]) for at in range(seconds * 10)]


def late(world: VirtualWorld, stages: Iterable[tuple[float, Iterable[tuple[int, int]]]]) -> list[int]:
    """The healthy messages that weren't sent within three seconds after they were queued."""
    at = {one.entry.id: at for at, one in world.channels["sms"].attempts}
    given = {id_: begin for begin, ids in stages for id_, settings_id in ids if settings_id == 1}
    return [id_ for id_, begin in given.items() if at.get(id_, float("inf")) > begin + 3.0]


def ends(world: VirtualWorld, ids: Iterable[int]) -> Counter[str]:
    """The latest status of each of these messages, counted."""
    latest = {event["messageId"]: event["status"] for event in world.service.events}
    return Counter(latest.get(id_, "-") for id_ in ids)


# One message


def test_one_rejected_message_beside_others_costs_its_tries_and_no_error_line(
    world: VirtualWorld, lines: LogLines
) -> None:
    """Beside 20 healthy ones a second it is tried as often as configured, and ends with an error.

    Its pauses grow from its first counted rejection on: none ends because others are accepted.
    """
    rejecting(world.channels["sms"], {1})
    stages = flow(60, 2)
    stages[0][1].insert(0, (1, 2))
    play(world, stages)
    at = [at for at, made in world.channels["sms"].attempts if made.entry.id == 1]
    assert len(at) == TRIES
    _, *pauses = (after - before for before, after in pairwise(at))
    assert all(pause >= 2.0**number for number, pause in enumerate(pauses, 1)), pauses
    assert lines() == []
    (error,) = world.service.events_of(1, "error")
    assert error["details"] == f"sms: provider answered 403 (tried {TRIES} times)"
    assert not late(world, stages)


def test_a_try_that_found_no_provider_is_no_rejection(world: VirtualWorld) -> None:
    """What can't reach a provider that is down, and is rejected once by it later, isn't at fault yet."""
    few = "retry = { attempts = 2 }\nbreaker = { failures = 1 }\n"
    world.write(world.path.read_text().replace(RETRIES, few))
    tried: list[float] = []

    def verdict(dispatch: Dispatch) -> Verdict:
        now = trio.current_time()
        if 5.0 < now < 8.0:
            return TryAgain("no connection")
        if dispatch.entry.id != 1:
            return Accepted(dispatch.key)
        tried.append(now)
        return UNAUTHORIZED if len(tried) == 1 else Accepted(dispatch.key)

    world.channels["sms"].verdict = verdict
    play(world, [*flow(5, 1), (5.2, [(1, 2)])])
    assert len(tried) == 2
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_twenty_rejected_messages_hold_up_nobody(world: VirtualWorld, lines: LogLines) -> None:
    """They come at once, and the flow of the others doesn't notice."""
    bad = range(1, 21)
    rejecting(world.channels["sms"], bad)
    stages = flow(60, 3)
    stages[5][1][:0] = [(id_, 2) for id_ in bad]
    play(world, stages)
    assert max(requests(world.channels["sms"], bad).values()) == TRIES
    assert ends(world, bad) == {"error": 20}
    assert lines() == []
    assert not late(world, stages)


def test_a_campaign_that_is_rejected_holds_up_no_message_that_comes_now_and_then(
    world: VirtualWorld, lines: LogLines
) -> None:
    """500 in a row are rejected, and every two seconds one is accepted: that shows whose fault it is."""
    bad = range(1, 501)
    rejecting(world.channels["sms"], bad)
    stages: list[tuple[float, list[tuple[int, int]]]] = [(2.0 * n, [(1000 + n, 1)]) for n in range(60)]
    stages[2][1].extend((id_, 2) for id_ in bad)
    play(world, stages)
    assert not late(world, stages)
    assert ends(world, bad) == {"error": 500}
    assert lines() == []


@pytest.mark.parametrize(
    ("verdict", "keys"),
    [
        (FORBIDDEN, 'rate = "20/s"\n'),
        (TryAgain("provider answered 429", after=3600.0), 'rate = "20/s"\n'),
        (TryAgain("provider answered 429", after=3600.0), "concurrency = 4\n"),
    ],
    ids=["403", "429 with a rate", "429 with few places"],
)
def test_many_recipients_that_are_rejected_one_after_the_other_close_nothing_for_long(
    tmp_path: Path, verdict: Verdict, keys: str
) -> None:
    """Twelve in a row, beside one accepted message a second: none of those waits for more than 20 s."""
    world = VirtualWorld(tmp_path)
    world.add(keys + '[queue]\npoll_interval = "100ms"\nmax_poll_interval = "200ms"\n')
    for settings_id in (1, 2):
        world.service.settings[settings_id] = SMS
    bad = range(1, 13)
    rejecting(world.channels["sms"], bad, verdict)
    good = range(1000, 1120)

    async def run() -> None:
        async with world.at_work():
            for at, id_ in enumerate(good):
                await trio.sleep_until(at)
                world.service.enqueue(message(id_, 1))
                if at == 5:
                    world.service.enqueue(*(message(id_, 2) for id_ in bad))
            await trio.sleep(30.0)

    live(run)
    sent = {one.entry.id: at for at, one in world.channels["sms"].attempts}
    assert not {id_ for id_ in good if sent.get(id_, float("inf")) > id_ - 1000 + 20.0}


@pytest.mark.parametrize(
    "verdict", [FORBIDDEN, TryAgain("provider answered 503"), InDoubt("provider answered 500")], ids=str
)
def test_messages_that_come_now_and_then_are_sent_beside_those_that_always_fail(
    world: VirtualWorld, verdict: Verdict
) -> None:
    """Thirty at once after a quiet hour, then one good one in two minutes: each is sent before the next."""
    world.write(world.path.read_text(encoding="utf-8").replace("200ms", "5s"))  # nothing is as quick here
    rejecting(world.channels["sms"], range(1, 31), verdict)

    async def run() -> None:
        async with world.at_work():
            await trio.sleep_until(3600)
            world.service.enqueue(*(message(id_, 2) for id_ in range(1, 31)))
            for id_ in range(1000, 1015):
                await trio.sleep(120)
                world.service.enqueue(message(id_, 1))
            await trio.sleep(120)

    live(run)
    sent = {one.entry.id: at for at, one in world.channels["sms"].attempts}
    assert [id_ for id_ in range(1000, 1015) if sent.get(id_, float("inf")) > 3600 + (id_ - 998) * 120] == []


def test_recipients_that_ask_for_an_hour_each_wait_alone(world: VirtualWorld) -> None:
    """A hundred of them beside five good ones a second: one request for each, and the others in time."""
    bad = range(1, 101)
    rejecting(world.channels["sms"], bad, TryAgain("provider answered 429", after=3600.0))

    async def run() -> None:
        async with world.at_work():
            for at in range(600):
                await trio.sleep_until(at / 5)
                world.service.enqueue(message(1000 + at, 1))
                if at == 150:
                    world.service.enqueue(*(message(id_, 2) for id_ in bad))
            await trio.sleep(30.0)

    live(run)
    asked = requests(world.channels["sms"], bad)
    assert (len(asked), max(asked.values())) == (100, 1)
    sent = {one.entry.id: at for at, one in world.channels["sms"].attempts}
    assert [id_ for id_ in range(1000, 1600) if sent.get(id_, float("inf")) > (id_ - 1000) / 5 + 5.0] == []


@pytest.mark.parametrize("quiet", [0, 700])
def test_credentials_that_are_withdrawn_after_a_quiet_time_are_noticed_as_soon(
    tmp_path: Path, quiet: int
) -> None:
    """Few messages were accepted before: the other provider takes all within a quarter of a minute."""
    world = world_of_two(tmp_path)
    begin = quiet + 5
    world.channels[A].verdict = lambda _: Accepted() if trio.current_time() < begin else UNAUTHORIZED

    async def run() -> None:
        async with world.at_work():
            await trio.sleep(quiet)
            for at in range(300):
                world.service.enqueue(message(1000 + at))
                await trio.sleep(0.2)
            await trio.sleep(15)

    live(run)
    sent = dict.fromkeys([one.entry.id for at, one in sent_by(world, A) if at < begin], 0.0)
    sent |= {one.entry.id: at for at, one in sent_by(world, B)}
    assert [id_ for id_ in range(1000, 1300) if sent.get(id_, 1e9) > quiet + (id_ - 1000) / 5 + 15.0] == []


def test_with_a_second_provider_one_401_leaves_the_first_one_up(tmp_path: Path, lines: LogLines) -> None:
    """The message is tried there as often as configured, then at the other one; the others stay."""
    world = world_of_two(tmp_path)
    text = world.path.read_text(encoding="utf-8")
    world.write(text.replace("breaker.failures", "retry.attempts = 4\nbreaker.failures"))
    rejected: set[int] = set()

    def verdict(dispatch: Dispatch) -> Verdict:
        """The first message that comes here in the third second, and later the same one."""
        if trio.current_time() > 3.0:
            rejected.update([] if rejected else [dispatch.entry.id])
        return UNAUTHORIZED if dispatch.entry.id in rejected else Accepted()

    world.channels[A].verdict = verdict
    supervisor = play(world, flow(60, 2))
    (bad,) = rejected
    assert requests(world.channels[A], {bad})[bad] == 4
    assert requests(world.channels[B], {bad})[bad] == 1
    assert ends(world, range(1000, 2200)) == {"sent": 1200}
    assert lines() == []
    assert not supervisor.parts.stations.dispatchers[A].terms.provider.is_down
    assert len(sent_by(world, B)) < 0.3 * 1200  # its share is a fifth


# The provider


def test_credentials_that_are_withdrawn_cost_no_message_and_few_requests(
    world: VirtualWorld, lines: LogLines
) -> None:
    """After a minute nothing is accepted for a quarter of an hour: logged once, and no message ends."""
    world.write(world.path.read_text().replace(RETRIES, "retry = { attempts = 1 }\n"))
    channel = world.channels["sms"]
    channel.verdict = lambda one: UNAUTHORIZED if 60 < trio.current_time() < 960 else Accepted(one.key)
    play(world, flow(90, 1))
    assert ends(world, range(1000, 1900)) == {"sent": 900}
    during = [at for at, _ in channel.attempts if 60 < at < 960]
    assert len([at for at in during if at > 120]) < 40
    assert [line["event"] for line in lines() if line["level"] == "error"] == ["channel.misconfigured"]


def test_one_message_alone_at_a_provider_that_accepts_nothing_never_ends(
    world: VirtualWorld, lines: LogLines
) -> None:
    """Nothing shows that the message is at fault: it waits until the credentials are right."""
    channel = world.channels["sms"]
    channel.verdict = lambda one: UNAUTHORIZED if trio.current_time() < 900 else Accepted(one.key)
    play(world, [(0.0, [(1, 1)])])
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert len(channel.attempts) < 40
    assert [line["event"] for line in lines() if line["level"] == "error"] == ["channel.misconfigured"]


def test_more_rejected_messages_than_are_remembered_cost_their_tries(
    world: VirtualWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of the longest rejected ones is forgotten, and they come to an end all the same."""
    monkeypatch.setattr(refusals, "MOST_REJECTED", 20)
    bad = range(1, 101)
    rejecting(world.channels["sms"], bad)
    stages = flow(60, 2)
    stages[5][1][:0] = [(id_, 2) for id_ in bad]
    play(world, stages)
    assert max(requests(world.channels["sms"], bad).values()) <= 2 * TRIES
    assert ends(world, bad) == {"error": 100}
    assert not late(world, stages)


@pytest.mark.parametrize("providers", [1, 2])
def test_a_rejected_message_at_providers_that_get_nothing_else_costs_few_requests(
    tmp_path: Path, lines: LogLines, providers: int
) -> None:
    """Twenty minutes of 403: it waits, which the log says, and the pauses between its requests grow."""
    world = world_of_two(tmp_path) if providers == 2 else VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    channels = [world.channels[name] for name in ((A, B) if providers == 2 else ("sms",))]
    for channel in channels:
        channel.verdict = lambda _: FORBIDDEN

    async def run() -> None:
        async with world.at_work():
            world.service.enqueue(message(1, 1))
            await trio.sleep(1200)

    live(run)
    assert world.service.statuses(1) == ["dequeued"]
    assert max(len(channel.attempts) for channel in channels) < 60
    assert sum(len([at for at, _ in channel.attempts if at > 600]) for channel in channels) < 30 * providers
    errors = {line["event"] for line in lines() if line["level"] == "error"}
    assert errors == {"channel.misconfigured"}
