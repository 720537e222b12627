"""`deliveryd sandbox`: the stand-in service and providers alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import anyio
import typer

from deliveryd.cli.output import say
from deliveryd.cli.sandbox_files import aim_receipts, write_files
from deliveryd.sandbox.scenario import Scenario, demo_scenario
from deliveryd.sandbox.server import Sandbox


def sandbox(
    *,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Port of service and HTTP providers; 0: any free one."
        ),
    ] = 8080,
    smtp_port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port of the mail server; 0: any free one.")
    ] = 8025,
    empty: Annotated[bool, typer.Option("--empty", help="Begin without messages in the queue.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write config.toml and all that it names here, for a worker beside the sandbox. A file that"
            " is there already is left as it is.",
        ),
    ] = None,
    receipts_port: Annotated[
        int,
        typer.Option(
            metavar="PORT", min=1, max=65535, help="Port of the worker's receipts server on this machine."
        ),
    ] = 9471,
) -> None:
    """Serve a stand-in for the remote service and the providers.

    Its queue holds the messages of the demo. An inbox page shows what arrived. It runs until Ctrl-C.
    """
    scenario = demo_scenario()

    async def serve() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with Sandbox(host, port, smtp_port) as server:
                if not empty:
                    scenario.load_into(server.state)
                aim_receipts(server, f"http://127.0.0.1:{receipts_port}")
                say(f"service    {server.base_url}")
                say(f"providers  {server.base_url}/sms, /messenger, /inApp")
                say(f"mail       {host} port {server.smtp_port}")
                say(f"inbox      {server.base_url}/")
                if folder is not None:
                    _write(folder, server, scenario, receipts_port)
                async for _ in signals:
                    return

    anyio.run(serve)


def _write(folder: Path, server: Sandbox, scenario: Scenario, receipts_port: int) -> None:
    written = {path.name for path in write_files(folder, server, scenario, receipts_port)}
    config = folder / "config.toml"
    say(f"config     {config}{'' if config.name in written else ', as it was'}")
    if (folder / "journal.db").exists():
        say(
            f"note       {folder / 'journal.db'} knows these messages and won't send them again;"
            " remove it to begin anew"
        )
