"""The sandbox as a whole: the HTTP server, the mail server and the receipts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from uvicorn import Config
from uvicorn.server import ServerState

from deliveryd.sandbox.faults import StandInChannel, StandInEndpoint
from deliveryd.sandbox.impersonation import Impersonation
from deliveryd.sandbox.inbox import Inbox
from deliveryd.sandbox.providers import JSON_ANSWERS, PLAIN_ANSWERS, Providers, ReceiptSender, own_gateway
from deliveryd.sandbox.remote import ADDRESSES, RemoteService
from deliveryd.sandbox.smtp import MailDrop, MailProtocol
from deliveryd.sandbox.state import SandboxState
from deliveryd.sandbox.wire import Call, Endpoint, Handler, OpenProtocol

ENDPOINT_OF: Mapping[StandInChannel, StandInEndpoint] = {
    "sms": "provider.sms",
    "messenger": "provider.messenger",
    "inApp": "provider.inApp",
    "email": "provider.email",
}


class CannotListen(OSError):
    """An address is unavailable. `server` is "http" or "smtp"; the text has the address and the reason."""

    def __init__(self, server: str, text: str) -> None:
        super().__init__(text)
        self.server = server


@contextlib.contextmanager
def _listening(server: str, host: str, port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        is_of_name = isinstance(error, socket.gaierror)
        reason = error.strerror if is_of_name or not number else os.strerror(number)
        raise CannotListen(server, f"can't listen on {host} port {port}: {reason}") from error


class Sandbox:
    """A stand-in for the remote service and the providers, open between `async with` and its end.

    Runs in the event loop (asyncio) that opens it, touches no signal handlers and writes no log. Closing
    drops every connection at once, also those that wait for an answer.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        smtp_port: int = 0,
        *,
        state: SandboxState | None = None,
        impersonated: Sequence[Impersonation] = (),
    ) -> None:
        self.host = host
        self.port = port
        self.smtp_port = smtp_port
        self.state = state or SandboxState()
        self.impersonated = impersonated
        self._closing = asyncio.Event()
        self._http = ServerState()
        self._mail: set[asyncio.BaseTransport] = set()
        self._exits = contextlib.AsyncExitStack()

    @property
    def base_url(self) -> str:
        """The address of the HTTP server, once the sandbox is open."""
        return self.state.base_url

    @property
    def busy(self) -> bool:
        """Whether a client is connected, or a request of a disconnected one is still in progress."""
        return bool(self._mail or self._http.connections or self._http.tasks)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as exits:
            receipts = ReceiptSender(self.state)
            exits.push_async_callback(receipts.close)
            routes = _routes(self.state, receipts, self._closing, self.impersonated)
            config = Config(
                Starlette(routes=routes), lifespan="off", log_config=None, access_log=False, ws="none",
                timeout_keep_alive=600,
            )  # fmt: skip
            config.load()
            http = _Listener(
                lambda: OpenProtocol(config, self._http, {}),
                lambda: [each.transport for each in self._http.connections],
            )
            drop = MailDrop(self.state, self._closing)
            mail = _Listener(lambda: MailProtocol(drop, self._mail), lambda: self._mail)
            exits.push_async_callback(self._requests_ended)
            with _listening("http", self.host, self.port):
                self.port = await http.open(self.host, self.port)
            exits.push_async_callback(http.close)
            with _listening("smtp", self.host, self.smtp_port):
                self.smtp_port = await mail.open(self.host, self.smtp_port)
            exits.push_async_callback(mail.close)
            host = f"[{self.host}]" if ":" in self.host else self.host
            self.state.base_url = f"http://{host}:{self.port}"
            self._exits = exits.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        await self._exits.aclose()

    async def _requests_ended(self) -> None:
        if self._http.tasks:
            await asyncio.wait(list(self._http.tasks), timeout=0.5)


CLOSING_ROUNDS = 5
"""Turns of the event loop within which a connection that was just accepted is among the open ones."""


class _Listener:
    """A plain asyncio server that closes every connection at once; `connections` returns the open ones.

    uvicorn's own server installs signal handlers, and closes by waiting for clients that may never finish.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        connections: Callable[[], Iterable[asyncio.BaseTransport]],
    ) -> None:
        self._protocol = protocol
        self._connections = connections

    async def open(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, host, port, backlog=1024)
        listening: int = self._server.sockets[0].getsockname()[1]
        return listening

    async def close(self) -> None:
        """Close every connection; requests in progress lose their client."""
        loop = asyncio.get_running_loop()
        for listening in self._server.sockets:
            loop.remove_reader(listening.fileno())  # a connection accepted after close() would be leaked
        for _ in range(CLOSING_ROUNDS):
            await asyncio.sleep(0)
        self._server.close()
        for transport in list(self._connections()):
            if isinstance(transport, asyncio.Transport):
                transport.abort()
        for _ in range(CLOSING_ROUNDS):
            await asyncio.sleep(0)
        await self._server.wait_closed()


def _routes(
    state: SandboxState,
    receipts: ReceiptSender,
    closing: asyncio.Event,
    impersonated: Sequence[Impersonation],
) -> list[Route]:
    remote, inbox, providers = RemoteService(state), Inbox(state), Providers(state, receipts.report)
    gateways = {
        f"{prefix}{channel}": own_gateway(channel, answers)
        for channel in ENDPOINT_OF
        if channel != "email"
        for prefix, answers in (("/", JSON_ANSWERS), ("/plain/", PLAIN_ANSWERS))
    } | {f"/{each.name}/{{path:path}}": each for each in impersonated}
    get, post, either = ["GET"], ["POST"], ["GET", "POST"]
    table: list[tuple[str, list[str], StandInEndpoint | None, Handler]] = [
        *(
            (path, [method], endpoint, _handler(remote, endpoint))
            for endpoint, (method, path) in ADDRESSES.items()
        ),
        *(
            (path, either, ENDPOINT_OF[gateway.channel], providers.gateway(gateway))
            for path, gateway in gateways.items()
        ),
        ("/", get, None, inbox.guarded(inbox.page)),
        ("/inbox.json", get, None, inbox.guarded(inbox.messages)),
        ("/enqueue", post, None, inbox.guarded(inbox.enqueue)),
    ]
    return [
        Route(path, Endpoint(endpoint, handler, state, closing), methods=methods)
        for path, methods, endpoint, handler in table
    ]


def _handler(remote: RemoteService, endpoint: StandInEndpoint) -> Handler:
    async def answer(call: Call) -> Response:
        return remote.answer(endpoint, call)

    return answer
