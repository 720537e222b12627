"""`deliveryd cache`: show and clear the disk caches of settings and entity configurations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner, socket_for
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, identifier
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.config import Config
from deliveryd.control.client import NoWorker, ask
from deliveryd.control.protocol import ForgetSettingsRequest
from deliveryd.errors import DeliverydError
from deliveryd.journal.sqlite.lock import lock_owner
from deliveryd.options.units import format_size
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.worker.caches import open_cache, open_entities_cache

cache = CommandGroup(
    no_args_is_help=True,
    help="Show or clear the disk caches of the service's answers.\n\n"
    "Settings and entity configurations can be cleared at any time. They are fetched again when needed.",
)

SettingsOption = Annotated[
    int | None,
    typer.Option("--settings", metavar="ID", parser=identifier, help="Only the settings with this ID."),
]
Entities = Annotated[bool, typer.Option("--entities", help="Only the entity configurations.")]


class _CachePart(NamedTuple):
    """One of the caches: its name, its size limit, and its problems so far."""

    name: str
    limit: int
    disk: DiskCache
    problems: list[str]

    @property
    def folder(self) -> Path:
        return self.disk.folder

    @property
    def is_there(self) -> bool:
        """Whether the cache exists. Raises DeliverydError if that can't be determined."""
        try:
            self.folder.joinpath("cache.db").lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise DeliverydError(f"{self.folder} can't be inspected: {error.strerror}") from None
        return True

    def check(self) -> None:
        """Raise DeliverydError for the first problem, if there is one."""
        if self.problems:
            raise DeliverydError(f"{self.folder}: {self.problems[0]}")


class _Report(NamedTuple):
    """The facts about one cache or one entry, as text and as JSON."""

    text: str
    data: Mapping[str, object]


@cache.command()
def info(
    *,
    config: ConfigOption = USUAL_CONFIG,
    settings: SettingsOption = None,
    entities: Entities = False,
    as_data: AsData = False,
) -> None:
    """Show the size of the caches or, with --settings, one cached entry."""
    loaded = load_journal_as_owner(config, "settings", "service.base_url")

    async def look() -> AsyncIterator[_Report]:
        if settings is not None:
            yield await _about(_settings(loaded), settings)
        for part in _parts(loaded, settings, entities):
            yield await _show(part)

    anyio.run(_tell, look(), as_data)


@cache.command()
def clear(
    *,
    config: ConfigOption = USUAL_CONFIG,
    settings: SettingsOption = None,
    entities: Entities = False,
    as_data: AsData = False,
) -> None:
    """Clear the caches, or only the part that the options select.

    A running worker removes the settings from its memory, too.
    """
    loaded = load_journal_as_owner(config, "settings", "service.base_url")

    async def forget() -> AsyncIterator[_Report]:
        there = settings is None
        if settings is not None and (removed := await _forget(_settings(loaded), settings)) is not None:
            there = True
            yield removed
        for part in _parts(loaded, settings, entities):
            yield await _clear(part)
        if (settings is not None or not entities) and (count := _forget_in_memory(loaded, settings)):
            there = True
            what = "memory    " + _entries(count) if settings is None else f"settings {settings} "
            text = f"{what} removed from the running worker"
            yield _Report(text, {"cache": "memory", "forgotten": count})
        if not there:
            raise DeliverydError(f"settings {settings} aren't in the cache {loaded.settings.cache_dir}")

    anyio.run(_tell, forget(), as_data)


async def clear_settings(config: Config) -> None:
    """Remove all settings from the disk. Raises DeliverydError."""
    await _clear(_settings(config))


async def _tell(reports: AsyncIterator[_Report], as_data: bool) -> None:
    """Print each report as it arrives, or all of them as one JSON array."""
    printed = []
    async for report in reports:
        printed.append(report.data)
        if not as_data:
            print_lines(report.text)
    if as_data:
        print_json(printed)


def _settings(config: Config) -> _CachePart:
    problems: list[str] = []
    disk = open_cache(config, on_problem=problems.append)
    return _CachePart("settings", config.settings.size_limit, disk, problems)


def _entities(config: Config) -> _CachePart:
    problems: list[str] = []
    disk = open_entities_cache(config, problems.append)
    return _CachePart("entities", config.entities.size_limit, disk, problems)


def _parts(config: Config, settings: int | None, entities: bool) -> Sequence[_CachePart]:
    if entities:
        return [_entities(config)]
    return [] if settings is not None else [_settings(config), _entities(config)]


async def _show(part: _CachePart) -> _Report:
    extent = await part.disk.extent() if part.is_there else None
    await part.disk.aclose()
    part.check()
    entries, size = extent if extent is not None else (0, 0)
    limit = format_size(part.limit)
    return _Report(
        f"{part.name}  {_entries(entries)}, {size:,} bytes of at most {limit}, in {part.folder}",
        _data(part, kept=entries, bytes=size, limit=part.limit),
    )


async def _clear(part: _CachePart) -> _Report:
    count = (await part.disk.clear() if part.is_there else 0) or 0
    await part.disk.aclose()
    part.check()
    return _Report(f"{part.name}  {_entries(count)} removed from {part.folder}", _data(part, forgotten=count))


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


async def _about(part: _CachePart, settings_id: int) -> _Report:
    found = await part.disk.get(f"settings/{settings_id}") if part.is_there else None
    await part.disk.aclose()
    part.check()
    if found is None:
        raise DeliverydError(f"settings {settings_id} aren't in the cache {part.folder}")
    size, age = len(found.value), found.age
    since = "fetched later than this clock shows" if age is None else f"fetched {age:,.0f} s ago"
    return _Report(
        f"settings {settings_id}  {size:,} bytes, {since}",
        _data(part, settings=settings_id, bytes=size, age=age),
    )


def _forget_in_memory(config: Config, settings_id: int | None) -> int:
    """Have a running worker forget settings; return how many it had. Raises DeliverydError."""
    try:
        answer = ask(socket_for(config), ForgetSettingsRequest(settings_id))
    except NoWorker:
        holder = None if config.journal.is_shared else lock_owner(config.journal.path)
        if holder is None:
            return 0
        raise DeliverydError(
            f"process {holder} takes no orders now, and may have the settings in its memory:"
            " repeat the command"
        ) from None
    count = answer.get("forgotten")
    return count if isinstance(count, int) else 0


async def _forget(part: _CachePart, settings_id: int) -> _Report | None:
    name = f"settings/{settings_id}"
    there = part.is_there and await part.disk.get(name) is not None
    if there:
        await part.disk.delete(name)
    await part.disk.aclose()
    part.check()
    if not there:
        return None
    return _Report(f"settings {settings_id}  removed", _data(part, settings=settings_id, forgotten=1))


def _data(part: _CachePart, **facts: object) -> Mapping[str, object]:
    return {"cache": part.name, "folder": str(part.folder), **facts}
