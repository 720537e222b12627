"""The address of receipts: tokens in its path, and how large requests may be, one and together."""

from __future__ import annotations

import gzip
import hmac
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import anyio.abc
import httpx
import pytest
from starlette.types import Message

from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.http.peers import MOST_WRONG
from deliveryd.model import channel_of
from deliveryd.receipts import large_bodies
from deliveryd.receipts.endpoint import MOST_VALUES, ReceiptEndpoint, ReceiptRoute, TakeIn, TurnedAway
from deliveryd.receipts.inlet import Inlet, Inlets, ReceiptReply
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Forged

pytestmark = pytest.mark.anyio


def with_token_in_path(folder: Path, token: str, own: Sequence[str]) -> ReceiptEndpoint:
    """The endpoint of a worker whose own providers have this token in the path."""
    secret = folder / "token"
    secret.touch(mode=0o600)
    secret.write_text(token)
    signature = {"scheme": "token", "at": "path", "secret_file": str(secret)}
    inlet = Inlet(ReceiptOptions.model_validate({"provider_id": "/id", "signature": signature}), 100)

    async def take_in(_provider: str, request: ReceiptRequest) -> ReceiptReply:
        try:
            inlet.verify(request, 0)
        except Forged:
            return inlet.refusal
        return inlet.reply

    paths = {f"/receipts/{name if '/' in name else f'{name}/{name}'}": name for name in own}
    paths |= {f"/receipts/{channel_of(name)}": name for name in own if len(own) == 1}
    inlets = Inlets(dict.fromkeys(own, inlet), paths)
    return ReceiptEndpoint(inlets, take_in, lambda _status, _route: None)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/receipts/sms/ab%2Fcd%2B0123456789", 200),
        ("/receipts/sms/ab%2Fcd+0123456789", 200),
        ("/receipts%2Fsms/ab%2Fcd+0123456789", 200),
        ("/receipts/sms/ab%2F", 401),
        ("/receipts/sms", 401),
        ("/receipts/sms/ab/cd+0123456789", 404),
    ],
)
async def test_a_token_may_have_a_slash_in_it(tmp_path: Path, path: str, status: int) -> None:
    """Tokens in base64 have some."""
    app = with_token_in_path(tmp_path, "ab/cd+0123456789", ["sms"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        assert (await client.post(path)).status_code == status


async def test_what_is_forged_is_limited_for_each_peer_and_the_genuine_goes_through(tmp_path: Path) -> None:
    """A peer that sends wrong tokens is told 429 after some; the right one is taken, also from there."""
    app = with_token_in_path(tmp_path, "TOKEN-0123456789", ["sms"])
    clients = [
        httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(peer, 1)), base_url="http://x")
        for peer in ("192.0.2.1", "192.0.2.2")
    ]
    async with clients[0], clients[1]:
        statuses = [(await clients[0].post(f"/receipts/sms/{guess}")).status_code for guess in range(30)]
        assert statuses == [401] * MOST_WRONG + [429] * (30 - MOST_WRONG)
        answers = [(await client.post("/receipts/sms/wrong")).status_code for client in clients]
        assert answers == [429, 401]
        answers = [(await client.post("/receipts/sms/TOKEN-0123456789")).status_code for client in clients]
        assert answers == [200, 200]


@pytest.mark.parametrize(
    ("own", "path", "status"),
    [
        # of a provider that is here: by its name, by its channel's, with a slash behind
        ("sms/a", "sms/TOKEN-0123456789", 200),
        ("sms/a", "sms/a/TOKEN-0123456789", 200),
        ("sms/a", "sms/a/TOKEN-0123456789/", 200),
        ("sms/a", "sms/TOKEN-0123456789/", 200),
        ("sms/a", "sms/wrong", 401),
        ("sms/a", "sms/a/wrong", 401),
        ("sms/a", "sms/a/wrong/", 401),
        ("sms/a", "sms/a/b", 401),
        ("sms/a", "sms/a", 401),
        ("sms/a", "sms/a/", 401),
        ("sms/a", "sms/b", 401),
        ("sms", "sms/sms", 401),
        ("sms", "sms//", 401),
        # of none that is
        ("", "email/ses", 404),
        ("", "email/ses/ab%2Fcd%2B", 404),
        ("", "email", 404),
        ("", "inApp/ab/cd", 404),
        ("sms/a", "email/ab", 404),
        ("sms/a", "sms/b/ab", 404),
        ("sms/a", "messenger/b/", 404),
        ("sms/a sms/b", "sms", 404),
        ("sms/a sms/b", "sms/TOKEN-0123456789", 404),
        ("sms/a sms/b", "sms/c/ab", 404),
    ],
)
async def test_a_provider_has_its_own_path_and_with_it_its_channels_if_it_is_alone_there(
    tmp_path: Path, own: str, path: str, status: int
) -> None:
    """All else is 404, also where another worker has the provider: each has to be added everywhere first."""
    app = with_token_in_path(tmp_path, "TOKEN-0123456789", own.split())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        assert (await client.post(f"/receipts/{path}")).status_code == status


@pytest.mark.parametrize("path", ["sms", "sms/b", "sms/b/ab%2Fcd", "email/ses"])
async def test_before_the_start_is_over_all_is_to_be_reported_again(path: str) -> None:
    """Then what isn't here is 404."""
    started: list[bool] = []

    async def take_in(_provider: str, _request: ReceiptRequest) -> ReceiptReply:
        raise AssertionError

    app = ReceiptEndpoint(
        Inlets({}, {}), take_in, lambda _status, _route: None, is_started=lambda: bool(started)
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        assert (await client.post(f"/receipts/{path}")).status_code == 503
        started.append(True)
        assert (await client.post(f"/receipts/{path}")).status_code == 404


Post = Callable[..., Awaitable[int]]


def reporting(limits: dict[str, int], take_in: TakeIn, turned_away: TurnedAway) -> Post:
    """Posts so many bytes to an endpoint whose providers may send requests of these sizes.

    A `stalled` one sets the event once all but the end has arrived, and its end never comes.
    """
    options = ReceiptOptions.model_validate({"provider_id": "/id"})
    inlets = {name: Inlet(options, limit) for name, limit in limits.items()}
    paths = {f"/receipts/{name}": name for name in limits}
    app = ReceiptEndpoint(Inlets(inlets, paths), take_in, turned_away)

    async def post(
        path: str, size: int, peer: str = "192.0.2.1", stalled: anyio.Event | None = None, fill: bytes = b"0"
    ) -> int:
        pieces = [fill * 50_000] * (size // 50_000) + [fill * (size % 50_000)]
        statuses: list[int] = []

        async def receive() -> Message:
            if stalled is not None and not pieces:
                stalled.set()
                await anyio.sleep_forever()
            return {
                "type": "http.request",
                "body": pieces.pop(0),
                "more_body": bool(pieces) or stalled is not None,
            }

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [], "client": (peer, 1),
        }  # fmt: skip
        await app(scope, receive, send)
        return statuses[0]

    return post


async def test_each_provider_has_its_own_largest_request() -> None:
    turned_away: list[tuple[int, ReceiptRoute | None]] = []

    async def take_in(_provider: str, _request: ReceiptRequest) -> ReceiptReply:
        return ReceiptReply(200, "")

    post = reporting(
        {"small": 100, "large": 1000}, take_in, lambda status, route: turned_away.append((status, route))
    )
    answers = [
        await post(f"/receipts/{name}", size)
        for name, size in (("small", 100), ("small", 101), ("large", 1000), ("large", 1001))
    ]
    assert answers == [200, 413, 200, 413]
    assert turned_away == [(413, ReceiptRoute(f"/receipts/{name}", name)) for name in ("small", "large")]


async def test_large_requests_have_room_for_some_of_them_and_small_ones_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who comes too many is told to come again; what a request held is free when it is answered."""
    monkeypatch.setattr(large_bodies, "LARGE_BODIES", 2 * 200_000)
    size = large_bodies.SMALL_BODY + 200_000
    both_held, go_on = anyio.Event(), anyio.Event()
    held: list[int] = []
    answers: list[int] = []

    async def take_in(_provider: str, request: ReceiptRequest) -> ReceiptReply:
        if len(request.body) == size:
            held.append(size)
            if len(held) == 2:
                both_held.set()
            await go_on.wait()
        return ReceiptReply(200, "")

    post = reporting({"sms": size}, take_in, lambda *_told: None)

    async def note(length: int) -> None:
        answers.append(await post("/receipts/sms", length))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(note, size)
        tasks.start_soon(note, size)
        await both_held.wait()
        await note(size)
        await note(large_bodies.SMALL_BODY)
        assert answers == [503, 200]
        go_on.set()
    await note(size)
    assert answers == [503, 200, 200, 200, 200]


async def accept(_provider: str, _request: ReceiptRequest) -> ReceiptReply:
    return ReceiptReply(200, "")


async def stalling(
    post: Post, tasks: anyio.abc.TaskGroup, answers: dict[int, int], number: int, peer: str
) -> None:
    """Have a large body begin to arrive; its end never comes. The answer, if there is one, is noted."""
    arrived = anyio.Event()

    async def note() -> None:
        answers[number] = await post("/receipts/sms", MIB, peer, arrived)
        arrived.set()

    tasks.start_soon(note)
    await arrived.wait()


MIB = 1 << 20


async def test_slow_bodies_of_one_peer_shut_out_nobody() -> None:
    """A peer that holds more than half of the room open gives up its own oldest."""
    post = reporting({"sms": MIB}, accept, lambda *_told: None)
    answers: dict[int, int] = {}
    async with anyio.create_task_group() as tasks:
        for number in range(12):
            await stalling(post, tasks, answers, number, "192.0.2.66")
        assert [await post("/receipts/sms", MIB, f"192.0.2.{number}") for number in (1, 2, 3)] == [200] * 3
        await anyio.wait_all_tasks_blocked()
        assert answers == dict.fromkeys(range(8), 503)
        tasks.cancel_scope.cancel()


async def test_slow_bodies_of_many_peers_go_the_oldest_first() -> None:
    """A new large report is taken in, however many are held open."""
    post = reporting({"sms": MIB}, accept, lambda *_told: None)
    answers: dict[int, int] = {}
    async with anyio.create_task_group() as tasks:
        for number in range(20):
            await stalling(post, tasks, answers, number, f"192.0.2.{number}")
        assert await post("/receipts/sms", MIB, "198.51.100.1") == 200
        await anyio.wait_all_tasks_blocked()
        assert sorted(answers) == list(range(len(answers)))
        assert set(answers.values()) == {503}
        tasks.cancel_scope.cancel()


async def test_a_body_of_very_many_values_is_not_parsed() -> None:
    """The parser doesn't give way: a million items would stop the loop."""
    post = reporting({"sms": MIB}, accept, lambda *_told: None)
    sizes = (MOST_VALUES, MOST_VALUES + 1)
    assert [await post("/receipts/sms", size, fill=b",") for size in sizes] == [200, 413]


def taking_in(bodies: list[bytes], largest: int = 1000, **signature: object) -> ReceiptEndpoint:
    """The endpoint of one provider, which keeps the bodies of its genuine requests."""
    table = {"provider_id": "/id", **({"signature": signature} if signature else {})}
    inlet = Inlet(ReceiptOptions.model_validate(table), largest)

    async def take_in(_provider: str, request: ReceiptRequest) -> ReceiptReply:
        try:
            verified = inlet.verify(request, 0)
        except Forged:
            return inlet.refusal
        assert isinstance(verified, ReceiptRequest)
        bodies.append(verified.body)
        return inlet.reply

    inlets = Inlets({"sms": inlet}, {"/receipts/sms": "sms"})
    return ReceiptEndpoint(inlets, take_in, lambda _status, _route: None)


BODY = b'{"id": "p1"}'


async def answered(
    app: ReceiptEndpoint,
    parts: Sequence[bytes],
    method: str = "POST",
    path: str = "/receipts/sms",
    **headers: str,
) -> tuple[int, dict[bytes, bytes]]:
    """Send a body in parts; return the answer's status and headers. `_` in a header's name stands for `-`."""
    left, sent = list(parts), []

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": named,
    }  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"])


CODED = [
    ("gzip", gzip.compress(BODY), 200),
    ("GZip", gzip.compress(BODY), 200),
    ("x-gzip", gzip.compress(BODY), 200),
    ("identity, gzip", gzip.compress(BODY), 200),
    ("gzip", gzip.compress(BODY[:4]) + gzip.compress(BODY[4:]), 200),
    ("", BODY, 200),
    ("identity", BODY, 200),
    ("gzip", gzip.compress(BODY)[:-4], 400),
    ("gzip", gzip.compress(BODY) + b"more", 200),
    ("gzip", BODY, 200),
    ("gzip", gzip.compress(b" " * 989 + BODY), 413),
    ("gzip", gzip.compress(b" " * (1 << 24)), 413),
    ("gzip, gzip", gzip.compress(gzip.compress(BODY)), 200),
    ("gzip, gzip, gzip", BODY, 415),
    ("deflate", zlib.compress(BODY), 200),
    ("deflate", zlib.compress(BODY)[:-1], 400),
    ("deflate", BODY, 200),
    ("br", BODY, 200),
    ("br", b"\x0b\x01\x80ok\x03", 415),
    ("utf-8", BODY, 200),
    ("application/json", BODY, 200),
]


@pytest.mark.parametrize(("coding", "body", "status"), CODED, ids=map(str, range(len(CODED))))
async def test_a_body_may_be_compressed(coding: str, body: bytes, status: int) -> None:
    """By gzip or deflate, or only said to be; no larger than another one once decompressed; in parts too."""
    bodies: list[bytes] = []
    app = taking_in(bodies)
    whole, headers = await answered(app, [body], content_encoding=coding)
    in_parts, _ = await answered(app, [body[at : at + 1] for at in range(len(body))], content_encoding=coding)
    assert (whole, in_parts) == (status, status)
    assert bodies == ([BODY] * 2 if status == 200 else [])
    assert headers.get(b"accept-encoding") == (b"gzip, deflate" if status == 415 else None)


async def test_a_signature_covers_a_compressed_body_before_or_after(tmp_path: Path) -> None:
    """As the provider has it; either vouches for what is read, and nothing else does."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("key-of-the-reports")
    bodies: list[bytes] = []
    app = taking_in(bodies, header="X-S", secret_file=str(secret))
    compressed = gzip.compress(BODY)
    statuses = []
    for signed in (BODY, compressed, compressed + b"x"):
        made = hmac.digest(b"key-of-the-reports", signed, "sha256").hex()
        statuses.append((await answered(app, [compressed], content_encoding="gzip", x_s=made))[0])
    assert (statuses, bodies) == ([200, 200, 401], [BODY, BODY])


async def test_a_compressed_body_takes_up_room_like_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it came, and decompressed."""
    monkeypatch.setattr(large_bodies, "LARGE_BODIES", 0)
    largest = large_bodies.SMALL_BODY * 2
    bodies: list[bytes] = []
    app = taking_in(bodies, largest=largest)
    body = gzip.compress(b" " * largest, compresslevel=0)
    assert (await answered(app, [body], content_encoding="gzip"))[0] == 503
    body = gzip.compress(b" " * (largest - len(BODY)) + BODY)
    assert (await answered(app, [body], content_encoding="gzip"))[0] == 200
    assert len(bodies) == 1


async def test_a_compressed_body_that_expands_to_little_takes_up_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or many of them at once would use any amount of memory: a stream may be made of empty blocks."""
    monkeypatch.setattr(large_bodies, "LARGE_BODIES", 0)
    bodies: list[bytes] = []
    app = taking_in(bodies, largest=large_bodies.SMALL_BODY)
    stored = zlib.compressobj(level=0, wbits=-15)
    text = stored.compress(b"0" * 4000) + stored.flush()
    empty = b"\0\0\0\xff\xff" * 2500
    statuses = [
        (await answered(app, [*[empty] * count, text], content_encoding="deflate"))[0] for count in (1, 9, 10)
    ]
    assert (statuses, [*map(len, bodies)]) == ([200, 200, 503], [4000, 4000])


@pytest.mark.parametrize("method", ["PUT", "HEAD", "OPTIONS", "DELETE"])
@pytest.mark.parametrize(("path", "status"), [("sms", 405), ("sms/", 405), ("other", 404), ("sms/x", 404)])
async def test_another_method_is_refused_where_a_provider_reports(
    method: str, path: str, status: int
) -> None:
    """The answer says which ones are read."""
    refused, headers = await answered(taking_in([]), [b""], method, f"/receipts/{path}")
    assert (refused, headers.get(b"allow")) == (status, b"GET, POST" if status == 405 else None)


async def test_a_large_body_may_come_at_once() -> None:
    """All of it in the first part: nothing is waited for, as the client waits for the answer."""
    bodies: list[bytes] = []
    body = b" " * large_bodies.SMALL_BODY + BODY
    assert (await answered(taking_in(bodies, largest=MIB), [body]))[0] == 200
    assert bodies == [body]


async def test_a_provider_may_be_removed_while_its_request_arrives() -> None:
    """The request is answered by what takes it in, and doesn't end in an error of the server."""
    inlet = Inlet(ReceiptOptions.model_validate({"provider_id": "/id"}), 100)

    async def take_in(_provider: str, _request: ReceiptRequest) -> ReceiptReply:
        return ReceiptReply(404, "")

    inlets = Inlets({"sms": inlet}, {"/receipts/sms": "sms"})
    app = ReceiptEndpoint(inlets, take_in, lambda _status, _route: None)

    async def body() -> AsyncIterator[bytes]:
        yield b"a"
        app.adopt(Inlets({}, {}))
        yield b"b"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        assert (await client.post("/receipts/sms", content=body())).status_code == 404
