"""Tokens that end, in virtual time: how often a server is asked, and what requests show meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise

import anyio
import pytest
import trio

from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http.authentication import AuthenticatedWire, OutgoingRequest
from deliveryd.http.target import target_of
from deliveryd.http.tokens import LONGEST_FAILURE_PAUSE, REJECTED_EVERY, RENEWAL_PATIENCE, Token, Tokens
from deliveryd.http.wire import BeforeSend, Headers, Target, WireResponse
from support.endless import jumping_clock

TARGET = target_of("https://api.example/messages")
REQUEST = OutgoingRequest("POST", TARGET, (), b"{}")
LIFETIME = 1000.0


class Server:
    """A token server that takes a second for each answer."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.is_down = False
        self.seconds = 1.0

    async def fetch(self) -> Token:
        self.asked.append(anyio.current_time())
        number = len(self.asked)
        await anyio.sleep(self.seconds)
        if self.is_down:
            raise NotSent("the token server idp.example answered 503")
        return Token(f"token{number}", LIFETIME)

    async def aclose(self) -> None:
        """Nothing is open."""


class Api:
    """A wire to a server that accepts some tokens."""

    def __init__(self) -> None:
        self.good: Callable[[bytes], bool] = lambda _token: True
        self.shown: list[bytes] = []
        self.seconds = 0.0

    async def exchange(
        self,
        _method: str,
        _target: Target,
        headers: Headers,
        _body: bytes,
        *,
        deadline: float,
        max_body: int,
        check: BeforeSend | None = None,
    ) -> WireResponse:
        assert max_body
        if check is not None:
            check()
        shown = dict(headers)[b"authorization"]
        self.shown.append(shown)
        with anyio.fail_after(deadline):
            await anyio.sleep(self.seconds)
        return WireResponse(200 if self.good(shown) else 401, {}, b"")

    async def aclose(self) -> None:
        """Nothing is open."""


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def tokens(server: Server) -> Tokens:
    return Tokens(server.fetch, server.aclose)


def live(run: Callable[[], Awaitable[None]]) -> None:
    """Run in virtual time."""
    trio.run(run, clock=jumping_clock())


async def post(wire: AuthenticatedWire, deadline: float = 10.0) -> int:
    response = await wire.exchange("POST", TARGET, (), b"{}", deadline=deadline, max_body=99)
    return response.status


def test_a_thousand_requests_wait_for_one_token(server: Server, tokens: Tokens) -> None:
    shown: list[Headers] = []

    async def ask() -> None:
        shown.append(await tokens.headers(REQUEST))

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(1000):
                tasks.start_soon(ask)

    live(run)
    assert server.asked == [0.0]
    assert shown == [[(b"authorization", b"Bearer token1")]] * 1000


def test_a_token_is_renewed_before_its_end_while_others_use_it(server: Server, tokens: Tokens) -> None:
    """Ten requests a second for two lives: none is without a token, and only one waits for each new one."""
    waited: list[float] = []

    async def ask() -> None:
        began = anyio.current_time()
        await tokens.headers(REQUEST)
        if (took := anyio.current_time() - began) > 0.1:
            waited.append(took)

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(20_000):
                tasks.start_soon(ask)
                await anyio.sleep(0.1)

    live(run)
    assert len(server.asked) == 3
    assert all(
        0.75 * LIFETIME <= later - sooner <= 0.92 * LIFETIME for sooner, later in pairwise(server.asked)
    )
    assert len(waited) == 10 + 2  # the first ten, before there was any


def test_while_the_server_is_down_a_token_is_used_until_its_end(server: Server, tokens: Tokens) -> None:
    """Then each request says why it wasn't sent, without a question for each; the first answer ends it."""
    reasons: set[str] = set()
    failures: list[float] = []

    async def run() -> None:
        await tokens.headers(REQUEST)
        server.is_down = True
        while anyio.current_time() < 3 * LIFETIME:
            try:
                await tokens.headers(REQUEST)
            except NotSent as error:
                reasons.add(str(error))
                failures.append(anyio.current_time())
            await anyio.sleep(1.0)
        server.is_down = False
        await anyio.sleep(2 * LONGEST_FAILURE_PAUSE)
        await tokens.headers(REQUEST)

    live(run)
    assert reasons == {"the token server idp.example answered 503"}
    assert min(failures) >= LIFETIME
    pauses = [later - sooner for sooner, later in pairwise(server.asked[1:])]
    assert pauses[0] < 5
    assert 40 < pauses[-2] < 2 * LONGEST_FAILURE_PAUSE
    assert len(server.asked) < 60


def test_a_rejected_token_is_replaced_once(server: Server, tokens: Tokens) -> None:
    """Also where many requests show it at once."""
    api = Api()
    wire = AuthenticatedWire(api, tokens)
    api.good = lambda shown: shown != b"Bearer token1"
    statuses: list[int] = []

    async def ask() -> None:
        statuses.append(await post(wire))

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(ask)

    live(run)
    assert statuses == [200] * 20
    assert len(server.asked) == 2


def test_a_server_that_rejects_every_token_has_few_requested(server: Server, tokens: Tokens) -> None:
    api = Api()
    wire = AuthenticatedWire(api, tokens)
    api.good = lambda _shown: False

    async def run() -> None:
        for _ in range(300):
            assert await post(wire) == 401
            await anyio.sleep(1.0)

    live(run)
    assert len(server.asked) <= 1 + 300 / REJECTED_EVERY + 1
    assert len(api.shown) <= 300 + len(server.asked)


def test_a_server_that_hangs_costs_a_request_its_time_and_is_asked_again(
    server: Server, tokens: Tokens
) -> None:
    """Nothing is sent without a token; the next request asks for one, once there is no other to wait for."""
    api = Api()
    wire = AuthenticatedWire(api, tokens)
    server.seconds = 1e6

    async def run() -> None:
        with pytest.raises(NotSent, match="no credentials came"):
            await post(wire, deadline=5.0)
        assert anyio.current_time() == 5.0
        server.seconds = 1.0
        assert await post(wire, deadline=5.0) == 200

    live(run)
    assert server.asked == [0.0, 5.0]


def test_a_server_that_hangs_holds_up_few_requests_while_a_token_is_valid(
    server: Server, tokens: Tokens
) -> None:
    """One waits for two seconds, and at ever longer intervals another one; none is without a token."""
    waited: list[float] = []

    async def run() -> None:
        await tokens.headers(REQUEST)
        server.seconds = 1e6
        await anyio.sleep(0.92 * LIFETIME)
        for _ in range(30):
            began = anyio.current_time()
            await tokens.headers(REQUEST)
            waited.append(anyio.current_time() - began)
            await anyio.sleep(1.0)

    live(run)
    assert {round(each, 3) for each in waited} == {0.0, RENEWAL_PATIENCE}
    assert 3 <= sum(each > 0 for each in waited) <= 6


def test_a_rejected_token_is_used_on_while_the_token_server_is_down(server: Server, tokens: Tokens) -> None:
    """It may have been rejected for one message alone, and be good for all others."""
    api = Api()
    wire = AuthenticatedWire(api, tokens)

    async def run() -> None:
        assert await post(wire) == 200
        server.is_down = True
        api.good = lambda _shown: False
        assert await post(wire) == 401
        api.good = lambda _shown: True
        assert await post(wire) == 200

        asked = len(api.shown)
        api.good = lambda _shown: False
        assert await post(wire) == 401
        assert len(api.shown) == asked + 1  # no other token can be had now, so it isn't repeated

    live(run)
    assert len(server.asked) == 2


def test_a_token_that_ended_on_its_way_has_no_other_one_requested_at_once(server: Server) -> None:
    async def fetch() -> Token:
        await server.fetch()
        return Token("short", 0.5)

    tokens = Tokens(fetch, server.aclose)

    async def ask() -> None:
        with pytest.raises(NotSent, match="the token had ended when it came"):
            await tokens.headers(REQUEST)

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(ask)

    live(run)
    assert len(server.asked) <= 2


def test_the_time_for_a_token_is_part_of_the_requests(tokens: Tokens) -> None:
    """A token takes a second of ten: the answer may take nine."""
    api = Api()
    api.seconds = 9.5
    wire = AuthenticatedWire(api, tokens)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await post(wire)
        assert anyio.current_time() == 10.0

    live(run)


def test_a_broken_answer_is_not_repeated(tokens: Tokens) -> None:
    """Only a 401 is: whatever else comes back, the request may have been acted on."""

    class Broken(Api):
        async def exchange(self, *_arguments: object, **_options: object) -> WireResponse:
            self.shown.append(b"")
            raise OutcomeUnknown("broken")

    api = Broken()
    wire = AuthenticatedWire(api, tokens)

    async def run() -> None:
        with pytest.raises(OutcomeUnknown):
            await post(wire)

    live(run)
    assert len(api.shown) == 1
