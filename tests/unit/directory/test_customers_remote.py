"""The front before every remote directory: how little it asks, who waits for whom, what an outage does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from io import StringIO

import anyio
import pytest
import trio
from trio.testing import MockClock

from deliveryd.directory.base import DirectoryAnswer, Terms, find_customer
from deliveryd.directory.remote import CustomerMemory, RemoteDirectory
from deliveryd.errors import DirectoryUnavailable
from deliveryd.model import Customer
from support.logs import log_text

pytestmark = pytest.mark.anyio


class Source:
    """Customers whose names are their ids, save those from 1000 on; it keeps what it was asked.

    `hold` makes it wait until it is let go, `trouble` may raise before it answers.
    """

    def __init__(self, batch_size: int = 10) -> None:
        self.batch_size = batch_size
        self.asked: list[tuple[int, ...]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.hold: anyio.Event | None = None
        self.trouble: Callable[[Collection[int]], None] = lambda _ids: None
        self.begin: Callable[[], None] = lambda: None
        self.closed = False

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        self.begin()
        self.asked.append(tuple(ids))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.hold is not None:
                await self.hold.wait()
            await anyio.lowlevel.checkpoint()
            self.trouble(ids)
        finally:
            self.under_way -= 1
        return {id_: person(id_) for id_ in ids if id_ < 1000}

    async def probe(self) -> str | None:
        return None

    async def aclose(self) -> None:
        self.closed = True

    def times(self) -> Counter[int]:
        """How often each was asked for."""
        return Counter(id_ for ids in self.asked for id_ in ids)


def person(id_: int) -> Customer:
    return Customer(id_, {"name": f"Secret-{id_}"})


def directory(
    source: Source, ttl: float = 300.0, timeout: float = 5.0, concurrency: int = 3
) -> RemoteDirectory:
    return RemoteDirectory(source, Terms(ttl, timeout, concurrency))


async def answers(remote: RemoteDirectory, *ids: int) -> dict[int, DirectoryAnswer]:
    """What is said of each, which is said once."""
    found: dict[int, DirectoryAnswer] = {}

    async def keep(some: Mapping[int, DirectoryAnswer]) -> None:
        assert not some.keys() & found.keys()
        found.update(some)

    await remote.look_up(ids, keep)
    return found


def expected(*ids: int) -> dict[int, DirectoryAnswer]:
    return {id_: person(id_) if id_ < 1000 else None for id_ in ids}


def away(_ids: Collection[int]) -> None:
    raise DirectoryUnavailable("away")


def live(run: Callable[[], object], seconds: float = 3600.0) -> None:
    """Run in virtual time."""

    async def timed() -> None:
        with trio.fail_after(seconds):
            await run()  # type: ignore[misc]  # every test hands over a coroutine function

    trio.run(timed, clock=MockClock(autojump_threshold=0))


# How little is asked


async def test_who_is_wanted_by_many_at_the_same_time_is_asked_for_once() -> None:
    """All of them hear it."""
    source = Source(batch_size=1)
    source.hold = anyio.Event()
    remote = directory(source)
    found: list[Customer | None] = []

    async def want() -> None:
        found.append(await find_customer(remote, 7))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(want)
        await anyio.wait_all_tasks_blocked()
        source.hold.set()
    assert found == [person(7)] * 20
    assert source.asked == [(7,)]


async def test_those_of_a_moment_are_asked_for_together() -> None:
    """From several callers; a question holds as many as the source takes."""
    source = Source(batch_size=10)
    remote = directory(source)
    async with anyio.create_task_group() as tasks:
        for first in range(0, 25, 5):
            tasks.start_soon(answers, remote, *range(first, first + 5))
    assert source.times() == dict.fromkeys(range(25), 1)
    assert sorted(map(len, source.asked)) == [5, 10, 10]


async def test_who_comes_while_all_questions_are_under_way_is_gathered() -> None:
    """They go into one question when there is a turn."""
    source = Source(batch_size=10)
    source.hold, begun = anyio.Event(), anyio.Event()
    source.begin = begun.set
    remote = directory(source, concurrency=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(find_customer, remote, 1)
        await begun.wait()
        for id_ in range(2, 9):
            tasks.start_soon(find_customer, remote, id_)
        await anyio.wait_all_tasks_blocked()
        source.hold.set()
    assert [sorted(ids) for ids in source.asked] == [[1], list(range(2, 9))]


async def test_no_more_questions_are_under_way_than_allowed() -> None:
    """However many are wanted."""
    source = Source(batch_size=1)
    remote = directory(source, concurrency=4)
    assert await answers(remote, *range(100)) == expected(*range(100))
    assert source.most_under_way == 4
    assert source.times() == dict.fromkeys(range(100), 1)


def test_an_answer_is_kept_for_its_time_and_that_somebody_is_unknown_for_a_shorter_one() -> None:
    """Within it nothing is asked; after it the customer is asked for anew."""
    source = Source()

    async def run() -> None:
        remote = directory(source, ttl=300.0)
        for _ in range(600):
            assert await answers(remote, 1, 1000) == expected(1, 1000)
            await trio.sleep(1)
        assert remote.at_hand([1, 1000, 2]).keys() <= {1, 1000}

    live(run)
    assert source.times() == {1: 2, 1000: 20}


async def test_what_is_kept_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wasn't wanted for longest is forgotten first."""
    monkeypatch.setattr("deliveryd.directory.remote.CUSTOMER_MEMORY_BYTES", 100_000)
    memory = CustomerMemory(300.0)
    for id_ in range(1000):
        memory.keep({id_: Customer(id_, {"name": "x" * 100})})
        memory.recall([0])
    kept = memory.recall(range(1000))
    assert 50 < len(kept) < 150
    assert {0, 999} < kept.keys()


# Who waits for whom


async def test_answers_go_on_as_they_come() -> None:
    """One that hangs keeps none of the others, asked for by the same caller, from being told."""
    source = Source(batch_size=1)
    remote = directory(source)
    hang, told = anyio.Event(), anyio.Event()
    found: list[int] = []
    ask = source.look_up

    async def look_up(ids: Collection[int]) -> Mapping[int, Customer]:
        if 5 in ids:
            await hang.wait()
        return await ask(ids)

    source.look_up = look_up  # type: ignore[method-assign]

    async def hear(some: Mapping[int, DirectoryAnswer]) -> None:
        found.extend(some)
        if len(found) == 9:
            told.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(remote.look_up, range(10), hear)
        await told.wait()
        assert sorted(found) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        hang.set()
    assert found[-1] == 5


async def test_who_is_cut_off_leaves_nothing_behind() -> None:
    """Whether the question was under way or not asked yet, the next caller is answered."""
    source = Source(batch_size=1)
    source.hold = anyio.Event()
    remote = directory(source, concurrency=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answers, remote, 1, 2)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    source.hold = None
    assert await answers(remote, 1, 2, 3) == expected(1, 2, 3)


async def test_a_caller_hears_of_a_question_that_another_one_was_cut_off_from() -> None:
    """It isn't left waiting; the customer can be asked for again."""
    source = Source(batch_size=1)
    source.hold = anyio.Event()
    remote = directory(source)
    found: dict[int, DirectoryAnswer] = {}

    async def want() -> None:
        found.update(await answers(remote, 1))

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as cut_off:
        cut_off.start_soon(answers, remote, 1)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(want)
        await anyio.wait_all_tasks_blocked()
        cut_off.cancel_scope.cancel()
    assert isinstance(found[1], DirectoryUnavailable)
    source.hold = None
    assert await answers(remote, 1) == expected(1)


# Failures


@pytest.mark.parametrize("stumbles", [{7}, {0, 99}, {3, 50}])
async def test_customers_over_whom_the_source_stumbles_hold_up_nobody_else(stumbles: set[int]) -> None:
    """A question that fails is asked again in halves; in the end only these can't be answered for."""
    source = Source(batch_size=100)

    def stumble(ids: Collection[int]) -> None:
        if stumbles & set(ids):
            raise DirectoryUnavailable("row broken")

    source.trouble = stumble
    found = await answers(directory(source), *range(100))
    assert {id_ for id_, answer in found.items() if isinstance(answer, DirectoryUnavailable)} == stumbles
    assert {id_: found[id_] for id_ in found.keys() - stumbles} == expected(*set(range(100)) - stumbles)


def test_a_source_that_does_not_answer_in_time_is_unavailable() -> None:
    """After the time-out of one question."""
    source = Source(batch_size=1)

    async def run() -> None:
        source.hold = anyio.Event()
        found = await answers(directory(source, timeout=5.0), 1)
        assert trio.current_time() == pytest.approx(5.0)
        assert str(found[1]) == "no answer within 5 s"

    live(run)


BROKEN: Mapping[str, tuple[object, str]] = {
    "an error of its own": (KeyError("Secret"), "the directory failed with KeyError"),
    "no mapping": ([person(1)], "the directory returned a list"),
    "no customers": ({1: {"name": "Secret"}}, "the directory returned a dict for a customer"),
}


@pytest.mark.parametrize(("answer", "reason"), BROKEN.values(), ids=BROKEN.keys())
async def test_what_a_package_does_that_it_must_not_is_an_outage_of_it(answer: object, reason: str) -> None:
    """It ends neither the worker nor a message, and what it said is told nowhere."""
    source = Source()

    async def look_up(ids: Collection[int]) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    source.look_up = look_up  # type: ignore[method-assign, assignment]
    found = await answers(directory(source), 1)
    assert str(found[1]) == reason


@pytest.fixture
def log() -> Iterator[StringIO]:
    """What was logged so far."""
    with log_text("debug") as stream:
        yield stream


@pytest.mark.slow
def test_an_outage_is_logged_once_and_asks_little(log: StringIO) -> None:
    """A hundred customers wanted a second for an hour: a question every few seconds, and two lines."""
    source = Source()
    source.trouble = away

    async def run() -> None:
        remote = directory(source)
        while trio.current_time() < 3600:
            found = await answers(remote, *range(100))
            assert all(isinstance(answer, DirectoryUnavailable) for answer in found.values())
            await trio.sleep(1)
        source.trouble = lambda _ids: None
        await trio.sleep(5)
        assert await find_customer(remote, 0) == person(0)
        assert await answers(remote, *range(100)) == expected(*range(100))

    live(run, 4000)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["customers.unavailable", "customers.recovered"]
    assert lines[0]["reason"] == "away"
    assert 3590 < lines[1]["seconds"] < 3610
    assert "Secret" not in log.getvalue()
    assert 700 < len(source.asked) < 1300


def test_a_source_that_asks_to_be_left_alone_is(log: StringIO) -> None:
    """For as long as it says."""
    source = Source()

    def busy(_ids: Collection[int]) -> None:
        raise DirectoryUnavailable("busy", after=60.0)

    source.trouble = busy

    async def run() -> None:
        remote = directory(source)
        for _ in range(600):
            await answers(remote, 1)
            await trio.sleep(1)

    live(run)
    assert len(source.asked) < 20


@pytest.mark.slow
def test_single_customers_who_fail_again_and_again_fill_no_log(log: StringIO) -> None:
    """A line a minute, while the others are answered for."""
    source = Source(batch_size=1)

    def stumble(ids: Collection[int]) -> None:
        if 7 in ids:
            raise DirectoryUnavailable("row broken")

    source.trouble = stumble

    async def run() -> None:
        remote = directory(source, ttl=0.5)
        for _ in range(600):
            assert (await answers(remote, 1, 7))[1] == person(1)
            await trio.sleep(1)

    live(run)
    assert 5 <= len(log.getvalue().splitlines()) <= 11


async def test_closing_it_closes_the_source() -> None:
    source = Source()
    remote = directory(source)
    assert await remote.probe() is None
    await remote.aclose()
    assert source.closed
