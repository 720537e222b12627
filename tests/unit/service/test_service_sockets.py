"""The client of the service over real sockets: answers that break off, are late, compressed or too large."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from deliveryd import __version__
from deliveryd.errors import ServiceUnavailable, ServiceUnreadable
from deliveryd.http.client import build_client
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.credentials import open_authentication
from deliveryd.service.client import ServiceClient
from deliveryd.service.wire import LARGEST_SETTINGS
from deliveryd.testing.gateway import Act, Disconnect, Reply, Stall, closed_port, open_gateway

pytestmark = pytest.mark.anyio


real_sockets = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": True}), ("trio", {})], ids=["uvloop", "trio"]
)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("old\n")
    path.chmod(0o600)
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[ServiceClient]:
    client = ServiceClient(build_client(timeout=5.0, **options), f"{url}/api")
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()


@real_sockets
async def test_the_whole_cycle_over_a_socket() -> None:
    """Take, report, settings and customer data in turn; `User-Agent` tells the service who asks."""
    async with open_gateway() as gateway, connected(gateway.url) as client:
        gateway.script += [
            Reply(200, b'[{"id": 1, "settingsId": 2, "customerId": 3, "variables": {}}]'),
            Reply(204, b""),
            Reply(200, b'{"content": {}}'),
            Reply(200, b'{"value": {}}'),
            Reply(200, b'{"value": {"id": 9}}'),
        ]
        assert (await client.take(10)).messages[0].id == 1
        await client.report(['{"messageId":1}'])
        assert client.parse_settings(2, await client.fetch_settings(2)).content == {}
        assert (await client.customer_page(3, ["offers"], tokens={"offers": "a b&c"})).value == {}
        assert await client.entity(f"{gateway.url}/api/v4/offers/9/1/en") == {"id": 9}
        assert [(seen.method, seen.target) for seen in gateway.seen] == [
            ("GET", "/api/queue?take=10"),
            ("POST", "/api/events"),
            ("GET", "/api/settings/2"),
            ("GET", "/api/customers/3/all?offers.include=true&offers.continuationToken=a%20b%26c"),
            ("GET", "/api/v4/offers/9/1/en"),
        ]
        assert json.loads(gateway.seen[1].body) == [{"messageId": 1}]
        assert {seen.headers["user-agent"] for seen in gateway.seen} == {f"deliveryd/{__version__}"}


@pytest.mark.slow
@real_sockets
async def test_broken_connections_over_a_socket() -> None:
    """A service that hangs up twice is asked a third time; one that nobody runs is unavailable."""
    async with open_gateway() as gateway, connected(gateway.url) as client:
        gateway.script += [Disconnect(), Disconnect(b"HTTP/1.1 200 OK\r\n"), Reply(200, b"{}")]
        assert await client.fetch_settings(1) == b"{}"
        assert len(gateway.seen) == 3
    async with connected(f"http://127.0.0.1:{await closed_port()}") as client:
        with pytest.raises(ServiceUnavailable):
            await client.take(1)


@real_sockets
async def test_an_answer_that_is_too_large_is_unavailable() -> None:
    """A service that answers without end costs bounded memory, and one try."""
    async with open_gateway() as gateway, connected(gateway.url, max_body=1000) as client:
        gateway.script += [Reply(200, b"{" + b" " * 1000 + b"}")] * 5
        with pytest.raises(ServiceUnavailable, match="larger than 1000 bytes"):
            await client.report(["{}"])
        assert len(gateway.seen) == 1


@real_sockets
async def test_settings_have_one_bound() -> None:
    """Up to it they are read, whatever bounds other answers; beyond it they can't be used, as in a file."""
    async with open_gateway() as gateway, connected(gateway.url) as client:
        largest = b'{"content": {}}'.ljust(LARGEST_SETTINGS)
        gateway.script += [Reply(200, largest), Reply(200, largest + b" "), Reply(200, largest * 3)]
        assert client.parse_settings(1, await client.fetch_settings(1)).id == 1
        for _ in range(2):
            with pytest.raises(ServiceUnreadable, match=f"settings 1: larger than {LARGEST_SETTINGS} bytes"):
                await client.fetch_settings(1)
        assert len(gateway.seen) == 3
    with pytest.raises(ServiceUnreadable, match=f"settings 1: larger than {LARGEST_SETTINGS} bytes"):
        client.parse_settings(1, largest + b" ")


def element(id_: int, text: str = "") -> bytes:
    """A message of the queue."""
    body = {"id": id_, "settingsId": 2, "customerId": 3, "variables": {"a": text}}
    return json.dumps(body).encode()


def announcing(size: int, body: bytes, *headers: bytes) -> Disconnect:
    """An answer that ends before the length that its head tells."""
    head = b"".join(header + b"\r\n" for header in headers)
    return Disconnect(b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (head, size, body))


BROKEN_OFF: dict[str, Act] = {
    "cut": announcing(1000, b"[" + element(1) + b"," + element(2) + b', {"id": 3, "settingsId": 2'),
    "cut in a chunk": Disconnect(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b"%x\r\n[%b,%b\r\nff\r\n,{" % (len(element(1)) * 2 + 2, element(1), element(2))
    ),
    "ended by the connection": Disconnect(
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n[" + element(1) + b"," + element(2) + b","
    ),
    "with rubbish behind it": Reply(200, b"[" + element(1) + b"," + element(2) + b"]<!-- 17 ms -->"),
}


@real_sockets
@pytest.mark.parametrize("answer", BROKEN_OFF)
async def test_an_answer_of_the_queue_that_breaks_off_keeps_what_was_whole(answer: str) -> None:
    """Two messages came; that there may have been more is told, and it isn't asked for again."""
    async with open_gateway() as gateway, connected(gateway.url) as client:
        gateway.script += [BROKEN_OFF[answer]]
        batch = await client.take(10)
        assert [message.id for message in batch.messages] == [1, 2]
        assert batch.fault is not None
        assert len(gateway.seen) == 1


@real_sockets
async def test_an_answer_of_the_queue_that_is_late_keeps_what_had_come() -> None:
    """The time-out ends the waiting, and not what arrived before it."""
    async with open_gateway() as gateway:
        slow = announcing(1000, b"[" + element(1) + b"," + element(2) + b",")
        gateway.script += [Stall(slow.first)]
        async with ServiceClient(build_client(timeout=0.5), f"{gateway.url}/api") as client:
            batch = await client.take(10)
    assert [message.id for message in batch.messages] == [1, 2]
    assert str(batch.fault) == "no whole answer within 0.5 s"


@real_sockets
async def test_a_compressed_answer_is_read_though_nobody_asked_for_it() -> None:
    """A batch of the queue loses nothing; one that breaks off keeps what was whole."""
    whole = gzip.compress(b"[" + element(1) + b"," + element(2) + b"]")
    encoded = (("Content-Encoding", "gzip"),)
    async with open_gateway() as gateway, connected(gateway.url) as client:
        gateway.script += [Reply(200, whole, encoded), Reply(200, whole[:-4], encoded)]
        for fault in (None, "the compressed answer breaks off"):
            batch = await client.take(10)
            assert [message.id for message in batch.messages] == [1, 2]
            assert (str(batch.fault) if batch.fault else None) == fault
        gateway.script += [Reply(200, gzip.compress(b"{}"), encoded)]
        assert await client.fetch_settings(1) == b"{}"
        assert {seen.headers["accept-encoding"] for seen in gateway.seen} == {"identity"}


@pytest.mark.slow
@real_sockets
async def test_a_compressed_answer_is_bounded_by_what_it_stands_for() -> None:
    """Some kB that stand for 64 MiB cost no more than the bound."""
    async with open_gateway() as gateway, connected(gateway.url, max_body=1000) as client:
        bomb = Reply(200, gzip.compress(bytes(64 << 20), 1), (("Content-Encoding", "gzip"),))
        gateway.script += [bomb]
        with pytest.raises(ServiceUnavailable, match="larger than 1000 bytes"):
            await client.report(["{}"])


@real_sockets
async def test_an_answer_of_the_queue_in_another_encoding_may_be_a_batch_lost() -> None:
    """Nothing of it can be read, so that all of it is told to be lost."""
    async with open_gateway() as gateway, connected(gateway.url) as client:
        gateway.script += [Reply(200, b"\x0b\x01", (("content-encoding", "br"),))]
        batch = await client.take(10)
    assert (batch.size, str(batch.fault)) == (0, "the answer is encoded as 'br', which can't be read")


@real_sockets
async def test_gzip_can_be_asked_for() -> None:
    async with open_gateway() as gateway, connected(gateway.url, accept_encoding="gzip") as client:
        gateway.script += [Reply(200, b"[]")]
        await client.take(10)
        assert gateway.seen[0].headers["accept-encoding"] == "gzip"


@pytest.mark.slow
@real_sockets
async def test_a_large_answer_of_the_queue_is_read_whole() -> None:
    """1,000 messages of 5 KB are a batch like any other, and so are 12 MB of them."""
    async with open_gateway() as gateway, connected(gateway.url, max_body=4 << 20) as client:
        for each in (5_000, 12_000):
            body = b"[" + b",".join(element(id_, "x" * each) for id_ in range(1000)) + b"]"
            gateway.script += [Reply(200, body)]
            batch = await client.take(1000)
            assert [message.id for message in batch.messages] == list(range(1000))
            assert (batch.malformed, batch.fault) == ([], None)


@pytest.mark.slow
@real_sockets
async def test_an_answer_beyond_the_bound_keeps_what_lies_within_it() -> None:
    """64 MiB are read, which bounds the memory; that the rest of such a batch is lost is told."""
    body = b"[" + b",".join(element(id_, "x" * 700_000) for id_ in range(110)) + b"]"
    async with open_gateway() as gateway, connected(gateway.url) as client:
        gateway.script += [Reply(200, body)]
        batch = await client.take(110)
        assert [message.id for message in batch.messages] == list(range(95))
        assert str(batch.fault) == f"the answer is larger than {64 << 20} bytes"


@real_sockets
async def test_a_refusal_whose_body_breaks_off_counts_by_its_status(token: Path) -> None:
    """A cut page of 401 has the new secret read, and one of 503 loses nothing."""
    cut = b"HTTP/1.1 %d No\r\nretry-after: 7\r\ncontent-length: 99\r\n\r\n<html>"
    async with open_gateway() as gateway:
        authentication = open_authentication(AuthOptions(token_file=token), "service.auth", 5.0)
        http = build_client(timeout=5.0, authentication=authentication)
        client = ServiceClient(http, f"{gateway.url}/api")
        async with client:
            write(token, "new\n")
            gateway.script += [Disconnect(cut % 401), Reply(200, b"[]"), Disconnect(cut % 503)]
            assert await client.take(1) == ([], [], None)
            with pytest.raises(ServiceUnavailable) as caught:
                await client.take(1)
            assert caught.value.after == 7.0
        shown = [seen.headers["authorization"] for seen in gateway.seen]
        assert shown == ["Bearer old", "Bearer new", "Bearer new"]
