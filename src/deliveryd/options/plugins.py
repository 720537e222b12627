"""Look-up of plug-ins by their configured name among the entry points of packages."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import TypeVar

from deliveryd.options.suggestion import suggestion

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
    suggestion, if there is none or it can't be loaded.
    """
    found = entry_points(group=group)
    for point in found.select(name=name):
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
