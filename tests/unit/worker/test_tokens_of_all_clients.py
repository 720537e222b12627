"""The service, a provider and the directory behind a token server, over sockets and from a configuration."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from deliveryd.channels.base import Accepted, Channel, Misconfigured, Refused, TryAgain, Verdict
from deliveryd.config import Config, load
from deliveryd.directory.base import Terms
from deliveryd.directory.http import open_http_source
from deliveryd.directory.http_options import HttpDirectoryOptions
from deliveryd.errors import DirectoryUnavailable, ServiceRefused, ServiceUnavailable
from deliveryd.testing.gateway import Act, Gateway, GatewayRequest, Reply, closed_port, open_gateway
from deliveryd.testing.samples import dispatch
from deliveryd.worker.wiring import open_providers, open_service

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize(
        "anyio_backend", [("asyncio", {"use_uvloop": True}), ("trio", {})], ids=["uvloop", "trio"]
    ),
]

HELLO = dispatch("sms", {"text": "hello"})
CONFIG = """
[service]
base_url = "{api}"
timeout = "4s"
{service_auth}
[customers]
source = "http"
url = "{api}/crm/{{customerId}}"
fields = {{ phone = "/phone" }}
{customers_auth}
[settings]
cache_dir = "cache"
[journal]
url = "sqlite:///journal.db"
[channels.sms]
adapter = "http"
url = "{api}/sms"
json = {{ to = "{{customer.phone}}", text = "{{content.text}}" }}
{channel_auth}
"""


class Scene(NamedTuple):
    """A token server, a server that accepts only its newest token, and the configuration of both."""

    idp: Gateway
    api: Gateway
    folder: Path

    def issue(self, request: GatewayRequest) -> Act:
        assert request.body == b"grant_type=client_credentials"
        body = {"access_token": f"token{len(self.idp.seen)}", "token_type": "Bearer", "expires_in": 3600}
        return Reply(200, json.dumps(body).encode())

    def answer(self, request: GatewayRequest) -> Act:
        if request.headers.get("authorization") != f"Bearer token{len(self.idp.seen)}":
            return Reply(401)
        return Reply(200, b"[]" if "/queue" in request.target else b'{"id": "p1", "phone": "+447700900101"}')

    def config(self, token_url: str | None = None, channel: str = "") -> Config:
        secret = self.folder / "secret"
        secret.write_text("s3cret")
        secret.chmod(0o600)
        url = token_url or f"{self.idp.url}/token"
        auth = f'auth.oauth2 = {{ token_url = "{url}", client_id = "me", client_secret_file = "secret" }}'
        path = self.folder / "config.toml"
        auths = dict.fromkeys(("service_auth", "customers_auth", "channel_auth"), auth)
        path.write_text(CONFIG.format(api=self.api.url, **auths) + channel)
        return load(path, environ={})


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with open_gateway() as idp, open_gateway() as api:
        scene = Scene(idp, api, tmp_path)
        idp.respond, api.respond = scene.issue, scene.answer
        yield scene


async def take(config: Config) -> object:
    async with open_service(config) as client:
        return await client.take(1)


async def look_up(config: Config) -> object:
    options = config.customers.options
    assert isinstance(options, HttpDirectoryOptions)
    source = open_http_source(options, Terms(cache_ttl=1.0, timeout=4.0, concurrency=1))
    try:
        return await source.look_up([7])
    finally:
        await source.aclose()


@asynccontextmanager
async def the_provider(config: Config) -> AsyncIterator[Channel]:
    async with AsyncExitStack() as stack:
        channel = open_providers(config)["sms"]
        stack.push_async_callback(channel.aclose)
        yield channel


async def send(config: Config) -> Verdict:
    async with the_provider(config) as channel:
        return await channel.send(HELLO)


async def test_each_gets_a_token_and_shows_it(scene: Scene) -> None:
    config = scene.config()
    await take(config)
    assert isinstance(await send(config), Accepted)
    await look_up(config)
    assert [each.headers["authorization"] for each in scene.idp.seen] == ["Basic bWU6czNjcmV0"] * 3
    shown = [each.headers["authorization"] for each in scene.api.seen]
    assert shown == ["Bearer token1", "Bearer token2", "Bearer token3"]


async def test_a_token_that_the_server_gave_up_is_replaced(scene: Scene) -> None:
    """Its own key is unchanged; the request is repeated once, and a provider gets the same key."""
    config = scene.config()
    async with the_provider(config) as channel, open_service(config) as client:
        await client.take(1)
        assert isinstance(await channel.send(HELLO), Accepted)  # its token takes the place of the first one
        await client.take(1)
    shown = [request.headers["authorization"] for request in scene.api.seen if "/queue" in request.target]
    assert shown == ["Bearer token1", "Bearer token1", "Bearer token3"]


async def test_a_server_that_accepts_no_token_is_a_misconfiguration(scene: Scene) -> None:
    """Two requests and two tokens; the next message has no further one requested."""
    config = scene.config()
    scene.api.respond = lambda _request: Reply(401)
    async with the_provider(config) as channel:
        for _ in range(3):
            assert isinstance(await channel.send(HELLO), Misconfigured)
    assert (len(scene.idp.seen), len(scene.api.seen)) == (2, 4)
    with pytest.raises(ServiceRefused):
        await take(config)


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (Reply(401, b'{"error": "invalid_client"}'), "answered 401: invalid_client"),
        (Reply(503), "answered 503"),
        (None, "connection refused"),
    ],
    ids=["wrong secret", "busy", "away"],
)
async def test_without_a_token_nothing_is_sent_and_the_reason_is_named(
    scene: Scene, act: Act | None, reason: str
) -> None:
    """An outage of whoever needs the token: messages wait, and no try is used up."""
    if act is None:
        config = scene.config(f"http://127.0.0.1:{await closed_port()}/token")
    else:
        scene.idp.respond = lambda _request: act
        config = scene.config()
    with pytest.raises(ServiceUnavailable, match=f"token server 127.0.0.1:.*{reason}") as caught:
        await take(config)
    assert not caught.value.was_sent
    with pytest.raises(DirectoryUnavailable, match=reason):
        await look_up(config)
    verdict = await send(config)
    assert isinstance(verdict, TryAgain)
    assert reason in verdict.reason
    async with the_provider(config) as channel:
        assert reason in (await channel.probe() or "")
    assert scene.api.seen == []


async def test_many_messages_wait_for_one_token(scene: Scene) -> None:
    config = scene.config()
    verdicts: list[Verdict] = []
    async with the_provider(config) as channel:

        async def send_one() -> None:
            verdicts.append(await channel.send(HELLO))

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(send_one)
    assert len(scene.idp.seen) == 1
    assert all(isinstance(verdict, Accepted) for verdict in verdicts)


async def test_what_a_provider_repeats_of_a_token_is_masked(scene: Scene) -> None:
    """Its words are kept with the outcome, which `explain` shows."""

    def refuse(request: GatewayRequest) -> Act:
        words = f"bad credentials {request.headers['authorization']}"
        return Reply(400, json.dumps({"message": words}).encode())

    scene.api.respond = refuse
    config = scene.config(
        channel='answers = [{ status = [400], verdict = "refused", reason = "/message" }]\n'
    )
    verdict = await send(config)
    assert isinstance(verdict, Refused)
    assert verdict.words == "bad credentials Bearer ***"
