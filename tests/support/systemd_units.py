"""The systemd units of this repository, and how to read them."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
UNITS = ["deliveryd.service", "deliveryd@.service"]


def unit_settings(name: str) -> dict[str, list[str]]:
    """The settings of a unit, each with its values in order."""
    settings: dict[str, list[str]] = {}
    for line in (ROOT / "systemd" / name).read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(key, []).append(value)
    return settings
