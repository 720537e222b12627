"""Entity configurations: what is kept and for how long, which hosts are asked, and at which address."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from deliveryd.errors import ServiceError, ServiceRefused, ServiceUnavailable, ServiceUnreadable
from deliveryd.http.client import build_client
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import WireResponse
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.credentials import open_authentication
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.service.client import ServiceClient
from deliveryd.service.configuration_access import ConfigurationAccess, Host, HostRules, parse_network
from deliveryd.service.configurations import Configurations, Freshness, freshness
from deliveryd.service.customer_area import Merchant
from deliveryd.testing.gateway import Gateway, Reply, open_gateway

pytestmark = pytest.mark.anyio

URL = "http://h/api/v4/offers/1/1/en"
BODY = b'{"value": {"id": 1}}'


# what is kept


class Clock:
    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def __call__(self) -> float:
        return self.time


class Kept:
    """Configurations over a cache on disk, with a host that answers by a script."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.answers: list[WireResponse] = []
        self.asked: list[str | None] = []
        self.problems: list[str] = []
        self.cache = DiskCache(folder, 1 << 20, self.problems.append)
        self.room = Configurations(self.fetch, 600.0, self.cache, self.clock)

    async def fetch(self, url: str, tag: str | None) -> WireResponse:
        await anyio.lowlevel.checkpoint()
        self.asked.append(tag)
        return self.answers.pop(0)


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    made = Kept(tmp_path / "entities")
    yield made
    await made.cache.aclose()


def answer(body: bytes = BODY, status: int = 200, **headers: str) -> WireResponse:
    return WireResponse(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


async def test_a_host_that_says_nothing_is_asked_again_after_the_ttl(kept: Kept) -> None:
    kept.answers = [answer(), answer(b'{"value": {"id": 2}}')]
    assert await kept.room.get(URL) == {"id": 1}
    kept.clock.time += 599
    assert await kept.room.get(URL) == {"id": 1}
    kept.clock.time += 1
    assert await kept.room.get(URL) == {"id": 2}
    assert kept.asked == [None, None]


async def test_a_host_that_says_how_long_is_believed(kept: Kept) -> None:
    kept.answers = [answer(cache_control="public, max-age=10000", age="1000"), answer()]
    await kept.room.get(URL)
    kept.clock.time += 8999
    await kept.room.get(URL)
    assert len(kept.asked) == 1
    kept.clock.time += 1
    await kept.room.get(URL)
    assert len(kept.asked) == 2


async def test_an_old_copy_is_asked_about_by_its_tag_and_kept_on(kept: Kept) -> None:
    """304 renews a copy without its body; what it leaves out stays as it was."""
    kept.answers = [
        answer(cache_control="max-age=60", etag='"a"'),
        answer(b"", 304),
        answer(b"", 304, cache_control="max-age=5", etag='W/"b"'),
        answer(b'{"value": {"id": 2}}', etag='"c"'),
    ]
    found = []
    for seconds in (0, 60, 59, 1, 5):
        kept.clock.time += seconds
        found.append((await kept.room.get(URL))["id"])
    assert kept.asked == [None, '"a"', '"a"', 'W/"b"']
    assert found == [1, 1, 1, 1, 2]


async def test_what_must_not_be_stored_is_not(kept: Kept) -> None:
    """Nor is an earlier copy kept on."""
    kept.answers = [answer(etag='"a"'), answer(cache_control="no-store"), answer()]
    await kept.room.get(URL)
    kept.clock.time += 600
    await kept.room.get(URL)
    await kept.room.get(URL)
    assert kept.asked == [None, '"a"', None]


async def test_no_cache_means_to_ask_each_time(kept: Kept) -> None:
    kept.answers = [answer(cache_control="no-cache", etag='"a"'), answer(b"", 304, cache_control="no-cache")]
    assert await kept.room.get(URL) == await kept.room.get(URL)
    assert kept.asked == [None, '"a"']


async def test_a_clock_that_was_set_back_makes_copies_old(kept: Kept) -> None:
    kept.answers = [answer(), answer()]
    await kept.room.get(URL)
    kept.clock.time -= 3600
    await kept.room.get(URL)
    assert len(kept.asked) == 2


@pytest.mark.parametrize(
    "planted",
    [b"", b"garbage", BODY, b"[1, 2]\n" + BODY, b'[1800000000, 600, "a\\r\\nx: y"]\n' + BODY,
     b"[1800000000, 600, 7]\n" + BODY, b"[1800000000, 600, null]\nno json", b'["a", null, null]\n' + BODY],
)  # fmt: skip
async def test_a_copy_that_is_none_of_ours_is_asked_for_anew(kept: Kept, planted: bytes) -> None:
    """Whatever lies on the disk: nothing of it is believed, and no header made from it."""
    await kept.cache.set(f"entities/{URL}", planted)
    kept.answers = [answer()]
    assert await kept.room.get(URL) == {"id": 1}
    assert kept.asked == [None]


async def test_an_unreadable_answer_is_not_kept(kept: Kept) -> None:
    kept.answers = [answer(b"<html>"), answer()]
    with pytest.raises(ServiceUnreadable):
        await kept.room.get(URL)
    assert await kept.room.get(URL) == {"id": 1}


async def test_many_who_ask_at_once_are_one_request(kept: Kept) -> None:
    """Each gets a value of its own; all hear of one failure; who is cancelled leaves it to the next."""
    kept.answers = [answer()]
    found: list[dict[str, Any]] = []

    async def ask() -> None:
        found.append(await kept.room.get(URL))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
    found[0]["id"] = "changed"
    assert found[1:] == [{"id": 1}] * 19
    assert len(kept.asked) == 1


async def test_a_failure_is_everybodys_and_a_cancelled_request_nobodys(tmp_path: Path) -> None:
    started, calls = anyio.Event(), 0
    errors: list[str] = []

    async def fetch(url: str, tag: str | None) -> WireResponse:
        nonlocal calls
        calls += 1
        started.set()
        if calls == 1:
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        raise ServiceUnavailable("down")

    room = Configurations(fetch, 1.0)

    async def ask() -> None:
        try:
            await room.get(URL)
        except ServiceError as error:
            errors.append(str(error))

    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def first() -> None:
            with scope:
                await room.get(URL)

        tasks.start_soon(first)
        await started.wait()
        for _ in range(5):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
    assert (errors, calls) == (["down"] * 5, 2)


@pytest.mark.parametrize(
    ("headers", "read"),
    [
        ({}, Freshness(True, None)),
        ({"cache-control": "private"}, Freshness(True, None)),
        ({"cache-control": "MAX-AGE=5"}, Freshness(True, 5.0)),
        ({"cache-control": 'max-age="5", must-revalidate'}, Freshness(True, 5.0)),
        ({"cache-control": "max-age=5", "age": "7"}, Freshness(True, 0.0)),
        ({"cache-control": "max-age=-1"}, Freshness(True, 0.0)),
        ({"cache-control": "max-age=soon"}, Freshness(True, 0.0)),
        ({"cache-control": "s-maxage=9, max-age=5"}, Freshness(True, 5.0)),
        ({"cache-control": "max-age=" + "9" * 400}, Freshness(True, 10 * 365 * 86400.0)),
        ({"cache-control": "no-cache, max-age=5"}, Freshness(True, 0.0)),
        ({"cache-control": "no-store, max-age=5"}, Freshness(False, 0.0)),
    ],
)
def test_what_a_host_says_about_keeping(headers: dict[str, str], read: Freshness) -> None:
    assert freshness(headers) == read


# over sockets

real_sockets = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": True}), ("trio", {})], ids=["uvloop", "trio"]
)
MakeClient = Callable[..., Any]


@asynccontextmanager
async def connected(
    service: str,
    rules: HostRules,
    found: list[list[str]],
    tls: TlsFiles | None = None,
    auth: AuthOptions | None = None,
) -> AsyncIterator[ServiceClient]:
    """A client whose names lead where `found` says, one look-up after the other."""

    async def look_up(name: str, port: int) -> Sequence[str]:
        await anyio.lowlevel.checkpoint()
        return found.pop(0)

    access = ConfigurationAccess(
        rules, build_client(timeout=5.0, max_body=2000, tls=tls), max_size=2000, look_up=look_up
    )
    http = build_client(
        timeout=5.0, authentication=open_authentication(auth, "service.auth", 5.0) if auth else None
    )
    client = ServiceClient(http, service, configurations=access)
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()


def rules_for(gateway: Gateway, **options: Any) -> HostRules:
    return HostRules([Host("config.example", gateway.port)], allow_http=True, **options)


LOCAL = [parse_network("127.0.0.0/8")]


@real_sockets
async def test_the_address_that_was_judged_is_the_one_that_is_asked(tmp_path: Path) -> None:
    """One look-up for each request: a name that leads elsewhere the second time is refused then.

    The host is asked by its own name, and without the service's credentials.
    """
    secret = tmp_path / "token"
    secret.touch(mode=0o600)
    secret.write_text("s3cret")
    auth = AuthOptions.model_validate({"token_file": secret})
    found = [["127.0.0.1"], ["127.0.0.1"], ["10.0.0.1"]]
    async with (
        open_gateway() as gateway,
        connected("http://service.example", rules_for(gateway, networks=LOCAL), found, auth=auth) as client,
    ):
        gateway.script += [Reply(body=BODY), Reply(body=BODY)]
        url = f"http://config.example:{gateway.port}/api/v4/offers/1/1/en"
        for _ in range(2):
            assert await client.entity(url) == {"id": 1}
        with pytest.raises(ServiceRefused, match=r"leads to 10\.0\.0\.1, a private address"):
            await client.entity(url)
        assert len(gateway.seen) == 2
        assert gateway.seen[0].headers["host"] == f"config.example:{gateway.port}"
        assert "authorization" not in gateway.seen[0].headers
        assert found == []


@real_sockets
async def test_tls_is_about_the_name_and_not_the_address(tmp_path: Path) -> None:
    """The certificate must be the name's, though the connection goes to an address that was looked up."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, fits in (("config.example", True), ("other.example", False)):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(name).configure_cert(context)
        async with (
            open_gateway(context) as gateway,
            connected(
                "http://service.example",
                rules_for(gateway, networks=LOCAL),
                [["127.0.0.1"]],
                TlsFiles(tmp_path / "ca.pem"),
            ) as client,
        ):
            gateway.script.append(Reply(body=BODY))
            url = f"https://config.example:{gateway.port}/x"
            if fits:
                assert await client.entity(url) == {"id": 1}
            else:
                with pytest.raises(ServiceUnavailable):
                    await client.entity(url)
            assert len(gateway.seen) == int(fits)


@real_sockets
async def test_another_address_is_tried_when_one_does_not_answer() -> None:
    """A host with an address that nobody listens on is reached by the next one."""
    async with (
        open_gateway() as gateway,
        connected(
            "http://service.example", rules_for(gateway, networks=LOCAL), [["127.0.0.9", "127.0.0.1"]]
        ) as client,
    ):
        gateway.script.append(Reply(body=BODY))
        assert await client.entity(f"http://config.example:{gateway.port}/x") == {"id": 1}


@real_sockets
async def test_a_redirect_is_refused_with_where_it_leads() -> None:
    """From another host and from the service's own: nobody is sent on, wherever to."""
    async with (
        open_gateway() as gateway,
        connected(gateway.url, rules_for(gateway, networks=LOCAL), [["127.0.0.1"]] * 9) as client,
    ):
        to = (("location", "http://169.254.169.254/latest/?token=s3cret"),)
        gateway.script += [Reply(302, b"", to), Reply(307, b"", (("location", "/x"),))]
        url = f"http://config.example:{gateway.port}/x"
        with pytest.raises(ServiceRefused) as caught:
            await client.entity(url)
        assert str(caught.value) == (
            "the host answered 302, a redirect to http://169.254.169.254: redirects aren't followed"
        )
        with pytest.raises(ServiceRefused, match="answered 307, a redirect: redirects aren't"):
            await client.entity(url)
        assert len(gateway.seen) == 2


@real_sockets
@pytest.mark.parametrize("own", [True, False], ids=["own host", "another host"])
async def test_a_configuration_without_end_costs_bounded_memory(own: bool) -> None:
    """More than the bound is no configuration, wherever it comes from."""
    async with (
        open_gateway() as gateway,
        connected(
            gateway.url,
            HostRules() if own else rules_for(gateway, networks=LOCAL),
            [["127.0.0.1"]],
        ) as client,
    ):
        gateway.script += [Reply(body=b'{"value": {"a": "' + b"a" * 2000 + b'"}}')] * 3
        host = "127.0.0.1" if own else "config.example"
        with pytest.raises(ServiceUnavailable, match="larger than 2000 bytes"):
            await client.entity(f"http://{host}:{gateway.port}/x")


# merchants


MERCHANT = {
    "id": 5, "marketName": "Linden Market", "legalName": "Linden Ltd", "about": None, "phones": "+371 1",
    "category": "Food", "fbLink": "f", "vkLink": "v", "instagramLink": "i", "buttonText": "b",
    "buttonUrl": "u", "stars": 4.5,
    "locations": [{"name": "Old Town", "lat": 56.95, "lon": 24, "schedule": "9-18", "floor": 2}],
}  # fmt: skip


async def _entity(gateway: Gateway, value: Any, path: str = "merchants/5/1/en") -> Any:
    gateway.script.append(Reply(body=json.dumps({"value": value}).encode()))
    async with ServiceClient(build_client(timeout=5.0), gateway.url) as client:
        return await client.entity(f"{gateway.url}/api/v4/{path}")


@real_sockets
async def test_a_merchant_is_typed_and_keeps_the_rest() -> None:
    """Names as Python writes them; what the interface doesn't name is there too; null is no value."""
    async with open_gateway() as gateway:
        merchant = await _entity(gateway, MERCHANT)
        assert isinstance(merchant, Merchant)
        assert (merchant.market_name, merchant.about, merchant.website) == ("Linden Market", None, None)
        assert (merchant.locations[0].lat, merchant.locations[0].lon) == (56.95, 24.0)
        assert (merchant.model_extra, merchant.locations[0].model_extra) == ({"stars": 4.5}, {"floor": 2})
        assert (await _entity(gateway, {"locations": None})).locations == ()


@real_sockets
async def test_other_entities_are_as_they_are() -> None:
    """Only addresses of the merchants' form are read as merchants."""
    async with open_gateway() as gateway:
        assert await _entity(gateway, {"marketName": 5}, "offers/5/1/en") == {"marketName": 5}
        with pytest.raises(ServiceUnreadable, match="merchant: marketName: "):
            await _entity(gateway, {"marketName": 5})
        with pytest.raises(ServiceUnreadable, match=r"merchant: locations\.0\.lat: "):
            await _entity(gateway, {"locations": [{"lat": "56.9"}]})
