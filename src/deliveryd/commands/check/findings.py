"""Findings of a check: one sentence each, under a configuration key, with a level."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """Severity of a finding, ascending."""

    OK = 0
    HINT = 1  # works, but is probably not intended
    WARNING = 2  # works, but is unsafe or partly useless
    FAILED = 3  # unavailable now; may recover without a change
    ERROR = 4  # the configuration, or what it names, must be changed: deliveryd doesn't start with it

    @property
    def mark(self) -> str:
        """The level as it is printed."""
        return self.name.lower()


class Finding(NamedTuple):
    """One result: a configuration key, a level and a sentence."""

    key: str
    level: Level
    text: str


def of_problems(problems: Sequence[str]) -> list[Finding]:
    """Return a configuration's problems, given as `place:key: what to do`, as findings."""
    return [
        Finding(key, Level.ERROR, text) for key, _, text in (problem.partition(": ") for problem in problems)
    ]
