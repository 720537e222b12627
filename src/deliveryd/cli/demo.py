"""`deliveryd demo`: sandbox and worker together, with nothing to configure."""

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

from deliveryd import telemetry
from deliveryd.config import load
from deliveryd.sandbox.scenario import Scenario, demo_scenario
from deliveryd.sandbox.server import Sandbox
from deliveryd.sandbox.state import Event, SandboxState
from deliveryd.supervisor import Addresses, Supervisor

PATIENCE = 120.0
"""Seconds after which a demo that didn't come to its end is called failed."""

CONFIG = """\
[service]
base_url = "{base_url}"

[queue]
poll_interval = "200ms"
max_poll_interval = "1s"

[settings]
cache_dir = "settings-cache"

[journal]
url = "sqlite:///journal.db"

[customers]
source = "file"
path = "customers.jsonl"

[admin]
listen = "127.0.0.1:0"

[receipts]
listen = "127.0.0.1:0"

[channels.email]
adapter = "smtp"
host = "127.0.0.1"
port = {smtp_port}
tls = "none"
sender = "Linden Club <club@example.com>"
retry = {{ attempts = 4, base = "200ms", max = "1s" }}
"""

HTTP_CHANNEL = """
[channels.{name}]
adapter = "http"
url = "{base_url}/{name}"
json = {{ to = "{{customer.{address}}}", reference = "{{message.id}}", {fields} }}
provider_id = "/id"
retry = {{ attempts = 4, base = "200ms", max = "1s" }}
receipt = {{ provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"], \
reported_at = "/at", signature = {{ header = "X-Signature", secret_file = "receipts-secret" }} }}
"""

ADDRESSES = {"sms": "phone", "messenger": "messenger", "inApp": "device"}
BUTTON = 'button = { text = "{content.button.text}", url = "{content.button.url}" }'
TITLE, BODY = "{content.notification.title}", "{content.notification.body}"
PUSH = 'name = "{content.name}", description = "{content.description}", image = "{content.image}"'
FIELDS = {
    "sms": 'text = "{content.text}"',
    "messenger": f'text = "{{content.text}}", image = "{{content.image}}", {BUTTON}',
    "inApp": f'{PUSH}, {BUTTON}, notification = {{ title = "{TITLE}", body = "{BODY}" }}',
}


def demo() -> None:
    """Send some forty messages through a sandbox of our own, and show what became of each.

    Needs no configuration and leaves nothing behind. On a terminal it stays up until Ctrl-C, and so does its
    inbox page.
    """
    telemetry.configure("error", "auto")
    with tempfile.TemporaryDirectory(prefix="deliveryd-demo-") as folder:
        done = anyio.run(_play, Path(folder), backend="asyncio", backend_options={"use_uvloop": True})
    if not done:
        raise typer.Exit(1)


async def _play(folder: Path) -> bool:
    scenario = demo_scenario()
    console = Console(width=None if sys.stdout.isatty() else 150)
    async with Sandbox() as sandbox:
        scenario.load_into(sandbox.state)
        config = load(_write_files(folder, sandbox, scenario), environ={})

        def aim_receipts(addresses: Addresses) -> None:
            if addresses.receipts is not None:
                targets = {name: f"{addresses.receipts}/receipts/{name}" for name in ADDRESSES}
                sandbox.state.receipt_targets.update(targets)

        supervisor = Supervisor(config, on_ready=aim_receipts)
        done = False

        async def show() -> None:
            nonlocal done
            done = await _watch(sandbox.state, scenario, console)
            console.print(_table(sandbox.state, scenario))
            console.print(_summary(sandbox.state, scenario))
            if done and sys.stdout.isatty():
                console.print(f"\nThe inbox is at [bold]{sandbox.base_url}/[/bold]. Ctrl-C ends the demo.")
            else:
                supervisor.stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(show)
            await supervisor.run()  # hears Ctrl-C, at any time
            tasks.cancel_scope.cancel()
    return done


def _write_files(folder: Path, sandbox: Sandbox, scenario: Scenario) -> Path:
    """Write what an operator would: a configuration, a customer file, a secret."""
    folder.joinpath("customers.jsonl").write_text(scenario.customers_jsonl, encoding="utf-8")
    secret = folder / "receipts-secret"
    secret.touch(mode=0o600)
    secret.write_text(sandbox.state.receipt_secret, encoding="utf-8")
    text = CONFIG.format(base_url=sandbox.base_url, smtp_port=sandbox.smtp_port)
    for name, address in ADDRESSES.items():
        text += HTTP_CHANNEL.format(
            name=name, base_url=sandbox.base_url, address=address, fields=FIELDS[name]
        )
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


async def _watch(state: SandboxState, scenario: Scenario, console: Console) -> bool:
    """Show the progress until every message came to its end; False when that takes too long."""
    started = time.monotonic()
    ids = [exhibit.id for exhibit in scenario.exhibits]
    with console.status("") as progress:
        while time.monotonic() - started < PATIENCE:
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
    table = Table(title="What became of each message", title_justify="left", expand=True)
    table.add_column("message", no_wrap=True)
    table.add_column("shows", ratio=3)
    table.add_column("channel", no_wrap=True)
    table.add_column("what was sent", ratio=5)
    table.add_column("statuses", ratio=4)
    received = {message.message_id: message for message in state.accepted()}
    for exhibit in scenario.exhibits:
        message = received.get(exhibit.id)
        table.add_row(
            str(exhibit.id),
            Text(exhibit.note),
            message.channel if message else "-",
            Text(_words(message.payload) if message else "-"),
            Text(_told(state.events_of(exhibit.id))),
        )
    return table


def _words(payload: Mapping[str, object]) -> str:
    """What a customer reads first, in one line."""
    notification = payload.get("notification")
    known = {**notification, **payload} if isinstance(notification, Mapping) else payload
    for field in ("text", "body", "description", "subject"):
        if isinstance(text := known.get(field), str):
            line = " ".join(text.split())
            return line if len(line) <= 110 else f"{line[:109]}…"
    return ""


def _told(events: list[Event]) -> str:
    statuses = " → ".join(str(event["status"]) for event in events)
    details = [str(event["details"]) for event in events if "details" in event]
    return f"{statuses}: {details[-1]}" if details else statuses


def _summary(state: SandboxState, scenario: Scenario) -> str:
    last = [statuses[-1] for exhibit in scenario.exhibits if (statuses := state.statuses(exhibit.id))]
    counts = ", ".join(f"{last.count(status)} {status}" for status in ("delivered", "sent", "error"))
    requests = len(state.event_batches)
    return f"{len(last)} messages: {counts}. {len(state.events)} events in {requests} requests."
