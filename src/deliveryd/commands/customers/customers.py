"""`deliveryd customers`: show the customer data that the service holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from importlib import import_module
from typing import Annotated, TextIO

import anyio
import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_as_owner
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.options import ConfigOption, identifier
from deliveryd.commands.common.output import json_text, print_errors, standard_output
from deliveryd.commands.common.tables import ProgressLine
from deliveryd.commands.customers.customer_export import LinesSheet, ObjectSheet, Progress, Reading, Sheet
from deliveryd.config import Config
from deliveryd.errors import DeliverydError, ServiceError, ServiceRefused
from deliveryd.options.suggestion import suggestion
from deliveryd.service.wire import GROUPS, MOST_PAGES
from deliveryd.worker.wiring import open_service

MOST_ERROR_REASONS = 5
NOT_FOUND = 404
UNKNOWN_CUSTOMER = ": the service has no such customer, or service.base_url is wrong"

customers = CommandGroup(
    no_args_is_help=True,
    help="Show the service's data about a customer.\n\n"
    "Merchants, offers, privileges and other groups, with the configuration of each entity.",
)


class OutputFormat(StrEnum):
    """The output format."""

    JSON = "json"
    JSONL = "jsonl"
    TABLE = "table"


def _table(out: TextIO) -> Sheet:
    sheet: Sheet = import_module("deliveryd.commands.customers.customer_table").TableSheet(
        out
    )  # rich is slow to load
    return sheet


SHEETS: Mapping[OutputFormat, Callable[[TextIO], Sheet]] = {
    OutputFormat.JSON: ObjectSheet,
    OutputFormat.JSONL: LinesSheet,
    OutputFormat.TABLE: _table,
}


@customers.command("all")
def read_all(
    *,
    config: ConfigOption = USUAL_CONFIG,
    customer_id: Annotated[
        int,
        typer.Argument(metavar="ID", parser=identifier, help="The customer's ID at the service."),
    ],
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="Read only this group; can be repeated.", show_default="all"),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="L", help='Language to request: "*", or one that the service defines.'),
    ] = None,
    with_config: Annotated[
        bool, typer.Option("--with-config", help="Include each entity's configuration; tables always do.")
    ] = False,
    output: Annotated[
        OutputFormat,
        typer.Option("--format", metavar="FORMAT", help="Output format: json, jsonl or table."),
    ] = OutputFormat.JSON,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    max_pages: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most pages to read of one group before giving up.")
    ] = MOST_PAGES,
) -> None:
    """Show all pages of a customer's groups.

    Formats: json is one object with a list per group; jsonl is one entity per line with its group, written
    as it is read; table is for reading, with names from the configurations.

    Exit status 1: reading ended early, or configurations were unavailable. What was read is still written.
    """
    groups = _known(include or GROUPS)
    output = OutputFormat.JSON if as_json else output
    loaded = load_as_owner(config)
    progress = Progress()

    async def read(out: TextIO, watcher: ProgressLine) -> None:
        nonlocal progress
        async with open_service(loaded, _print_once()) as client:
            data = client.customer_data(customer_id, groups, language=language, most_pages=max_pages)
            reading = Reading(client, data, with_config=with_config or output is OutputFormat.TABLE)
            progress = reading.progress
            await _copy(reading, SHEETS[output](out), watcher)

    watcher = ProgressLine(beside_output=output is not OutputFormat.TABLE and sys.stdout.isatty())
    try:
        with standard_output() as out:
            anyio.run(read, out, watcher)
    except KeyboardInterrupt:
        raise DeliverydError(f"interrupted: {progress.text()}") from None
    except ServiceError as error:
        raise DeliverydError(f"customer {customer_id}: {_why_not(error, progress)}") from None
    finally:
        watcher.close()
    _print_problems(progress.problems)


async def _copy(reading: Reading, sheet: Sheet, watcher: ProgressLine) -> None:
    """Write all that is read, and close the sheet, also after an error: what was read is still written."""
    try:
        await reading.copy(sheet, watcher)
    except BrokenPipeError:
        raise
    except BaseException:
        sheet.close()
        raise
    sheet.close()


def _why_not(error: ServiceError, progress: Progress) -> str:
    """Return why a customer's data couldn't be read to the end, and how far it was."""
    unknown = isinstance(error, ServiceRefused) and error.status == NOT_FOUND and not progress.entities
    return f"{error}{UNKNOWN_CUSTOMER if unknown else ''}; {progress.text()}"


@customers.command()
def entity(
    *,
    config: ConfigOption = USUAL_CONFIG,
    url: Annotated[str, typer.Argument(metavar="URL", help="The configUrl of an entity.")],
    _as_json: Annotated[
        bool, typer.Option("--json", help="Has no effect: the output is always JSON.")
    ] = False,
) -> None:
    """Show the configuration of one entity as JSON.

    A cached copy is used if it is still valid.
    """
    loaded = load_as_owner(config)
    with standard_output() as out:
        try:
            found = anyio.run(_configuration, loaded, url)
        except ServiceError as error:
            raise DeliverydError(f"the configuration is unavailable: {error}") from None
        out.write(f"{json_text(found, indent=2)}\n")


async def _configuration(config: Config, url: str) -> Mapping[str, object]:
    async with open_service(config, _print_once()) as client:
        return await client.configuration(url)


def _known(include: list[str] | tuple[str, ...]) -> list[str]:
    for name in include:
        if name not in GROUPS:
            known = f"{suggestion(name, GROUPS)}; there are {', '.join(GROUPS)}"
            raise typer.BadParameter(f"there is no group {name!a}{known}", param_hint="--include")
    return list(dict.fromkeys(include))


def _print_once() -> Callable[[str], None]:
    """Return a function that prints each distinct problem of a cache once, on standard error."""
    printed: set[str] = set()

    def report(problem: str) -> None:
        if problem not in printed:
            printed.add(problem)
            print_errors(f"deliveryd: {problem}")

    return report


def _print_problems(problems: Mapping[str, int]) -> None:
    """Print which configurations were unavailable, and exit with status 1 if any were."""
    if not problems:
        return
    count = sum(problems.values())
    what = "1 configuration" if count == 1 else f"{count:,} configurations"
    print_errors(f"deliveryd: {what} unavailable:")
    most_first = sorted(problems.items(), key=lambda item: -item[1])
    for reason, times in most_first[:MOST_ERROR_REASONS]:
        print_errors(f"  {times:,}: {reason}")
    if len(most_first) > MOST_ERROR_REASONS:
        print_errors(f"  and {len(most_first) - MOST_ERROR_REASONS:,} other reasons")
    raise typer.Exit(FAILED)
