"""Cases: what can be sent to the address that providers report to."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import httpx

from hostile.inputs import deep
from hostile.stage import Case, Stage, signature
from support.patience import PATIENCE
from support.plain_http import NO_TLS

FLOOD = 500
SILENT = 600


def post(stage: Stage, client: httpx.Client, body: bytes, signed: str | None = None) -> httpx.Response:
    """Report something."""
    headers = {b"x-signature": (signature(body) if signed is None else signed).encode("latin-1")}
    return client.post(f"{stage.receipts}/receipts/sms", content=body, headers=headers)


def report(provider_id: object, **more: object) -> bytes:
    """A report as the provider writes it."""
    return json.dumps(
        {"id": provider_id, "status": "delivered", "at": "2026-01-02T03:04:05Z", **more}
    ).encode()


def delivered(stage: Stage) -> tuple[int, bytes]:
    """A message that was sent, and the genuine report of its delivery."""
    id_ = stage.message()
    assert stage.settled(id_) == "sent"
    mark = b'"reference":%d}' % id_
    number = next(place for place, sent in enumerate(stage.host.sent, 1) if sent.body.endswith(mark))
    return id_, report(f"p-{number}")


def flood(stage: Stage, bodies: Iterator[tuple[bytes, str | None]], *statuses: int) -> str:
    """Many reports over one connection; a genuine one among them counts."""
    id_, genuine = delivered(stage)
    with httpx.Client(verify=NO_TLS, trust_env=False) as client:
        answers = [post(stage, client, body, signed).status_code for body, signed in bodies]
        assert set(answers) == set(statuses)
        assert post(stage, client, genuine).status_code == 200
    stage.host.wait_for(lambda host: "delivered" in host.statuses(id_), PATIENCE)
    told = " or ".join(map(str, statuses))
    return f"{told}, {len(answers):,} times"


def forged(stage: Stage) -> str:
    """Reports whose signature is of the wrong kind, of which all but the first are told to wait."""
    wrong = ["", "00", "zz", "\u00e4", signature(b"other"), "0" * 10_000]
    return flood(stage, ((report(f"x{n}"), wrong[n % 6]) for n in range(FLOOD)), 401, 429)


def of_nobody(stage: Stage) -> str:
    """Signed reports of messages that nobody sent: each is kept for a while, and forgotten afterwards."""
    return flood(stage, ((report(f"nobody-{n}"), None) for n in range(FLOOD)), 200)


def replayed(stage: Stage) -> str:
    """The same genuine report, again and again."""
    _, genuine = delivered(stage)
    with httpx.Client(verify=NO_TLS, trust_env=False) as client:
        assert post(stage, client, genuine).status_code == 200
    return flood(stage, ((genuine, None) for _ in range(FLOOD)), 200)


def odd(body: bytes, status: int, stage: Stage) -> str:
    """A signed report that can't be read, or of which a part can't."""
    return flood(stage, iter([(body, None)]), status)


def oversized(stage: Stage) -> str:
    """A gigabyte, of which no more than the bound is read."""
    address = urlsplit(stage.receipts)
    with socket.create_connection((address.hostname or "", address.port or 0)) as line:
        line.sendall(b"POST /receipts/sms HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n")
        answer = b""
        try:
            for _ in range(1024):
                line.sendall(b"a" * (1 << 20))
            answer = line.recv(1000)
        except OSError:
            answer = answer or b"hung up"
    assert answer.startswith((b"HTTP/1.1 413", b"hung up"))
    return "413, and the connection is closed"


def silent(stage: Stage) -> str:
    """Connections that stay open, with nothing or half a head: a genuine report gets through."""
    address = urlsplit(stage.receipts)
    with ExitStack() as stack:
        for number in range(SILENT):
            line = stack.enter_context(socket.create_connection((address.hostname or "", address.port or 0)))
            if number % 2:
                line.sendall(b"POST /receipts/sms HTTP/1.1\r\nhost: x\r\nx-half:")
        id_, genuine = delivered(stage)
        with httpx.Client(verify=NO_TLS, trust_env=False, timeout=5.0) as client:
            assert post(stage, client, genuine).status_code == 200
        open_files = stage.worker.open_files
        assert open_files < 300
    stage.host.wait_for(lambda host: "delivered" in host.statuses(id_), PATIENCE)
    return f"200 to the genuine one; {open_files} open files"


def reports() -> Iterator[Case]:
    """All of it."""
    yield Case(f"receipts: {FLOOD:,} forged", forged, "receipt.forged", 2)
    yield Case(f"receipts: {FLOOD:,} of messages that nobody sent", of_nobody, "receipt.unmatched", 1)
    yield Case(f"receipts: one, {FLOOD:,} times", replayed)
    yield Case("receipts: a gigabyte", oversized)
    yield Case(f"receipts: {SILENT} silent connections", silent)
    for name, body in {
        "JSON 30,000 deep": deep(30_000),
        "a number of 5,000 digits": report(int("9" * 4000))[:-1].replace(b"9" * 4000, b"9" * 5000) + b"}",
        "a status of 60,000 characters": report("p-1", status="x" * 60_000),
        "no UTF-8": b'{"id":"\xff"}',
    }.items():
        yield Case(f"receipts: {name}", partial(odd, body, 400))
    for name, body in {
        "half a surrogate pair": report("\ud800"),
        "NaN as a time": b'{"id":"p-1","status":"delivered","at":NaN}',
        "1e999 as a time": b'{"id":"p-1","status":"delivered","at":1e999}',
    }.items():
        yield Case(f"receipts: {name}", partial(odd, body, 200))
