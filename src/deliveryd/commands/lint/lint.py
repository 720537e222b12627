"""`deliveryd lint`: apply all families of rules to message settings before messages are made from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import anyio
import typer

from deliveryd.commands.common.configuration import load_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, identifier
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.lint.reading import (
    GivenMessage,
    JsonPath,
    LintedSettings,
    Spot,
    given_variables,
    messages_in,
    sample_of,
    samples_of_journal,
    settings_of_cache,
    settings_of_file,
    settings_of_service,
)
from deliveryd.commands.lint.reports import LintRun, Located, github_lines, run_data, sarif, table_lines
from deliveryd.commands.lint.rules import LintFinding, Sample, Severity, Subject
from deliveryd.commands.lint.templates import brace_findings, placeholder_findings, structure_findings
from deliveryd.commands.lint.texts import html_findings, length_findings, link_findings
from deliveryd.config import Config, examine
from deliveryd.errors import JournalError
from deliveryd.model import WallClock

_SHOWN_LABELS = 5


class Format(StrEnum):
    """A form of the findings."""

    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


def lint(
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help='Settings as JSON, in the service\'s format: one object, or a list; "-": standard input.',
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="The configuration file. Files can be checked without one, but for what channels limit.",
            envvar="DELIVERYD_CONFIG",
            readable=False,
        ),
    ] = None,
    settings: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", parser=identifier, help="Settings of the service; can be repeated."),
    ] = None,
    cached: Annotated[bool, typer.Option("--cached", help="All settings in the disk cache.")] = False,
    message: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A sample message, or a list, as the queue has them; its variables are compared.",
        ),
    ] = None,
    variables: Annotated[
        str | None,
        typer.Option(metavar="FILE|JSON", help="Sample variables: a JSON object, or a file that holds one."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            metavar="FORM",
            case_sensitive=False,
            help="Form of the output: table, json, sarif or github.",
        ),
    ] = Format.TABLE,
    as_data: AsData = False,
) -> None:
    """Check message settings for mistakes.

    Without a sample, placeholders are compared with the variables of the journal's messages.

    Exit status 1: at least one error.
    """
    if not (files or settings or cached):
        raise typer.BadParameter("name files, --settings or --cached")
    if as_data and form not in (Format.TABLE, Format.JSON):
        raise typer.BadParameter("--json can't be combined with another --format")
    found = [each for name in dict.fromkeys(files or ()) for each in settings_of_file(name)]
    given = _given(message, variables)
    loaded = None
    if settings or cached:
        loaded = load_as_owner(config or USUAL_CONFIG)
        found += anyio.run(_remote, loaded, settings or (), cached)
    elif config is not None:
        loaded = _without_secrets(config)
    run = run_lint(found, loaded, _samples(loaded, found, given), WallClock().now())
    _print(run, Format.JSON if as_data else form)
    worst = max((located.finding.severity for located in run.found), default=Severity.NOTE)
    raise typer.Exit(1 if worst >= (Severity.WARNING if strict else Severity.ERROR) else 0)


def _given(message: Path | None, variables: str | None) -> Sequence[GivenMessage]:
    given = [] if message is None else messages_in(message)
    return given if variables is None else [*given, given_variables(variables)]


def _without_secrets(path: Path) -> Config:
    """Load a configuration, also one whose secrets aren't there: files need none. Raises ConfigError."""
    return examine(path).usable()


async def _remote(config: Config, ids: Sequence[int], cached: bool) -> list[LintedSettings]:
    found = await settings_of_service(config, ids) if ids else []
    return [*found, *await settings_of_cache(config)] if cached else found


def _samples(
    config: Config | None, settings: Sequence[LintedSettings], given: Sequence[GivenMessage]
) -> Callable[[LintedSettings], Sample | None]:
    """Return what finds the sample for settings: the given messages, or those of the journal."""
    if given:
        return lambda each: sample_of(given, each.id)
    ids = {each.id for each in settings if each.id is not None}
    seen: Mapping[int, Sample] = {}
    if config is not None and ids:
        try:
            seen = samples_of_journal(config.journal.place, ids)
        except JournalError as error:
            print_errors(f"deliveryd: variables of the journal's messages aren't known: {error}")
    return lambda each: None if each.id is None else seen.get(each.id)


def _print(run: LintRun, form: Format) -> None:
    match form:
        case Format.JSON:
            print_json(run_data(run))
        case Format.SARIF:
            print_json(sarif(run))
        case Format.GITHUB:
            print_lines(*github_lines(run))
        case Format.TABLE:
            print_lines(*table_lines(run))
            if run.unsampled:
                print_errors(f"deliveryd: {_unsampled(run.unsampled)}")


def _unsampled(labels: Sequence[str]) -> str:
    """Report which settings have placeholders that nothing was compared with."""
    more = len(labels) - _SHOWN_LABELS
    shown = ", ".join(labels[:_SHOWN_LABELS]) + (f" and {more:,} more" if more > 0 else "")
    return f"placeholders of {shown} weren't compared with variables: give messages with --message"


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
            problem = LintFinding("unreadable-settings", text, each.remedy)
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
