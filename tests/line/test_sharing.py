"""The line on a journal that other workers share: a real line in virtual time, what the others do as told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from deliveryd.admin.exposition import expose
from deliveryd.admin.page import live_regions
from deliveryd.admin.sections import notices_of
from deliveryd.channels.base import Accepted, Dispatch, Expired, InDoubt, TryAgain, Unknown, Verdict
from deliveryd.commands.watch.status import status_lines
from deliveryd.commands.watch.watched import read_overview
from deliveryd.errors import JournalError, TooLate
from deliveryd.journal.base import EndedWorker, FromOthers, Recovery
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.pauses import Pause, PauseKind
from deliveryd.model import SECOND, Receipt, StopChange
from deliveryd.telemetry.overview import as_json
from support.logs import log_lines
from support.messages import message
from support.shared_journal import SharedJournal, shared
from support.two_providers import BOTH, EMAIL
from support.virtual import START, SteppingClock, VirtualSupervisor, VirtualWorld, live

pytestmark = pytest.mark.slow

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {word}"}}}})


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    return world


@pytest.fixture
def journals() -> Iterator[list[SharedJournal]]:
    with shared() as opened:
        yield opened


@asynccontextmanager
async def working(world: VirtualWorld) -> AsyncIterator[VirtualSupervisor]:
    """A worker that runs, stopped in the end."""
    async with world.at_work() as supervisor:
        await supervisor.opened.wait()
        yield supervisor


Scene = Callable[[VirtualSupervisor], Awaitable[None]]


def play(world: VirtualWorld, scene: Scene) -> None:
    async def run() -> None:
        async with working(world) as supervisor:
            await scene(supervisor)

    live(run)


def sent_ids(world: VirtualWorld) -> list[int]:
    return [dispatch.entry.id for _, dispatch in world.channels["sms"].attempts]


def test_the_worker_says_that_its_journal_is_in_a_database(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """What its disk has free is nothing that this machine could know; every screen does without."""

    async def scene(worker: VirtualSupervisor) -> None:
        await anyio.sleep(30)
        overview = read_overview(json.loads(json.dumps(as_json(worker.health.overview()))))
        assert overview.disk is None
        assert overview.ready
        assert not [notice for notice in notices_of(overview) if notice.about == "Disk"]
        assert "database" in live_regions(overview)["journal"]
        assert not [line for line in status_lines(overview, 80) if "disk" in line.plain]

    assert journals == []
    play(world, scene)


@pytest.mark.parametrize(
    ("in_order", "told"), [(True, ("info", "journal.handed_over")), (False, ("warning", "journal.adopted"))]
)
def test_a_worker_says_from_whom_it_takes_over_and_warns_unless_that_one_stopped_in_order(
    world: VirtualWorld, journals: list[SharedJournal], *, in_order: bool, told: tuple[str, str]
) -> None:
    """Each rolling upgrade hands work over; a worker that died is for somebody to look into."""
    ended = [EndedWorker("a/12", in_order=True), EndedWorker("b/7", in_order=in_order)]

    async def scene(_worker: VirtualSupervisor) -> None:
        journals[0].news.append(FromOthers(adopted=Recovery([], [], 3, [], ended=ended)))
        await anyio.sleep(5)

    with log_lines("info") as lines:
        play(world, scene)
        [line] = [line for line in lines() if "workers" in line]
    assert (line["level"], line["event"]) == told
    assert line["workers"] == ("a/12, b/7" if in_order else "b/7")
    assert line["count"] == 3


def test_a_worker_warns_of_one_that_died_though_that_one_left_only_events(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    async def scene(_worker: VirtualSupervisor) -> None:
        ended = [EndedWorker("b/7", in_order=False)]
        journals[0].news.append(FromOthers(adopted=Recovery([], [], 0, [], ended=ended)))
        await anyio.sleep(5)

    with log_lines("info") as lines:
        play(world, scene)
        [line] = [line for line in lines() if "workers" in line]
    assert (line["event"], line["workers"], line["count"]) == ("journal.adopted", "b/7", 0)


def test_a_pause_that_a_provider_asks_for_because_of_one_message_is_kept(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """Though it accepts all others, and messages that others left to this worker may wait for that."""

    def verdict(dispatch: Dispatch) -> Verdict:
        if dispatch.entry.id == 1 and anyio.current_time() < 150:
            return TryAgain("the mailbox is full", 150.0, only_this=True)
        return Accepted(dispatch.key)

    world.channels["sms"].verdict = verdict

    async def scene(_worker: VirtualSupervisor) -> None:
        for id_ in range(1, 201):
            world.service.enqueue(message(id_))
            journals[0].news.append(FromOthers(waiting=1))
            await anyio.sleep(1)

    play(world, scene)
    tried = [at for at, dispatch in world.channels["sms"].attempts if dispatch.entry.id == 1]
    assert len(tried) == 2
    assert tried[1] - tried[0] >= 150


# what others decide


def test_others_are_followed_once_a_second(world: VirtualWorld, journals: list[SharedJournal]) -> None:
    """They learn by it which providers this worker has."""

    async def scene(_worker: VirtualSupervisor) -> None:
        await anyio.sleep(60)

    play(world, scene)
    [journal] = journals
    assert 55 <= len(journal.followed) <= 62
    assert {providers for _, providers in journal.followed} == {("sms",)}


def test_a_journal_of_one_worker_is_asked_nothing(world: VirtualWorld) -> None:
    """No loop runs for others that can't be there."""

    async def scene(worker: VirtualSupervisor) -> None:
        await anyio.sleep(10)
        assert "sharing" not in dict(worker.parts.heartbeats.ages())

    play(world, scene)


def test_what_another_worker_pauses_and_resumes_is_paused_here_within_a_second(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """Messages wait for the end of the pause, and go on with it."""
    pause = Pause(PauseKind.CHANNEL, "sms", START)

    async def scene(worker: VirtualSupervisor) -> None:
        journals[0].news.append(FromOthers(pauses=[pause]))
        await anyio.sleep(1.1)
        world.service.enqueue(message(1))
        await anyio.sleep(60)
        assert sent_ids(world) == []
        assert worker.parts.memory.backlog.paused == 1
        journals[0].news.append(FromOthers(pauses=[]))
        await anyio.sleep(3)
        assert sent_ids(world) == [1]

    play(world, scene)


def test_a_pause_is_ended_by_the_oldest_worker(world: VirtualWorld, journals: list[SharedJournal]) -> None:
    """The others follow; when the older ones are gone, this one ends it."""

    async def scene(worker: VirtualSupervisor) -> None:
        [journal] = journals
        journal.older_workers = frozenset({(1, 10)})
        await anyio.sleep(1)  # it takes orders once it is ready
        order = Order(Action.PAUSE, ItemKind.CHANNEL, ("sms",), lasts=60.0)
        await worker.parts.recorder.decide(order, ["sms"])
        await anyio.sleep(120)
        assert [pause.key for pause in worker.parts.memory.pauses.all] == ["sms"]
        journal.older_workers = frozenset()
        await anyio.sleep(6)
        assert worker.parts.memory.pauses.all == ()

    play(world, scene)


@pytest.mark.parametrize("is_alive", [True, False], ids=["alive", "gone before that"])
def test_a_step_of_the_clock_is_left_to_an_older_worker_that_commits_after_it(
    world: VirtualWorld, journals: list[SharedJournal], is_alive: bool
) -> None:
    """That moves the pauses, and if it ends later, nothing of the step is left to follow."""
    world.clock = clock = SteppingClock()

    def until() -> int:
        [(instant,)] = world.journal_rows("SELECT until FROM pause")
        return int(str(instant))

    async def scene(worker: VirtualSupervisor) -> None:
        [journal] = journals
        journal.older_workers = frozenset({(1, 10)})
        order = Order(Action.PAUSE, ItemKind.CHANNEL, ("sms",), lasts=7200.0)
        await worker.parts.recorder.decide(order, ["sms"])
        ordered = until()
        clock.ahead = -3600 * SECOND
        await anyio.sleep(10)
        assert until() == ordered
        if is_alive:
            journal.older_workers = frozenset({(1, 11)})
            await anyio.sleep(10)
        journal.older_workers = frozenset()
        await anyio.sleep(10)
        moved = ordered - until()
        assert moved == (0 if is_alive else pytest.approx(3600 * SECOND, abs=5 * SECOND))

    play(world, scene)


def test_a_recipient_whom_another_worker_stopped_is_stopped_here_and_counted_there(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """The metrics of several workers are added up: each change is counted by one of them."""

    async def scene(worker: VirtualSupervisor) -> None:
        stopped = worker.parts.memory.stopped
        digest = stopped.digest("sms", "+4912345")
        journals[0].news.append(FromOthers(stops=[StopChange("sms", digest, START)]))
        await anyio.sleep(1.1)
        assert stopped.includes("sms", ["+4912345"])
        text = expose(worker.parts.metrics, "text/plain")[0].decode()
        assert not [
            line for line in text.splitlines() if "recipients_stopped_total{" in line and "1.0" in line
        ]
        journals[0].news.append(FromOthers(stops=[StopChange("sms", digest, START, stopped=False)]))
        await anyio.sleep(1.1)
        assert not stopped.includes("sms", ["+4912345"])

    play(world, scene)


# what others leave


def test_what_waits_is_fetched_when_it_is_due_though_a_count_was_taken_before_it_waited(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """The shared count comes now and then; the next one has it."""
    verdicts: list[Verdict] = [TryAgain("busy"), Accepted("1")]
    world.channels["sms"].verdict = lambda _dispatch: verdicts.pop(0)
    world.add('retry = { attempts = 5, base = "30s", max = "30s" }\n')
    world.service.enqueue(message(1))

    async def scene(worker: VirtualSupervisor) -> None:
        await anyio.sleep(5)
        assert worker.parts.memory.backlog.count == 1
        journals[0].news += [FromOthers(waiting=0, paused={}), FromOthers(waiting=1, paused={})]
        await anyio.sleep(32)
        assert sent_ids(world) == [1, 1]

    play(world, scene)


def test_the_shared_count_bounds_what_is_taken(world: VirtualWorld, journals: list[SharedJournal]) -> None:
    """`queue.max_waiting` is about the journal, whoever has the messages wait in it."""
    world.add("[queue]\nmax_waiting = 50\n")

    async def scene(worker: VirtualSupervisor) -> None:
        journals[0].news.append(FromOthers(waiting=50))
        await anyio.sleep(3)
        world.service.enqueue(message(1))
        await anyio.sleep(60)
        assert world.service.offers.waiting
        assert worker.health.ready() == (
            False, "too many messages wait in the journal (queue.max_waiting)"
        )  # fmt: skip
        journals[0].news.append(FromOthers(waiting=49))
        await anyio.sleep(30)
        assert sent_ids(world) == [1]

    play(world, scene)


def test_what_is_taken_over_goes_on_though_some_of_it_was_settled_meanwhile(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """A receipt for a message in doubt, or an order, comes between the adoption and what follows from it."""
    world.add('on_in_doubt = "hold"\n')
    world.channels["sms"].verdict = lambda dispatch: (
        InDoubt("cut off") if len(sent_ids(world)) < 3 else Accepted(dispatch.key)
    )
    world.service.enqueue(message(1), message(2))

    async def scene(worker: VirtualSupervisor) -> None:
        await anyio.sleep(10)
        doubts = worker.parts.stations.sharing._doubts  # of a worker that repeats what is in doubt
        doubts["sms"].follow(doubts["sms"]._policy._replace(resend_in_doubt=True))
        held = await journals[0].held(["sms"], 0, 9)
        await journals[0].decide(Order(Action.SETTLE_SENT, ItemKind.MESSAGE, ("1",)), START, ["sms"])
        journals[0].news.append(FromOthers(adopted=Recovery([], held, 0, [])))
        await anyio.sleep(60)
        assert sorted(sent_ids(world)) == [1, 2, 2]
        assert world.service.statuses(2) == ["dequeued", "sent"]

    play(world, scene)


def test_what_is_taken_over_waits_no_longer_than_the_longest_pause(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """Whatever the clock was by which the ended worker put it off: here it was days ahead."""
    world.channels["sms"].verdict = lambda _: TryAgain("not now")
    world.service.enqueue(message(1))
    days = 8 * 86_400 * SECOND

    async def scene(_worker: VirtualSupervisor) -> None:
        await anyio.sleep(10)
        await journals[0]._commit(lambda db: db.execute("UPDATE message SET due_at = due_at + ?", (days,)))
        begun = len(sent_ids(world))
        journals[0].news.append(FromOthers(adopted=Recovery([], [], 0, [])))
        await anyio.sleep(3700)
        assert len(sent_ids(world)) > begun

    play(world, scene)


def test_what_a_receipt_leads_to_that_came_to_another_worker_is_reported_with_the_next_batch(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """As if it had come here: this worker reports its messages."""
    world.add('[events]\nflush_interval = "20s"\n')
    world.service.enqueue(message(1))

    async def scene(worker: VirtualSupervisor) -> None:
        await anyio.sleep(30)
        assert world.service.statuses(1) == ["dequeued", "sent"]
        ((provider_id,),) = world.journal_rows("SELECT provider_id FROM message")
        now = worker.parts.common.clock.now()
        report = Receipt("sms", str(provider_id), True, "ok", now, now)
        [matched] = await journals[0].receive([report])
        assert matched.effect is not None
        journals[0].news.append(FromOthers(effects=[matched.effect]))
        await anyio.sleep(22)
        assert world.service.statuses(1) == ["dequeued", "sent", "delivered"]

    play(world, scene)


def test_what_others_left_is_read_on_without_a_pause_while_there_is_more(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """Else more could come in than is read, for ever."""

    async def scene(_worker: VirtualSupervisor) -> None:
        await anyio.sleep(3)
        journals[0].news += [FromOthers(has_more=True)] * 50
        before = len(journals[0].followed)
        await anyio.sleep(3)
        assert len(journals[0].followed) > before + 50

    play(world, scene)


# outages that others noted


@pytest.fixture
def fallback(world: VirtualWorld) -> VirtualWorld:
    """Behind sms stands email; sms is down for this worker from the first attempt on."""
    world.add(f'unavailable_after = "10m"\n{EMAIL}')
    world.service.settings[1] = json.dumps(BOTH)
    world.channels["sms"].verdict = lambda _dispatch: TryAgain("busy")
    world.service.enqueue(*(message(id_) for id_ in range(1, 41)))
    return world


def noted(world: VirtualWorld) -> dict[str, int]:
    [(text,)] = world.journal_rows("SELECT value FROM meta WHERE key = 'down_since'") or [("{}",)]
    return dict(json.loads(str(text)))


def test_a_channel_is_given_up_when_it_was_down_for_long_enough_for_any_worker(
    fallback: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """The outage began when the first of them noted it."""

    async def scene(_worker: VirtualSupervisor) -> None:
        await anyio.sleep(60)
        assert not fallback.channels["email"].attempts
        journals[0].news.append(FromOthers(down_since={"sms": START - 590 * SECOND}))
        await anyio.sleep(60)
        assert fallback.channels["email"].attempts

    play(fallback, scene)


async def hear_of_an_outage(journal: SharedJournal) -> None:
    """Another worker noted one, of a channel that works here."""
    await journal.note_down({"email": START})
    journal.news.append(FromOthers(down_since={"email": START}))


def test_an_outage_that_is_none_here_stays_noted_beside_the_own_ones(
    fallback: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """Else two workers would delete each other's notes."""

    async def scene(_worker: VirtualSupervisor) -> None:
        await anyio.sleep(60)
        down_since = {**noted(fallback), "email": START}
        await journals[0].note_down(down_since)
        journals[0].news.append(FromOthers(down_since=down_since))
        await anyio.sleep(30)
        assert noted(fallback) == down_since
        fallback.channels["sms"].verdict = lambda _dispatch: Accepted("1")
        await anyio.sleep(150)
        assert noted(fallback) == {"email": START}

    play(fallback, scene)


@pytest.mark.parametrize("ended", [FromOthers(any_ended=True), FromOthers(adopted=Recovery([], [], 0, []))])
def test_an_outage_that_a_worker_noted_is_still_noted_when_it_is_restarted(
    fallback: VirtualWorld, journals: list[SharedJournal], ended: FromOthers
) -> None:
    """After ten minutes it isn't, if the others don't see it: they have the same channel, and it works."""
    fallback.channels["sms"].verdict = lambda _dispatch: Accepted("1")

    async def scene(_worker: VirtualSupervisor) -> None:
        await hear_of_an_outage(journals[0])
        await anyio.sleep(30)
        for _ in range(2):
            journals[0].news.append(ended)
            await anyio.sleep(590)
            assert noted(fallback) == {"email": START}
        await anyio.sleep(100)
        assert noted(fallback) == {}

    play(fallback, scene)


def test_an_outage_that_another_worker_noted_is_still_noted_after_a_start(
    fallback: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """Also where this worker's own channel goes down while the other one, too, is being restarted."""

    async def note(_worker: VirtualSupervisor) -> None:
        await journals[0].note_down({"email": START})

    async def start(_worker: VirtualSupervisor) -> None:
        await anyio.sleep(60)
        assert noted(fallback).keys() == {"sms", "email"}

    play(fallback, note)
    play(fallback, start)


# the lease


def test_an_attempt_that_the_lease_may_not_outlast_is_not_begun_and_uses_up_no_try(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """The message waits, surely unsent, and is sent under its key once the lease is fresh."""
    world.add('timeout = "7s"\nretry = { attempts = 1 }\n')
    world.service.enqueue(message(1))

    async def scene(_worker: VirtualSupervisor) -> None:
        journals[0].lasts = False
        await anyio.sleep(20)
        assert not world.channels["sms"].attempts
        assert set(journals[0].asked) == {7.0}
        assert 10 < len(journals[0].asked) < 25
        assert world.service.statuses(1) == ["dequeued"]
        journals[0].lasts = True
        await anyio.sleep(5)

    play(world, scene)
    [(_, dispatch)] = world.channels["sms"].attempts
    assert dispatch.entry.stay_tries > 10
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_a_worker_that_slept_while_it_connected_sends_nothing(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """The adapter asks once more before the first byte: the message isn't expired, and goes on."""
    channel = world.channels["sms"]
    first: list[str] = []

    async def send(dispatch: Dispatch) -> Verdict:
        if not first:
            first.append(dispatch.key)
            journals[0].lasts = False
        try:
            dispatch.check_time()
        except TooLate:
            journals[0].lasts = True
            return Expired()
        channel.attempts.append((anyio.current_time(), dispatch))
        return Accepted("1")

    channel.send = send  # type: ignore[method-assign]
    world.service.enqueue(message(1))

    async def scene(_worker: VirtualSupervisor) -> None:
        await anyio.sleep(20)

    play(world, scene)
    assert [dispatch.key for _, dispatch in channel.attempts] == first
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_a_doubt_that_a_look_up_left_is_repeated_only_within_the_lease(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """Asking takes its time: what counts is the instant before the repeat, which has the same key."""
    channel = world.channels["sms"]
    channel.lookup_after = 1.0
    verdicts: list[Verdict] = [InDoubt("cut off"), Accepted("1")]
    channel.verdict = lambda _dispatch: verdicts.pop(0)

    def found(_dispatch: Dispatch) -> Unknown:
        journals[0].lasts = len(channel.asked) > 1
        return Unknown("not asked")

    channel.found = found
    world.service.enqueue(message(1))

    async def scene(_worker: VirtualSupervisor) -> None:
        await anyio.sleep(60)

    play(world, scene)
    assert len(channel.asked) == 2
    assert len(channel.attempts) == 2
    assert len({dispatch.key for _, dispatch in channel.attempts}) == 1
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_nothing_is_taken_before_the_lease_was_renewed(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """What the service hands out can't be given again: a worker that was taken over mustn't ask."""

    async def scene(worker: VirtualSupervisor) -> None:
        journals[0].renewable = anyio.Event()
        journals[0].is_unreachable = True
        await anyio.sleep(5)
        asked = _takes(world)
        await anyio.sleep(300)
        assert _takes(world) == asked
        assert worker.health.ready() == (False, "the journal's database can't be reached (journal.url)")
        assert worker.health.alive()[0]
        journals[0].is_unreachable = False
        assert worker.health.alive()[0]
        await anyio.sleep(5)
        assert _takes(world) == asked  # it renews now
        journals[0].renewable.set()
        world.service.enqueue(message(1))
        await anyio.sleep(40)
        assert sent_ids(world) == [1]

    play(world, scene)


def test_a_worker_that_is_stopped_while_it_renews_takes_nothing(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """Stop taking comes first."""

    async def scene(worker: VirtualSupervisor) -> None:
        await anyio.sleep(5)
        journals[0].renewable = anyio.Event()
        renewals, asked = journals[0].renewals, _takes(world)
        await anyio.sleep(60)
        assert journals[0].renewals == renewals + 1
        world.service.enqueue(message(1))
        worker.stop()
        await anyio.sleep(1)
        journals[0].renewable.set()
        await anyio.sleep(1)
        assert _takes(world) == asked

    play(world, scene)
    assert world.service.offers.waiting == 1


def _takes(world: VirtualWorld) -> int:
    return [path for _, path in world.service.asked].count("/queue")


def test_a_worker_whose_journal_is_another_ones_now_ends_at_once(
    world: VirtualWorld, journals: list[SharedJournal]
) -> None:
    """Nothing is sent after it; the log says why, and the error is the process's."""
    world.channels["sms"].seconds = 30.0
    world.service.enqueue(*(message(id_) for id_ in range(1, 31)))

    async def scene(_worker: VirtualSupervisor) -> None:
        await anyio.sleep(3)
        assert world.channels["sms"].under_way == 30
        journals[0].news.append(JournalError("another worker took over"))
        await anyio.sleep(60)

    with log_lines("error") as lines:
        with pytest.raises(BaseExceptionGroup) as raised:
            play(world, scene)
        assert raised.group_contains(JournalError, match="another worker took over")
    assert not world.channels["sms"].attempts
    [lost] = [line for line in lines() if line["event"] == "journal.lost"]
    assert lost["reason"] == "another worker took over"
