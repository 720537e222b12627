"""Finds presets, those of the package and of an operator's folder, and reads tables that name one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.mapping import content_problems
from deliveryd.channels.registry import find_adapter, is_adapter
from deliveryd.errors import ConfigError
from deliveryd.options.file import ConfigFile, Elsewhere, Opened

if TYPE_CHECKING:
    from deliveryd.channels.presets.file import PresetFile
    from deliveryd.channels.presets.table import Expansion

PACKAGED = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class Preset(NamedTuple):
    """A preset: the name that `adapter` gives it, its file, what the file holds, and how it was found."""

    name: str
    path: Path
    file: PresetFile
    opened: Opened


class Catalogue:
    """The presets of the package, then those in `folder`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of all presets, sorted."""
        return sorted(self._paths())

    def find(self, name: str) -> Preset | None:
        """Read the preset with this name; None: there is none. Raises ConfigError with its mistakes."""
        path = self._paths().get(name)
        return None if path is None else read_preset(path)

    def problems(self) -> Iterator[str]:
        """Return why the folder, or the name of a file in it, can't be used."""
        if self._folder is None:
            return
        if not self._folder.is_dir():
            yield f"{self._folder} isn't a folder"
            return
        for name in preset_names(self._folder):
            if (problem := name_problem(name)) is not None:
                yield f"{name}.toml: {problem}; rename the file"

    def opened(self) -> Iterator[Opened]:
        """Yield the folder, where whoever may add a file adds a preset."""
        if self._folder is not None and self._folder.is_dir():
            yield Opened(self._folder, self._folder.stat())

    def _paths(self) -> dict[str, Path]:
        folders = [self._folder, PACKAGED] if self._folder is not None else [PACKAGED]
        return {path.stem: path for folder in folders for path in folder.glob("*.toml")}


def name_problem(name: str) -> str | None:
    """Return why an operator's preset can't have this name, or None."""
    if not _NAME.fullmatch(name):
        return "a preset's name may hold lower-case letters, digits, _ and -, and begins with a letter"
    if name in preset_names(PACKAGED):
        return "deliveryd has a preset of this name"
    return "there is an adapter of this name" if is_adapter(name) else None


def preset_names(folder: Path) -> list[str]:
    """Return the names of the presets in a folder, sorted."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def read_preset(path: Path) -> Preset:
    """Read a preset's file. Raises ConfigError with all mistakes, each as `file:key: what`."""
    from deliveryd.channels.presets.file import PresetFile  # noqa: PLC0415  # loaded only where a preset is read

    file = ConfigFile(path, {}, ())
    found = file.validate(
        PresetFile, file.tables, known=[f"table.{key}" for key in HttpChannelOptions.model_fields]
    )
    if found is None:
        raise ConfigError(file.problems)
    (opened,) = file.opened
    return Preset(path.stem, path, found, opened)


def check_tables(preset: Preset, provider: type[BaseModel]) -> None:
    """Check what the preset's tables make of the examples of its keys, for each of its blocks.

    `provider` is the model of the keys that every provider has. Raises ConfigError, each problem as
    `file:key: what`.
    """
    from deliveryd.channels.presets.table import examples, expand  # noqa: PLC0415  # as in read_preset

    problems: list[str] = []
    for block in preset.file.channels:
        for only_required in (False, True):
            given = examples(preset.file, only_required=only_required)
            made = expand(preset.file, given, block, provider.model_fields)
            problems += _table_problems(preset, provider, made.table, block)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _table_problems(
    preset: Preset, provider: type[BaseModel], table: dict[str, object], block: str
) -> Iterator[str]:
    file = ConfigFile(preset.path, {}, ())
    common = provider.model_fields
    file.validate(provider, table, "table")
    options = file.validate(
        HttpChannelOptions, {name: value for name, value in table.items() if name not in common}, "table"
    )
    overlay = preset.file.blocks.get(block, {})
    for problem in file.problems:
        place = problem.removeprefix(f"{preset.path}:")
        key = place.partition(":")[0].split(".")[1:2]
        in_block = bool(key) and key[0] in overlay
        yield f"{preset.path}:{f'blocks.{block}' + place.removeprefix('table') if in_block else place}"
    if options is not None:
        yield from (f"{preset.path}:table.{each}" for each in content_problems(options.mapped(), block))


class PresetReader:
    """Expands presets in a configuration file; `common` is the model of the keys that every provider has."""

    def __init__(self, file: ConfigFile, folder: Path | None, common: type[BaseModel]) -> None:
        self._file = file
        self._catalogue = Catalogue(folder)
        self._common = common
        for problem in self._catalogue.problems():
            file.complain("channels.presets_dir", problem)
        file.opened += self._catalogue.opened()

    def names_beside(self, adapter: str) -> list[str]:
        """Return the names of all presets, to suggest where this isn't an adapter."""
        return [] if is_adapter(adapter) else self._catalogue.names()

    def keys(self, adapter: str) -> Iterator[str]:
        """Yield the keys of an adapter or a preset; none if it is unknown."""
        try:
            if is_adapter(adapter):
                yield from find_adapter(adapter).options.model_fields
            elif (preset := self._catalogue.find(adapter)) is not None:
                yield from (*preset.file.keys, "secrets")
        except (ValueError, ConfigError):  # reported with the provider
            return

    def expanded(self, place: str, block: str, table: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the table at `place`, expanded if its adapter is a preset. None: it has mistakes."""
        adapter = table.get("adapter")
        if not isinstance(adapter, str) or is_adapter(adapter):
            return table
        try:
            preset = self._catalogue.find(adapter)
            if preset is None:  # the adapter is unknown, which its own look-up reports
                return table
            if preset.path.parent != PACKAGED:
                self._file.opened.append(preset.opened)
                check_tables(preset, self._common)
        except ConfigError as error:
            self._file.problems += [each for each in error.problems if each not in self._file.problems]
            return None
        from deliveryd.channels.presets.table import (  # noqa: PLC0415  # loaded only for a preset
            expand,
            missing_alternatives,
        )

        made = expand(preset.file, table, block, self._common.model_fields)
        problems = [*made.problems, *missing_alternatives(preset.file, table)]
        for key, text in problems:
            self._file.complain(f"{place}.{key}", text)
        self._file.report_at(dict(_places(preset, made, table, place)))
        return None if problems else made.table


def _places(
    preset: Preset, made: Expansion, given: Mapping[str, Any], place: str
) -> Iterator[tuple[str, Elsewhere]]:
    """Yield where problems with the keys that a preset made are reported: at the operator's keys.

    A whole table of the preset is at fault if no key of the operator, or more than one, is in it.
    """
    for key in made.table:
        if key in given:
            continue
        used = {name for written, name in made.written_at.items() if written.partition(".")[0] == key}
        faulty = Elsewhere(f"{place}.adapter", f"the preset {preset.name}: {key}")
        yield f"{place}.{key}", Elsewhere(f"{place}.{used.pop()}") if len(used) == 1 else faulty
    for key, name in made.written_at.items():
        yield f"{place}.{key}", Elsewhere(f"{place}.{name}")
