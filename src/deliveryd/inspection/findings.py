"""What a check found: one sentence for each thing, under its configuration key, with a level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """How a check came out, the better ones first."""

    OK = 0
    HINT = 1  # it works, and is hardly what was meant
    WARNING = 2  # it works, and is unsafe or useless in part
    FAILED = 3  # something can't be used now: it may become good by itself
    ERROR = 4  # the configuration, or what it names, has to be changed: deliveryd doesn't run with it


class Finding(NamedTuple):
    """One thing that was checked: its configuration key, how it came out, and a sentence."""

    key: str
    level: Level
    text: str


MARKS: Mapping[Level, str] = {level: level.name.lower() for level in Level}


def of_problems(problems: Sequence[str]) -> list[Finding]:
    """The problems of a configuration, which stand as `place:key: what to do`."""
    return [
        Finding(key, Level.ERROR, text) for key, _, text in (problem.partition(": ") for problem in problems)
    ]


def findings_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each finding."""
    width = max((len(finding.key) for finding in findings), default=0)
    for finding in findings:
        yield f"{MARKS[finding.level]:8} {finding.key:{width}}  {finding.text}"


def as_problems(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each finding as a configuration's mistakes are told; all but errors name their level."""
    for finding in findings:
        level = "" if finding.level is Level.ERROR else f"{MARKS[finding.level]}: "
        yield f"{finding.key}: {level}{finding.text}"


def findings_data(findings: Sequence[Finding]) -> Mapping[str, object]:
    """The same for a program."""
    worst = max((finding.level for finding in findings), default=Level.OK)
    return {
        "level": MARKS[worst],
        "checks": [{"key": f.key, "level": MARKS[f.level], "text": f.text} for f in findings],
    }
