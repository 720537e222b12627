"""Names: each looked up by itself, kept while name servers are silent, and every address tried."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import anyio
import pytest

from deliveryd.network.address import Address
from deliveryd.network.connection import by_turns, connect
from deliveryd.network.resolver import (
    FRESH_SECONDS,
    KEPT_SECONDS,
    LOST_SECONDS,
    MOST_THREADS,
    PAUSE_SECONDS,
    Resolver,
    ask_system,
)
from support.patience import PATIENCE

pytestmark = pytest.mark.anyio

OLD = [Address(socket.AF_INET, "127.0.0.1")]
NEW = [Address(socket.AF_INET, "127.0.0.2")]
SILENT_FOR_NOW = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
NO_SUCH_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture(params=[("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """Every event loop on which names are looked up."""
    return request.param


class NameServer:
    """What the system would ask: answers by name; a name without an answer is met with silence."""

    def __init__(self) -> None:
        self.answers: dict[str, Sequence[Address] | OSError] = {}
        self.asked: list[str] = []
        self.now = 0.0
        self.resolver = Resolver(self._ask, lambda: self.now)
        self._end_of_silence = threading.Event()

    def _ask(self, host: str) -> Sequence[Address]:
        self.asked.append(host)
        if host not in self.answers:
            self._end_of_silence.wait()
        answer = self.answers.get(host, NO_SUCH_NAME)
        if isinstance(answer, OSError):
            raise answer
        return answer

    def speak(self) -> None:
        """Answer those who were met with silence, and everybody from now on."""
        self._end_of_silence.set()


@pytest.fixture
def names() -> Iterator[NameServer]:
    """A name server that ends its silence after the test, so that no thread is left."""
    server = NameServer()
    yield server
    server.speak()


async def test_a_name_that_is_met_with_silence_holds_up_no_other(names: NameServer) -> None:
    """A hundred silent names wait, and the hundred and first is looked up at once."""
    names.answers["good.example"] = OLD
    async with anyio.create_task_group() as waiting:
        for number in range(100):
            waiting.start_soon(names.resolver.look_up, f"silent{number}.example")
        with anyio.fail_after(PATIENCE):
            assert await names.resolver.look_up("good.example") == OLD
        waiting.cancel_scope.cancel()


async def test_a_name_is_asked_for_once_however_many_wait(names: NameServer) -> None:
    """Fifty callers start one look-up, and all of them get its answer."""
    found: list[Sequence[Address]] = []

    async def look_up() -> None:
        found.append(await names.resolver.look_up("a.example"))

    async with anyio.create_task_group() as callers:
        for _ in range(50):
            callers.start_soon(look_up)
        await anyio.wait_all_tasks_blocked()
        names.answers["a.example"] = OLD
        names.speak()
    assert found == [OLD] * 50
    assert names.asked == ["a.example"]


async def test_an_answer_is_used_for_half_a_minute_and_then_asked_for_anew(names: NameServer) -> None:
    """A host that moves is found at its new address."""
    names.answers["a.example"] = OLD
    await names.resolver.look_up("a.example")
    names.answers["a.example"] = NEW
    names.now = FRESH_SECONDS - 1
    assert await names.resolver.look_up("a.example") == OLD
    names.now = FRESH_SECONDS + 1
    assert await names.resolver.look_up("a.example") == NEW
    assert len(names.asked) == 2


@pytest.mark.slow
async def test_while_name_servers_are_silent_the_last_answer_is_used_for_hours(names: NameServer) -> None:
    """One look-up hangs meanwhile, however many ask, and its answer counts when it comes at last."""
    names.answers["a.example"] = OLD
    await names.resolver.look_up("a.example")
    del names.answers["a.example"]
    names.now = FRESH_SECONDS + 1
    with anyio.fail_after(PATIENCE):
        for _ in range(20):
            assert await names.resolver.look_up("a.example") == OLD
            names.now += 1.0
    assert len(names.asked) == 2
    names.now = KEPT_SECONDS - 1
    assert await names.resolver.look_up("a.example") == OLD


async def test_an_answer_that_is_half_a_day_old_is_used_no_more(names: NameServer) -> None:
    """After that the caller hears what the name servers say."""
    names.answers["a.example"] = OLD
    await names.resolver.look_up("a.example")
    names.answers["a.example"] = SILENT_FOR_NOW
    names.now = KEPT_SECONDS + 1
    with pytest.raises(socket.gaierror, match="Temporary failure"):
        await names.resolver.look_up("a.example")


async def test_a_failed_look_up_keeps_the_last_answer_and_is_repeated_after_a_pause(
    names: NameServer,
) -> None:
    """Name servers that fail aren't asked for each connection."""
    names.answers["a.example"] = OLD
    await names.resolver.look_up("a.example")
    names.answers["a.example"] = SILENT_FOR_NOW
    names.now = FRESH_SECONDS + 1
    for _ in range(20):
        assert await names.resolver.look_up("a.example") == OLD
    assert len(names.asked) == 2
    names.answers["a.example"] = NEW
    names.now += PAUSE_SECONDS + 1
    assert await names.resolver.look_up("a.example") == NEW


async def test_a_name_that_is_gone_is_gone(names: NameServer) -> None:
    """That there is no such name is an answer, and replaces the one before."""
    names.answers["a.example"] = OLD
    await names.resolver.look_up("a.example")
    names.answers["a.example"] = NO_SUCH_NAME
    names.now = FRESH_SECONDS + 1
    for _ in range(2):
        with pytest.raises(socket.gaierror, match="not known"):
            await names.resolver.look_up("a.example")


async def test_a_look_up_that_never_ends_is_begun_again_but_not_without_end(names: NameServer) -> None:
    """Every minute one more, up to four at a time."""
    for minute in range(20):
        names.now = minute * (LOST_SECONDS + 1)
        with anyio.move_on_after(0):
            await names.resolver.look_up("a.example")
    assert len(names.asked) == MOST_THREADS


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "2001:db8::7"])
async def test_an_address_needs_no_look_up(names: NameServer, host: str) -> None:
    """It is used as it is, whatever the name servers do."""
    (address,) = await names.resolver.look_up(host)
    assert (address.host, names.asked) == (host, [])


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
def test_what_can_be_no_name_is_no_name(host: str) -> None:
    """It fails as an unknown name does."""
    with pytest.raises(socket.gaierror, match="not a valid host name"):
        ask_system(host)


def test_the_system_is_asked_as_it_is_configured() -> None:
    """What stands in `/etc/hosts` counts."""
    assert "127.0.0.1" in {address.host for address in ask_system("localhost")} or "::1" in {
        address.host for address in ask_system("localhost")
    }


# The addresses of a host


def test_families_take_turns() -> None:
    """RFC 8305: the first family first, then the other one, then the first again."""
    six = [Address(socket.AF_INET6, f"::{number}") for number in range(3)]
    four = [Address(socket.AF_INET, f"192.0.2.{number}") for number in range(2)]
    assert by_turns([*six, *four]) == [six[0], four[0], six[1], four[1], six[2]]
    assert by_turns(four) == four


@contextmanager
def listening(host: str, port: int = 0) -> Iterator[int]:
    """A port of an address of this computer that takes connections."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
        yield listener.getsockname()[1]


@contextmanager
def silent(host: str, port: int = 0) -> Iterator[int]:
    """A port whose listener takes no connection any more: who connects there waits."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        yield port


def known_at(*hosts: str) -> Resolver:
    """A resolver to whom the host is known at these addresses."""
    return Resolver(lambda _name: [Address(socket.AF_INET, host) for host in hosts])


Trouble = Callable[[str], Any]


@contextmanager
def refusing(_host: str) -> Iterator[int]:
    """Nobody listens there, whatever the port is."""
    yield 0


@pytest.mark.parametrize("trouble", [silent, refusing])
async def test_the_next_address_is_tried_when_one_is_silent_or_refuses(trouble: Trouble) -> None:
    """A host with a dead address is reached by its other one."""
    resolver = known_at("127.0.0.1", "127.0.0.2")
    with trouble("127.0.0.1") as same, listening("127.0.0.2", same) as port, anyio.fail_after(PATIENCE):
        made = await connect(resolver, "a.example", port)
        assert made.getpeername()[0] == "127.0.0.2"
        made.close()


async def test_when_no_address_answers_the_reason_is_told() -> None:
    """All of them refuse."""
    with listening("127.0.0.3") as port:
        pass
    with pytest.raises(ConnectionRefusedError):
        await connect(known_at("127.0.0.1", "127.0.0.2"), "a.example", port)


async def test_who_gives_up_leaves_no_connection_behind() -> None:
    """Both tries are closed; a socket that was left open would fail this test with a warning."""
    resolver = known_at("127.0.0.1", "127.0.0.2")
    with (
        silent("127.0.0.1") as port,
        silent("127.0.0.2", port),
        pytest.raises(TimeoutError),
        anyio.fail_after(0.4),
    ):
        await connect(resolver, "a.example", port)
