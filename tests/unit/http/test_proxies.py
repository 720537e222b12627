"""Forward proxies: each table's requests go through the one that it names, with its login."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from deliveryd.channels.base import Misconfigured
from deliveryd.config import Config, examine, load
from deliveryd.errors import ServiceRefused, ServiceUnavailable
from deliveryd.runtime import secret_file
from deliveryd.testing.gateway import Reply, open_gateway
from deliveryd.testing.samples import dispatch
from deliveryd.worker.outside import open_directory
from deliveryd.worker.wiring import open_provider, open_service
from support.terminal import command

pytestmark = pytest.mark.anyio

CONFIG = """\
[service]
base_url = "SCHEME://service.invalid"
allow_plain_text = true
auth = {{ token_file = "token" }}
{service}
[settings]
cache_dir = "cache"
[journal]
url = "sqlite:///journal.db"
[admin]
listen = ""
[entities]
hosts = ["config.invalid", "169.254.169.254"]
allow_http = true
{entities}
[customers]
source = "http"
url = "SCHEME://crm.invalid/{{customerId}}"
fields = {{ name = "/name" }}
{customers}
[channels.sms]
adapter = "http"
url = "SCHEME://sms.invalid/send"
json = {{ text = "{{content.text}}" }}
{channel}
"""
LOGIN = "Basic " + base64.b64encode(b"issuer:s3cret: pass").decode()


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def configured(folder: Path, table: str, proxy: str, scheme: str = "http") -> Config:
    """A configuration with a proxy in one of its tables."""
    for name, content in (("token", "t0ken"), ("proxy-password", "s3cret: pass")):
        folder.joinpath(name).touch(mode=0o600)
        folder.joinpath(name).write_text(content)
    keys = f'proxy = "{proxy}"\nproxy_username = "issuer"\nproxy_password_file = "proxy-password"\n'
    tables = dict.fromkeys(("service", "entities", "customers", "channel"), "") | {table: keys}
    text = CONFIG.format(**tables).replace("SCHEME", scheme)
    folder.joinpath("config.toml").write_text(text)
    return load(folder / "config.toml")


async def ask_service(config: Config) -> object:
    async with open_service(config) as client:
        return await client.fetch_settings(1)


async def ask_entity(config: Config) -> object:
    async with open_service(config) as client:
        return await client.configuration(config.service.base_url.replace("service", "config") + "/x")


async def ask_directory(config: Config) -> object:
    directory = await open_directory(config)
    found: dict[int, object] = {}

    async def keep(answers: Any) -> None:
        found.update(answers)

    await directory.look_up([7], keep)
    await directory.aclose()
    return found[7]


async def ask_provider(config: Config) -> object:
    channel = open_provider(config, config.channels.providers["sms"])
    verdict = await channel.send(dispatch("sms", {"text": "Hi"}))
    await channel.aclose()
    return verdict


ASKED: dict[str, tuple[Callable[[Config], Any], str, str]] = {
    "service": (ask_service, "http://service.invalid/settings/1", "Bearer t0ken"),
    "entities": (ask_entity, "http://config.invalid/x", ""),
    "customers": (ask_directory, "http://crm.invalid/7", ""),
    "channel": (ask_provider, "http://sms.invalid/send", ""),
}


@pytest.mark.parametrize("table", ASKED)
async def test_requests_go_through_the_proxy_of_their_table(table: str, tmp_path: Path) -> None:
    """With the proxy's login and the host's own credentials, each where it belongs."""
    ask, address, credentials = ASKED[table]
    async with open_gateway() as proxy:
        proxy.script.append(Reply(200, b'{"value": {}}'))
        await ask(configured(tmp_path, table, proxy.url))
        (seen,) = proxy.seen
    assert (seen.target, seen.headers["proxy-authorization"]) == (address, LOGIN)
    assert seen.headers.get("authorization", "") == credentials


@pytest.mark.parametrize("table", ASKED)
async def test_a_tunnel_is_asked_for_with_the_login_and_nothing_else(table: str, tmp_path: Path) -> None:
    """Of an https request the proxy sees the host. When it refuses, nothing was sent."""
    async with open_gateway() as proxy:
        proxy.script += [Reply(407)] * 3
        config = configured(tmp_path, table, proxy.url, "https")
        if table in ("service", "entities"):
            with pytest.raises(ServiceUnavailable, match="the proxy answered 407"):
                await ASKED[table][0](config)
        else:
            told = await ASKED[table][0](config)
            assert "the proxy answered 407" in str(told)
            assert table == "customers" or isinstance(told, Misconfigured)
    assert {(seen.method, seen.headers["proxy-authorization"]) for seen in proxy.seen} == {("CONNECT", LOGIN)}
    assert not any("authorization" in seen.headers for seen in proxy.seen)


async def test_a_proxy_that_wants_another_login_is_named(tmp_path: Path) -> None:
    """Not the service, which never heard of it."""
    async with open_gateway() as proxy:
        proxy.script.append(Reply(407))
        with pytest.raises(ServiceRefused, match=r"^the proxy before the service answered 407$"):
            await ask_service(configured(tmp_path, "service", proxy.url))


async def test_a_replaced_password_is_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_file, "LOOK_EVERY", 0)
    async with open_gateway() as proxy:
        proxy.script += [Reply(200, b'{"value": {}}'), Reply(200, b'{"value": {}}')]
        async with open_service(configured(tmp_path, "service", proxy.url)) as client:
            await client.fetch_settings(1)
            tmp_path.joinpath("proxy-password").write_text("n3w")
            await client.fetch_settings(2)
        logins = [base64.b64decode(seen.headers["proxy-authorization"][6:]) for seen in proxy.seen]
    assert logins == [b"issuer:s3cret: pass", b"issuer:n3w"]


async def test_check_names_a_proxy_that_wants_another_login(tmp_path: Path) -> None:
    """It isn't the service's address that is wrong."""
    async with open_gateway() as proxy:
        proxy.script += [Reply(407), Reply(407)]
        configured(tmp_path, "service", proxy.url)
        answered = await anyio.to_thread.run_sync(
            lambda: command("check", "--config", tmp_path / "config.toml")
        )
    said = f"the proxy {proxy.url} answered 407"
    assert any(line.startswith("failed") and said in line for line in answered.out.splitlines())


async def test_no_other_table_uses_it(tmp_path: Path) -> None:
    """A proxy for the channel isn't the service's: where nothing else is said, hosts are asked directly."""
    async with open_gateway() as proxy:
        config = configured(tmp_path, "channel", proxy.url)
        with pytest.raises(ServiceUnavailable):
            await ask_service(config)
        assert proxy.seen == []


async def test_metadata_services_are_not_asked_through_a_proxy_either(tmp_path: Path) -> None:
    async with open_gateway() as proxy:
        async with open_service(configured(tmp_path, "entities", proxy.url)) as client:
            with pytest.raises(ServiceRefused, match="which is always refused"):
                await client.configuration("http://169.254.169.254/latest")
        assert proxy.seen == []


def test_a_login_shows_in_nothing_that_is_printed(tmp_path: Path) -> None:
    config = configured(tmp_path, "service", "http://127.0.0.1:1")
    opened = config.service.open_proxy()
    assert opened is not None
    assert opened.login() == (b"proxy-authorization", LOGIN.encode())
    assert "s3cret" not in f"{opened!r} {config!r}"


MISTAKES: dict[str, tuple[Sequence[str], str]] = {
    "no password": (['proxy = "http://p"', 'proxy_username = "u"'], "must be given together"),
    "no name": (['proxy = "http://p"', 'proxy_password_file = "token"'], "must be given together"),
    "no proxy": (['proxy_username = "u"', 'proxy_password_file = "token"'], "needs proxy"),
    "a colon": (
        ['proxy = "http://p"', 'proxy_username = "a:b"', 'proxy_password_file = "token"'],
        "must not contain a colon",
    ),
    "a password in it": (['proxy = "http://u:s3cret-word@p"'], "those are proxy_username and"),
    "a path": (['proxy = "http://p/x"'], "expected http://host:port"),
    "another protocol": (['proxy = "socks5://p"'], "expected http://host:port"),
    "no file": (
        ['proxy = "https://p"', 'proxy_username = "u"', 'proxy_password_file = "absent"'],
        "proxy_password_file: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("table", ["service", "entities", "customers", "channel"])
def test_mistakes_are_told_alike_in_every_table(table: str, mistake: str, tmp_path: Path) -> None:
    """With the key, and without the password."""
    lines, told = MISTAKES[mistake]
    configured(tmp_path, table, "http://127.0.0.1:1")
    tables = dict.fromkeys(("service", "entities", "customers", "channel"), "") | {table: "\n".join(lines)}
    tmp_path.joinpath("config.toml").write_text(CONFIG.format(**tables).replace("SCHEME", "http"))
    (problem,) = examine(tmp_path / "config.toml").problems
    key = "channels.sms" if table == "channel" else table
    assert f":{key}" in problem
    assert told in problem
    assert "s3cret-word" not in problem


def test_check_says_that_the_environments_proxy_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the configuration names one, so that somebody has thought of it."""
    monkeypatch.setenv("HTTPS_PROXY", "http://user:s3cret@127.0.0.1:1")
    configured(tmp_path, "none", "http://127.0.0.1:1")
    answered = command("check", "--offline", "--config", tmp_path / "config.toml")
    assert "the environment variable HTTPS_PROXY is ignored" in answered.out
    assert "s3cret" not in answered.out + answered.err
    configured(tmp_path, "channel", "http://127.0.0.1:1")
    assert "HTTPS_PROXY" not in command("check", "--offline", "--config", tmp_path / "config.toml").out


async def test_check_asks_the_service_through_the_proxy(tmp_path: Path) -> None:
    """The service itself can't be reached from here, or there would be no proxy."""
    async with open_gateway() as proxy:
        configured(tmp_path, "service", proxy.url)
        answered = await anyio.to_thread.run_sync(
            lambda: command("check", "--config", tmp_path / "config.toml")
        )
        assert "service.base_url" in answered.out
        assert proxy.seen[0].target == "http://service.invalid/settings/0"
