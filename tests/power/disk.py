"""A disk whose power fails: it surely holds what was synced, and anything between none and all of the rest.

A name is as good as the last sync of its folder, a byte as the last sync of its file. A sync that failed
makes nothing durable, and what it was about stays lost, however well later ones go, until it is written anew:
that is what Linux does, which takes the failed pages for clean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TypeAlias

from power.tracing import Cut, MadeFolder, Opened, Removed, Renamed, Sent, Step, Synced, Wrote

SECTOR = 512

Image: TypeAlias = Mapping[str, bytes]
"""The files of a folder: relative path, and what the file holds."""


@dataclass(slots=True)
class Change:
    """Something that a file was told and the disk may not hold yet; `lost`: a sync of it has failed."""

    order: int
    what: Wrote | Cut
    lost: bool = False


@dataclass(slots=True)
class File:
    """What a file surely holds, and what it was told since."""

    durable: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)

    def sync(self, *, ok: bool) -> None:
        """Make durable what isn't lost; or, where that failed, lose it."""
        if not ok:
            for change in self.changes:
                change.lost = True
            return
        kept = [change for change in self.changes if not change.lost]
        for change in kept:
            apply(self.durable, change.what)
        newest = max((change.order for change in kept), default=0)
        still_lost = [
            change
            for change in self.changes
            if change.lost and not (isinstance(change.what, Cut) and change.order < newest)
        ]
        self.changes = [part for change in still_lost for part in _without(change, kept)]

    def content(self, keep: Callable[[Change], Iterator[Wrote | Cut]]) -> bytes:
        """What the file holds after a loss of power that keeps these parts of what wasn't durable."""
        content = bytearray(self.durable)
        for change in self.changes:
            for part in keep(change):
                apply(content, part)
        return bytes(content)


def apply(content: bytearray, what: Wrote | Cut) -> None:
    """Do to some content what a file was told."""
    if isinstance(what, Cut):
        del content[what.size :]
        content.extend(bytes(what.size - len(content)))
        return
    end = what.offset + len(what.data)
    content.extend(bytes(max(end - len(content), 0)))
    content[what.offset : end] = what.data


def _without(lost: Change, kept: list[Change]) -> list[Change]:
    """What is still lost of a change after later ones wrote over parts of it."""
    parts = [lost]
    for change in kept:
        if change.order < lost.order or isinstance(change.what, Cut):
            continue
        begin, end = change.what.offset, change.what.offset + len(change.what.data)
        parts = [rest for part in parts for rest in _cut_out(part, begin, end)]
    return parts


def _cut_out(part: Change, begin: int, end: int) -> list[Change]:
    if isinstance(part.what, Cut):
        return [part]
    path, offset, data = part.what
    before = data[: max(begin - offset, 0)]
    behind = data[max(end - offset, 0) :]
    behind_at = offset + len(data) - len(behind)
    pieces = [(offset, before), (behind_at, behind)] if begin < offset + len(data) and end > offset else []
    if not pieces:
        return [part]
    return [Change(part.order, Wrote(path, at, rest), lost=True) for at, rest in pieces if rest]


class Disk:
    """The files below one folder. Other steps than theirs are passed over."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._names: dict[str, File | None] = {}  # None: a folder
        self._durable_names: dict[str, File | None] = {}
        self._order = 0

    def take(self, step: Step) -> bool:
        """Do a step; say whether it was one of ours."""
        if isinstance(step, Sent) or not self._is_ours(step.path):
            return False
        self._order += 1
        match step:
            case Opened(path):
                self._names.setdefault(path, File())
            case MadeFolder(path):
                self._names[path] = None
            case Removed(path):
                self._names.pop(path, None)
            case Renamed(path, to):
                self._names[to] = self._names.pop(path)
            case Synced(path, ok, _):
                self._sync(path, ok=ok)
            case Wrote() | Cut():
                file = self._names[step.path]
                assert file is not None
                file.changes.append(Change(self._order, step))
        return True

    def _is_ours(self, path: str) -> bool:
        return path == self._root or path.startswith(f"{self._root}/")

    def _sync(self, path: str, *, ok: bool) -> None:
        file = self._names.get(path)
        if file is not None:
            file.sync(ok=ok)
        elif ok:
            here = {name for name in self._names | self._durable_names if _parent(name) == path}
            for name in here:
                _copy_name(name, self._names, self._durable_names)

    def image(
        self, keep: Callable[[Change], Iterator[Wrote | Cut]], keep_name: Callable[[str], bool]
    ) -> Image:
        """The folder after a loss of power that keeps these parts of what wasn't durable."""
        names = dict(self._durable_names)
        for name in sorted(self._names | self._durable_names):
            if self._names.get(name, self) is not self._durable_names.get(name, self) and keep_name(name):
                _copy_name(name, self._names, names)
        return {
            name.removeprefix(f"{self._root}/"): file.content(keep)
            for name, file in names.items()
            if file is not None and self._is_reached(name, names)
        }

    def _is_reached(self, name: str, names: Mapping[str, File | None]) -> bool:
        parent = _parent(name)
        return parent == self._root or (parent in names and self._is_reached(parent, names))

    def newest(self) -> int:
        """The order of the last step."""
        return self._order


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _copy_name(name: str, source: Mapping[str, File | None], target: dict[str, File | None]) -> None:
    if name in source:
        target[name] = source[name]
    else:
        target.pop(name, None)


# what a loss of power leaves


def nothing(disk: Disk, _chance: random.Random) -> Image:
    """Only what was synced."""
    return disk.image(lambda _change: iter(()), lambda _name: False)


def everything(disk: Disk, _chance: random.Random) -> Image:
    """All that the system still had in memory had just been written, too; what was lost is lost."""
    return disk.image(lambda change: iter(() if change.lost else (change.what,)), lambda _name: True)


def some(disk: Disk, chance: random.Random) -> Image:
    """A coin decides for each write and each name."""
    return disk.image(
        lambda change: iter((change.what,) if chance.random() < 0.5 else ()), lambda _: chance.random() < 0.5
    )


def sectors(disk: Disk, chance: random.Random) -> Image:
    """A coin decides for each sector."""
    return disk.image(
        lambda change: (part for part in _sectors(change.what) if chance.random() < 0.5),
        lambda _: chance.random() < 0.5,
    )


def torn(disk: Disk, chance: random.Random) -> Image:
    """All up to some write, and of that one the first sectors."""
    last = disk.newest() - chance.randrange(12)

    def keep(change: Change) -> Iterator[Wrote | Cut]:
        if change.order < last and not change.lost:
            yield change.what
        elif change.order == last:
            parts = list(_sectors(change.what))
            yield from parts[: chance.randrange(len(parts) + 1)]

    return disk.image(keep, lambda _: True)


VARIANTS: Mapping[str, Callable[[Disk, random.Random], Image]] = {
    "nothing": nothing,
    "everything": everything,
    "some": some,
    "sectors": sectors,
    "torn": torn,
}
"""By name: what is left of the writes that weren't synced."""


def _sectors(what: Wrote | Cut) -> Iterator[Wrote | Cut]:
    if isinstance(what, Cut):
        yield what
        return
    begin, end = what.offset, what.offset + len(what.data)
    while begin < end:
        edge = min((begin // SECTOR + 1) * SECTOR, end)
        yield Wrote(what.path, begin, what.data[begin - what.offset : edge - what.offset])
        begin = edge
