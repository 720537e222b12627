"""Cuts the power at every point of a recording, and judges each journal that this leaves."""

from __future__ import annotations

import hashlib
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import anyio

from deliveryd.errors import DeliverydError
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.journal.sqlite.opening import JournalAbsent
from power.claims import Claim, broken, facts_of
from power.disk import VARIANTS, Disk, Image
from power.recording import Recording
from power.tracing import Sent

JOURNAL = "state/journal.db"
LATER = 4_102_444_800_000_000
"""An instant that is after all lives, microseconds."""

MEMORY = Path("/dev/shm")  # noqa: S108  # folders of random names


class Violation(NamedTuple):
    """A loss of power after a step, what it left of the writes, and what is wrong with the journal then."""

    step: int
    variant: str
    what: str


@dataclass(slots=True)
class Figures:
    """What a sweep did and found."""

    steps: int = 0
    claims: int = 0
    points: int = 0
    images: int = 0
    different: int = 0
    claims_checked: int = 0
    violations: list[Violation] = field(default_factory=list)

    def as_dict(self) -> dict[str, int]:
        """The sums."""
        return {
            "steps": self.steps, "claims": self.claims, "points": self.points, "images": self.images,
            "different_images": self.different, "claims_checked": self.claims_checked,
            "violations": len(self.violations),
        }  # fmt: skip


class _Found(NamedTuple):
    """What a journal that was opened after a loss of power holds, or what is wrong with it."""

    facts: Counter[tuple[str, str]]
    wrong: str | None


def sweep(recording: Recording, seed: int, chosen: Callable[[int], bool] = lambda _point: True) -> Figures:
    """Judge all points at which the disk or the outside learnt something, of those that are chosen.

    Points are counted from 0.
    """
    figures = Figures(steps=len(recording.steps), claims=len(recording.told))
    judged: dict[bytes, _Found] = {}
    disk = Disk(recording.root)
    told = sorted(recording.told, key=lambda each: each.at)
    claims: list[Claim] = []
    point = -1
    for number, step in enumerate(recording.steps):
        while told and told[0].at <= number:
            claims.append(told.pop(0).claim)
        if not disk.take(step) and not isinstance(step, Sent):
            continue
        point += 1
        if not chosen(point):
            continue
        figures.points += 1
        for variant, image in _images(disk, seed, number):
            figures.images += 1
            digest = _digest(image)
            if digest not in judged:
                judged[digest] = judge(image)
            figures.claims_checked += len(claims)
            found = judged[digest]
            figures.violations += (Violation(number, variant, what) for what in _complaints(found, claims))
    figures.different = len(judged)
    return figures


def _images(disk: Disk, seed: int, number: int) -> Iterator[tuple[str, Image]]:
    for name, variant in VARIANTS.items():
        yield name, variant(disk, random.Random(f"{seed} {number} {name}"))


def _complaints(found: _Found, claims: Sequence[Claim]) -> Iterator[str]:
    if found.wrong is not None:
        yield found.wrong
    elif missing := broken(claims, found.facts):
        kinds = Counter(claim.kind for claim in missing)
        yield f"told, and not in the journal: {dict(kinds)}, such as {missing[0]}"


def _digest(image: Image) -> bytes:
    digest = hashlib.sha256()
    for name, content in sorted(image.items()):
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(content)))
        digest.update(content)
    return digest.digest()


def judge(image: Image) -> _Found:
    """Open what a loss of power left as the next worker does, and look at all of it."""
    folder = Path(tempfile.mkdtemp(prefix="deliveryd-power-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        for name, content in image.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        return _opened(folder / JOURNAL)
    finally:
        shutil.rmtree(folder)


def _opened(journal: Path) -> _Found:
    nothing: Counter[tuple[str, str]] = Counter()
    try:
        before = _imbalance(journal)
        anyio.run(_recover, journal)
        after = _imbalance(journal)
        with closing(sqlite3.connect(journal)) as db:
            integrity = [row for (row,) in db.execute("PRAGMA integrity_check")]
    except (DeliverydError, sqlite3.Error) as error:
        return _Found(nothing, f"it can't be opened: {type(error).__name__}: {error}")
    if integrity != ["ok"]:
        return _Found(nothing, f"it is damaged: {integrity[0]}")
    if before or after:
        return _Found(nothing, f"it isn't balanced: {before or after}")
    return _Found(facts_of(journal), None)


async def _recover(journal: Path) -> None:
    async with open_journal_file(journal) as opened:
        await opened.recover(LATER, ["sms"])


def _imbalance(journal: Path) -> str | None:
    try:
        result = file_reader(journal).audit()
    except JournalAbsent:
        return None
    return None if result.is_balanced else str(result.findings or result.account)
