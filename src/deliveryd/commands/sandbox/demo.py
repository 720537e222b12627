"""`deliveryd demo`: run the sandbox and a worker together, without configuration."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import anyio
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deliveryd.commands.common.output import standard_output
from deliveryd.commands.common.printable import printable
from deliveryd.commands.common.text_output import TextConsole
from deliveryd.commands.run.run import announce_shutdown
from deliveryd.commands.sandbox.sandbox_files import aim_receipts, write_files
from deliveryd.config import load
from deliveryd.sandbox.scenario import Scenario, demo_scenario
from deliveryd.sandbox.server import Sandbox
from deliveryd.sandbox.state import ReportedEvent, SandboxState
from deliveryd.telemetry import log_writing
from deliveryd.worker.supervisor import Addresses, Supervisor

DEMO_TIMEOUT = 120.0
"""Seconds after which an unfinished demo fails."""

DEMO_ENVIRONMENT: Mapping[str, str] = {
    "DELIVERYD_QUEUE__POLL_INTERVAL": "200ms",
    "DELIVERYD_QUEUE__MAX_POLL_INTERVAL": "1s",
    "DELIVERYD_ADMIN__LISTEN": "127.0.0.1:0",
    "DELIVERYD_RECEIPTS__LISTEN": "127.0.0.1:0",
} | {
    f"DELIVERYD_CHANNELS__{channel.upper()}__RETRY__{key}": value
    for channel in ("sms", "messenger", "inApp", "email")
    for key, value in {"ATTEMPTS": "4", "BASE": "200ms", "MAX": "1s"}.items()
}
"""Overrides of the configuration that `deliveryd sandbox` writes: short pauses, free ports."""


def demo() -> None:
    """Send 42 messages through a sandbox and show their outcomes.

    Needs no configuration and leaves no files behind. On a terminal, the demo and its inbox page stay up
    until Ctrl-C.
    """
    log_writing.configure("error", "auto")
    with standard_output(), tempfile.TemporaryDirectory(prefix="deliveryd-demo-") as folder:
        done = anyio.run(_play, Path(folder), backend="asyncio", backend_options={"use_uvloop": True})
        if done is None:
            raise BrokenPipeError
    if not done:
        raise typer.Exit(1)


async def _play(folder: Path) -> bool | None:
    """Return whether every message reached its end; None if standard output was closed."""
    scenario = demo_scenario()
    console = TextConsole(width=None if sys.stdout.isatty() else 150)
    async with Sandbox() as sandbox:
        scenario.load_into(sandbox.state)
        *_, config_file = write_files(folder, sandbox, scenario, receipts_port=0)
        config = load(config_file, environ=DEMO_ENVIRONMENT)

        def when_ready(addresses: Addresses) -> None:
            if addresses.receipts is not None:
                aim_receipts(sandbox, addresses.receipts)

        supervisor = Supervisor(config, on_ready=when_ready, on_ending=announce_shutdown)
        done: bool | None = False

        async def show() -> None:
            nonlocal done
            done = await _watch(sandbox.state, scenario, console)
            try:
                console.print(_table(sandbox.state, scenario))
                console.print(_summary(sandbox.state, scenario))
            except BrokenPipeError:
                done = None
            if done and sys.stdout.isatty():
                console.print(f"\nThe inbox is at [bold]{sandbox.base_url}/[/bold]. Ctrl-C ends the demo.")
            else:
                supervisor.stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(show)
            await supervisor.run()  # handles Ctrl-C at any time
            tasks.cancel_scope.cancel()
    return done


async def _watch(state: SandboxState, scenario: Scenario, console: Console) -> bool:
    """Show progress until every message has reached its end; return False on time-out."""
    started = time.monotonic()
    ids = [exhibit.id for exhibit in scenario.exhibits]
    with console.status("") as progress:
        while time.monotonic() - started < DEMO_TIMEOUT:
            ended = sum(_has_ended(state, id_) for id_ in ids)
            sent = len(state.accepted())
            reported = len(state.events)
            progress.update(f"{ended} of {len(ids)} messages at their end, {sent} sent, {reported} events")
            if ended == len(ids):
                return True
            await anyio.sleep(0.05)
    return False


def _has_ended(state: SandboxState, message_id: int) -> bool:
    statuses = state.statuses(message_id)
    if not statuses or statuses[-1] != "sent":
        return bool(statuses) and statuses[-1] in ("delivered", "error")
    return any(mail.message_id == message_id for mail in state.accepted("email"))


def _table(state: SandboxState, scenario: Scenario) -> Table:
    table = Table(title="Outcome of each message", title_justify="left", expand=True)
    table.add_column("message", no_wrap=True)
    table.add_column("shows", ratio=3)
    table.add_column("channel", no_wrap=True)
    table.add_column("content sent", ratio=5)
    table.add_column("statuses", ratio=4)
    received = {message.message_id: message for message in state.accepted()}
    for exhibit in scenario.exhibits:
        message = received.get(exhibit.id)
        table.add_row(
            str(exhibit.id),
            Text(exhibit.note),
            message.channel if message else "-",
            Text(printable(_words(message.payload)) if message else "-"),
            Text(printable(_told(state.events_of(exhibit.id)))),
        )
    return table


def _words(payload: Mapping[str, object]) -> str:
    """Return the first text of a payload in one line."""
    notification = payload.get("notification")
    known = {**notification, **payload} if isinstance(notification, Mapping) else payload
    for field in ("text", "body", "description", "subject"):
        if isinstance(text := known.get(field), str):
            line = " ".join(text.split())
            return line if len(line) <= 110 else f"{line[:109]}…"
    return ""


def _told(events: list[ReportedEvent]) -> str:
    statuses = " → ".join(str(event["status"]) for event in events)
    details = [str(event["details"]) for event in events if "details" in event]
    return f"{statuses}: {details[-1]}" if details else statuses


def _summary(state: SandboxState, scenario: Scenario) -> str:
    last = [statuses[-1] for exhibit in scenario.exhibits if (statuses := state.statuses(exhibit.id))]
    counts = ", ".join(f"{last.count(status)} {status}" for status in ("delivered", "sent", "error"))
    requests = len(state.event_batches)
    return f"{len(last)} messages: {counts}. {len(state.events)} events in {requests} requests."
