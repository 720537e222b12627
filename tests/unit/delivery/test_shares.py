"""The shares of providers by how long their deliveries take, with a choice that follows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import anyio
import pytest
import trio
from trio.testing import MockClock

from deliveryd.delivery.choice import Choice, Idle, Sender
from deliveryd.delivery.shares import FEWEST_DELIVERIES, SPAN, Shares
from deliveryd.model import Entry, Spent
from support.logs import log_lines
from support.virtual import VirtualChannel

SLOW_AFTER = 30.0
QUICK, SLOW = 2.0, 60.0
A, B, C = "sms/a", "sms/b", "sms/c"


def in_virtual_time(run: Callable[[], Awaitable[None]]) -> None:
    trio.run(run, clock=MockClock(autojump_threshold=0))


def shared_by(weights: Mapping[str, int]) -> Choice:
    return Choice({name: Sender(VirtualChannel(), Idle(), weight) for name, weight in weights.items()})


def entry(id_: int) -> Entry:
    return Entry(id_, 1, 1, {})


def providers(choice: Choice, count: int = 10_000) -> Mapping[int, str | None]:
    """What provider each message has."""
    return {id_: choice.provider_for(entry(id_), None) for id_ in range(1, count)}


def part_of(choice: Choice, provider: str) -> float:
    found = providers(choice)
    return Counter(found.values())[provider] / len(found)


async def report(shares: Shares, spans: int, **seconds: float) -> None:
    """So many spans pass; in each, providers report enough deliveries, which took so long."""
    for _ in range(spans):
        for _ in range(2 * FEWEST_DELIVERIES):
            for name, took in seconds.items():
                shares.note(f"sms/{name}", took)
            await anyio.sleep(SPAN / (2 * FEWEST_DELIVERIES))
            shares.look()


def test_a_tenth_moves_every_five_minutes_and_comes_back_as_slowly() -> None:
    """A provider whose deliveries take too long loses a tenth of its share at a time, down to the floor."""

    async def run() -> None:
        choice, shares = shared_by({A: 60, B: 40}), Shares()
        shares.follow({"sms": choice}, {"sms": SLOW_AFTER})
        await report(shares, 3, a=SLOW, b=QUICK)
        assert shares.all == {A: 0.7, B: 1.0}
        assert part_of(choice, A) == pytest.approx(0.6 * 0.7, abs=0.02)
        await report(shares, 20, a=SLOW, b=QUICK)
        assert shares.of(A) == 0.1
        assert part_of(choice, A) == pytest.approx(0.06, abs=0.01)
        await report(shares, 4, a=QUICK, b=QUICK)
        assert shares.of(A) in {0.4, 0.5}
        await report(shares, 20, a=QUICK, b=QUICK)
        assert shares.of(A) == 1.0
        assert part_of(choice, A) == pytest.approx(0.6, abs=0.02)

    with log_lines("info") as lines:
        in_virtual_time(run)
    (first, *_) = [line for line in lines() if line["event"] == "channel.slow"]
    assert (first["provider"], first["share"]) == (A, 0.9)
    assert first["reason"].endswith("deliveries took longer than 30s")
    assert sum(line["event"] == "channel.less_slow" for line in lines()) == 9


def test_only_messages_of_the_slow_provider_move() -> None:
    """Those of the others, and most of its own, keep their provider."""

    async def run() -> None:
        choice, shares = shared_by({A: 1, B: 1, C: 2}), Shares()
        before = providers(choice)
        shares.follow({"sms": choice}, {"sms": SLOW_AFTER})
        await report(shares, 2, a=SLOW, b=QUICK)
        after = providers(choice)
        moved = [id_ for id_ in before if before[id_] != after[id_]]
        assert {before[id_] for id_ in moved} == {A}
        assert len(moved) == pytest.approx(0.2 * 0.25 * len(before), rel=0.25)

    in_virtual_time(run)


@pytest.mark.parametrize(
    "seconds",
    [{"a": SLOW, "b": SLOW}, {"a": SLOW}, {"a": SLOW_AFTER, "b": QUICK}],
    ids=["all", "alone", "just"],
)
def test_nothing_moves_where_no_provider_is_slower_than_another(seconds: Mapping[str, float]) -> None:
    """All are slow, no other one reports, or none takes longer than the limit."""

    async def run() -> None:
        choice, shares = shared_by({A: 1, B: 1}), Shares()
        shares.follow({"sms": choice}, {"sms": SLOW_AFTER})
        await report(shares, 3, **seconds)
        assert shares.all == {A: 1.0, B: 1.0}

    in_virtual_time(run)


def test_a_provider_with_few_deliveries_is_not_judged() -> None:
    """With fewer than 20 of the last five minutes; a tenth of more is enough."""

    async def run() -> None:
        choice, shares = shared_by({A: 1, B: 1}), Shares()
        shares.follow({"sms": choice}, {"sms": SLOW_AFTER})
        for _ in range(FEWEST_DELIVERIES):
            shares.note(B, QUICK)
        for took in [SLOW] * 2 + [QUICK] * (FEWEST_DELIVERIES - 3):
            shares.note(A, took)
        shares.look()
        assert shares.of(A) == 1.0
        shares.note(A, QUICK)
        shares.look()
        assert shares.of(A) == 0.9
        await anyio.sleep(SPAN)  # nothing is reported any more
        shares.look()
        assert shares.of(A) == 1.0

    in_virtual_time(run)


def test_a_reload_keeps_what_was_moved_and_judges_by_the_new_limit() -> None:
    """Another limit begins anew with what it counts; without one all have their own shares at once."""

    async def run() -> None:
        shares = Shares()
        shares.follow({"sms": shared_by({A: 1, B: 1})}, {"sms": SLOW_AFTER})
        await report(shares, 3, a=SLOW, b=QUICK)
        again = shared_by({A: 3, B: 1})
        shares.follow({"sms": again}, {"sms": SLOW_AFTER})
        assert part_of(again, A) == pytest.approx(0.75 * 0.7, abs=0.02)
        shares.follow({"sms": again}, {"sms": 2 * SLOW})
        await report(shares, 1, a=SLOW, b=QUICK)
        assert shares.of(A) == pytest.approx(0.8)
        without = shared_by({A: 1, B: 1})
        shares.follow({"sms": without}, {})
        assert part_of(without, A) == pytest.approx(0.5, abs=0.02)
        assert shares.of(A) is None

    in_virtual_time(run)


def test_what_is_in_doubt_or_spent_elsewhere_stays_with_a_slow_provider() -> None:
    """A doubt is repeated where it was made, and a message that has no other provider stays, too."""

    async def run() -> None:
        choice, shares = shared_by({A: 1, B: 1}), Shares()
        doubts = [entry(id_)._replace(provider=A, doubt=True, stay_tries=1) for id_ in range(1, 200)]
        spent = [entry(id_)._replace(spent=(Spent(B, "no"),)) for id_ in range(1, 200)]
        shares.follow({"sms": choice}, {"sms": SLOW_AFTER})
        await report(shares, 20, a=SLOW, b=QUICK)
        assert {choice.provider_for(each, None) for each in doubts + spent} == {A}

    in_virtual_time(run)
