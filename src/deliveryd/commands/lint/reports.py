"""Findings as a table, as JSON, as SARIF 2.1.0, and as annotations of GitHub Actions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from deliveryd import __version__
from deliveryd.commands.lint.reading import LintedSettings, Spot
from deliveryd.commands.lint.rules import RULES, LintFinding, Severity

_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_GITHUB = {Severity.NOTE: "notice", Severity.WARNING: "warning", Severity.ERROR: "error"}


class Located(NamedTuple):
    """A finding with its settings, and its place in the file if they are from one."""

    settings: LintedSettings
    finding: LintFinding
    spot: Spot | None


class LintRun(NamedTuple):
    """All findings of a run. `unsampled` are the settings whose placeholders had nothing to compare with."""

    settings: Sequence[LintedSettings]
    found: Sequence[Located]
    unsampled: Sequence[str]


def table_lines(run: LintRun) -> Iterator[str]:
    """Return the findings for people, below their settings, and the sums."""
    width = max((len(located.finding.rule) for located in run.found), default=0)
    for settings in run.settings:
        found = [located for located in run.found if located.settings is settings]
        if found:
            yield _heading(settings)
            yield from (line for located in found for line in _rows(located, width))
            yield ""
    yield _sums(run)


def _heading(settings: LintedSettings) -> str:
    is_named = settings.file is None or settings.label.startswith(settings.file)
    return settings.label if is_named else f"{settings.label} in {settings.file}"


def _rows(located: Located, width: int) -> Iterator[str]:
    finding = located.finding
    place = _place(located)
    yield f"  {finding.severity.name.lower():7}  {finding.rule:{width}}  {place}"
    yield f"           {finding.text}; {finding.remedy}"


def _place(located: Located) -> str:
    """Return the place for people: `de sms.text:14, line 7`."""
    finding = located.finding
    field = ".".join(part for part in (finding.block, finding.field) if part is not None)
    at = field if finding.offset is None else f"{field}:{finding.offset + 1}"
    words = " ".join(part for part in (finding.language, at) if part) or "the whole"
    line = "" if located.spot is None else f", line {located.spot.line}"
    return f"{words}{line}"


def _sums(run: LintRun) -> str:
    counts = Counter(located.finding.severity for located in run.found)
    numbers = [
        _counted(counts[severity], severity.name.lower())
        for severity in reversed(Severity)
        if counts[severity]
    ]
    of = f"{len(run.settings)} {'settings object' if len(run.settings) == 1 else 'settings objects'}"
    return f"{', '.join(numbers) or 'nothing found'} in {of}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def run_data(run: LintRun) -> Mapping[str, object]:
    """Return a run as JSON."""
    counts = Counter(located.finding.severity for located in run.found)
    return {
        "settings": len(run.settings),
        "counts": {f"{severity.name.lower()}s": counts[severity] for severity in reversed(Severity)},
        "not_sampled": list(run.unsampled),
        "findings": [_data(located) for located in run.found],
    }


def _data(located: Located) -> Mapping[str, object]:
    settings, finding, spot = located
    return {
        "rule": finding.rule,
        "severity": finding.severity.name.lower(),
        "settings": settings.id,
        "file": settings.file,
        "position": next((part for part in settings.at if isinstance(part, int)), None),
        "language": finding.language,
        "channel": finding.block,
        "field": finding.field,
        "offset": finding.offset,
        "line": None if spot is None else spot.line,
        "column": None if spot is None else spot.column,
        "provider": finding.provider,
        "text": finding.text,
        "remedy": finding.remedy,
    }


def sarif(run: LintRun) -> Mapping[str, object]:
    """Return a run as a SARIF 2.1.0 log."""
    names = list(RULES)
    return {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "deliveryd lint",
                        "version": __version__,
                        "rules": [_sarif_rule(name) for name in names],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_sarif_result(located, names) for located in run.found],
            }
        ],
    }


def _sarif_rule(name: str) -> Mapping[str, object]:
    rule = RULES[name]
    return {
        "id": name,
        "shortDescription": {"text": rule.about},
        "defaultConfiguration": {"level": rule.severity.name.lower()},
    }


def _sarif_result(located: Located, names: Sequence[str]) -> Mapping[str, object]:
    finding = located.finding
    return {
        "ruleId": finding.rule,
        "ruleIndex": names.index(finding.rule),
        "level": finding.severity.name.lower(),
        "message": {"text": f"{finding.text}; {finding.remedy}"},
        "locations": [_sarif_location(located)],
    }


def _sarif_location(located: Located) -> Mapping[str, object]:
    settings, finding, spot = located
    parts = (settings.label, finding.language, finding.block, finding.field)
    location: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": "/".join(part for part in parts if part is not None)}]
    }
    if settings.file is not None:
        physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(settings.file)}}
        if spot is not None:
            physical["region"] = {"startLine": spot.line, "startColumn": spot.column}
        location["physicalLocation"] = physical
    return location


def _uri(file: str) -> str:
    return Path(file).as_uri() if Path(file).is_absolute() else quote(file.replace(os.sep, "/"))


def github_lines(run: LintRun) -> Iterator[str]:
    """Return a run as workflow commands, which GitHub Actions shows beside the lines of a change."""
    for settings, finding, spot in run.found:
        properties = {"title": finding.rule}
        if settings.file is not None:
            properties = {"file": settings.file, **properties}
        if settings.file is not None and spot is not None:
            properties |= {"line": str(spot.line), "col": str(spot.column)}
        parts = (settings.label, finding.language, finding.block, finding.field)
        place = " ".join(part for part in parts if part is not None)
        written = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
        text = f"{place}: {finding.text}; {finding.remedy}"
        yield f"::{_GITHUB[finding.severity]} {written}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
