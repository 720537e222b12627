"""What a message costs in a journal with many ended or waiting ones in it, and what else takes how long.

    python benchmarks/journal_growth.py [--full] [--json FILE]

Builds journals in a temporary folder and brings the same messages through each of them in turns; prints what
each message took, the ratios, and how long sums, start and forgetting take.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio

from deliveryd.journal.journal import Journal
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.model import Entry, Outcome, QueuedMessage, Receipt, StatusEvent, Transition
from deliveryd.states import State
from ended_rows import BYTES_PER_MESSAGE, NOW, STRIDE, with_ended, with_waiting

ENDED = (10_000, 1_000_000)
WITH_FULL = (*ENDED, 10_000_000)
WAITING = (10_000, 100_000, 1_000_000)
BATCH = 500
DUE = 100
FORGET = 100
SECOND = 1_000_000
VARIABLES = {"order": "A-4711", "city": "Tallinn", "amount": "10.50", "day": "2026-01-01"}


class Cost(NamedTuple):
    """What one message took, in microseconds."""

    cpu: float
    wall: float


class Costs(NamedTuple):
    """Of several turns: the medians, and the least CPU, which other work on the machine disturbs least."""

    cpu: float
    wall: float
    least: float


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """CPU and wall seconds of the block, once it has ended."""
    spent: list[float] = []
    cpu, wall = time.process_time(), time.perf_counter()
    yield spent
    spent += [time.process_time() - cpu, time.perf_counter() - wall]


# a message's way through the journal


async def bring_through(path: Path, ids: Sequence[int]) -> Cost:
    """Take messages and bring them to their accepted `sent`, a batch at a time."""
    os.sync()  # or one journal pays for what another one left to be written
    async with open_journal_file(path) as journal:
        await run_batch(journal, [-1 - max(ids)])  # statements are prepared, pages are read
        with stopwatch() as spent:
            for start in range(0, len(ids), BATCH):
                await run_batch(journal, ids[start : start + BATCH])
    return Cost(*(seconds * 1e6 / len(ids) for seconds in spent))


async def run_batch(journal: Journal, ids: Sequence[int]) -> None:
    """The five commits of a batch, as the line makes them."""
    messages = [QueuedMessage(id_, id_ % 20, id_, VARIABLES) for id_ in ids]
    await journal.take(messages, [], NOW)
    await accept_all(journal)
    entries = [
        Entry(*message, provider="sms", tries=1, number=1, digest=bytes(8), taken_at=NOW)
        for message in messages
    ]
    await journal.change([Transition(entry, State.READY, State.SENDING, NOW) for entry in entries])
    await journal.change([sent(entry) for entry in entries])
    await accept_all(journal)


def sent(entry: Entry) -> Transition:
    """The provider accepted a message, under an id as most of them give: one without any order."""
    outcome = Outcome("accepted", f"{random.getrandbits(128):032x}")
    events = (StatusEvent(entry.id, "sent", NOW + 5),)
    return Transition(entry, State.SENDING, State.SENT, NOW + 5, None, outcome, events)


async def accept_all(journal: Journal) -> None:
    """The service accepts what waits."""
    await journal.accept(await journal.outbox(0, 2 * BATCH), NOW)


def growing_ids(rows: int, turn: int, messages: int) -> Sequence[int]:
    """Ids above all that are there."""
    first = (rows + 1) * STRIDE + turn * (messages + 2)
    return range(first, first + messages)


def random_ids(rows: int, turn: int, messages: int) -> Sequence[int]:
    """New ids among those that are there, in no order."""
    found = random.Random(turn).sample(range(rows), min(messages, rows))
    return [number * STRIDE + turn + 1 for number in found]


# what holds the writer up, or whoever waits for the start


async def pauses(path: Path) -> dict[str, float]:
    """Milliseconds of the start, the sums, and batches of forgetting and of giving room back."""
    found: dict[str, float] = {"megabytes": size_of(path) / 1e6}
    commits: list[float] = []
    began = time.perf_counter()
    async with open_journal_file(path, observe=lambda seconds, _: commits.append(seconds * 1e3)) as journal:
        found["open"] = (time.perf_counter() - began) * 1e3
        await journal.recover(NOW, ["sms"])
        found["recover"] = commits.pop()
        await journal.counts()
        found["counts"] = commits.pop()
        began = time.perf_counter()
        await journal.account()
        found["account, beside the writer"] = (time.perf_counter() - began) * 1e3
        assert not commits, "the account went through the writer"
        found["an unknown receipt, µs"] = await unknown_receipt(journal)
        commits.clear()
        found |= await forgetting(journal, commits)
    return found


async def unknown_receipt(journal: Journal) -> float:
    """CPU microseconds of a receipt that fits no attempt, which is sought among all of them."""
    receipts = [Receipt("sms", f"unknown-{number}", True, "ok", NOW, NOW) for number in range(200)]
    with stopwatch() as spent:
        assert {each.result for each in await journal.receive(receipts)} == {"unmatched"}
    return spent[0] * 1e6 / len(receipts)


async def forgetting(journal: SqliteJournal, commits: list[float]) -> dict[str, float]:
    """How long the writer is held by one batch of forgetting, as the worker makes them."""
    cpu = time.process_time()
    forgotten = sum([await journal.prune(NOW, FORGET) for _ in range(50)])
    cpu = time.process_time() - cpu
    held = sorted(commits)
    return {
        f"forgetting {FORGET}, median": statistics.median(held),
        f"forgetting {FORGET}, longest of {len(held)}": held[-1],
        "forgetting, CPU µs for each message": cpu * 1e6 / max(forgotten, 1),
    }


async def room(path: Path) -> dict[str, float]:
    """Forget all of a journal, and give its room back: the sizes, and how long a batch holds the writer."""
    found: dict[str, float] = {"MB before": size_of(path) / 1e6}
    commits: list[float] = []
    async with open_journal_file(path, observe=lambda seconds, _: commits.append(seconds * 1e3)) as journal:
        forgotten = 0
        while number := await journal.prune(2 * NOW, 2000):
            forgotten += number
        commits.clear()
        while await journal.give_back(64):
            pass
    found["MB after"] = size_of(path) / 1e6
    found["bytes kept of each message"] = bytes_of(path, "tombstone") / max(forgotten, 1)
    held = sorted(commits)
    found["giving 64 pages back, median ms"] = statistics.median(held)
    found[f"giving 64 pages back, longest of {len(held)}, ms"] = held[-1]
    return found


def size_of(path: Path) -> int:
    """What a file takes."""
    return path.stat().st_size


def bytes_of(path: Path, table: str) -> int:
    """What a table takes in the file."""
    with closing(sqlite3.connect(path)) as db:
        (size,) = db.execute("SELECT sum(pgsize) FROM dbstat WHERE name = ?", (table,)).fetchone()
    return int(size)


async def waiting(path: Path) -> dict[str, float]:
    """What it takes to fetch due messages from among many that wait, and to count them."""
    commits: list[float] = []
    async with open_journal_file(path, observe=lambda seconds, _: commits.append(seconds * 1e3)) as journal:
        await journal.recover(NOW, ["sms"])
        found = {"recover": commits.pop()}
        await journal.counts()
        found["counts"] = commits.pop()
        with stopwatch() as spent:
            for turn in range(1, 21):  # one more is due each second
                now = NOW + turn * DUE * SECOND
                await park(journal, (await journal.due(now, {"sms": DUE})).entries, now)
        found["due and back, CPU µs for each"] = spent[0] * 1e6 / (20 * DUE)
    return found


async def park(journal: Journal, entries: Sequence[Entry], now: int) -> None:
    """Have messages wait once more."""
    await journal.change(
        [Transition(entry, State.READY, State.WAITING, now, now + 3600 * SECOND) for entry in entries]
    )


# the whole


async def measure_ended(folder: Path, sizes: Sequence[int], turns: int, messages: int) -> dict[str, object]:
    """Journals of all sizes in turns, so that a noisy machine is noisy for all of them."""
    paths = {rows: folder / f"ended-{rows}.db" for rows in sizes}
    for rows, path in paths.items():
        began = time.perf_counter()
        await with_ended(path, rows)
        print(f"built {path.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    costs = {}
    for name, ids in (("growing ids", growing_ids), ("random ids", random_ids)):
        taken: dict[int, list[Cost]] = {rows: [] for rows in sizes}
        for turn in range(turns):  # to and fro: what comes after a large journal finds the caches cold
            for rows in sizes if turn % 2 else reversed(sizes):
                taken[rows].append(await bring_through(paths[rows], ids(rows, turn, messages)))
        costs[name] = {rows: summed_up(found) for rows, found in taken.items()}
        print_costs(name, costs[name])
    held = {rows: await pauses(path) for rows, path in paths.items()}
    print_table("ended messages", held)
    given = {sizes[1]: await room(paths[sizes[1]])}
    print_table("all forgotten, of so many", given)
    return {"costs": costs, "pauses": held, "room": given}


async def measure_waiting(folder: Path) -> dict[str, object]:
    found = {}
    for rows in WAITING:
        path = folder / f"waiting-{rows}.db"
        await with_waiting(path, rows)
        found[rows] = await waiting(path)
        path.unlink()
    print_table("waiting messages", found)
    return {"waiting": found}


def summed_up(costs: Sequence[Cost]) -> Costs:
    """What several turns came to."""
    cpu, wall = zip(*costs, strict=True)
    return Costs(statistics.median(cpu), statistics.median(wall), min(cpu))


def print_costs(name: str, costs: Mapping[int, Costs]) -> None:
    """The table, with ratios to the smallest journal."""
    base = next(iter(costs.values()))
    print(f"\n| ended messages, {name} | CPU µs | ratio | least CPU µs | ratio | wall µs |")
    print("|---|---|---|---|---|---|")
    for rows, (cpu, wall, least) in costs.items():
        ratios = f"{cpu:.1f} | {cpu / base.cpu:.2f} | {least:.1f} | {least / base.least:.2f}"
        print(f"| {rows:,} | {ratios} | {wall:.1f} |")


def print_table(name: str, found: Mapping[int, Mapping[str, float]]) -> None:
    columns = list(found)
    print(f"\n| {name} | {' | '.join(f'{rows:,}' for rows in columns)} |\n|---|{'---|' * len(columns)}")
    for key in next(iter(found.values())):
        print(f"| {key} | {' | '.join(f'{found[rows][key]:.1f}' for rows in columns)} |")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a large journal costs.")
    parser.add_argument(
        "--full", action="store_true", help="with ten million ended messages too: 6 GB, minutes"
    )
    parser.add_argument(
        "--messages", type=int, default=5000, help="how many are brought through in each turn"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to write the figures as well")
    return parser.parse_args()


async def main() -> None:
    options = parsed()
    sizes = WITH_FULL if options.full else ENDED
    with tempfile.TemporaryDirectory(prefix="deliveryd-growth-") as name:
        folder = Path(name)
        needed = sum(sizes) * BYTES_PER_MESSAGE + (1 << 30)
        if shutil.disk_usage(folder).free < needed:
            sys.exit(f"{folder} has less than {needed / 1e9:.0f} GB free; name another place in TMPDIR")
        figures = await measure_ended(folder, sizes, options.turns, options.messages)
        figures |= await measure_waiting(folder)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    anyio.run(main)
