"""`/tail` and `/readyz/receipts` over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from deliveryd.admin.app import admin_app
from deliveryd.http import server
from deliveryd.http.addresses import bind, url_of
from deliveryd.metrics import Metrics
from deliveryd.model import Entry
from support.overviews import Worker
from support.plain_http import NO_TLS


@pytest.fixture
def anyio_backend() -> str:
    """The server is bound to asyncio."""
    return "asyncio"


@asynccontextmanager
async def client_of(worker: Worker) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the worker's pages."""
    bound, stop = bind("admin.listen", "127.0.0.1:0"), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, admin_app(worker, Metrics(["sms"], "1")), bound, stop)
        async with httpx.AsyncClient(verify=NO_TLS, base_url=url_of(bound)) as client:
            yield client
        stop.set()


def entry(id_: int, provider: str | None = None) -> Entry:
    """A message."""
    return Entry(id_, 1, 1, {"name": "Ann"}, provider)


@pytest.mark.anyio
async def test_events_are_sent_as_they_happen() -> None:
    """Those that the query selects, without the variables; the place is free again afterwards."""
    worker = Worker()
    async with client_of(worker) as client:
        async with client.stream("GET", "/tail", params={"message": "7"}) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            lines = answer.aiter_lines()
            assert await anext(lines) == ":"
            worker.tails.taken([entry(6), entry(7)], 1_800_000_000_000_000)
            data = ""
            while not data.startswith("data: "):
                data = await anext(lines)
        assert json.loads(data.removeprefix("data: ")) == {
            "events": [{"at": "2027-01-15T08:00:00.000000Z", "message": 7, "event": "taken", "settings": 1}]
        }


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("message=seven", "message must be an integer"),
        ("failed=perhaps", "failed must be true or false"),
        ("chanel=sms", "unknown parameter 'chanel'"),
    ],
)
async def test_a_query_that_cannot_be_read_is_refused(query: str, problem: str) -> None:
    """With what is wrong."""
    async with client_of(Worker()) as client:
        answer = await client.get(f"/tail?{query}")
        assert (answer.status_code, problem in answer.text) == (400, True)


@pytest.mark.anyio
async def test_nothing_can_be_posted_to_a_tail() -> None:
    """It only reads."""
    async with client_of(Worker()) as client:
        assert (await client.post("/tail")).status_code == 405


@pytest.mark.anyio
@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
async def test_readiness_for_receipts_is_a_page_of_its_own(is_ready: bool, status: int) -> None:
    """For whatever sends receipts here."""
    async with client_of(Worker(is_ready=is_ready)) as client:
        answer = await client.get("/readyz/receipts")
        assert (answer.status_code, answer.text.splitlines()[1]) == (status, "receipts are taken")
