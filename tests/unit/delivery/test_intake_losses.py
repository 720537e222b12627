"""Intake when batches break off, don't come whole, or bring elements that can't be reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from trio.testing import MockClock

from deliveryd.delivery.in_flight import InFlightLimit
from deliveryd.delivery.intake import CALM, TakeSize
from deliveryd.errors import (
    ServiceUnavailable,
)
from deliveryd.journal.reader import file_reader
from deliveryd.model import Malformed
from deliveryd.service.batch import Batch
from support.intake_station import (
    batch,
    in_virtual_time,
    running,
)
from support.logs import LogLines, log_lines
from support.messages import queued_message as message

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["virtual time", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Virtual time, where commits are made in the event loop; and asyncio as it is."""
    if request.param == "asyncio":
        return "asyncio", {}
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.fixture
def lines() -> Iterator[LogLines]:
    """What was logged so far."""
    with log_lines("debug") as logged:
        yield logged


def broken(*numbers: int) -> Batch:
    """What came of an answer that was cut off."""
    return Batch([message(number) for number in numbers], [], ServiceUnavailable("cut off"))


async def test_a_batch_that_breaks_off_is_kept_and_its_loss_is_told(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """What was whole goes the way of any message; the log, the metrics and the journal tell of the rest."""
    async with running(tmp_path, broken(1, 2), broken(), batch()) as station:
        await station.queue.asked_times(3)
    assert [entry.id for entry in station.taken] == [1, 2]
    told = [line for line in lines() if line["event"] == "queue.batch_lost"]
    assert [(line["asked"], line["kept"], line["level"]) for line in told] == [
        (10, 2, "error"), (5, 0, "error"),
    ]  # fmt: skip
    assert {line["reason"] for line in told} == {"cut off"}
    assert station.counted("queue_batches_lost_total") == 2
    assert file_reader(station.path).audit().lost.batches == 2
    assert file_reader(station.path).audit().is_balanced


@in_virtual_time
async def test_after_a_batch_without_anything_the_queue_counts_as_down(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """Readiness says so until something comes; the pauses grow as in any outage."""
    async with running(tmp_path, *[broken()] * 6, broken(1), batch()) as station:
        await station.queue.asked_times(6)
        assert [station.intake.down, station.intake.found_empty] == [True, False]
        await station.queue.asked_times(8)
        assert [station.intake.down] == [False]
    assert 10 < station.queue.pauses()[5] < 30.3
    assert [line["event"] for line in lines()].count("queue.resumed") == 1


@in_virtual_time
async def test_a_batch_that_does_not_come_whole_makes_the_next_ones_smaller(tmp_path: Path) -> None:
    """Each one halves what is asked for; full answers bring it back, slowly near the size that failed."""
    numbers = iter(range(10_000))

    def full(size: int) -> Batch:
        return batch(*[next(numbers) for _ in range(size)])

    script = [broken(), broken(), full(2), *[full(4) for _ in range(CALM)], full(5)]
    async with running(tmp_path, *script, most=10_000) as station:
        await station.queue.asked_times(len(script))
    assert station.queue.asked[: len(script)] == [10, 5, 2, *[4] * CALM, 5]


@in_virtual_time
async def test_a_gateway_that_waits_in_vain_for_the_service_makes_the_next_ones_smaller(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """504 and 408 mean that a batch takes too long; 503 says nothing of its size, and none is lost."""
    script = [ServiceUnavailable("no", None, status) for status in (504, 503, 408)]
    async with running(tmp_path, *script, batch()) as station:
        await station.queue.asked_times(4)
    assert station.queue.asked[:4] == [10, 5, 5, 2]
    assert "queue.batch_lost" not in [line["event"] for line in lines()]


def test_the_size_that_failed_is_approached_slowly_and_an_outage_is_forgotten_fast() -> None:
    """A size that fails may lose messages; that even one message didn't come says nothing of sizes."""
    size = TakeSize(100)
    size.fell_short(100)
    assert size.now == 50
    rounds = 0
    while size.now < 100:
        size.came_whole(size.now, size.now)
        rounds += 1
    assert rounds == 7 * CALM
    for _ in range(8):
        size.fell_short(size.now)
    assert size.now == 1
    for _ in range(7):
        size.came_whole(size.now, size.now)
    assert size.now == 100


def test_an_answer_with_less_than_was_asked_for_says_nothing_of_larger_ones() -> None:
    """Only full ones make the next ones larger, and only those that asked for all there was to ask for."""
    size = TakeSize(100)
    size.fell_short(100)
    for _ in range(100):
        size.came_whole(50, 49)
        size.came_whole(7, 7)
    assert size.now == 50


def nameless(count: int, *numbers: int) -> Batch:
    """Elements that can't be reported, and some messages."""
    bad = [Malformed(f'"{number}"', "expected an object", None) for number in range(count)]
    return Batch([message(number) for number in numbers], bad)


@in_virtual_time
async def test_what_is_behind_elements_without_an_id_is_taken_too(tmp_path: Path) -> None:
    """While the queue gives some, as many more are asked for, and what they bring is asked for at once."""
    script = nameless(10), nameless(20), nameless(25, 1, 2, 3, 4, 5), nameless(25, *range(6, 16)), batch()
    async with running(tmp_path, *script) as station:
        await station.queue.asked_times(6)
    assert station.queue.asked[:6] == [10, 20, 30, 35, 35, 10]
    assert station.queue.times[3] < 1
    assert len(station.taken) == 15


@in_virtual_time
async def test_no_more_than_a_thousand_are_taken_beyond_a_batch(tmp_path: Path) -> None:
    """However many can't be reported; a queue that holds nothing else is not hammered."""
    async with running(tmp_path, nameless(5000), *[nameless(1010)] * 3) as station:
        await station.queue.asked_times(4)
    assert station.queue.asked[:4] == [10, 1010, 1010, 1010]
    assert all(pause > 1.5 for pause in station.queue.pauses()[1:3])


async def test_without_places_nothing_is_taken_for_elements_without_an_id_either(tmp_path: Path) -> None:
    """They come on top of the places that there are, never instead of them."""
    full = Batch([message(number) for number in range(7)], nameless(3).malformed)
    async with running(tmp_path, full, batch(*range(10, 13)), most=7) as station:
        await station.heard_of(7)
        await anyio.wait_all_tasks_blocked()
        assert station.queue.asked == [7]
        station.in_flight.release([0])
        await station.queue.asked_times(2)
    assert station.queue.asked == [7, 4]


async def test_a_malformed_element_that_comes_again_is_not_logged_again(
    tmp_path: Path, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    """A queue that can't be told of it gives it with each answer: one line says it, the metric counts."""
    async with running(tmp_path, nameless(1), nameless(1, 1), nameless(2, 2)) as station:
        await station.queue.asked_times(4)
    assert [line["event"] for line in lines()].count("queue.element_malformed") == 2
    assert station.counted("messages_malformed_total") == 4


def test_places() -> None:
    """A message holds one place however often it is held, and frees one however often it is freed."""
    in_flight = InFlightLimit(3)
    in_flight.hold([1, 2])
    in_flight.hold([2])
    assert (in_flight.held, in_flight.free, in_flight.most) == (2, 1, 3)
    in_flight.hold([3, 4])
    assert (in_flight.held, in_flight.free) == (4, 0)
    in_flight.release([4, 4, 9])
    assert (in_flight.held, in_flight.free) == (3, 0)
