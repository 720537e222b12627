"""`deliveryd sandbox`: run a stand-in for the service and the providers."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from deliveryd.channels.presets.catalogue import Preset
from deliveryd.commands.common.options import AsData
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.sandbox.sandbox_files import (
    TOKEN_FILE,
    aim_receipts,
    base_address,
    chosen_presets,
    impersonation,
    write_files,
)
from deliveryd.errors import AddressInUse, DeliverydError
from deliveryd.options.toml_text import toml_value
from deliveryd.sandbox.scenario import Scenario, demo_scenario
from deliveryd.sandbox.server import CannotListen, Sandbox

PORT_OPTIONS = {"http": "--port", "smtp": "--smtp-port"}


def sandbox(
    *,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Port of the service and HTTP providers; 0: any free port."
        ),
    ] = 8080,
    smtp_port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="Port of the mail server; 0: any free port.")
    ] = 8025,
    empty: Annotated[bool, typer.Option("--empty", help="Start with an empty queue.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write config.toml and the files that it names to this folder, for a worker. Existing files"
            " aren't changed.",
        ),
    ] = None,
    presets: Annotated[
        str,
        typer.Option(
            "--as", metavar="NAMES", help="Speak as these providers too: names of presets, with commas."
        ),
    ] = "",
    presets_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder with presets of your own, for --as."),
    ] = None,
    receipts_port: Annotated[
        int,
        typer.Option(
            metavar="PORT", min=1, max=65535, help="Port of the worker's receipts server, on this machine."
        ),
    ] = 9471,
    as_data: AsData = False,
) -> None:
    """Run a stand-in for the remote service and the providers.

    Its queue holds the messages of the demo. An inbox page shows what arrived. Runs until Ctrl-C.

    With --as, providers answer and report in their own forms.
    """
    scenario = demo_scenario()
    played = chosen_presets(presets, presets_dir)
    impersonated = [impersonation(each) for each in played]

    async def serve() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with Sandbox(host, port, smtp_port, impersonated=impersonated) as server:
                if not empty:
                    scenario.load_into(server.state)
                aim_receipts(server, f"http://127.0.0.1:{receipts_port}")
                shown = _places(server, played)
                if folder is not None:
                    shown |= _write(folder, server, scenario, receipts_port, played)
                if as_data:
                    print_json(shown)
                else:
                    print_lines(*(f"{name:10} {text}" for name, text in shown.items()))
                async for _ in signals:
                    return

    try:
        anyio.run(serve)
    except CannotListen as error:
        option = PORT_OPTIONS[error.server]
        raise AddressInUse(f"{error}; choose another with {option} (0: any free port) or --host") from None


def _places(server: Sandbox, played: Sequence[Preset]) -> dict[str, str]:
    """Return the addresses by label."""
    return {each.name: f"base_url = {toml_value(base_address(each, server.base_url))}" for each in played} | {
        "service": server.base_url,
        "providers": f"{server.base_url}/sms, /messenger, /inApp",
        "mail": f"{server.host} port {server.smtp_port}",
        "inbox": f"{server.base_url}/",
    }


def _write(
    folder: Path, server: Sandbox, scenario: Scenario, receipts_port: int, played: Sequence[Preset]
) -> dict[str, str]:
    """Write the files for a worker beside the sandbox; return the configuration's path and notes."""
    try:
        written = {path.name for path in write_files(folder, server, scenario, receipts_port, played)}
        server.state.token = (folder / TOKEN_FILE).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise DeliverydError(f"{folder} can't be used: {error.strerror}; choose another --folder") from None
    config = folder / "config.toml"
    shown = {"config": f"{config}" if config.name in written else f"{config}, unchanged"}
    journal = folder / "journal.db"
    if journal.exists():
        shown["note"] = f"{journal} has these messages, so they won't be sent again; remove it to start over"
    return shown
