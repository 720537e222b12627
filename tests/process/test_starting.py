"""The start, while what an earlier run left is still being taken up: who is answered, and who has to wait."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import httpx
import pytest
from anyio.abc import TaskGroup

from deliveryd.config import load
from deliveryd.control.client import ControlClient, order
from deliveryd.control.protocol import ControlReply
from deliveryd.journal.opening import JournalTerms
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.place import JournalFile
from deliveryd.sandbox.faults import Hang
from deliveryd.worker.health import WorkerHealth
from deliveryd.worker.supervisor import Addresses, Supervisor
from deliveryd.worker.wiring import Parts
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import World, open_world

pytestmark = pytest.mark.anyio

T = TypeVar("T")
SECRET = "shared-secret"
RECEIPT = """
receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"], \
reference = "/reference", signature = { header = "X-Signature", secret_file = "receipts-secret" } }
"""
HELD = range(1, 6)
PAGES = {"livez": 200, "metrics": 200, "status": 200, "readyz": 503}


@pytest.fixture
def anyio_backend() -> str:
    """The servers are bound to asyncio."""
    return "asyncio"


class Gate:
    """Lets the journal be opened, and nothing be written to it before the gate is opened."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self._opened = anyio.Event()
        self._passed = 0

    def open(self) -> None:
        self._opened.set()

    async def __call__(self, work: Callable[[], T], /) -> T:
        self._passed += 1
        if self._passed > 1:
            self.reached.set()
            await self._opened.wait()
        return await anyio.to_thread.run_sync(work)


class Starting(Supervisor):
    """A worker that tells its addresses before it is ready."""

    addresses: Addresses

    def _open_servers(
        self, parts: Parts, health: WorkerHealth, servers: TaskGroup, stop: anyio.Event
    ) -> Addresses:
        self.addresses = super()._open_servers(parts, health, servers, stop)
        return self.addresses


@pytest.fixture
def held(tmp_path: Path) -> Iterator[World]:
    """A journal with messages held in doubt, by a worker whose policy was `hold`; now it is `resend`."""
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        for server in ("admin", "receipts"):
            world.change(f'[{server}]\nlisten = ""', f'[{server}]\nlisten = "127.0.0.1:0"')
        tmp_path.joinpath("receipts-secret").touch(mode=0o600)
        tmp_path.joinpath("receipts-secret").write_text(SECRET)
        world.add(RECEIPT)
        world.change('timeout = "60s"', 'timeout = "500ms"\non_in_doubt = "hold"')
        for _ in HELD:
            world.state.fail("provider.sms", Hang())
        world.state.enqueue(*(message(id_) for id_ in HELD))
        assert world.start("--until-idle").wait(PATIENCE) == 1  # messages are held
        world.change('on_in_doubt = "hold"', 'on_in_doubt = "resend"')
        world.change('base = "50ms", max = "200ms"', 'base = "1h", max = "1h"')
        yield world


async def report(client: httpx.AsyncClient, address: str, key: str) -> httpx.Response:
    body = json.dumps({"id": f"p-{key}", "status": "delivered", "reference": key}).encode()
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return await client.post(
        f"{address}/receipts/sms", content=body, headers={"X-Signature": signature}, timeout=PATIENCE
    )


async def report_until_taken(client: httpx.AsyncClient, address: str, key: str) -> None:
    while (await report(client, address, key)).status_code != 200:
        pass


async def give_an_order(world: World) -> ControlReply:
    """As a command does, about a message that there isn't."""
    place = JournalFile(world.folder / "journal.db")
    client = ControlClient(place, world.folder / "unused.sock", JournalTerms(), ["sms"])
    return await anyio.to_thread.run_sync(order, client, Action.RESEND, ItemKind.MESSAGE, ["99"])


@pytest.mark.slow
async def test_receipts_and_orders_wait_until_what_was_in_doubt_is_taken_up(held: World) -> None:
    """Receipts are answered with 503 meanwhile. Taken afterwards, they settle the doubts."""
    keys = [seen.headers["idempotency-key"] for seen in held.state.seen if seen.endpoint == "provider.sms"]
    gate, ready, answered = Gate(), anyio.Event(), anyio.Event()
    answers: list[ControlReply] = []

    async def ask() -> None:
        answers.append(await give_an_order(held))
        answered.set()

    worker = Starting(load(held.config), blocking=gate, on_ready=lambda _: ready.set())
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks, httpx.AsyncClient(trust_env=False) as client:
            tasks.start_soon(worker.run)
            await gate.reached.wait()
            tasks.start_soon(ask)
            admin, receipts = worker.addresses
            assert admin is not None
            assert receipts is not None
            assert (await report(client, receipts, keys[0])).status_code == 503
            pages = {page: await client.get(f"{admin}/{page}") for page in PAGES}
            assert {page: answer.status_code for page, answer in pages.items()} == PAGES
            assert "starting" in pages["readyz"].text
            assert pages["status"].json()["ready"] is False
            assert not answers
            async with anyio.create_task_group() as providers:
                for key in keys:
                    providers.start_soon(report_until_taken, client, receipts, key)
                gate.open()
            await ready.wait()
            assert (await client.get(f"{admin}/readyz")).status_code == 200
            await answered.wait()
            assert answers[0].skipped == {"99": "it isn't held in doubt"}
            worker.stop()
    for id_ in HELD:
        assert held.state.statuses(id_) == ["dequeued", "sent", "delivered"]
    assert held.state.requests["provider.sms"] == len(HELD)
