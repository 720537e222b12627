"""`deliveryd check`: verify the configuration and everything that it names."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from deliveryd.commands.check.checks import check_all, check_examined, check_files
from deliveryd.commands.check.findings import Level, as_problems, findings_data, findings_lines
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
    findings = anyio.run(check_examined, examined, check_files if offline else check_all)
    if as_data:
        print_json(findings_data(findings))
    elif examined.problems:
        print_errors(*as_problems(findings))
    else:
        print_lines(*findings_lines(findings))
    statuses = STRICT if strict else EXIT
    raise typer.Exit(max(statuses[finding.level] for finding in findings))
