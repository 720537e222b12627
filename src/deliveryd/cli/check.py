"""`deliveryd check`: is the configuration right, and can everything be used that it names."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from deliveryd.checking import Result, as_json, as_lines, check_all, check_examined, check_files
from deliveryd.cli.options import USUAL_CONFIG, AsData, ConfigFile
from deliveryd.cli.outcome import CONFIGURATION, FAILED
from deliveryd.cli.output import say, say_json
from deliveryd.config import examine
from deliveryd.errors import ConfigError
from deliveryd.privileges import work_as_owner

EXIT = {Result.OK: 0, Result.UNREACHABLE: FAILED, Result.WRONG: CONFIGURATION}


def check(
    *,
    config: ConfigFile = USUAL_CONFIG,
    offline: Annotated[
        bool, typer.Option("--offline", help="Connect to nothing: only read the configuration and files.")
    ] = False,
    as_data: AsData = False,
) -> None:
    """Check the configuration, and what it names. Nothing is sent.

    Exit status: 0 all is well, 1 something can't be reached, 78 the configuration has to be changed.
    """
    examined = examine(config)
    if examined.config is not None:
        work_as_owner(examined.config.journal.named)
    findings = anyio.run(check_examined, config, examined, check_files if offline else check_all)
    if examined.problems and not as_data:
        raise ConfigError([f"{finding.key}: {finding.text}" for finding in findings])
    if as_data:
        say_json(as_json(findings))
    else:
        say(*as_lines(findings))
    raise typer.Exit(EXIT[max(finding.result for finding in findings)])
