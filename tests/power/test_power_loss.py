"""The power fails: every journal that a disk may hold then stands for all that the outside had been told.

What isn't shown, since it can't hold: a disk that says it has synced and hasn't.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from power.disk import VARIANTS
from power.faults import Calls, fail, go_on, until_first_told
from power.recording import Recording, open_studio, record_life, record_lives
from power.sweep import Figures, Violation, sweep
from power.tracing import Sent, Step, Synced
from support.places import TESTS

pytestmark = pytest.mark.slow

SEED = 1


@pytest.fixture(scope="module", autouse=True)
def strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace isn't installed")
    if subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True).returncode:  # noqa: PLW1510
        pytest.skip("nobody may be traced here")


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Three lives of a worker as it is."""
    return record_lives(tmp_path_factory.mktemp("lives"))


def sample(recording: Recording, points: int) -> Figures:
    """So many points, spread over a recording."""
    every = max(len(recording.steps) // points, 1)
    return sweep(recording, SEED, lambda point: point % every == 0)


def at_each_telling(recording: Recording, others: int) -> Figures:
    """All the points at which something was sent, and so many between them."""
    points = [step for step in recording.steps if isinstance(step, Sent) or recording.is_of_disk(step)]
    every = max(len(points) // others, 1)
    return sweep(recording, SEED, lambda point: isinstance(points[point], Sent) or point % every == 0)


def right_after(recording: Recording, steps: int, points: int) -> Figures:
    """So many points, one after the other, beginning after so many steps."""
    first = sum(isinstance(step, Sent) or recording.is_of_disk(step) for step in recording.steps[:steps])
    return sweep(recording, SEED, lambda point: first <= point < first + points)


def test_a_recording_holds_what_is_to_be_shown(lives: Recording) -> None:
    """Events, intents, outcomes, receipts and decisions were told; the log was checkpointed while at work."""
    told = Counter(told.claim.kind for told in lives.told)
    assert set(told) == {"event", "intent", "outcome", "receipt", "decision"}
    assert min(told.values()) >= 1
    assert any(told.claim.kind == "intent" and told.claim.number == 2 for told in lives.told)
    synced = Counter(Path(step.path).name for step in lives.steps if isinstance(step, Synced))
    assert synced["journal.db"] >= 3
    assert synced["journal.db-wal"] >= 20


def test_whatever_was_told_is_in_the_journal_whenever_the_power_fails(lives: Recording) -> None:
    figures = at_each_telling(lives, 50)
    assert figures.violations == []
    assert figures.images == len(VARIANTS) * figures.points
    assert figures.claims_checked > 1000


@pytest.mark.parametrize("mutation", ["normal", "no names"])
def test_a_worker_that_syncs_less_is_caught(tmp_path: Path, mutation: str) -> None:
    """With synchronous=NORMAL commits are lost, with names that aren't synced the whole journal."""
    figures = at_each_telling(record_life(tmp_path, mutation), 10)
    assert any("told, and not in the journal" in violation.what for violation in figures.violations)


def test_a_disk_that_lies_is_beyond_what_can_be_promised(lives: Recording) -> None:
    """Where syncs of files do nothing, what was told is lost; the harness sees it, nothing can mend it."""
    numbers = {}
    honest: list[Step] = []
    for number, step in enumerate(lives.steps):
        numbers[number] = len(honest)
        if not isinstance(step, Synced) or not Path(step.path).name.startswith("journal.db"):
            honest.append(step)
    lying = Recording(lives.root, honest, [told._replace(at=numbers[told.at]) for told in lives.told])
    assert sample(lying, 20).violations


FAILING: Mapping[str, Callable[[Calls], Iterator[str]]] = {
    "a sync": lambda calls: (f"fdatasync:error=EIO:when={number}" for number in near(calls.syncs)),
    "a sync for want of room": lambda calls: (
        f"fdatasync:error=ENOSPC:when={number}" for number in near(calls.syncs)
    ),
    "a write": lambda calls: (f"pwrite64:error=EIO:when={number}" for number in near(calls.writes)),
}


def near(number: int) -> Iterator[int]:
    """Numbers to try: strace counts the calls of each thread, and a commit may run in any of some threads."""
    yield number
    for distance in range(1, 7):
        yield from (number - distance, number + distance)


@pytest.mark.parametrize("failing", FAILING)
def test_a_disk_that_fails_ends_the_worker_and_the_next_one_goes_on(
    tmp_path: Path, lives: Recording, failing: str
) -> None:
    """It says what to do, asks for no failed sync again, and nothing is lost or doubled."""
    for number, inject in enumerate(FAILING[failing](until_first_told(lives))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open_studio(folder) as studio:
            failure = fail(studio, inject)
            if failure.status is None or failure.failures > 1:
                continue  # the first was a checkpoint's, which is done anew; or that thread made fewer calls
            assert failure.status == 1
            assert "the journal can't be used any more: disk I/O error. No committed data" in failure.said
            assert "start deliveryd again" in failure.said
            assert failure.repeated == 0
            recording = go_on(studio)
            sent = Counter(received.message_id for received in studio.world.state.accepted())
            assert set(sent.values()) == {1}
            audit = studio.world.command("audit", "--config", str(studio.world.config))
            assert audit.returncode == 0, audit.stdout
        assert at_each_telling(recording, 10).violations == []
        return
    pytest.fail("no commit failed")


def test_what_a_killed_worker_never_synced_is_synced_before_it_is_told(
    tmp_path: Path, lives: Recording
) -> None:
    """A failed sync, a kill, a restart, then the power fails: the log that the restart found is renewed."""

    def violations(number: int, mutation: str) -> list[Violation]:
        folder = tmp_path / f"{number} {mutation}"
        folder.mkdir()
        with open_studio(folder, mutation) as studio:
            fail(studio, f"fdatasync:error=EIO:signal=KILL:when={number}")
            killed = len(studio.steps)
            return right_after(go_on(studio), killed, 60).violations

    first = until_first_told(lives).syncs
    caught = next((number for number in range(first, first + 20) if violations(number, "old log")), None)
    assert caught is not None
    assert violations(caught, "none") == []


def test_the_command_prints_its_figures(tmp_path: Path) -> None:
    """`python -m power` sweeps a recording, and ends with 0."""
    ended = subprocess.run(
        [sys.executable, "-m", "power", "--lives", "--points", "8", "--seed", "3", "--json", "figures.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "violations 0" in ended.stdout
    assert '"violations": 0' in tmp_path.joinpath("figures.json").read_text()
