"""The last hour of a worker: rates and delays from samples of counters, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from deliveryd.channels.base import Accepted
from deliveryd.metrics import Metrics
from deliveryd.states import State
from deliveryd.telemetry.overview import Rates, SendDelay
from deliveryd.worker.history import HOUR, MINUTES, History
from support.endless import jumping_clock


def play(scene: Callable[[], Awaitable[None]]) -> None:
    """Play a scene in virtual time."""
    trio.run(scene, clock=jumping_clock())


async def work(history: History, metrics: Metrics, seconds: int, each_second: int) -> None:
    """So many messages are taken, sent and delivered every second."""
    for _ in range(seconds):
        await trio.sleep(1)
        metrics.taken(each_second, 0, 0)
        for end in (State.SENT, State.DELIVERED):
            metrics.ended(end, "sms", each_second)
        for _ in range(each_second):
            metrics.attempted("sms", Accepted(), 0.1)
            metrics.accepted_after("sms", [0.3])
        history.sample()


def test_rates_are_those_of_the_seconds_that_are_asked_for() -> None:
    async def scene() -> None:
        metrics = Metrics(["sms", "email"], "0.1.0")
        history = History(metrics)
        assert history.rates(10) == Rates()
        assert history.delay(60) == SendDelay()
        await work(history, metrics, 60, 5)
        metrics.ended(State.FAILED, None, 10)
        await work(history, metrics, 10, 20)
        assert history.rates(10) == Rates(20, 20, 20, 1)
        assert history.rates(60) == Rates(7.5, 7.5, 7.5, 0.167)
        assert history.attempt_rates(10) == {"sms": 20, "email": 0}

    play(scene)


def test_a_worker_that_just_began_has_rates_of_the_time_that_it_runs() -> None:
    async def scene() -> None:
        metrics = Metrics(["sms"], "0.1.0")
        history = History(metrics)
        await work(history, metrics, 2, 5)
        assert history.rates(60).taken == 5

    play(scene)


def test_delays_are_read_from_the_histogram_of_the_last_minute() -> None:
    """Half of the messages took at most the first, 99 of 100 at most the second."""

    async def scene() -> None:
        metrics = Metrics(["sms"], "0.1.0")
        history = History(metrics)
        for seconds in [0.07] * 90 + [40.0] * 10:
            metrics.accepted_after("sms", [seconds])
        await trio.sleep(1)
        history.sample()
        delay = history.delay(60)
        assert delay.p50 == pytest.approx(0.078, abs=0.01)
        assert delay.p99 is not None
        assert 30 < delay.p99 < 60
        for _ in range(70):
            await trio.sleep(1)
            history.sample()
        assert history.delay(60) == SendDelay()

    play(scene)


def test_a_delay_beyond_the_last_bound_is_told_as_that() -> None:
    async def scene() -> None:
        metrics = Metrics(["sms"], "0.1.0")
        history = History(metrics)
        metrics.accepted_after("sms", [1e9])
        await trio.sleep(1)
        history.sample()
        assert history.delay(60) == SendDelay(86400, 86400)

    play(scene)


@pytest.mark.slow
def test_what_is_kept_is_bounded_and_the_same_until_it_grows() -> None:
    """Ten minutes by the second, an hour by ten seconds, however long the worker runs."""

    async def scene() -> None:
        metrics = Metrics(["sms"], "0.1.0")
        history = History(metrics)
        await work(history, metrics, 4000, 1)
        hour, minutes = history.hour(), history.minutes()
        assert (len(hour.sent), len(minutes.sent)) == (HOUR, MINUTES)
        assert set(hour.sent) == set(minutes.sent) == {1.0}
        assert history.hour() is hour
        await work(history, metrics, 10, 3)
        assert history.hour().sent[-1] == 3

    play(scene)


def test_a_loop_that_was_held_up_makes_no_false_rate() -> None:
    """Samples come late then: what counts is the time that passed."""

    async def scene() -> None:
        metrics = Metrics(["sms"], "0.1.0")
        history = History(metrics)
        await trio.sleep(30)
        metrics.taken(300, 0, 0)
        history.sample()
        assert history.rates(10).taken == 10
        assert history.hour().taken == [10]

    play(scene)


def test_a_provider_that_was_added_counts_from_then_on() -> None:
    async def scene() -> None:
        metrics = Metrics(["sms"], "0.1.0")
        history = History(metrics)
        await trio.sleep(10)
        metrics.add_provider("email")
        metrics.attempted("email", Accepted(), 0.1)
        metrics.accepted_after("email", [0.3])
        history.sample()
        assert history.attempt_rates(10) == {"sms": 0, "email": 0.1}
        assert history.delay(60).p50 is not None

    play(scene)
