"""What `deliveryd find` costs a worker: finds among many messages while another process commits.

    python benchmarks/find_beside_writer.py [--messages N] [--seconds S]

Builds a journal with that many sent messages in a temporary folder. A writer brings new messages through it
all the time, first alone, then while a find by customer reads the whole journal over and over again. Prints
what a commit took, how large the write-ahead log became, and how long the transactions of the find were.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio

from deliveryd.journal.journal import Journal
from deliveryd.journal.reader import Reader, read_found
from deliveryd.journal.selection import Page, Selection
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.journal.sqlite.opening import read
from deliveryd.model import Entry, Outcome, QueuedMessage, StatusEvent, Transition
from deliveryd.states import State
from ended_rows import NOW, STRIDE, with_ended

BATCH = 100
VARIABLES = {"order": "A-4711", "city": "Tallinn", "amount": "10.50"}
EVERYWHERE = 7
"""The customer that is sought."""


class TimedReader(Reader):
    """Notes how long each transaction of a find was, the opening of the file included."""

    def __init__(self, path: Path) -> None:
        super().__init__(partial(read, path))
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def find(self, selection: Selection, after: tuple[int, ...] | None, limit: int) -> Page:
        """Find a page."""
        began, cpu = time.perf_counter(), time.thread_time()
        page = super().find(selection, after, limit)
        self.seconds.append(time.perf_counter() - began)
        self.cpu.append(time.thread_time() - cpu)
        return page


def search(path: Path, seconds: float) -> None:
    """Find a customer's messages again and again; print the figures as JSON."""
    reader = TimedReader(path)
    finds: list[float] = []
    examined = [0]
    until = time.monotonic() + seconds
    while not finds or time.monotonic() < until:
        began = time.perf_counter()
        found = list(read_found(reader, Selection(customer=EVERYWHERE), examined.append))
        finds.append(time.perf_counter() - began)
        assert found
    told = {"finds": len(finds), "seconds": statistics.median(finds), "examined": max(examined)}
    sys.stdout.write(json.dumps(told | {"transactions": reader.seconds, "cpu": reader.cpu}))


class Commits(NamedTuple):
    """What a writer saw: seconds of each commit, bytes of the log after each batch, and messages a second."""

    seconds: Sequence[float]
    log: Sequence[int]
    rate: float


async def write(path: Path, first: int, until: anyio.Event) -> Commits:
    """Bring messages through the journal, batch after batch."""
    commits: list[float] = []
    log: list[int] = []
    began, count = time.perf_counter(), 0
    async with open_journal_file(path, observe=lambda seconds, _: commits.append(seconds)) as journal:
        while not until.is_set():
            ids = range(first + count, first + count + BATCH)
            await bring_through(journal, ids)
            count += BATCH
            log.append(path.with_name(f"{path.name}-wal").stat().st_size)
    return Commits(commits, log, count / (time.perf_counter() - began))


async def bring_through(journal: Journal, ids: Sequence[int]) -> None:
    """The commits of a batch, as the line makes them."""
    messages = [QueuedMessage(id_, id_ % 20, id_, VARIABLES) for id_ in ids]
    await journal.take(messages, [], NOW)
    await journal.accept(await journal.outbox(0, 2 * BATCH), NOW)
    entries = [Entry(*each, provider="sms", tries=1, number=1, taken_at=NOW) for each in messages]
    await journal.change([Transition(entry, State.READY, State.SENDING, NOW) for entry in entries])
    await journal.change([_sent(entry) for entry in entries])
    await journal.accept(await journal.outbox(0, 2 * BATCH), NOW)


def _sent(entry: Entry) -> Transition:
    outcome = Outcome("accepted", f"p{entry.id}")
    events = (StatusEvent(entry.id, "sent", NOW + 5),)
    return Transition(entry, State.SENDING, State.SENT, NOW + 5, None, outcome, events)


async def beside(path: Path, first: int, seconds: float, *, finding: bool) -> tuple[Commits, str]:
    """Write for a while, with or without a find in another process; the figures of both."""
    until = anyio.Event()
    told = ""
    results: list[Commits] = []

    async def writer() -> None:
        results.append(await write(path, first, until))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer)
        if finding:
            command = [sys.executable, __file__, "--search", str(path), "--seconds", str(seconds)]
            done = await anyio.run_process(command, stderr=subprocess.DEVNULL)
            told = done.stdout.decode()
        else:
            await anyio.sleep(seconds)
        until.set()
    return results[0], told


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them lies, in milliseconds."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] * 1000


def tell(name: str, commits: Commits) -> None:
    """Print a row about the writer."""
    p50, p99, most = (percentile(commits.seconds, share) for share in (0.5, 0.99, 1.0))
    sys.stdout.write(
        f"{name:22} {commits.rate:8,.0f} messages/s   commit p50 {p50:6.2f} ms  p99 {p99:6.2f} ms"
        f"  max {most:7.2f} ms   log max {max(commits.log) / 1e6:6.1f} MB\n"
    )


async def measure(messages: int, seconds: float) -> None:
    """Build the journal, and measure."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        await with_ended(path, messages)
        sys.stdout.write(f"{messages:,} messages, {path.stat().st_size / 1e6:,.0f} MB\n")
        first = (messages + 2) * STRIDE
        for turn in range(2):
            alone, _ = await beside(path, first, seconds, finding=False)
            tell(f"writer alone ({turn + 1})", alone)
            first += 10_000_000
            disturbed, told = await beside(path, first, seconds, finding=True)
            tell(f"writer, finds ({turn + 1})", disturbed)
            first += 10_000_000
            figures = json.loads(told)
            spans, cpu = figures["transactions"], figures["cpu"]
            sys.stdout.write(
                f"{'find by customer':22} {figures['seconds']:8.2f} s a find,"
                f" {figures['examined']:,} messages examined, {len(spans):,} transactions:"
                f" p50 {percentile(spans, 0.5):.1f} ms,"
                f" p99 {percentile(spans, 0.99):.1f} ms, max {percentile(spans, 1.0):.1f} ms;"
                f" of that on a core: p50 {percentile(cpu, 0.5):.1f} ms, max {percentile(cpu, 1.0):.1f} ms\n"
            )


def main() -> None:
    """Measure, or be the process that searches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--search", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.search is not None:
        search(options.search, options.seconds)
    else:
        anyio.run(measure, options.messages, options.seconds)


if __name__ == "__main__":
    main()
