"""`deliveryd sandbox`: the stand-in service and providers alone."""

from __future__ import annotations

import signal
from typing import Annotated

import anyio
import typer

from deliveryd.errors import AddressInUse
from deliveryd.sandbox.scenario import demo_scenario
from deliveryd.sandbox.server import CannotListen, Sandbox

PORT_OPTIONS = {"http": "--port", "smtp": "--smtp-port"}


def sandbox(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of service and HTTP providers; 0: any free one.")
    ] = 8080,
    smtp_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the mail server; 0: any free one.")
    ] = 8025,
    empty: Annotated[bool, typer.Option("--empty", help="Begin without messages in the queue.")] = False,
) -> None:
    """Serve a stand-in for the remote service and for the providers, with an inbox page, until Ctrl-C."""

    async def serve() -> None:
        async with Sandbox(host, port, smtp_port) as server:
            if not empty:
                demo_scenario().load_into(server.state)
            typer.echo(f"service    {server.base_url}")
            typer.echo(f"providers  {server.base_url}/sms, /messenger, /inApp")
            typer.echo(f"mail       {host} port {server.smtp_port}")
            typer.echo(f"inbox      {server.base_url}/")
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    return

    try:
        anyio.run(serve)
    except CannotListen as error:
        option = PORT_OPTIONS[error.server]
        raise AddressInUse(f"{error}; give another with {option} (0: any free one) or --host") from None
