"""The preset apns at a server that speaks HTTP/2 on a real socket: what it refuses, resets or leaves open."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from h2.errors import ErrorCodes

from deliveryd.channels.base import Accepted, AtDevices, Channel, InDoubt, Refused, Stopped, TryAgain
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.config import load
from deliveryd.errors import ConfigError
from deliveryd.model import Customer
from deliveryd.testing.samples import dispatch
from deliveryd.worker.wiring import open_provider
from support.http2_server import Http2Request, Http2Server, open_http2_server

pytestmark = pytest.mark.anyio

CONTENT = {"notification.title": "Parcel", "notification.body": "It is here"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server() -> AsyncIterator[Http2Server]:
    async with open_http2_server() as server:
        yield server


def configuration(folder: Path, url: str, more: str = "") -> Path:
    key = folder / "key.p8"
    key.touch(mode=0o600)
    pem = generate_private_key(SECP256R1())
    key.write_bytes(pem.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    config = folder / "config.toml"
    config.write_text(f"""
[service]
base_url = "http://127.0.0.1:1"
[journal]
url = "sqlite:///journal.db"
[settings]
cache_dir = "cache"
[channels.inApp]
adapter = "apns"
bundle_id = "com.example.app"
team_id = "A1B2C3D4E5"
key_id = "K1L2M3N4O5"
key_file = "key.p8"
base_url = "{url}"
allow_plain_text = true
{more}
""")
    return config


@pytest.fixture
async def channel(server: Http2Server, tmp_path: Path) -> AsyncIterator[Channel]:
    config = load(configuration(tmp_path, server.url), environ={})
    channel = open_provider(config, config.channels.providers["inApp"])
    yield channel
    await channel.aclose()


async def send(channel: Channel, tokens: str, key: str = "d-1-abcdef") -> object:
    customer = Customer(7, {"apns_tokens": tokens})
    return await channel.send(dispatch("inApp", CONTENT, customer=customer, key=key))


async def test_what_a_device_gets(channel: Channel, server: Http2Server) -> None:
    server.act = lambda request: request.answer(apns_id=request.headers["apns-id"])
    given = await send(channel, "00fc13")
    [request] = server.seen
    assert given == Accepted(request.headers["apns-id"])
    assert request.headers[":path"] == "/3/device/00fc13"
    assert request.headers["authorization"].startswith("bearer ey")
    assert request.headers["apns-topic"] == "com.example.app"
    assert json.loads(request.body)["aps"]["alert"] == {"title": "Parcel", "body": "It is here"}


async def test_several_devices_share_the_connection(channel: Channel, server: Http2Server) -> None:
    """Each has its own id and collapse id; one that is gone is stopped alone."""

    def act(request: Http2Request) -> None:
        if request.headers[":path"].endswith("/gone"):
            request.answer(410, b'{"reason":"Unregistered","timestamp":1795200000000}')
        else:
            request.answer(apns_id=request.headers["apns-id"])

    server.act = act
    given = await send(channel, '["a1","gone","b2"]')
    assert isinstance(given, AtDevices)
    assert [type(each.verdict) for each in given.each] == [Accepted, Stopped, Accepted]
    assert len({request.headers["apns-collapse-id"] for request in server.seen}) == 3
    assert len({request.headers["authorization"] for request in server.seen}) == 1
    assert len(server.connections) == 1


async def test_certain_and_uncertain_failures(channel: Channel, server: Http2Server) -> None:
    """A refused stream and one above the last are tried again; a reset one, or a late answer, is in doubt."""
    server.act = lambda request: request.reset(ErrorCodes.REFUSED_STREAM)
    assert isinstance(await send(channel, "a1"), TryAgain)
    server.act = lambda request: request.connection.go_away(last=0)
    assert isinstance(await send(channel, "a1"), TryAgain)
    server.act = lambda request: request.reset(ErrorCodes.INTERNAL_ERROR)
    assert isinstance(await send(channel, "a1"), InDoubt)
    server.act = lambda request: request.connection.abort()
    assert isinstance(await send(channel, "a1"), InDoubt)
    server.act = lambda request: request.answer()
    assert isinstance(await send(channel, "a1"), Accepted)


async def test_a_payload_that_is_too_large_is_refused_before_it_is_sent(
    channel: Channel, server: Http2Server
) -> None:
    customer = Customer(7, {"apns_tokens": "a1"})
    large = {**CONTENT, "description": "x" * 4096}
    given = await channel.send(dispatch("inApp", large, customer=customer))
    assert isinstance(given, Refused)
    assert given.unsent
    assert "4096 fit" in given.reason
    assert server.seen == []


async def test_thousands_of_pushes_while_servers_go_away(channel: Channel, server: Http2Server) -> None:
    """Each is answered once, or surely wasn't processed: nothing is in doubt, and nothing arrives twice."""
    accepted: list[str] = []

    def act(request: Http2Request) -> None:
        if len(server.seen) % 700 == 0:
            request.connection.go_away(last=request.number - 2)
            return
        if request.number > request.connection.last:
            return
        accepted.append(request.headers["apns-collapse-id"])
        request.answer()

    server.act = act
    left = {f"d-{n}-abcdef" for n in range(3000)}
    while left:
        keys = sorted(left)
        verdicts = await asyncio.gather(*(send(channel, "a1", key) for key in keys))
        left = {key for key, verdict in zip(keys, verdicts, strict=True) if isinstance(verdict, TryAgain)}
        assert {type(verdict) for verdict in verdicts} <= {Accepted, TryAgain}
    assert len(accepted) == len(set(accepted)) == 3000


def test_a_certificate_in_place_of_a_token_and_no_way_through_a_proxy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="http2: there is no way through a proxy"):
        load(configuration(tmp_path, "https://api.push.apple.com", 'proxy = "http://proxy:3128"'), environ={})
    text = configuration(tmp_path, "https://api.push.apple.com").read_text()
    text = re.sub(r"(?m)^(key_file|key_id|team_id) = .*\n", "", text)
    (tmp_path / "config.toml").write_text(text + "auth = {}\n")
    config = load(tmp_path / "config.toml", environ={})
    options = config.channels.providers["inApp"].options
    assert isinstance(options, HttpChannelOptions)
    assert not options.auth.is_given
