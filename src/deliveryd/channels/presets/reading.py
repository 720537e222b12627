"""Reads the table of a provider whose adapter is a preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from deliveryd.channels.presets.catalogue import PACKAGED, Catalogue, Preset, check_tables
from deliveryd.channels.registry import find_adapter, is_adapter
from deliveryd.errors import ConfigError
from deliveryd.options.file import ConfigFile, Elsewhere

if TYPE_CHECKING:
    from deliveryd.channels.presets.table import Expansion


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
