"""Writes the skeleton of a preset, with a file of cases: `deliveryd presets new`."""

from __future__ import annotations

import os
from pathlib import Path

from deliveryd.channels.preset_catalogue import name_problem
from deliveryd.errors import DeliverydError, UsageError

CASES = "cases"
"""The folder of the case files, in the folder of the presets."""

_SKELETON = Path(__file__).with_name("skeleton")
_READABLE = 0o644  # a preset that others may write is refused


def write_skeleton(folder: Path, name: str) -> list[Path]:
    """Write NAME.toml and cases/NAME.toml; return their paths. Raises UsageError, DeliverydError.

    Nothing is overwritten.
    """
    if (problem := name_problem(name)) is not None:
        raise UsageError(f"{name}: {problem}")
    files = {folder / f"{name}.toml": "preset.toml", folder / CASES / f"{name}.toml": "cases.toml"}
    for path in files:
        if os.path.lexists(path):
            raise DeliverydError(f"{path} is there already; choose another name, or remove it")
    if not os.path.lexists(folder.parent):
        raise DeliverydError(f"the folder {folder.parent} doesn't exist: create it first")
    try:
        for path, skeleton in files.items():
            path.parent.mkdir(mode=0o755, exist_ok=True)
            text = (_SKELETON / skeleton).read_text(encoding="utf-8")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _READABLE)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text.replace("NAME", name).replace("FOLDER", str(folder)))
    except OSError as error:
        raise DeliverydError(f"{error.filename or folder} can't be written: {error.strerror}") from None
    return list(files)
