"""Nothing lost, nothing sent twice, wherever a real worker is killed, stopped, or left without an answer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from crashes.boundaries import IF_TIMELY, NEVER_PASSED, boundaries, commit_name, commits, names, telling_names
from crashes.failpoints import Failpoint
from crashes.killing import (
    Passings,
    count_passings,
    kill_again_and_again,
    kill_at_failpoint,
    kill_at_random,
    kill_at_syscall,
    stop,
    tear,
    trace_syscalls,
)
from crashes.ledger import Told, Torn, read_ledger
from crashes.oracle import judge
from crashes.scenario import Fate, many, one_of_each
from crashes.stage import Crew, Untraceable, open_crew, open_stage
from crashes.tearing import TEARS
from deliveryd.journal.journal import Journal
from deliveryd.journal.reader import file_reader

pytestmark = pytest.mark.slow

KILLABLE = [name for name in telling_names() if name.rpartition("/")[0] not in {*NEVER_PASSED, *IF_TIMELY}]
COMMITTING = [name for name in KILLABLE if name.startswith("COMMIT.")]
OTHERS = [name for name in KILLABLE if name not in COMMITTING]
KILLED = [*COMMITTING, *OTHERS[:: int(os.environ.get("DELIVERYD_KILLED_OF", "60"))]]
"""Every commit, and one of so many other boundaries; `make soak` kills at each of them."""

SYSCALL_SAMPLES = 6


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """The processes that outlive the workers."""
    with open_crew() as opened:
        yield opened


@pytest.fixture(scope="module")
def passings(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> Passings:
    """How often an undisturbed worker passes each boundary."""
    return count_passings(crew, tmp_path_factory.mktemp("undisturbed"))


# failpoints


def test_the_failpoints_are_found_in_the_code() -> None:
    """Each step of the journal's protocol, each part that the worker is put together from, each adapter."""
    found = {boundary.name for boundary in boundaries()}
    operations = {name for name, step in vars(Journal).items() if callable(step) and not name.startswith("_")}
    assert {f"SqliteJournal.{name}" for name in operations} <= found
    assert {"HttpChannel.send", "SmtpChannel.send"} <= found
    parts = {name.partition(".")[0] for name in found}
    assert {"Dispatcher", "Intake", "Pipeline", "Receipts", "Recorder", "Reporting", "SettingsCache"} <= parts
    assert len(commits()) >= 12


def test_the_scenario_passes_every_boundary_that_is_not_named_as_one_it_cannot(passings: Passings) -> None:
    missed = {name.rpartition("/")[0] for name in names() if not passings.of(name)}
    assert missed - IF_TIMELY == set(NEVER_PASSED)


@pytest.mark.parametrize("name", KILLED)
def test_a_worker_killed_at_a_boundary_loses_nothing_and_sends_nothing_twice(
    name: str, crew: Crew, passings: Passings, tmp_path: Path
) -> None:
    middle = (passings.of(name) + 1) // 2
    for passing in {middle: None, 1: None}:  # the first, should this run be one with fewer of them
        folder = tmp_path / str(passing)
        account, killed = kill_at_failpoint(crew, folder, passings, Failpoint(name, passing))
        assert not account.violations
        if killed:
            return
    pytest.fail(f"no worker came to {name}")


@pytest.mark.parametrize("seed", range(3))
def test_workers_killed_again_while_they_take_up_what_a_killed_one_left_lose_nothing(
    seed: int, crew: Crew, passings: Passings, tmp_path: Path
) -> None:
    account = kill_again_and_again(crew, tmp_path, passings, seed)
    assert not account.violations


def test_every_commit_has_a_failpoint_before_and_after_its_statement(passings: Passings) -> None:
    """One that was under way when its group was rolled back begins twice."""
    passed = {
        name: (passings.of(f"{name}/before"), passings.of(f"{name}/after"))
        for name in {commit_name(operation) for operation in commits()} - NEVER_PASSED.keys() - IF_TIMELY
    }
    assert not {name: (before, after) for name, (before, after) in passed.items() if not before >= after >= 1}


# system calls


@pytest.fixture(scope="module")
def syscalls(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How often each call is made on the journal's files for a batch of ten messages."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace")
    try:
        return dict(trace_syscalls(crew, tmp_path_factory.mktemp("traced")))
    except Untraceable as error:
        pytest.skip(f"strace can't watch a worker here: {error}")


def test_the_journal_writes_by_calls_that_the_harness_knows(syscalls: dict[str, int]) -> None:
    assert syscalls["pwrite64"] > 20
    assert syscalls["fdatasync"] > 5


@pytest.mark.parametrize("sample", range(SYSCALL_SAMPLES))
def test_a_worker_killed_between_two_system_calls_of_the_journal_loses_nothing(
    sample: int, crew: Crew, syscalls: dict[str, int], tmp_path: Path
) -> None:
    points = [(call, number) for call, times in sorted(syscalls.items()) for number in range(1, times + 1)]
    call, number = points[sample * len(points) // SYSCALL_SAMPLES]
    account, _ = kill_at_syscall(crew, tmp_path, call, number)
    assert not account.violations


# anywhere, under load


@pytest.mark.parametrize("seed", range(2))
def test_workers_killed_at_random_under_load_lose_nothing(seed: int, crew: Crew, tmp_path: Path) -> None:
    account = kill_at_random(crew, tmp_path, seed, messages=100, kills=6)
    assert not account.violations
    assert account.kills >= 1


def test_answers_lost_after_the_work_was_done_repeat_only_what_is_in_doubt_and_under_its_key(
    crew: Crew, tmp_path: Path
) -> None:
    """Of providers that have accepted, and of the service that has applied events."""
    told_in_vain = False
    for seed in range(3, 9):  # how many posts there are, of which some are lost, is the machine's choice
        folder = tmp_path / str(seed)
        folder.mkdir()
        with open_stage(crew, folder, many(150, seed=seed)) as stage:
            stage.finish()
            account = judge(stage)
        assert not account.violations
        assert account.kills == 0
        assert account.repeats_in_doubt >= 5
        records = read_ledger(folder / "ledger.jsonl")
        told_in_vain = any(isinstance(record, Told) and record.lost for record in records)
        if told_in_vain:
            break
    assert told_in_vain


# standing still


@pytest.mark.parametrize(
    ("kind", "count"), [("Handed", 1), ("Told", 1), ("Asked", 1), ("Asked", 5), ("Taken", 3), ("Told", 9)]
)
def test_a_worker_that_stands_still_for_longer_than_its_patience_goes_on_as_if_nothing_had_been(
    kind: str, count: int, crew: Crew, tmp_path: Path
) -> None:
    assert not stop(crew, tmp_path, kind, count).violations


# answers of the queue that break off


@pytest.mark.parametrize("how", TEARS)
def test_of_a_batch_that_breaks_off_what_was_whole_is_taken_and_the_rest_is_counted(
    how: str, crew: Crew, tmp_path: Path
) -> None:
    """No part of an element is ever taken for one, and the audit knows of each answer that broke off."""
    account = tear(crew, tmp_path, how)
    assert not account.violations
    torn = [record for record in read_ledger(tmp_path / "ledger.jsonl") if isinstance(record, Torn)]
    assert 1 <= len(torn) <= 4
    assert file_reader(tmp_path / "journal.db").audit().lost.batches == len(torn)


def test_every_fate_of_a_message_is_in_the_scenario() -> None:
    assert set(one_of_each().fates.values()) == set(Fate)
