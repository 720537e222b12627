"""All families of rules, applied to settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from deliveryd.inspection.lint.braces import brace_findings
from deliveryd.inspection.lint.html import html_findings
from deliveryd.inspection.lint.lengths import length_findings
from deliveryd.inspection.lint.links import link_findings
from deliveryd.inspection.lint.placeholders import placeholder_findings
from deliveryd.inspection.lint.rules import LintFinding
from deliveryd.inspection.lint.structure import structure_findings
from deliveryd.inspection.lint.subject import Subject

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
