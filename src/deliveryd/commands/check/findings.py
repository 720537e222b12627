"""Findings of a check: one sentence each, under a configuration key, with a level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple


class Level(IntEnum):
    """Severity of a finding, ascending."""

    OK = 0
    HINT = 1  # works, but is probably not intended
    WARNING = 2  # works, but is unsafe or partly useless
    FAILED = 3  # unavailable now; may recover without a change
    ERROR = 4  # the configuration, or what it names, must be changed: deliveryd doesn't start with it


class Finding(NamedTuple):
    """One result: a configuration key, a level and a sentence."""

    key: str
    level: Level
    text: str


MARKS: Mapping[Level, str] = {level: level.name.lower() for level in Level}


def of_problems(problems: Sequence[str]) -> list[Finding]:
    """Return a configuration's problems, given as `place:key: what to do`, as findings."""
    return [
        Finding(key, Level.ERROR, text) for key, _, text in (problem.partition(": ") for problem in problems)
    ]


def findings_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each finding."""
    width = max((len(finding.key) for finding in findings), default=0)
    for finding in findings:
        yield f"{MARKS[finding.level]:8} {finding.key:{width}}  {finding.text}"


def as_problems(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each finding in the form of configuration errors, with the level unless an error."""
    for finding in findings:
        level = "" if finding.level is Level.ERROR else f"{MARKS[finding.level]}: "
        yield f"{finding.key}: {level}{finding.text}"


def findings_data(findings: Sequence[Finding]) -> Mapping[str, object]:
    """Return the findings as JSON."""
    worst = max((finding.level for finding in findings), default=Level.OK)
    return {
        "level": MARKS[worst],
        "checks": [{"key": f.key, "level": MARKS[f.level], "text": f.text} for f in findings],
    }
