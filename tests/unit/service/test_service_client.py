"""The service's client: each endpoint of interface 4, what is tried again, and when it gives up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx
import pytest
import respx
from trio.testing import MockClock

from deliveryd.errors import JournalError, ServiceRefused, ServiceUnavailable, ServiceUnreadable
from deliveryd.http.client import HttpClient, build_client
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.credentials import open_authentication
from deliveryd.runtime import secret_file
from deliveryd.service.caller import LONGEST_RETRY_PAUSE, TRIES
from deliveryd.service.client import ServiceClient
from deliveryd.service.customer_area import Merchant
from deliveryd.service.wire import GROUPS
from deliveryd.testing.gateway import Disconnect, open_gateway
from support.memory_wire import MemoryWire

pytestmark = pytest.mark.anyio


BASE = "http://service.example/api"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Virtual time: a pause between tries passes at once, and can be measured."""
    return "trio", {"clock": MockClock(autojump_threshold=0)}


@pytest.fixture
def service() -> respx.MockRouter:
    """The service in memory."""
    return respx.MockRouter(assert_all_called=False)


@pytest.fixture
def client(service: respx.MockRouter) -> ServiceClient:
    return client_of(service)


def client_of(service: respx.MockRouter, auth: AuthOptions | None = None, base: str = BASE) -> ServiceClient:
    authentication = None if auth is None else open_authentication(auth, "service.auth", 10.0)
    wire = MemoryWire(service.async_handler)
    return ServiceClient(HttpClient(wire, timeout=10.0, authentication=authentication), base)


def last(service: respx.MockRouter) -> httpx.Request:
    request: httpx.Request = service.calls.last.request
    return request


# the endpoints


async def test_take(service: respx.MockRouter, client: ServiceClient) -> None:
    """`take` says how many; malformed elements come with the others."""
    service.get(f"{BASE}/queue").respond(
        content=b'[{"id": 1, "settingsId": 2, "customerId": 3, "variables": {"n": 1.50}}, 7]'
    )
    batch = await client.take(25)
    assert last(service).url.raw_path == b"/api/queue?take=25"
    assert last(service).headers["accept"] == "application/json"
    assert batch.messages[0].variables == {"n": "1.50"}
    assert batch.malformed[0].raw == "7"


async def test_report(service: respx.MockRouter, client: ServiceClient) -> None:
    """The events go out as one array, each as it was written; whatever 2xx comes back is fine."""
    for status in (200, 201, 202, 204):
        service.post(f"{BASE}/events").respond(status, content=b"not JSON at all")
        await client.report(['{"messageId":1,"details":"Ü"}', '{"messageId":2}'])
    assert last(service).content.decode() == '[{"messageId":1,"details":"Ü"},{"messageId":2}]'
    assert last(service).headers["content-type"] == "application/json"


async def test_fetch_settings(service: respx.MockRouter, client: ServiceClient) -> None:
    """The body comes back byte for byte, so that it can be kept; reading it is a step of its own."""
    body = b'{ "content" : {"en": {"sms": {"text": "a"}}} }\n'
    service.get(f"{BASE}/settings/-5").respond(content=body)
    assert await client.fetch_settings(-5) == body
    assert client.parse_settings(-5, body).content["en"].blocks == {"sms": {"text": "a"}}
    with pytest.raises(ServiceUnreadable):
        client.parse_settings(5, b"{}")


async def test_customer_page(service: respx.MockRouter, client: ServiceClient) -> None:
    """Each group asked for has its flag; without a choice these are all groups of the interface."""
    route = service.get(path="/api/customers/17/all").respond(
        json={"value": {"offers": {"list": [{"id": 1, "configUrl": "u"}], "continuationToken": "t"}}}
    )
    page = await client.customer_page(17)
    assert page.value["offers"].continuation_token == "t"
    assert query_of(route) == [(f"{group}.include", "true") for group in GROUPS]
    await client.customer_page(17, ["regions"], language="*")
    assert query_of(route) == [("regions.include", "true"), ("language", "*")]


@pytest.mark.parametrize("token", ["a&b=c", "+ /?#%", "Ключ", "\r\n", "", "=" * 3, "a" * 5000])
async def test_a_continuation_token_may_hold_any_characters(
    service: respx.MockRouter, client: ServiceClient, token: str
) -> None:
    """A token goes back as it came, together with the flag of its group."""
    route = service.get(path="/api/customers/1/all").respond(json={"value": {}})
    await client.customer_page(1, [], tokens={"offers": token})
    assert query_of(route) == [("offers.include", "true"), ("offers.continuationToken", token)]


def query_of(route: respx.Route) -> list[tuple[str, str]]:
    return parse_qsl(urlsplit(str(route.calls.last.request.url)).query, keep_blank_values=True)


async def test_a_group_that_does_not_exist(service: respx.MockRouter, client: ServiceClient) -> None:
    """A group that the interface doesn't have is a mistake of the caller; nothing is sent."""
    with pytest.raises(ValueError, match=r"no such group: prices; there are merchants, "):
        await client.customer_page(1, ["prices"])
    with pytest.raises(ValueError, match="no such group: prices"):
        await client.customer_page(1, [], tokens={"prices": "t"})
    assert not service.calls


async def test_entity(service: respx.MockRouter, client: ServiceClient) -> None:
    """An entity is fetched from the address that the service gave, wherever on its host that is."""
    url = "http://service.example/api/v4/merchants/5/1/en"
    service.get(url).respond(json={"value": {"id": 5, "locations": [{"lat": 1.5}]}})
    for same in (url, "http://SERVICE.example:80/api/v4/merchants/5/1/en"):
        merchant = await client.entity(same)
        assert isinstance(merchant, Merchant)
        assert (merchant.id, merchant.locations[0].lat) == (5, 1.5)


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.example/x",
        "https://service.example/x",
        "http://service.example:8080/x",
        "http://service.example.evil.example/x",
        "http://127.0.0.1/x",
    ],
)
async def test_an_entity_elsewhere_is_refused(
    service: respx.MockRouter, client: ServiceClient, url: str
) -> None:
    """Credentials go to the service's own host and nowhere else."""
    with pytest.raises(ServiceRefused):
        await client.entity(url)
    assert not service.calls


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/x",
        "file:///etc/passwd",
        "http://service.example@evil.example/",
        "http://u:p@service.example/",
        "http://service.example/a\r\nb",
        "http://[::1",
        "http://service.example:port/",
        "http:\\\\service.example",
        "\ud800",
    ],
)
async def test_an_entitys_address_that_is_none(
    service: respx.MockRouter, client: ServiceClient, url: str
) -> None:
    """The address comes from outside: what can't be requested is unreadable, and no crash."""
    with pytest.raises(ServiceUnreadable):
        await client.entity(url)
    assert not service.calls


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"value": []}', b'{"value": null}', b"\xff", b'{"value":' * 50_000]
)
async def test_an_unreadable_entity(service: respx.MockRouter, client: ServiceClient, body: bytes) -> None:
    """Anything but an object under `value` is unreadable."""
    service.get("http://service.example/x").respond(content=body)
    with pytest.raises(ServiceUnreadable):
        await client.entity("http://service.example/x")


async def test_a_base_url_with_a_slash_and_a_path(service: respx.MockRouter) -> None:
    """A slash at the end of `base_url` changes nothing."""
    service.get("http://h/a/b/queue").respond(content=b"[]")
    assert (await client_of(service, base="http://h/a/b/").take(1)).size == 0


# what is tried again


Call = Callable[[ServiceClient], Any]


REPEATED: dict[str, Call] = {
    "report": lambda client: client.report(["{}"]),
    "settings": lambda client: client.fetch_settings(1),
    "customer": lambda client: client.customer_page(1),
    "entity": lambda client: client.entity("http://service.example/x"),
}


CALLS = {"take": lambda client: client.take(1), **REPEATED}


GOOD = {
    "take": b"[]",
    "report": b"",
    "settings": b"{}",
    "customer": b'{"value": {}}',
    "entity": b'{"value": {}}',
}


NEVER_LEFT: list[Any] = [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow")]


BUSY: list[Any] = [
    httpx.Response(408),
    httpx.Response(425),
    httpx.Response(429),
    httpx.Response(500),
    httpx.Response(502),
    httpx.Response(503),
    httpx.Response(504),
    httpx.Response(599),
]


UNKNOWN: list[Any] = [
    httpx.ReadTimeout("slow"),
    httpx.ReadError("broken"),
    httpx.WriteError("broken"),
    httpx.RemoteProtocolError("cut"),
]


PASSING = [*BUSY, *NEVER_LEFT, *UNKNOWN]


def _name(value: object) -> str:
    return str(value.status_code) if isinstance(value, httpx.Response) else type(value).__name__


@pytest.mark.parametrize("trouble", PASSING, ids=_name)
@pytest.mark.parametrize("call", REPEATED)
async def test_what_may_pass_is_tried_again(
    service: respx.MockRouter, client: ServiceClient, call: str, trouble: Any
) -> None:
    """After passing trouble every call but the one that takes comes to its answer, after a pause."""
    route = service.route()
    route.side_effect = [trouble, httpx.Response(200, content=GOOD[call])]
    started = anyio.current_time()
    await REPEATED[call](client)
    assert route.call_count == 2
    assert 0 < anyio.current_time() - started < 1


@pytest.mark.parametrize("trouble", PASSING, ids=_name)
async def test_after_a_few_tries_the_call_gives_up(
    service: respx.MockRouter, client: ServiceClient, trouble: Any
) -> None:
    """Trouble that stays is ServiceUnavailable, soon: who called knows better how to wait."""
    route = service.route()
    route.side_effect = [trouble] * 9
    started = anyio.current_time()
    with pytest.raises(ServiceUnavailable) as caught:
        await client.report([])
    assert route.call_count == TRIES
    assert caught.value.after is None
    assert anyio.current_time() - started < 2


@pytest.mark.parametrize("call", ["take", "report"])
async def test_the_caller_is_asked_before_each_try(
    service: respx.MockRouter, client: ServiceClient, call: str
) -> None:
    """Minutes may lie between the tries, in which another worker took over."""
    route = service.route()
    route.side_effect = [httpx.ConnectError("refused")] * 2
    seen: list[int] = []

    async def ready() -> None:
        if len(seen) == 2:
            raise JournalError("fenced")
        seen.append(route.call_count)

    with pytest.raises(JournalError):
        await (client.take(1, ready) if call == "take" else client.report(["{}"], ready))
    assert seen == [0, 1]
    assert route.call_count == 2


# taking: a request that left may have emptied the queue


@pytest.mark.parametrize("trouble", NEVER_LEFT, ids=_name)
async def test_a_take_that_never_left_is_tried_again(
    service: respx.MockRouter, client: ServiceClient, trouble: Any
) -> None:
    """Nothing was taken, so the call asks again, a few times."""
    route = service.route()
    route.side_effect = [trouble, httpx.Response(200, content=b"[]")]
    assert await client.take(1) == ([], [], None)
    route.side_effect = [trouble] * 9
    with pytest.raises(ServiceUnavailable):
        await client.take(1)
    assert route.call_count == 2 + TRIES


@pytest.mark.parametrize("trouble", BUSY, ids=_name)
async def test_a_take_that_was_answered_is_not_repeated_within_the_call(
    service: respx.MockRouter, client: ServiceClient, trouble: httpx.Response
) -> None:
    """Whatever the status says, the request left; an answer that isn't a 2xx took nothing away."""
    trouble.headers["retry-after"] = "1"
    route = service.route().mock(return_value=trouble)
    with pytest.raises(ServiceUnavailable) as caught:
        await client.take(1)
    assert (route.call_count, caught.value.after) == (1, 1.0)


@pytest.mark.parametrize("trouble", UNKNOWN, ids=_name)
async def test_a_take_without_an_answer_may_have_lost_a_batch(
    service: respx.MockRouter, client: ServiceClient, trouble: Any
) -> None:
    """It isn't repeated, which would hide the loss: the batch comes back empty, with the fault."""
    route = service.route().mock(side_effect=trouble)
    messages, malformed, fault = await client.take(1)
    assert (messages, malformed, route.call_count) == ([], [], 1)
    assert isinstance(fault, ServiceUnavailable)


@pytest.mark.parametrize("body", [b"", b" \n", b"null", b"[]"])
@pytest.mark.parametrize("status", [200, 204])
async def test_an_empty_queue_is_told_in_several_ways(
    service: respx.MockRouter, client: ServiceClient, status: int, body: bytes
) -> None:
    """204, an empty body and `null` say that there is nothing, as `[]` does."""
    service.route().respond(status, content=body)
    assert await client.take(1) == ([], [], None)


async def test_an_answer_that_can_not_be_read_may_have_been_a_batch(
    service: respx.MockRouter, client: ServiceClient
) -> None:
    """It is told at once, and asked for once."""
    route = service.route().respond(200, content=b"\x00\x01")
    batch = await client.take(1)
    assert isinstance(batch.fault, ServiceUnreadable)
    assert route.call_count == 1


async def test_a_page_instead_of_the_queue_was_no_batch(
    service: respx.MockRouter, client: ServiceClient
) -> None:
    """A proxy or a portal hands out no messages: nothing is lost, and the service is down."""
    route = service.route().respond(200, html="<p>please log in")
    with pytest.raises(ServiceUnavailable, match="200 with a page instead of JSON") as caught:
        await client.take(1)
    assert (caught.value.status, route.call_count) == (200, 1)


@pytest.mark.parametrize("status", [200, 404])
async def test_a_page_instead_of_settings_or_an_answer_to_events_is_an_outage(
    service: respx.MockRouter, client: ServiceClient, status: int
) -> None:
    """Only the service itself can say that it has no such settings, or that it has the events."""
    service.route().respond(status, html="<!doctype html><p>Welcome")
    with pytest.raises(ServiceUnavailable):
        await client.fetch_settings(1)
    with pytest.raises((ServiceUnavailable, ServiceRefused)):
        await client.report(["{}"])


# what is not tried again


@pytest.mark.parametrize("status", [300, 302, 304, 307, 400, 401, 403, 404, 405, 409, 410, 413, 415, 422])
async def test_what_would_not_change_is_not_tried_again(
    service: respx.MockRouter, client: ServiceClient, status: int
) -> None:
    """A refusal comes back at once with its status; a redirect is one, and isn't followed."""
    route = service.route().respond(status, headers={"location": f"{BASE}/elsewhere"})
    started = anyio.current_time()
    with pytest.raises(ServiceRefused) as caught:
        await client.report(["{}"])
    assert (caught.value.status, route.call_count) == (status, 1)
    assert anyio.current_time() == started


async def test_a_refusal_counts_though_its_body_broke_off() -> None:
    """The head came whole, and says that this request is wrong: the same as with a whole answer."""
    async with open_gateway() as gateway:
        gateway.script.append(Disconnect(b'HTTP/1.1 404 No\r\nContent-Length: 9\r\n\r\n{"no'))
        async with ServiceClient(build_client(timeout=5.0), gateway.url) as client:
            with pytest.raises(ServiceRefused, match="the service answered 404"):
                await client.fetch_settings(1)
        assert len(gateway.seen) == 1


async def test_an_unreadable_answer_is_not_tried_again(
    service: respx.MockRouter, client: ServiceClient
) -> None:
    """A proxy's page instead of the queue is told at once."""
    route = service.route().respond(200, html="<p>please log in")
    with pytest.raises(ServiceUnreadable):
        await client.customer_page(1)
    assert route.call_count == 1


@pytest.mark.parametrize("asked", ["0", "1", "5", " 2 "])
async def test_the_pause_that_the_service_asks_for(
    service: respx.MockRouter, client: ServiceClient, asked: str
) -> None:
    """A short `Retry-After` is waited for exactly."""
    route = service.route()
    route.side_effect = [
        httpx.Response(429, headers={"retry-after": asked}),
        httpx.Response(200, content=b"[]"),
    ]
    started = anyio.current_time()
    await client.report([])
    assert anyio.current_time() - started == pytest.approx(float(asked), abs=0.01)
    assert route.call_count == 2


@pytest.mark.parametrize("status", [429, 503])
async def test_a_long_pause_is_left_to_the_caller(
    service: respx.MockRouter, client: ServiceClient, status: int
) -> None:
    """Who is told to come back much later hears so at once, with the seconds."""
    route = service.route().respond(status, headers={"retry-after": str(int(LONGEST_RETRY_PAUSE) + 1)})
    started = anyio.current_time()
    with pytest.raises(ServiceUnavailable) as caught:
        await client.take(1)
    assert (caught.value.after, route.call_count) == (LONGEST_RETRY_PAUSE + 1, 1)
    assert anyio.current_time() == started


async def test_a_call_can_be_cancelled_between_its_tries(
    service: respx.MockRouter, client: ServiceClient
) -> None:
    """Cancelling isn't taken for a failure that is worth another try."""
    route = service.route().respond(503, headers={"retry-after": "5"})
    with anyio.move_on_after(2) as scope:
        await client.report([])
    assert scope.cancelled_caught
    assert route.call_count == 1


async def test_calls_do_not_disturb_each_other(service: respx.MockRouter, client: ServiceClient) -> None:
    """Many calls at once, each with tries of its own."""
    seen: dict[str, int] = {}

    def handle(request: httpx.Request) -> httpx.Response:
        seen[request.url.path] = seen.get(request.url.path, 0) + 1
        return httpx.Response(200 if seen[request.url.path] == TRIES else 503, content=b"{}")

    service.route().side_effect = handle
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(client.fetch_settings, number)
    assert set(seen.values()) == {TRIES}


# credentials


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("old\n")
    path.chmod(0o600)
    return path


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_credentials_go_with_every_call(service: respx.MockRouter, token: Path) -> None:
    """Each endpoint is asked with the configured header."""
    client = client_of(service, AuthOptions(token_file=token))
    for name, call in CALLS.items():
        service.route().respond(200, content=GOOD[name])
        await call(client)
        assert last(service).headers["authorization"] == "Bearer old"


async def test_a_secret_that_was_replaced_is_read_after_a_401(service: respx.MockRouter, token: Path) -> None:
    """Rotating a token needs no restart, also where several calls meet it at once."""

    def handle(request: httpx.Request) -> httpx.Response:
        good = request.headers["authorization"] == "Bearer new"
        return httpx.Response(200 if good else 401, content=b"[]")

    service.route().side_effect = handle
    client = client_of(service, AuthOptions(token_file=token))
    with pytest.raises(ServiceRefused):
        await client.take(1)
    assert len(service.calls) == 1
    write(token, "new\n")
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(client.take, number)
    assert {call.request.headers["authorization"] for call in service.calls} == {"Bearer old", "Bearer new"}
    assert len(service.calls) <= 11


async def test_a_replaced_secret_is_used_before_the_old_one_is_refused(
    service: respx.MockRouter, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are valid for a while when one is rotated: whoever changes in time is never refused."""
    monkeypatch.setattr(secret_file, "LOOK_EVERY", 0)
    service.route().respond(200, content=b"[]")
    client = client_of(service, AuthOptions(token_file=token))
    await client.take(1)
    write(token, "another\n")
    await client.take(1)
    shown = [call.request.headers["authorization"] for call in service.calls]
    assert shown == ["Bearer old", "Bearer another"]


async def test_a_secret_that_became_unusable_is_a_refusal(service: respx.MockRouter, token: Path) -> None:
    """A broken or missing file changes nothing of what is sent, and the 401 stands."""
    service.route().respond(401)
    client = client_of(service, AuthOptions(token_file=token))
    for spoil in (lambda: token.write_text("ключ"), lambda: token.write_text(""), token.unlink):
        spoil()
        with pytest.raises(ServiceRefused):
            await client.take(1)
    assert {call.request.headers["authorization"] for call in service.calls} == {"Bearer old"}


def test_a_secret_that_can_not_be_sent_is_told_at_once(service: respx.MockRouter, token: Path) -> None:
    """Not at the first request, but when the client is built."""
    token.write_text("ключ")
    with pytest.raises(ValueError, match="only ASCII"):
        client_of(service, AuthOptions(token_file=token))
