"""The actions of the status page over real sockets: who may order something, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from deliveryd.admin.actions import LONGEST_BODY, Actions
from deliveryd.admin.app import admin_app
from deliveryd.http import server
from deliveryd.http.addresses import bind, url_of
from deliveryd.http.peers import MOST_WRONG
from deliveryd.metrics import Metrics
from support.overviews import TOKEN, Operator, Worker
from support.plain_http import NO_TLS

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The server is bound to asyncio."""
    return "asyncio"


@pytest.fixture
def operator() -> Operator:
    return Operator()


@asynccontextmanager
async def serving(operator: Operator | None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the pages; without an operator they only read."""
    actions = None if operator is None else Actions(operator, lambda: TOKEN)
    app = admin_app(Worker(), Metrics(["sms"], "0.1.0"), ["worker.internal"], actions)
    bound, stop = bind("admin.listen", "127.0.0.1:0"), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, app, bound, stop)
        async with httpx.AsyncClient(verify=NO_TLS, base_url=url_of(bound)) as client:
            yield client
        stop.set()


async def order(
    client: httpx.AsyncClient, action: str, fields: Any, token: str | None = TOKEN, **headers: str
) -> httpx.Response:
    """Order something as the page does."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await client.post(f"/actions/{action}", json=fields, headers=named)


async def test_with_the_token_each_action_reaches_the_worker(operator: Operator) -> None:
    async with serving(operator) as client:
        pause = {"kind": "settings", "key": "17", "seconds": 7200, "reason": "wrong price"}
        answer = await order(client, "pause", pause)
        assert (answer.status_code, answer.json()) == (200, {"done": ["17"], "skipped": {}})
        assert (await order(client, "resume", {"kind": "intake"})).status_code == 200
        assert (await order(client, "failed", {})).json() == {
            "reasons": [{"reason": "no", "count": 3}],
            "complete": True,
        }
        assert (await order(client, "retry", {"failure": "no"})).status_code == 200
        assert (await order(client, "reload", {})).json()["outcome"] == "applied"
        assert (await order(client, "check", {})).json() == {}
    assert operator.orders == [
        ("pause", "settings", "17", 7200.0, "wrong price"),
        ("resume", "intake", "", None),
        ("retry", "no", None),
        ("reload",),
    ]


async def test_without_a_token_file_there_are_no_actions() -> None:
    """The page has no buttons, and nothing can be posted."""
    async with serving(None) as client:
        assert (await order(client, "pause", {"kind": "intake"})).status_code == 404
        page = (await client.get("/")).text
        assert "Unlock" not in page
        assert "<dialog" not in page


async def test_a_request_without_the_right_token_is_refused(operator: Operator) -> None:
    async with serving(operator) as client:
        for token in (None, "wrong", TOKEN[:-1], TOKEN + "x", "ü"):
            headers = httpx.Headers(None if token is None else {"Authorization": f"Bearer {token}"}, "utf-8")
            answer = await client.post("/actions/pause", json={"kind": "intake"}, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        basic = {"Authorization": f"Basic {TOKEN}"}
        assert (await client.post("/actions/reload", json={}, headers=basic)).status_code == 401
        assert (await client.post(f"/actions/reload?token={TOKEN}", json={})).status_code == 401
    assert operator.orders == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
async def test_a_page_of_another_origin_orders_nothing(
    operator: Operator, headers: Mapping[str, str]
) -> None:
    """Not even with the token, nor by a form or a script that needs no leave of ours."""
    async with serving(operator) as client:
        assert (await order(client, "reload", {}, **headers)).status_code == 403
        plain = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "text/plain"}
        assert (await client.post("/actions/reload", content="{}", headers=plain)).status_code == 415
        asked = await client.request("OPTIONS", "/actions/reload", headers={"Origin": "http://evil.example"})
        assert asked.status_code == 405
        assert not any(name.startswith("access-control") for name in asked.headers)
    assert operator.orders == []


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site", "Content-Type"])
async def test_a_header_that_is_given_twice_must_be_right_twice(operator: Operator, name: str) -> None:
    """Whoever stands in between may have looked at either of them."""
    async with serving(operator) as client:
        own = {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
        known = {**own, "Content-Type": "Application/JSON; charset=utf-8", "Authorization": f"Bearer {TOKEN}"}
        assert (await client.post("/actions/reload", content="{}", headers=known)).status_code == 200
        twice = [*known.items(), (name, "text/plain")]
        assert (await client.post("/actions/reload", content="{}", headers=twice)).status_code in (403, 415)
    assert operator.orders == [("reload",)]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "worker.internal.evil.example"])
async def test_a_request_to_another_host_is_refused(operator: Operator, host: str) -> None:
    """A name that was made to lead here (DNS rebinding) is the page's own origin, and still not ours."""
    async with serving(operator) as client:
        answer = await order(client, "reload", {}, Host=host, Origin=f"http://{host}")
        assert answer.status_code == 421
        allowed = await order(client, "reload", {}, Host="worker.internal", Origin="https://worker.internal")
        assert allowed.status_code == 200
    assert operator.orders == [("reload",)]


async def test_tokens_cannot_be_tried_out(operator: Operator) -> None:
    """After some wrong ones a peer is told to wait."""
    async with serving(operator) as client:
        for _ in range(MOST_WRONG):
            assert (await order(client, "check", {}, "wrong")).status_code == 401
        answer = await order(client, "check", {}, "wrong")
        assert answer.status_code == 429
        assert 0 < int(answer.headers["retry-after"]) <= 60


async def test_wrong_tokens_do_not_shut_out_the_right_one(operator: Operator) -> None:
    """Somebody behind the same address, such as a proxy's, can't keep the operator from acting."""
    async with serving(operator) as client:
        for _ in range(MOST_WRONG + 1):
            await order(client, "check", {}, "wrong")
        assert (await order(client, "check", {})).status_code == 200


@pytest.mark.parametrize(
    ("action", "body", "status", "words"),
    [
        ("none", b"{}", 404, "no such action"),
        ("pause", b"{", 400, "no JSON"),
        ("pause", b"[]", 400, "JSON object"),
        ("pause", b"[" * 4000, 400, "no JSON"),
        ("pause", b'{"kind": "world"}', 400, "kind: must be one of intake"),
        ("pause", b'{"kind": ["intake"]}', 400, "kind: must be one of intake"),
        ("pause", b'{"kind": "channel"}', 400, "key: name the channel"),
        ("pause", b'{"kind": "channel", "key": "a\\nb"}', 400, "key: must be one line"),
        ("pause", b'{"kind": "intake", "seconds": -1}', 400, "seconds: must be a number"),
        ("pause", b'{"kind": "intake", "seconds": NaN}', 400, "seconds: must be a number"),
        ("pause", b'{"kind": "intake", "seconds": true}', 400, "seconds: must be a number"),
        ("pause", b'{"kind": "intake", "keys": 1}', 400, "unknown fields: keys"),
        ("pause", b'{"kind": "intake", "\\ud800": 1}', 400, "unknown fields: \\ud800"),
        ("retry", b"{}", 400, "failure: the reason"),
        ("reload", b" " * (LONGEST_BODY + 1), 413, "must not exceed"),
    ],
)
async def test_what_cannot_be_ordered_gets_a_clear_answer(
    operator: Operator, action: str, body: bytes, status: int, words: str
) -> None:
    async with serving(operator) as client:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        answer = await client.post(f"/actions/{action}", content=body, headers=headers)
        assert answer.status_code == status
        assert words in answer.json()["error"]
    assert operator.orders == []


async def test_what_the_worker_refuses_is_told_with_its_reason(operator: Operator) -> None:
    async with serving(operator) as client:
        operator.refusal = "the worker is starting; try again later"
        answer = await order(client, "reload", {})
        assert (answer.status_code, answer.json()) == (409, {"error": operator.refusal})
        operator.refusal = ["config.toml:queue.batch_size: must be 1 or more"]
        answer = await order(client, "reload", {})
        assert (answer.status_code, answer.json()["problems"]) == (422, operator.refusal)
