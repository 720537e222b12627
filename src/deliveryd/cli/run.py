"""`deliveryd run`: the daemon."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from deliveryd import telemetry
from deliveryd.cli.options import ConfigFile
from deliveryd.config import load
from deliveryd.supervisor import Supervisor


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

    held = anyio.run(work, backend="asyncio", backend_options={"use_uvloop": True})
    if until_idle and held:
        typer.echo(f"deliveryd: messages held in doubt, for a person to settle: {held}", err=True)
        raise typer.Exit(1)
