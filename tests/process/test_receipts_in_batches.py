"""Receipts by the hundred from real senders to a real worker, which is cut off and killed meanwhile."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from support.patience import PATIENCE
from support.plain_http import NO_TLS
from support.world import World, open_world

pytestmark = pytest.mark.slow

RECEIPTS = 10_000
BATCH = 100
SENDERS = 4
INFOBIP = """
[channels.sms.receipt]
each = "/results"
provider_id = "/messageId"
status = "/status/groupName"
code = "/status/id"
delivered = ["DELIVERED/5"]
failed = ["UNDELIVERABLE"]
reported_at = "/doneAt"
"""
SIGNED = """
[channels.sms.receipt]
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
signature = { header = "X-Signature", secret_file = ["old", "new"] }
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.change('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"\nmax_body = "256KiB"')
        yield world


def start(world: World) -> tuple[Any, str]:
    """A worker, and where it takes receipts: the last address that the log names."""
    asked = world.state.requests["queue"]
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] > asked, PATIENCE)
    listening = [
        line["listen"]
        for line in map(json.loads, world.log().splitlines())
        if line["event"] == "server.listening" and line["server"] == "receipts"
    ]
    return worker, f"{listening[-1]}/receipts/sms"


def item(id_: str) -> dict[str, object]:
    """A report as Infobip writes it."""
    status = {"groupId": 3, "groupName": "DELIVERED", "id": 5, "name": "DELIVERED_TO_HANDSET"}
    done_at = "2026-01-02T03:04:05.000+0000"
    return {"messageId": id_, "to": "447700900101", "status": status, "doneAt": done_at}


def batches(chance: random.Random) -> tuple[list[bytes], set[str], int]:
    """Requests of a hundred; the ids that can be read, and how many reports can't.

    One in fifty is unreadable, one in twenty repeats an earlier one.
    """
    items: list[dict[str, object]] = []
    ids: list[str] = []
    unreadable = 0
    for number in range(RECEIPTS):
        if number % 50 == 49:
            items.append({"messageId": f"broken-{number}", "status": None})
            unreadable += 1
        elif ids and chance.random() < 0.05:
            items.append(item(chance.choice(ids)))
        else:
            ids.append(f"m-{number}")
            items.append(item(ids[-1]))
    bodies = [
        json.dumps({"results": items[begin : begin + BATCH]}).encode() for begin in range(0, RECEIPTS, BATCH)
    ]
    return bodies, set(ids), unreadable


class Answers:
    """How often each status was answered, for senders in several threads."""

    def __init__(self) -> None:
        self.statuses = Counter[int]()
        self._changed = threading.Condition()

    def add(self, status: int) -> None:
        with self._changed:
            self.statuses[status] += 1
            self._changed.notify_all()

    def wait_for(self, more: int) -> None:
        """Wait until there are so many more."""
        with self._changed:
            enough = self.statuses.total() + more
            assert self._changed.wait_for(lambda: self.statuses.total() >= enough, PATIENCE)


class Sender(threading.Thread):
    """Posts requests until each was answered with 2xx, to whoever listens; cuts some connections first."""

    def __init__(self, bodies: list[bytes], target: list[str], answered: Answers) -> None:
        super().__init__()
        self._bodies = bodies
        self._target = target
        self._answered = answered
        self.over = threading.Event()

    def run(self) -> None:
        with httpx.Client(verify=NO_TLS, trust_env=False, timeout=PATIENCE) as client:
            for number, body in enumerate(self._bodies):
                if number % 5 == 0:
                    self._cut(body)
                while not self.over.wait(0.0) and not self._post(client, body):
                    self.over.wait(0.02)  # the worker is being started again

    def _post(self, client: httpx.Client, body: bytes) -> bool:
        try:
            status = client.post(self._target[0], content=body).status_code
        except httpx.HTTPError:
            return False
        self._answered.add(status)
        return status == 200

    def _cut(self, body: bytes) -> None:
        """Send a part of the request, and hang up."""
        address = urlsplit(self._target[0])
        try:
            with socket.create_connection((address.hostname or "", address.port or 0), 5.0) as line:
                head = b"POST /receipts/sms HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
                line.sendall(head + body[: len(body) // 2])
        except OSError:
            return


def test_each_readable_report_of_a_batch_counts_once(world: World) -> None:
    """Ten thousand in Infobip's form, some repeated, connections cut, and the worker killed in the middle."""
    world.add(INFOBIP)
    bodies, ids, unreadable = batches(random.Random(14))
    worker, url = start(world)
    target, answered = [url], Answers()
    senders = [Sender(bodies[place::SENDERS], target, answered) for place in range(SENDERS)]
    try:
        for sender in senders:
            sender.start()
        answered.wait_for(len(bodies) // 3)
        worker.send_signal(signal.SIGKILL)
        worker.wait(PATIENCE)
        worker, target[0] = start(world)
        for sender in senders:
            sender.join(PATIENCE)
            assert not sender.is_alive()
    finally:
        for sender in senders:
            sender.over.set()
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert set(answered.statuses) <= {200, 503}
    counted = Counter(id_ for (id_,) in world.rows("SELECT provider_id FROM receipt"))
    assert counted.keys() == ids
    assert set(counted.values()) == {1}
    assert world.rows("SELECT count(*) FROM unread") == [(unreadable,)]


def test_while_a_secret_rotates_under_load_not_one_receipt_is_refused(world: World, tmp_path: Path) -> None:
    """Thrice: the new secret is written, the provider signs with it at once, the old one is replaced."""
    world.add(SIGNED)
    secrets = {"old": "secret-0", "new": "secret-0"}
    for name, secret in secrets.items():
        tmp_path.joinpath(name).touch(mode=0o600)
        tmp_path.joinpath(name).write_text(secret)
    _, url = start(world)
    signing, answered, over = ["secret-0"], Answers(), threading.Event()

    def report(first: int) -> None:
        number = first
        with httpx.Client(verify=NO_TLS, trust_env=False, timeout=PATIENCE) as client:
            while not over.is_set():
                body = json.dumps({"id": f"p{number}", "status": "delivered"}).encode()
                signature = hmac.new(signing[0].encode(), body, hashlib.sha256).hexdigest()
                answered.add(client.post(url, content=body, headers={"X-Signature": signature}).status_code)
                number += 1

    senders = [threading.Thread(target=report, args=(begin * 1_000_000,)) for begin in range(SENDERS)]
    for sender in senders:
        sender.start()
    try:
        for rotation in range(1, 4):
            replace(tmp_path / ("new", "old")[rotation % 2], f"secret-{rotation}")
            signing[0] = f"secret-{rotation}"
            answered.wait_for(100)
    finally:
        over.set()
        for sender in senders:
            sender.join(PATIENCE)
    assert set(answered.statuses) == {200}
    assert answered.statuses[200] > 300


def replace(path: Path, secret: str) -> None:
    """Replace a secret's file at once, as credentials are."""
    written = path.with_suffix(".next")
    written.touch(mode=0o600)
    written.write_text(secret)
    written.replace(path)
