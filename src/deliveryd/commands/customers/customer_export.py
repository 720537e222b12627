"""Exports a customer's data in small portions, with the entities' configurations on request, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TextIO

import anyio

from deliveryd.commands.common.output import json_text
from deliveryd.commands.common.tables import ProgressLine
from deliveryd.errors import ServiceError, ServiceUnavailable, ServiceUnreadable
from deliveryd.service.client import ServiceClient
from deliveryd.service.customer_area import CustomerData, Entity, EntityGroup

EXPORT_PORTION = 64
"""Entities that are written together, with their configurations; bounds the memory of an export."""

SIDE_BY_SIDE = 8
"""Configurations requested concurrently."""

MOST_FAILURES = 20
"""Consecutive unavailable configurations after which an export is aborted."""


class Row(NamedTuple):
    """An entity, and its configuration as its host sent it, or the `problem` that it has none."""

    entity: Entity
    config: Mapping[str, Any] | None = None
    problem: str | None = None


class Sheet(Protocol):
    """Receives the rows of an export, one group after the other."""

    def begin(self, group: str) -> None:
        """Begin a group."""

    def add(self, rows: Sequence[Row]) -> None:
        """Write the next rows of that group."""

    def close(self) -> None:
        """Finish the output, also after an incomplete export."""


@dataclass(slots=True)
class Progress:
    """The progress of an export: entities written per group, pages, configurations."""

    entities: dict[str, int] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Return the progress as text."""
        read = [f"{group} {count:,}" for group, count in self.entities.items()]
        if not read:
            return "nothing was read"
        pages = sum(self.pages.values())
        return f"{sum(self.entities.values()):,} entities were read ({', '.join(read)}) from {pages:,} pages"


class Reading:
    """One export of a customer's data, group after group. `with_config`: include configurations."""

    def __init__(self, client: ServiceClient, data: CustomerData, *, with_config: bool) -> None:
        self.progress = Progress()
        self._client = client
        self._data = data
        self._with_config = with_config
        self._failures = 0

    async def copy(self, sheet: Sheet, watcher: ProgressLine) -> None:
        """Read everything into a sheet. Raises ServiceError, after everything read so far has been written.

        An unavailable configuration is noted in its row; many in a row end the export. A group that can't be
        read to its end hides no other: ServiceUnreadable names those at last. A group begins only when its
        first page has arrived, so that nothing is written about an unknown customer.
        """
        unreadable: list[str] = []
        for name, group in self._data.items():
            try:
                await self._copy_group(name, group, sheet, watcher)
            except ServiceUnreadable as error:
                if not self._data.answered:
                    raise
                unreadable.append(str(error))
        if unreadable:
            raise ServiceUnreadable("; ".join(unreadable))

    async def _copy_group(self, name: str, group: EntityGroup, sheet: Sheet, watcher: ProgressLine) -> None:
        rows = await self._portion(group)
        if not self._data.answered:
            raise ServiceUnreadable("the service returned no group; it may not have this customer")
        sheet.begin(name)
        self._hand_on(rows, group, sheet)
        while rows:
            watcher.came_to(self.progress)
            rows = await self._portion(group)
            self._hand_on(rows, group, sheet)

    async def _portion(self, group: EntityGroup) -> Sequence[Row]:
        """Return the rows of a page or of a part of it; empty at the end."""
        entities: list[Entity] = []
        async for entity in group:
            entities.append(entity)
            if not group.ready or len(entities) == EXPORT_PORTION:
                break
        return await self._with_configs(entities) if self._with_config else [Row(each) for each in entities]

    def _hand_on(self, rows: Sequence[Row], group: EntityGroup, sheet: Sheet) -> None:
        sheet.add(rows)
        self.progress.pages[group.name] = group.pages
        self.progress.entities[group.name] = group.entities
        self._note_problems(rows)

    async def _with_configs(self, entities: Sequence[Entity]) -> list[Row]:
        rows = [Row(each) for each in entities]
        limiter = anyio.CapacityLimiter(SIDE_BY_SIDE)

        async def ask(at: int, entity: Entity) -> None:
            async with limiter:
                rows[at] = await self._row(entity)

        async with anyio.create_task_group() as tasks:
            for at, entity in enumerate(entities):
                tasks.start_soon(ask, at, entity)
        return rows

    async def _row(self, entity: Entity) -> Row:
        try:
            config = await self._client.configuration(entity.config_url)
        except ServiceError as error:
            self._failures = self._failures + 1 if isinstance(error, ServiceUnavailable) else 0
            return Row(entity, problem=str(error))
        self._failures = 0
        return Row(entity, config)

    def _note_problems(self, rows: Sequence[Row]) -> None:
        """Count the problems. Raises ServiceUnavailable after too many failures in a row."""
        for row in rows:
            if row.problem is not None:
                self.progress.problems[row.problem] = self.progress.problems.get(row.problem, 0) + 1
        if self._failures >= MOST_FAILURES:
            last = next(row.problem for row in reversed(rows) if row.problem is not None)
            raise ServiceUnavailable(f"{self._failures} configurations in a row were unavailable: {last}")


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
