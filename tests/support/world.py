"""The world of the end-to-end tests: a sandbox, a folder with a configuration, workers as processes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg

from deliveryd.sandbox.server import Sandbox
from deliveryd.sandbox.state import SandboxState
from support.configurations import FILES, SMS_GATEWAY
from support.forked import run_deliveryd, start_deliveryd
from support.patience import PATIENCE
from support.plain_http import NO_TLS
from support.sandboxes import open_sandbox

PAGE_TOKEN = "0123456789abcdef0123456789abcdef"
PROGRAM = ("-m", "deliveryd")

CONFIG = (
    """\
[service]
base_url = "{base_url}"
timeout = "1m"

[queue]
poll_interval = "50ms"
max_poll_interval = "200ms"

[events]
flush_interval = "20ms"

"""
    + FILES
    + """
[content]
languages = ["en", "de"]

[admin]
listen = ""

[receipts]
listen = ""

"""
    + SMS_GATEWAY
    + """\
timeout = "60s"
retry = {{ attempts = 5, base = "50ms", max = "200ms" }}
"""
)


class World:
    """One folder and one sandbox. `text` is the configuration; `add` puts tables behind it."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.folder = folder
        self.sandbox = sandbox
        self.config = folder / "config.toml"
        self.database: str | None = None
        self.write_config(CONFIG.format(base_url=sandbox.base_url))
        self.customers([])
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def state(self) -> SandboxState:
        """What the sandbox knows."""
        return self.sandbox.state

    def write_config(self, text: str) -> None:
        """Replace the configuration."""
        self.config.write_text(text, encoding="utf-8")

    def add(self, tables: str) -> None:
        """Put tables behind the configuration; braces stay, `BASE_URL` and `SMTP_PORT` are filled in."""
        text = tables.replace("BASE_URL", self.sandbox.base_url).replace(
            "SMTP_PORT", str(self.sandbox.smtp_port)
        )
        self.write_config(self.config.read_text(encoding="utf-8") + "\n" + text)

    def change(self, before: str, after: str) -> None:
        """Replace a piece of the configuration that must be there."""
        text = self.config.read_text(encoding="utf-8")
        assert before in text
        self.write_config(text.replace(before, after))

    def take_orders(self) -> None:
        """Have the status page take orders that carry PAGE_TOKEN."""
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text(f"{PAGE_TOKEN}\n", encoding="utf-8")
        self.change('[admin]\nlisten = ""', f'[admin]\nlisten = "127.0.0.1:0"\ntoken_file = "{token}"')

    def customers(self, records: list[dict[str, Any]]) -> None:
        """Write the customer file."""
        text = "".join(json.dumps(record) + "\n" for record in records) or '{"id": 0}\n'
        self.folder.joinpath("customers.jsonl").write_text(text, encoding="utf-8")

    def start(
        self,
        *options: str,
        log: str = "warning",
        output: int | None = None,
        program: Sequence[str] | None = None,
        **environ: str,
    ) -> subprocess.Popen[bytes]:
        """Start a worker; what it logs goes to `worker.log` in the folder, or to a descriptor.

        `program`: arguments of an interpreter of its own, for one that prepares something before.
        """
        words = ["run", "--config", str(self.config), *options]
        env = {**os.environ, "DELIVERYD_LOG__LEVEL": log, "DELIVERYD_LOG__FORMAT": "json", **environ}
        with self.folder.joinpath("worker.log").open("ab") as log_file:
            to = log_file.fileno() if output is None else output
            if program is None and to >= 0:
                worker = start_deliveryd(words, output=to, environ=env)
            else:
                worker = subprocess.Popen(
                    [sys.executable, *(program or PROGRAM), *words],
                    env=env, stdin=subprocess.DEVNULL, stdout=to, stderr=to,
                )  # fmt: skip
        self._workers.append(worker)
        return worker

    def run_until_idle(self, log: str = "warning", **environ: str) -> None:
        """Run a worker until there is nothing more to do; it must end with status 0."""
        worker = self.start("--until-idle", log=log, output=None, program=None, **environ)
        assert worker.wait(PATIENCE) == 0, self.log()[-4000:]

    def command(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run another command of ours on the same configuration."""
        return run_deliveryd(*arguments, **environ)

    def log(self) -> str:
        """All that the workers wrote so far."""
        return self.folder.joinpath("worker.log").read_text(encoding="utf-8")

    def use_postgresql(self, url: str) -> None:
        """Have the workers keep their journal in this database, and take orders in the folder."""
        self.database = url
        self.change('timeout = "60s"', 'timeout = "15s"')  # within a lease
        self.change('url = "sqlite:///journal.db"', f'url = "{url}"')
        self.add('[control]\nsocket = "control.sock"')

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Read the journal; one in a file only of a worker that has ended."""
        if self.database is not None:
            with psycopg.connect(self.database) as db:
                return db.execute(query).fetchall()
        connection = sqlite3.connect(self.folder / "journal.db")
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def close(self) -> None:
        """Kill what still runs."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
                worker.wait()


def open_world(folder: Path) -> Iterator[World]:
    """A world for one test; made into a fixture by the modules that use it."""
    with open_sandbox() as sandbox:
        world = World(folder, sandbox)
        yield world
        world.close()


def get(url: str) -> httpx.Response:
    """Get a page of a worker's server."""
    return httpx.get(url, trust_env=False, verify=NO_TLS, timeout=PATIENCE)
