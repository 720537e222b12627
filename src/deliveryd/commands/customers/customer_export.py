"""Exports a customer's data in small portions, with the entities' configurations on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import anyio

from deliveryd.errors import ServiceError, ServiceUnavailable, ServiceUnreadable
from deliveryd.service.client import ServiceClient
from deliveryd.service.customer_data import CustomerData, Entity, EntityGroup

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


class ExportWatcher(Protocol):
    """Receives the progress of an export."""

    def came_to(self, progress: Progress) -> None:
        """Receive the progress."""


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

    async def copy(self, sheet: Sheet, watcher: ExportWatcher) -> None:
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

    async def _copy_group(self, name: str, group: EntityGroup, sheet: Sheet, watcher: ExportWatcher) -> None:
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
