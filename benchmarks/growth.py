"""How deliveryd's figures grow with the sizes that an operator or a service may choose: `make bench-growth`.

It writes benchmarks/results/growth.json, which `make docs` draws.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

from catalogue import DAEMON, SUBJECTS, Place, Start, Subject
from conditions import conditions
from ended_rows import BYTES_PER_MESSAGE, NOW, STRIDE, with_ended, with_waiting
from measuring import DISK, Run, folder_on_disk, measure
from process import SubjectFailed, clean_up_when_told_to_end
from work import Work
from world import Conditions

RESULTS = Path(__file__).parent / "results"
US = SUBJECTS["deliveryd"]
TEN_YEARS = 10 * 366 * 86_400_000_000


@dataclass(frozen=True, slots=True)
class Point:
    """One size, and what is run for it; `few` messages tell the cost of a start."""

    size: float
    work: Work
    few: int
    subject: Subject = US
    keys: Mapping[str, object] = field(default_factory=dict)
    latency_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Growth:
    """One question, with the points that answer it."""

    name: str
    axis: str
    points: Callable[[], Iterator[Point]]


def _batch_sizes() -> Iterator[Point]:
    for size, messages in (
        (1, 2_000),
        (10, 10_000),
        (100, 20_000),
        (500, 20_000),
        (1000, 20_000),
        (5000, 20_000),
    ):
        keys = {"queue.batch_size": size, "queue.max_in_flight": 5000}  # places have a curve of their own
        yield Point(size, Work(messages), messages // 10, keys=keys)


def _places() -> Iterator[Point]:
    for size, messages in ((1, 60), (10, 600), (100, 6_000), (500, 20_000), (1000, 20_000), (2000, 20_000)):
        keys = {"queue.max_in_flight": size, "queue.batch_size": min(size, 500)}
        yield Point(size, Work(messages), messages // 10, keys=keys)


def _latencies() -> Iterator[Point]:
    for size in (0, 10, 20, 50, 100, 200):
        keys = {"queue.max_in_flight": 3000, "channels.sms.concurrency": 1000}
        yield Point(size, Work(), 1_000, keys=keys, latency_ms=size)


def _settings_ids() -> Iterator[Point]:
    for size in (1, 100, 1_000, 10_000, 100_000):
        yield Point(size, Work(max(20_000, size), settings=size), 200)


def _waiting_messages() -> Iterator[Point]:
    fill = partial(with_waiting, begin=NOW + TEN_YEARS)
    for size in (10_000, 100_000, 1_000_000):
        with _behind(fill, size) as subject:
            yield Point(size, Work(), 200, subject, {"queue.max_waiting": 2_000_000})


def _ended_messages() -> Iterator[Point]:
    for size in (10_000, 1_000_000, 10_000_000):
        needed = 2 * size * BYTES_PER_MESSAGE  # what is made, and the copy that a worker gets
        if shutil.disk_usage(DISK).free < needed:
            print(f"{size:>12,g} left out: it takes up to {needed / 1e9:.0f} GB in {DISK}")
            return
        with _behind(with_ended, size) as subject:
            yield Point(size, Work(), 200, subject, {"journal.retention": "3650d"})


def _text_lengths() -> Iterator[Point]:
    for size, messages in ((10, 20_000), (100, 20_000), (1_000, 20_000), (10_000, 10_000), (100_000, 2_000)):
        yield Point(size, Work(messages, text_length=size), 200)


CURVES = (
    Growth("batch-size", "queue.batch_size", _batch_sizes),
    Growth("places", "queue.max_in_flight", _places),
    Growth("latency", "provider's latency, ms", _latencies),
    Growth("settings", "settings ids, none of them cached yet", _settings_ids),
    Growth("waiting", "messages that wait in the journal", _waiting_messages),
    Growth("ended", "ended messages in the journal", _ended_messages),
    Growth("text-length", "characters of a template", _text_lengths),
)


@contextmanager
def _behind(fill: Callable[..., Awaitable[None]], number: int) -> Iterator[Subject]:
    """A daemon whose journal has so many messages already, with ids below those of the work."""
    with folder_on_disk() as folder:
        made = folder / "journal.db"
        asyncio.run(fill(made, number, base=-(number + 1) * STRIDE))

        def start(place: Place) -> Start:
            shutil.copy(made, place.folder)
            os.sync()  # or the worker pays for what the copy left to be written
            return DAEMON.start(place)

        yield replace(DAEMON, start=start)


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a point. CPU is without the start, in ms for 1,000 messages."""

    size: float
    messages: int
    cpu: float
    rate: float
    p99_ms: float
    peak_rss_mb: float


def _measure(point: Point, runs: int) -> Measured:
    environ = {"DELIVERYD_" + key.upper().replace(".", "__"): str(value) for key, value in point.keys.items()}
    world = Conditions(latency_ms=point.latency_ms)

    def run(work: Work) -> Run:
        done = measure(point.subject, work, world, environ)
        if done.flaws:
            raise SubjectFailed("; ".join(done.flaws))
        return done

    few = replace(point.work, messages=point.few)
    start = median(run(few).cpu for _ in range(runs))
    done = [run(point.work) for _ in range(runs)]
    return Measured(
        size=point.size,
        messages=point.work.messages,
        cpu=median((one.cpu - start) / (one.messages - point.few) * 1e6 for one in done),
        rate=median(one.rate for one in done),
        p99_ms=median(one.p99_ms for one in done),
        peak_rss_mb=median(one.peak_rss_mb for one in done),
    )


def main() -> int:
    """Measure, print, keep."""
    clean_up_when_told_to_end()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--curves", nargs="+", choices=[one.name for one in CURVES])
    parser.add_argument("--runs", type=int, default=1)
    chosen = parser.parse_args()
    curves = [one for one in CURVES if not chosen.curves or one.name in chosen.curves]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "growth.json"
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {"curves": {}}
    kept["conditions"] = conditions()
    for one in curves:
        measured = _follow(one, chosen.runs)
        kept["curves"][one.name] = {"axis": one.axis, "points": [asdict(point) for point in measured]}
        path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return 0


def _follow(growth: Growth, runs: int) -> list[Measured]:
    print(f"\n{growth.axis}\n{'':>12} {'CPU ms/1,000':>12} {'messages/s':>12} {'p99 ms':>12} {'RSS MB':>12}")
    measured = []
    for point in growth.points():
        try:
            one = _measure(point, runs)
        except SubjectFailed as error:
            print(f"{point.size:>12,g} {error}")
            continue
        measured.append(one)
        cells = (one.cpu, one.rate, one.p99_ms, one.peak_rss_mb)
        print(f"{one.size:>12,g} " + " ".join(f"{cell:>12,.0f}" for cell in cells), flush=True)
    return measured


if __name__ == "__main__":
    raise SystemExit(main())
