"""`deliveryd cache`: what is kept on disk of settings and configurations, and forgetting it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import typer

from deliveryd.assembly import open_cache, open_entities_cache
from deliveryd.cache import DiskCache
from deliveryd.cli.options import USUAL_CONFIG, ConfigFile, identifier
from deliveryd.cli.output import complain, say
from deliveryd.config import Config, load
from deliveryd.errors import DeliverydError
from deliveryd.journal.holder import holder_of
from deliveryd.units import format_duration, format_size

cache = typer.Typer(
    no_args_is_help=True,
    help="Show or forget what is kept on disk of the service's answers.\n\n"
    "Settings and entity configurations may be forgotten at any time. They are asked for again when they are"
    " needed.",
)

Settings = Annotated[
    int | None,
    typer.Option("--settings", metavar="ID", parser=identifier, help="Only the settings with this id."),
]
Entities = Annotated[bool, typer.Option("--entities", help="Only the entity configurations.")]


class _Part(NamedTuple):
    """One of the caches: its name, how large it may become, what went wrong with it."""

    name: str
    limit: int
    disk: DiskCache
    problems: list[str]

    @property
    def folder(self) -> Path:
        return self.disk.folder

    @property
    def is_there(self) -> bool:
        """Whether there is a cache; raises DeliverydError when that can't be told."""
        try:
            self.folder.joinpath("cache.db").lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise DeliverydError(f"{self.folder} can't be looked at: {error.strerror}") from None
        return True

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self.problems:
            raise DeliverydError(f"{self.folder}: {self.problems[0]}")


@cache.command()
def info(*, config: ConfigFile = USUAL_CONFIG, settings: Settings = None, entities: Entities = False) -> None:
    """Show what is kept. With --settings: whether these settings are."""
    loaded = load(config)

    async def look() -> None:
        if settings is not None:
            await _about(_settings(loaded), settings)
        for part in _parts(loaded, settings, entities):
            await _show(part)

    anyio.run(look)


@cache.command()
def clear(
    *, config: ConfigFile = USUAL_CONFIG, settings: Settings = None, entities: Entities = False
) -> None:
    """Forget what is kept: all of it, or what the options name.

    A running worker keeps the settings that it has in memory until it is restarted.
    """
    loaded = load(config)

    async def forget() -> None:
        if settings is not None:
            await _forget(_settings(loaded), settings)
        for part in _parts(loaded, settings, entities):
            await _clear(part)

    anyio.run(forget)
    holder = holder_of(loaded.journal.path)
    if holder is not None and (settings is not None or not entities):
        note = f"deliveryd: process {holder} still has settings in memory, until it is restarted"
        complain(note)


def _settings(config: Config) -> _Part:
    problems: list[str] = []
    disk = open_cache(config, on_problem=problems.append)
    _become_owner(disk.folder)
    return _Part("settings", config.settings.size_limit, disk, problems)


def _entities(config: Config) -> _Part:
    problems: list[str] = []
    disk = open_entities_cache(config, problems.append)
    _become_owner(disk.folder)
    return _Part("entities", config.entities.size_limit, disk, problems)


def _become_owner(folder: Path) -> None:
    """As root, work as the user whose cache it is: files of root's would lock the worker out of it."""
    if os.geteuid() != 0 or not folder.is_dir():
        return
    owner = folder.stat()
    if owner.st_uid != 0:
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)


def _parts(config: Config, settings: int | None, entities: bool) -> Sequence[_Part]:
    if entities:
        return [_entities(config)]
    return [] if settings is not None else [_settings(config), _entities(config)]


async def _show(part: _Part) -> None:
    extent = await part.disk.extent() if part.is_there else None
    await part.disk.aclose()
    part.check()
    entries, size = extent if extent is not None else (0, 0)
    limit = format_size(part.limit)
    say(f"{part.name}  {entries:,} kept, {size:,} bytes of at most {limit}, in {part.folder}")


async def _clear(part: _Part) -> None:
    count = await part.disk.clear() if part.is_there else 0
    await part.disk.aclose()
    part.check()
    say(f"{part.name}  {count or 0:,} forgotten, in {part.folder}")


async def _about(part: _Part, settings_id: int) -> None:
    found = await part.disk.get(f"settings/{settings_id}") if part.is_there else None
    await part.disk.aclose()
    part.check()
    if found is None:
        raise DeliverydError(f"settings {settings_id} aren't in the cache {part.folder}")
    left = found.seconds_left
    until = "until they are cleared or pushed out" if left is None else f"for {format_duration(left // 1)}"
    say(f"settings {settings_id}  {len(found.value):,} bytes, kept {until}")


async def _forget(part: _Part, settings_id: int) -> None:
    name = f"settings/{settings_id}"
    there = part.is_there and await part.disk.get(name) is not None
    if there:
        await part.disk.delete(name)
    await part.disk.aclose()
    part.check()
    if not there:
        raise DeliverydError(f"settings {settings_id} aren't in the cache {part.folder}")
    say(f"settings {settings_id}  forgotten")
