"""`deliveryd check`: verify the configuration and everything that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import anyio
import typer

from deliveryd.commands.check.checks import CONNECTION_CHECKS, check_examined
from deliveryd.commands.check.findings import Finding, Level
from deliveryd.commands.common.configuration import become_owner
from deliveryd.commands.common.conventions import CONFIGURATION, FAILED, USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.config import examine_to_run

EXIT = {Level.OK: 0, Level.HINT: 0, Level.WARNING: 0, Level.FAILED: FAILED, Level.ERROR: CONFIGURATION}
STRICT = EXIT | {Level.WARNING: CONFIGURATION}


def check(
    *,
    config: ConfigOption = USUAL_CONFIG,
    offline: Annotated[bool, typer.Option("--offline", help="Make no connections; read only files.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    as_data: AsData = False,
) -> None:
    """Check the configuration and everything that it names.

    Sends no messages. Exit status: 0 deliveryd can run, 1 something is unavailable now, 78 the
    configuration must be changed.
    """
    examined = examine_to_run(config)
    if examined.config is not None:
        become_owner(examined.config)
    findings = anyio.run(check_examined, examined, () if offline else CONNECTION_CHECKS)
    if as_data:
        print_json(_data(findings))
    elif examined.problems:
        print_errors(*_problem_lines(findings))
    else:
        print_lines(*_lines(findings))
    statuses = STRICT if strict else EXIT
    raise typer.Exit(max(statuses[finding.level] for finding in findings))


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each finding."""
    width = max((len(finding.key) for finding in findings), default=0)
    for finding in findings:
        yield f"{finding.level.mark:8} {finding.key:{width}}  {finding.text}"


def _problem_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each finding in the form of configuration errors, with the level unless an error."""
    for finding in findings:
        level = "" if finding.level is Level.ERROR else f"{finding.level.mark}: "
        yield f"{finding.key}: {level}{finding.text}"


def _data(findings: Sequence[Finding]) -> Mapping[str, object]:
    """Return the findings as JSON."""
    worst = max((finding.level for finding in findings), default=Level.OK)
    return {
        "level": worst.mark,
        "checks": [{"key": f.key, "level": f.level.mark, "text": f.text} for f in findings],
    }
