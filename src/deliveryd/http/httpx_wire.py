"""A wire over any httpx transport: for trio, for proxies, and for tests that put a transport of their own."""

from __future__ import annotations

import anyio
import httpx

from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http.wire import Answer, Headers, Target

_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class HttpxWire:
    """Carries requests over an httpx transport, and translates its errors."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def exchange(
        self, method: str, target: Target, headers: Headers, body: bytes, *, deadline: float, max_body: int
    ) -> Answer:
        """Send a request and return the whole answer. Raises NotSent or OutcomeUnknown."""
        request = httpx.Request(
            method,
            f"{target.scheme}://{target.authority}{target.path.decode('ascii')}",
            headers=[(b"accept-encoding", b"identity"), *headers],
            content=body,
            extensions={"timeout": {"connect": deadline, "pool": deadline}},
        )
        try:
            with anyio.fail_after(deadline):
                return await self._receive(request, max_body)
        except TimeoutError:
            raise OutcomeUnknown(f"no whole answer within {deadline:g} s") from None
        except _NEVER_SENT as error:
            raise NotSent(f"no connection to {target.authority} ({type(error).__name__})") from None
        except httpx.TransportError as error:
            raise OutcomeUnknown(f"the connection broke ({type(error).__name__})") from None

    async def _receive(self, request: httpx.Request, max_body: int) -> Answer:
        response = await self._transport.handle_async_request(request)
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise OutcomeUnknown("the answer is compressed, which wasn't asked for")
            received = bytearray()
            async for chunk in response.stream:  # type: ignore[union-attr]  # async transports stream async
                received += chunk
                if len(received) > max_body:
                    raise OutcomeUnknown(f"the answer is larger than {max_body} bytes")
            return Answer(response.status_code, dict(response.headers), bytes(received))
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()
