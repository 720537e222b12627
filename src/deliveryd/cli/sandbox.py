"""`deliveryd sandbox`: the stand-in service and providers alone."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import anyio
import typer

from deliveryd.cli.options import AsData
from deliveryd.cli.output import say, say_json
from deliveryd.cli.sandbox_files import TOKEN_FILE, aim_receipts, write_files
from deliveryd.errors import AddressInUse, DeliverydError
from deliveryd.sandbox.scenario import Scenario, demo_scenario
from deliveryd.sandbox.server import CannotListen, Sandbox

PORT_OPTIONS = {"http": "--port", "smtp": "--smtp-port"}


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
    as_data: AsData = False,
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
                told = _places(server)
                if folder is not None:
                    told |= _write(folder, server, scenario, receipts_port)
                if as_data:
                    say_json(told)
                else:
                    say(*(f"{name:10} {text}" for name, text in told.items()))
                async for _ in signals:
                    return

    try:
        anyio.run(serve)
    except CannotListen as error:
        option = PORT_OPTIONS[error.server]
        raise AddressInUse(f"{error}; give another with {option} (0: any free one) or --host") from None


def _places(server: Sandbox) -> dict[str, str]:
    """Where it listens, by what a person would look for."""
    return {
        "service": server.base_url,
        "providers": f"{server.base_url}/sms, /messenger, /inApp",
        "mail": f"{server.host} port {server.smtp_port}",
        "inbox": f"{server.base_url}/",
    }


def _write(folder: Path, server: Sandbox, scenario: Scenario, receipts_port: int) -> dict[str, str]:
    """Write what a worker beside the sandbox needs; the configuration's path, and what to know about it."""
    try:
        written = {path.name for path in write_files(folder, server, scenario, receipts_port)}
        server.state.token = (folder / TOKEN_FILE).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise DeliverydError(f"{folder} can't be used: {error.strerror}; give another --folder") from None
    config = folder / "config.toml"
    told = {"config": f"{config}" if config.name in written else f"{config}, as it was"}
    journal = folder / "journal.db"
    if journal.exists():
        told["note"] = f"{journal} knows these messages and won't send them again; remove it to begin anew"
    return told
