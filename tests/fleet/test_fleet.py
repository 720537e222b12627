"""Several real workers on a real PostgreSQL: nothing is lost, nothing is sent twice but under its key."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deliveryd.states import State
from fleet.boundaries import change_name, commit_boundaries, commit_name
from fleet.faults import FAULTS
from fleet.receiving import Fate, cases, receive_elsewhere
from fleet.rolling import roll
from fleet.run import run_faults
from fleet.stage import LEASE
from fleet.standby import fail_over_to_lagging, fail_over_to_synchronous
from fleet.striking import Case, strike
from fleet.takeover import take_over
from fleet.watch import KILL, STOP
from support.directories import NoPostgres

pytestmark = pytest.mark.slow


@contextmanager
def skipped_without_postgres() -> Iterator[None]:
    try:
        yield
    except NoPostgres as error:
        pytest.skip(str(error))


def test_each_kind_of_fault_loses_nothing(tmp_path: Path) -> None:
    """Kills, stops, cuts, silence and a restarted database under load: every claim of the oracle holds."""
    draw = random.Random(1)
    plan = [(name, draw.randrange(1 << 16)) for name in draw.sample(sorted(FAULTS), len(FAULTS))]
    with skipped_without_postgres():
        story = run_faults(tmp_path, 2, plan)
    assert story.rest.violations == []
    assert story.rest.elsewhere > 0


def test_a_worker_that_stands_still_before_the_commit_of_an_outcome_loses_nothing(tmp_path: Path) -> None:
    """It holds locks meanwhile, is taken over, and may commit nothing when it goes on."""
    outcome = commit_name(change_name(State.SENDING, State.SENT))
    with skipped_without_postgres():
        struck = strike(tmp_path, [Case(f"{outcome}/before", STOP)])
    assert struck.missed == []
    assert struck.rest.violations == []


@pytest.mark.soak
def test_workers_that_are_struck_at_their_commits_lose_nothing(tmp_path: Path) -> None:
    """Killed or stopped around commits of each kind: every claim of the oracle holds."""
    names = random.Random(1).sample(commit_boundaries(), 12)  # a plan
    with skipped_without_postgres():
        struck = strike(
            tmp_path, [Case(name, how) for name, how in zip(names, 6 * (KILL, STOP), strict=True)]
        )
    assert len(struck.missed) < len(struck.cases)
    assert struck.rest.violations == []


@pytest.mark.soak
def test_a_receipt_at_another_worker_is_told_in_each_order(tmp_path: Path) -> None:
    """Before, during and after the commit of the outcome, also where both miss each other."""
    with skipped_without_postgres():
        received = receive_elsewhere(tmp_path, [case for case in cases() if case.fate is Fate.GOES_ON])
    assert received.violations == []


def test_a_rolling_restart_pauses_nothing(tmp_path: Path) -> None:
    """One worker after the other ends and starts: the other one takes meanwhile, and answers receipts."""
    with skipped_without_postgres():
        rolled = roll(tmp_path, 2, 1)
    assert rolled.rest.violations == []
    assert max(rolled.pauses) < LEASE  # where the other one waited for the lease, nobody would take that long
    assert {answer for answer in rolled.answers if answer is not None} == {200}


def test_what_a_killed_worker_had_is_taken_over_once_and_within_its_lease_and_a_few_seconds(
    tmp_path: Path,
) -> None:
    """It isn't started again: the other worker repeats what is in doubt under its keys, and ends all."""
    with skipped_without_postgres():
        taken = take_over(tmp_path, 1)
    assert max(taken.seconds) < 2 * LEASE
    assert taken.doubts == taken.repeated != set()
    assert taken.rest.violations == []


@pytest.mark.soak
def test_a_standby_with_all_commits_takes_over_and_the_workers_go_on(tmp_path: Path) -> None:
    """The primary is pulled out under load: nothing is lost, and no worker has to be started anew."""
    with skipped_without_postgres():
        story = fail_over_to_synchronous(tmp_path)
    assert story.rest.violations == []
    assert story.restarts == 0


def test_a_standby_that_lags_stops_all_workers_until_the_loss_is_accepted(tmp_path: Path) -> None:
    """Nobody takes or starts before `deliveryd accept-loss --yes`, and all go on then."""
    with skipped_without_postgres():
        story = fail_over_to_lagging(tmp_path)
    assert story.rest.violations == []
    assert story.lost
