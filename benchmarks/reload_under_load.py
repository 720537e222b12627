"""Reloads a worker of full load: what each costs, and whether anything is lost, doubled or refused.

    python benchmarks/reload_under_load.py [--rate N] [--seconds S]

The queue lets N messages a second go, to a real process over real sockets. Meanwhile signed receipts are
posted to the worker, and its configuration is changed: providers added, weighted, disabled, removed, a secret
rotated, limits changed, and a broken file. Prints how long each command took and after how many seconds the
first request came that only the new configuration makes; ends with 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from measuring import folder_on_disk
from ports import free_port
from process import PATIENCE, Process, subject_core, world_core
from work import Work, write_customers
from world import Conditions, World

HEAD = """\
[service]
base_url = "{base_url}"
[queue]
batch_size = 500
poll_interval = "20ms"
max_poll_interval = "100ms"
[settings]
cache_dir = "cache"
[content]
languages = ["en", "de"]
[customers]
source = "file"
path = "customers.jsonl"
[journal]
url = "sqlite:///journal.db"
[admin]
listen = "127.0.0.1:0"
[receipts]
listen = "127.0.0.1:{port}"
"""
PROVIDER = """
[channels.sms.providers.{name}]
adapter = "http"
url = "{base_url}/sms"
json = {{ to = "{{customer.phone}}", text = "{{content.text}}", reference = "{{message.id}}", via = "{via}" }}
headers = {{ X-Secret = "{{secret.token}}" }}
secrets = {{ token = "token" }}
provider_id = "/id"
{keys}
"""
RECEIPT = (
    'receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"], '
    'signature = { header = "X-Signature", secret_file = ["second", "first"] } }'
)
SECRETS = ("first", "second")
RECEIPTS_A_SECOND = 200


class Change(NamedTuple):
    """A change of the configuration: its tables, and the word that only requests after it have."""

    what: str
    tables: str
    via: str | None


class Scene:
    """The folder of a worker, and its files."""

    def __init__(self, folder: Path, base_url: str, port: int) -> None:
        self.folder = folder
        self.config = folder / "config.toml"
        self._base_url = base_url
        self._head = HEAD.format(base_url=base_url, port=port)
        write_customers(folder / "customers.jsonl")
        for name in ("token", *SECRETS):
            path = folder / name
            path.touch(mode=0o600)
            path.write_text(f"{name}-of-the-benchmark", encoding="utf-8")

    def provider(self, name: str, via: str, keys: str = "") -> str:
        """The table of a provider."""
        return PROVIDER.format(name=name, via=via, keys=keys, base_url=self._base_url)

    def write(self, tables: str) -> None:
        """Replace the configuration, as an editor does."""
        new = self.folder / "config.new"
        new.write_text(self._head + tables, encoding="utf-8")
        new.replace(self.config)

    def reload(self) -> tuple[int, float]:
        """Run the command; return its status, and how long it took."""
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "deliveryd",
            "reload",
            "--accept-orphans",
            "--config",
            str(self.config),
        ]
        done = subprocess.run(command, capture_output=True, check=False)
        return done.returncode, time.perf_counter() - began

    def changes(self) -> Iterator[Change]:
        """What is changed, one after the other."""
        a = self.provider("a", "a1", RECEIPT)
        yield Change("a provider is added", a + self.provider("b", "b1"), "b1")
        yield Change("a weight changes", a + self.provider("b", "b2", "weight = 3"), "b2")
        yield Change("a broken file", a + self.provider("b", "b3", "weight = -3"), None)
        (self.folder / "token").write_text("another-one", encoding="utf-8")
        yield Change("a secret is rotated", a + self.provider("b", "b4"), "b4")
        limits = 'concurrency = 40\nrate = "50000/s"\ntimeout = "7s"'
        yield Change("limits change", a + self.provider("b", "b5", limits), "b5")
        a = self.provider("a", "a6", RECEIPT)
        yield Change("a provider is disabled", a + self.provider("b", "b6", "enabled = false"), "a6")
        a = self.provider("a", "a7", RECEIPT)
        yield Change("a provider is removed", a, "a7")
        yield Change("a provider is added again", a + self.provider("b", "b8"), "b8")


class Receipts:
    """Posts signed receipts at a steady rate, until it is stopped, and counts the answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answers: Counter[int] = Counter()

    @contextmanager
    def posted(self) -> Iterator[None]:
        """Post them meanwhile."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)) as connection:
            number = 0
            while not self._stop.wait(1 / RECEIPTS_A_SECOND):
                number += 1
                body = b'{"id":"of-another-%07d","status":"delivered"}' % number
                secret = f"{SECRETS[number % 2]}-of-the-benchmark".encode()
                signature = hmac.digest(secret, body, hashlib.sha256).hex()
                headers = {"Content-Type": "application/json", "X-Signature": signature}
                connection.request("POST", "/receipts/sms/a", body, headers)
                answer = connection.getresponse()
                answer.read()
                self.answers[answer.status] += 1


def seen(world: World, via: str) -> float | None:
    """When the first request came that has this word."""
    url = f"{world.base_url}/first?{via}"
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310
        at: float | None = json.loads(answer.read())
    return at


def run(rate: int, seconds: int) -> int:
    """Return the exit status."""
    work = Work(rate * seconds)
    with folder_on_disk() as folder, World(work, Conditions(rate=rate), world_core()) as world:
        port = free_port()
        scene = Scene(folder, world.base_url, port)
        scene.write(scene.provider("a", "a1", RECEIPT))
        command = [sys.executable, "-m", "deliveryd", "run", "--config", str(scene.config)]
        process, receipts = Process(command, folder / "log", subject_core(), {}), Receipts(port)
        try:
            while seen(world, "a1") is None:
                time.sleep(0.05)
            rows, flaws = [], []
            with receipts.posted():
                for change in scene.changes():
                    rows.append(changed(scene, world, change))
                    flaws += [f"{change.what}: {rows[-1]}"] if rows[-1].flaw else []
                    time.sleep(seconds / 20)
                world.wait_until_finished(PATIENCE)
            process.stop()
            process.wait()
        finally:
            process.close()
        found = world.report()
    flaws += found.flaws
    if set(receipts.answers) - {200}:
        flaws.append(f"answers to receipts: {dict(receipts.answers)}")
    show(rows, rate, work.messages / found.seconds, receipts, flaws)
    return 1 if flaws else 0


class Row(NamedTuple):
    """What a change came to: seconds of the command, and until it was seen."""

    what: str
    command: float
    in_force: float | None
    flaw: bool


def changed(scene: Scene, world: World, change: Change) -> Row:
    """Make a change, and wait until it is seen."""
    scene.write(change.tables)
    began = time.perf_counter()
    status, command = scene.reload()
    if change.via is None:
        return Row(change.what, command, None, status != 78)
    while (at := seen(world, change.via)) is None and time.perf_counter() < began + 30:
        time.sleep(0.01)
    return Row(change.what, command, None if at is None else at - began, status != 0 or at is None)


def show(rows: Sequence[Row], asked: int, rate: float, receipts: Receipts, flaws: Sequence[str]) -> None:
    """Print what was measured."""
    print(
        f"{asked:,} messages a second wanted, {rate:,.0f} sent; answers to receipts: {dict(receipts.answers)}"
    )
    for what, command, in_force, _ in rows:
        after = "refused, as it must be" if in_force is None else f"in force after {in_force:6.3f} s"
        print(f"  {what:28} command {command:6.3f} s  {after}")
    print(f"wrong: {flaws}" if flaws else "nothing was lost, sent twice or refused")


def main() -> int:
    """Exit status 1 if anything went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=40)
    chosen = parser.parse_args()
    return run(chosen.rate, chosen.seconds)


if __name__ == "__main__":
    sys.exit(main())
