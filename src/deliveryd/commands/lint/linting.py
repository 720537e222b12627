"""One run of `lint`: settings in, all families of rules applied, located findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from deliveryd.commands.lint.html import html_findings, link_findings
from deliveryd.commands.lint.lengths import length_findings
from deliveryd.commands.lint.placeholders import brace_findings, placeholder_findings
from deliveryd.commands.lint.reading import JsonPath, LintedSettings, Spot
from deliveryd.commands.lint.rules import LintFinding, Sample, Subject
from deliveryd.commands.lint.structure import structure_findings
from deliveryd.config import Config

FAMILIES: Sequence[Callable[[Subject], Iterator[LintFinding]]] = (
    structure_findings,
    placeholder_findings,
    brace_findings,
    length_findings,
    link_findings,
    html_findings,
)
MOST_ALIKE = 20
"""Findings of one rule in one text that are reported; who mends these runs the command again."""


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


def run_lint(
    settings: Sequence[LintedSettings],
    config: Config | None,
    sample_for: Callable[[LintedSettings], Sample | None],
    now: int,
) -> LintRun:
    """Lint settings."""
    found, unsampled = [], []
    for each in settings:
        if each.settings is None:
            text = each.problem or "can't be read"
            problem = LintFinding("unreadable-settings", text, "correct them: nothing of them is sent")
            found.append(Located(each, problem, each.problem_at or _spot(each, problem)))
            continue
        sample = sample_for(each)
        if sample is None:
            unsampled.append(each.label)
        subject = Subject(each.settings, each.raw, sample, config, now)
        found += [Located(each, finding, _spot(each, finding)) for finding in lint_findings(subject)]
    return LintRun(settings, found, unsampled)


def _spot(settings: LintedSettings, finding: LintFinding) -> Spot | None:
    if settings.places is None:
        return None
    return settings.places.spot((*settings.at, *path_of(finding)), finding.offset)


def path_of(finding: LintFinding) -> JsonPath:
    """Return the path of a finding's value in its settings."""
    field = tuple(finding.field.split(".")) if finding.field is not None else ()
    if finding.language is None:
        return field
    block = (finding.block,) if finding.block is not None else ()
    return ("content", finding.language, *block, *field)


def lint_findings(subject: Subject) -> list[LintFinding]:
    """Return all findings, by language, in the order of the settings."""
    alike: Counter[tuple[str | None, ...]] = Counter()
    found: dict[LintFinding, None] = {}
    for finding in (finding for family in FAMILIES for finding in family(subject)):
        kind = (finding.rule, finding.language, finding.block, finding.field)
        alike[kind] += 1
        if alike[kind] <= MOST_ALIKE:
            found[finding] = None
    order = {tag: index for index, tag in enumerate(subject.settings.content, 1)}
    return sorted(found, key=lambda each: order.get(each.language or "", 0))
