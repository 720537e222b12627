"""`deliveryd reload`: have a running worker apply its configuration file as it is now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deliveryd.commands.common.configuration import become_owner, socket_for
from deliveryd.commands.common.conventions import CONFIGURATION, USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.config import examine
from deliveryd.control.client import NoAnswer, NoWorker, ask, caller
from deliveryd.control.protocol import ReloadRequest
from deliveryd.errors import ConfigError, DeliverydError

RELOAD_TIMEOUT = 120.0
"""Seconds: a large customer file takes a while to read."""


def reload(
    *,
    config: ConfigOption = USUAL_CONFIG,
    accept_orphans: Annotated[
        bool,
        typer.Option(
            "--accept-orphans",
            help="Remove providers though messages of theirs are in doubt, wait, or have receipts to come.",
        ),
    ] = False,
    accept_customers: Annotated[
        bool,
        typer.Option(
            "--accept", help="Use the customer file though more than half of its customers are gone."
        ),
    ] = False,
    as_data: AsData = False,
) -> None:
    """Apply the changed configuration to the running worker.

    The worker reads the file and all secrets as a start would. If anything is wrong, it keeps what it has,
    and the exit status is 78. Otherwise everything is applied at once, without a pause.
    """
    place = _socket_of_worker(config)
    try:
        answer = ask(place, ReloadRequest(accept_orphans, caller(), accept_customers), RELOAD_TIMEOUT)
    except NoWorker as error:
        raise DeliverydError(
            f"{error}. If journal.url or control.socket was changed, restart the worker"
        ) from None
    except NoAnswer as error:
        raise DeliverydError(
            f"{error}: it may have applied the configuration, or may do so yet; when it answers again,"
            " deliveryd status shows its last reload"
        ) from None
    except ConfigError as error:
        if as_data:
            print_json({"outcome": "refused", "changes": [], "problems": error.problems})
            raise typer.Exit(CONFIGURATION) from None
        print_errors("deliveryd: nothing was changed:", *error.problems)
        raise typer.Exit(CONFIGURATION) from None
    found = answer.get("changes")
    changes = [str(each) for each in found] if isinstance(found, list) else []
    if as_data:
        print_json({"outcome": answer.get("outcome"), "changes": changes, "problems": []})
    else:
        heading = f"applied: {len(changes)}" if changes else "nothing has changed"
        print_lines(heading, *(f"  {each}" for each in changes))


def _socket_of_worker(path: Path) -> Path:
    """Return the socket that follows from the file, though it may have mistakes, which the worker reports.

    Raises ConfigError if so little can be read that its worker isn't known.
    """
    config = examine(path).usable()
    become_owner(config)
    return socket_for(config)
