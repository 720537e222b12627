"""All families of rules, applied to settings."""

from __future__ import annotations

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


def lint(subject: Subject) -> list[LintFinding]:
    """Return all findings, by language, in the order of the settings."""
    found = [finding for family in FAMILIES for finding in family(subject)]
    order = {tag: index for index, tag in enumerate(subject.settings.content, 1)}
    return sorted(dict.fromkeys(found), key=lambda each: order.get(each.language or "", 0))
