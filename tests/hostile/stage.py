"""The stage of the hostile cases: a worker, a hostile host, a mail server, and the figures of a case."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hostile.host import Host
from hostile.mail import MailHost
from hostile.worker import CONFIG, Worker
from support.patience import PATIENCE

SECRET = "a secret of the provider"

CUSTOMERS: tuple[dict[str, Any], ...] = (
    {"id": 1, "name": "Ann", "phone": "+447700900101", "device": "d1", "email": "ann@example.com"},
    {"id": 2, "name": "A\r\nX-Evil: 1", "phone": "+1\r\n", "device": "a b?c#d\u2028e&f=g"},
    {"id": 3, "name": "\ud800", "phone": "+2", "email": "=?utf-8?q?=0D=0ABcc=3A=20x=40y?= <a@example.com>"},
    {"id": 4, "phone": "\ud800"},
    {"id": 5, "name": "Eve", "email": "a@example.com\r\nRCPT TO:<evil@example.com>"},
    {"id": 6, "name": "=?utf-8?q?=0D=0ABcc:_x?=", "device": "..", "email": "zoe@example.com"},
    {"id": 7, "device": "a/../b"},
    {"id": 8, "device": "a\r\nX-Evil: 1"},
)


class Stage:
    """What a case acts on. Ids of messages and settings are given out once."""

    def __init__(self, host: Host, mail: MailHost, worker: Worker) -> None:
        self.host = host
        self.mail = mail
        self.worker = worker
        self.receipts = str(worker.wait_for_line("server.listening")["listen"])
        self.calm = 0.0
        self._last_id = 0

    def new_id(self) -> int:
        """An id that nothing else has."""
        self._last_id += 1
        return self._last_id

    def settings(self, body: bytes | Mapping[str, Any]) -> int:
        """Have the service know further settings, given as JSON text or as the blocks in English."""
        id_ = self.new_id()
        text = body if isinstance(body, bytes) else json.dumps({"content": {"en": dict(body)}}).encode()
        self.host.settings[id_] = text
        return id_

    def message(self, variables: str = '{"word": "w"}', settings: int = 1, customer: int = 1) -> int:
        """Queue a message; `variables` is JSON text."""
        id_ = self.new_id()
        self.host.enqueue(
            f'{{"id":{id_},"settingsId":{settings},"customerId":{customer},"variables":{variables}}}'
        )
        return id_

    def settled(self, id_: int) -> str:
        """Wait until a message has ended; its last status."""
        self.host.wait_for(lambda host: not {"sent", "error"}.isdisjoint(host.statuses(id_)), PATIENCE)
        return self.host.statuses(id_)[-1]

    def payload(self, id_: int) -> dict[str, Any]:
        """What the provider got of a message that went out as JSON."""
        bodies = (sent.body.decode("utf-8") for sent in list(self.host.sent) if sent.body.startswith(b"{"))
        found = (body for body in map(json.loads, bodies) if body["reference"] == id_)
        return dict(next(found))

    def goes_on(self) -> None:
        """An ordinary message is delivered as ever."""
        self.host.traps.clear()
        assert self.settled(self.message()) == "sent"


class Case(NamedTuple):
    """One hostile input. `run` returns what the worker told others of it, if it didn't tell the log.

    `event` is the line that the log must have, once to `most` times; "" where nothing is to be said.
    """

    name: str
    run: Callable[[Stage], str]
    event: str = ""
    most: int = 3


class Figure(NamedTuple):
    """What a case cost: megabytes over a calm worker, seconds on the clock and of the processor."""

    name: str
    megabytes: float
    seconds: float
    processor: float
    said: str
    lines: tuple[str, ...]


def measure(stage: Stage, case: Case) -> Figure:
    """Live through a case, and see that the line goes on."""
    mark = stage.worker.mark()
    stage.worker.forget_peak()
    began, processor = time.monotonic(), stage.worker.processor_seconds
    told = case.run(stage)
    seconds, processor = time.monotonic() - began, stage.worker.processor_seconds - processor
    stage.goes_on()
    lines = stage.worker.lines(mark)
    first = next((line for line in lines if line["event"] == case.event), None)
    said = " ".join([str(first["event"]), str(first.get("reason", ""))]).strip() if first else told
    megabytes = stage.worker.peak - stage.calm
    return Figure(case.name, megabytes, seconds, processor, said, tuple(line["event"] for line in lines))


def signature(body: bytes) -> str:
    """What a genuine report carries."""
    return hmac.digest(SECRET.encode(), body, hashlib.sha256).hex()


def no_plant(service: str) -> None:
    """Nothing."""


@contextmanager
def open_stage(folder: Path, plant: Callable[[str], None] = no_plant) -> Iterator[Stage]:
    """A worker in this folder that has delivered its first messages, with all around it.

    `plant` is called with the service's address before the worker starts.
    """
    with Host() as host, MailHost() as mail:
        write_world(folder, host, mail)
        plant(host.url)
        worker = Worker(folder)
        try:
            stage = Stage(host, mail, worker)
            sms = {"sms": {"text": "{word}"}, "greetings": {"personal": "{customer.name}"}}
            assert stage.settings(sms) == 1
            for _ in range(3):
                stage.goes_on()
            stage.calm = worker.resident
            yield stage
        finally:
            worker.kill()


def write_world(folder: Path, host: Host, mail: MailHost) -> None:
    """The files that a worker needs."""
    (folder / "config.toml").write_text(
        CONFIG.format(base_url=host.url, smtp_port=mail.port), encoding="utf-8"
    )
    (folder / "customers.jsonl").write_text(
        "".join(f"{json.dumps(c)}\n" for c in CUSTOMERS), encoding="utf-8"
    )
    secret = folder / "secret"
    secret.touch(0o600)
    secret.write_text(SECRET, encoding="utf-8")
