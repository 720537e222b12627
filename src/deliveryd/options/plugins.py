"""Look-up of plug-ins by their configured name among the entry points of packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from deliveryd.options.suggestion import suggestion
from deliveryd.runtime.rights import tampering

K = TypeVar("K")


def find_kind(
    name: str,
    kind_type: type[K],
    *,
    what: str,
    group: str,
    others: Iterable[str] = (),
) -> K:
    """Return the kind with this name from an entry point of the group.

    `what` is its name in errors; `others` are the names that are no plug-ins. Raises ValueError, with a
    suggestion, if there is none or it can't be loaded, or if others than root and this process's user can
    change its code, which isn't run then.
    """
    found = entry_points(group=group)
    for point in found.select(name=name):
        if problems := _tampering(point.module):
            raise ValueError(f"the {what} {name!r} isn't loaded: {'; '.join(problems)}")
        try:
            kind = point.load()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"the {what} {name!r} can't be loaded: {reason}") from error
        if not isinstance(kind, kind_type):
            raise ValueError(f"the {what} {name!r}: {point.value} is no {kind_type.__name__}")  # noqa: TRY004  # one error for callers
        return kind
    known = [*others, *sorted(found.names)]
    raise ValueError(f"unknown {what} {name!r}{suggestion(name, known)} (there are: {', '.join(known)})")


def _tampering(module: str) -> list[str]:
    """Return who else can change a plug-in's module, or anything in the packages that it is in.

    Imports nothing. The folder that the plug-in is installed in is on the way to its files.
    """
    files = dict.fromkeys(
        file for place in _places(module) for file in (place, *_below(place)) if file.exists()
    )
    problems = (each for file in files for each in tampering(file, file.stat(), os.geteuid()))
    return list(dict.fromkeys(problems))


def _places(module: str) -> Iterator[Path]:
    """Yield the files and folders from which a module and the packages that it is in are read."""
    name, within = "", None
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        specs = (finder.find_spec(name, within, None) for finder in sys.meta_path)
        spec = next((each for each in specs if each is not None), None)
        if spec is None:  # which the import reports
            return
        yield from _files_of(spec)
        within = spec.submodule_search_locations


def _files_of(spec: ModuleSpec) -> Iterator[Path]:
    """Yield a module's file and its compiled copy, or a package's folder."""
    if spec.origin is None or not spec.has_location:  # in no file, or a folder that several packages share
        return
    if spec.submodule_search_locations is not None:
        yield from map(Path, spec.submodule_search_locations)
        return
    yield from (Path(each) for each in (spec.origin, spec.cached) if each is not None)


def _below(place: Path) -> Iterator[Path]:
    return place.rglob("*") if place.is_dir() else iter(())
