"""`deliveryd health`: check that a running worker is alive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, checked_url
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.watch.quick_health import check_health, configured_url

USUAL_URL = "http://127.0.0.1:9470"


def health(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", envvar="DELIVERYD_CONFIG", readable=False,
            help=f"The worker's configuration, for admin.listen. Default: {USUAL_CONFIG}, if it exists.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", callback=checked_url,
            help=f"Address of the worker's admin server, instead of the configured one. "
            f"Default without a configuration: {USUAL_URL}.",
        ),
    ] = None,
    as_data: AsData = False,
) -> None:  # fmt: skip
    """Check that a running worker is alive.

    Intended for container health checks. Exit status: 0 alive, 1 not alive or no answer, 78 the
    configuration gives no usable address.
    """
    if url is None and config is None:
        config = USUAL_CONFIG if USUAL_CONFIG.exists() else None
    asked = url or (configured_url(config) if config else USUAL_URL)
    alive, text = check_health(asked)
    if as_data:
        print_json({"alive": alive, "url": asked, "answer": text.splitlines()})
    else:
        (print_lines if alive else print_errors)(*text.splitlines())
    if not alive:
        raise typer.Exit(1)
