"""A wire over any httpx transport: for trio, for proxies, and for tests that put a transport of their own."""

from __future__ import annotations

import ssl

import anyio
import httpx

from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http.wire import Answer, Headers, Target

_NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)

EARLIER = 0.9
"""The part of the deadline that connecting may take: httpcore closes the socket of a time-out of its own, but
leaks that of a cancelled TLS handshake."""


def open_transport(context: ssl.SSLContext, proxy: str | None) -> httpx.AsyncHTTPTransport:
    """httpx's own transport, which keeps connections as ours does."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=4.0)
    return httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits, proxy=proxy)


class HttpxWire:
    """Carries requests over an httpx transport, and translates its errors."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def exchange(
        self, method: str, target: Target, headers: Headers, body: bytes, *, deadline: float, max_body: int
    ) -> Answer:
        """Send a request and return the whole answer. Raises NotSent or OutcomeUnknown."""
        progress = _Progress()
        url, more, extensions = _connected_to(target)
        request = httpx.Request(
            method,
            url,
            headers=[(b"accept-encoding", b"identity"), *more, *headers],
            content=body,
            extensions={
                "trace": progress.follow, "timeout": {"connect": EARLIER * deadline}, **extensions
            },
        )  # fmt: skip
        try:
            with anyio.fail_after(deadline):
                return await self._receive(request, max_body)
        except TimeoutError:
            if progress.connecting:
                raise NotSent(f"no connection to {target.authority} within {deadline:g} s") from None
            raise OutcomeUnknown(f"no whole answer within {deadline:g} s") from None
        except _NEVER_SENT as error:
            raise NotSent(f"no connection to {target.authority} ({type(error).__name__})") from None
        except UnicodeError:
            raise NotSent(f"no connection to {target.authority}: not a name that can be looked up") from None
        except httpx.TransportError as error:
            raise OutcomeUnknown(f"the connection broke ({type(error).__name__})") from None

    async def _receive(self, request: httpx.Request, max_body: int) -> Answer:
        response = await self._transport.handle_async_request(request)
        try:
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                raise OutcomeUnknown("the answer is compressed, which wasn't asked for")
            received = bytearray()
            with anyio.CancelScope() as bound:  # leaving the loop would leave httpcore's generators open
                async for chunk in response.stream:  # type: ignore[union-attr]  # async transports stream async
                    received += chunk if len(received) <= max_body else b""
                    if len(received) > max_body:
                        bound.cancel()
            if len(received) > max_body:
                raise OutcomeUnknown(f"the answer is larger than {max_body} bytes")
            return Answer(response.status_code, _headers_of(response), bytes(received))
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


def _connected_to(target: Target) -> tuple[str, Headers, dict[str, str]]:
    """The URL to connect to, with what makes it a request for the target's own host.

    Such a connection isn't kept: httpcore would hand it to another host that has the same address.
    """
    if target.address is None:
        return str(target), (), {}
    host = f"[{target.address}]" if ":" in target.address else target.address
    url = f"{target.scheme}://{host}:{target.port}{target.path.decode('ascii')}"
    headers = ((b"host", target.authority.encode("ascii")), (b"connection", b"close"))
    return url, headers, {"sni_hostname": target.host}


def _headers_of(response: httpx.Response) -> dict[str, str]:
    raw = response.headers.raw  # httpx's own mapping would join repeated ones
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


class _Progress:
    """How far httpcore came with a request. A transport that tells nothing counts as one that sent it."""

    def __init__(self) -> None:
        self.connecting = False

    async def follow(self, event: str, _details: object) -> None:
        """Hear of a step."""
        if event == "connection.connect_tcp.started":
            self.connecting = True
        elif event.endswith(".send_request_headers.started"):
            self.connecting = False
