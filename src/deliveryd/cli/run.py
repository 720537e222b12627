"""`deliveryd run`: the daemon."""

from __future__ import annotations

import gc
from typing import Annotated

import anyio
import typer

from deliveryd import telemetry
from deliveryd.cli.options import ConfigFile
from deliveryd.config import load
from deliveryd.supervisor import Supervisor

YOUNG = 50_000
"""Objects made after which Python looks for garbage in circles: messages under way are many, circles few."""


def run(
    config: ConfigFile,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle",
            help="End when the queue is empty, every message is at its end and every event is accepted.",
        ),
    ] = False,
) -> None:
    """Take messages, send them, report them, until SIGTERM or SIGINT; a second signal ends at once."""
    loaded = load(config)
    telemetry.configure(loaded.log.level, loaded.log.format)

    async def work() -> int:
        supervisor = Supervisor(loaded)
        await supervisor.run(until_idle=until_idle)
        return supervisor.held_in_doubt

    _collect_less_often()
    held = anyio.run(work, backend="asyncio", backend_options={"use_uvloop": True})
    if until_idle and held:
        typer.echo(f"deliveryd: messages held in doubt, for a person to settle: {held}", err=True)
        raise typer.Exit(1)


def _collect_less_often() -> None:
    """Leave what is loaded out of all collections, and make those of the rest rarer."""
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)
