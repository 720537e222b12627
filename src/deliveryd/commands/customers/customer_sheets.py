"""Machine-readable output of a customer's data: one JSON object, or one JSON line per entity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from deliveryd.commands.common.output import json_text
from deliveryd.commands.customers.customer_export import Row

OWN_COLUMNS = ("group", "config", "configProblem")


class LinesSheet:
    """JSON Lines: each entity with its group, written as soon as it is read."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def begin(self, group: str) -> None:
        """Begin a group: nothing to write."""

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows."""
        self._out.write(
            "".join(f"{json_text({'group': row.entity.group, **_written(row)})}\n" for row in rows)
        )
        self._out.flush()

    def close(self) -> None:
        """End: nothing to write."""


class ObjectSheet:
    """One JSON object: group → list, with all pages joined. Closed early, it holds what was read.

    If no group was begun, nothing is written: an empty object would look like a customer without data.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._groups = 0
        self._rows = 0

    def begin(self, group: str) -> None:
        """Begin a list."""
        self._out.write(f"{self._end_of_list()}{',' if self._groups else '{'}\n  {json_text(group)}: [")
        self._groups += 1
        self._rows = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Write rows."""
        for row in rows:
            self._out.write(f"{',' if self._rows else ''}\n    {json_text(_written(row))}")
            self._rows += 1
        self._out.flush()

    def close(self) -> None:
        """End the object."""
        if self._groups:
            self._out.write(f"{self._end_of_list()}\n}}\n")
            self._out.flush()

    def _end_of_list(self) -> str:
        if not self._groups:
            return ""
        return "\n  ]" if self._rows else "]"


def _written(row: Row) -> Mapping[str, Any]:
    """Return an entity as the service sent it, with its configuration beside its own fields.

    A field whose name clashes with one of ours is written as `entity.NAME`.
    """
    fields = {
        f"entity.{name}" if name in OWN_COLUMNS else name: value for name, value in row.entity.fields.items()
    }
    written = {"id": row.entity.id, "configUrl": row.entity.config_url, **fields}
    if row.config is not None:
        written["config"] = row.config
    if row.problem is not None:
        written["configProblem"] = row.problem
    return written
