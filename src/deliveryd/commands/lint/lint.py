"""`deliveryd lint`: verify message settings before messages are made from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import anyio
import typer

from deliveryd.commands.common.configuration import load_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, identifier
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.lint.linting import LintRun, run_lint
from deliveryd.commands.lint.reading import (
    GivenMessage,
    LintedSettings,
    given_variables,
    messages_in,
    sample_of,
    samples_of_journal,
    settings_in,
    settings_of_cache,
    settings_of_service,
)
from deliveryd.commands.lint.reports import github_lines, run_data, sarif, table_lines
from deliveryd.commands.lint.rules import Sample, Severity
from deliveryd.config import Config, examine
from deliveryd.errors import ConfigError, JournalError
from deliveryd.model import WallClock

_SHOWN_LABELS = 5


class Format(StrEnum):
    """A form of the findings."""

    TABLE = "table"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


class _Asked(NamedTuple):
    files: Sequence[str]
    ids: Sequence[int]
    cached: bool


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
    asked = _Asked(files or (), settings or (), cached)
    if not (asked.files or asked.ids or cached):
        raise typer.BadParameter("name files, --settings or --cached")
    if as_data and form not in (Format.TABLE, Format.JSON):
        raise typer.BadParameter("--json can't be combined with another --format")
    texts = {name: _read(name) for name in asked.files}
    given = _given(message, variables)
    loaded = _configuration(config, asked)
    found = [each for name, text in texts.items() for each in _settings_of(name, text)]
    if loaded is not None:
        found += anyio.run(_remote, loaded, asked)
    run = run_lint(found, loaded, _samples(loaded, found, given), WallClock().now())
    _print(run, Format.JSON if as_data else form)
    worst = max((located.finding.severity for located in run.found), default=Severity.NOTE)
    raise typer.Exit(1 if worst >= (Severity.WARNING if strict else Severity.ERROR) else 0)


def _read(name: str) -> str | OSError | UnicodeDecodeError:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        return error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return error


def _settings_of(name: str, text: str | OSError | UnicodeDecodeError) -> Sequence[LintedSettings]:
    """Parse a file; one that can't be read is a finding too, so that it doesn't hide the others."""
    if name == "-":
        return [each._replace(file=None) for each in _settings_of("standard input", text)]
    if isinstance(text, OSError):
        return [LintedSettings(name, None, None, None, f"can't be read: {text.strerror}", name)]
    if isinstance(text, UnicodeDecodeError):
        return [LintedSettings(name, None, None, None, f"isn't UTF-8 at byte {text.start}", name)]
    return list(settings_in(name, text))


def _given(message: Path | None, variables: str | None) -> Sequence[GivenMessage]:
    given = [] if message is None else messages_in(message)
    return given if variables is None else [*given, given_variables(variables)]


def _configuration(path: Path | None, asked: _Asked) -> Config | None:
    """Load the configuration. Files may be linted with one whose secrets aren't there."""
    if asked.ids or asked.cached:
        return load_as_owner(path or USUAL_CONFIG)
    if path is None:
        return None
    examined = examine(path)
    if examined.config is None:
        raise ConfigError(examined.problems)
    return examined.config


async def _remote(config: Config, asked: _Asked) -> list[LintedSettings]:
    found = await settings_of_service(config, asked.ids) if asked.ids else []
    return [*found, *await settings_of_cache(config)] if asked.cached else found


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
    """Say which settings have placeholders that nothing was compared with."""
    more = len(labels) - _SHOWN_LABELS
    shown = ", ".join(labels[:_SHOWN_LABELS]) + (f" and {more:,} more" if more > 0 else "")
    return f"placeholders of {shown} weren't compared with variables: give messages with --message"
