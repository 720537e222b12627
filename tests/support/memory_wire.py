"""A wire to something in memory: a function that answers httpx's requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import httpx

from deliveryd.errors import NotSent, OutcomeUnknown, TooLarge
from deliveryd.http.wire import BeforeSend, Headers, Target, WireResponse, add_header
from deliveryd.network.deadline import within


class MemoryWire:
    """Hands requests to `handle`; what it raises says whether the request was sent."""

    def __init__(self, handle: Callable[[httpx.Request], Any]) -> None:
        self._transport = httpx.MockTransport(handle)

    async def exchange(
        self,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        max_body: int,
        check: BeforeSend | None = None,
    ) -> WireResponse:
        if check is not None:
            check()
        request = httpx.Request(method, str(target), headers=list(headers), content=body)
        try:
            response = await within(deadline, partial(self._transport.handle_async_request, request))
        except TimeoutError:
            raise OutcomeUnknown(f"no whole answer within {deadline:g} s") from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise NotSent(str(error)) from None
        except httpx.TransportError as error:
            raise OutcomeUnknown(str(error)) from None
        named: dict[str, str] = {}
        for name, value in response.headers.raw:
            add_header(named, name.decode("latin-1").lower(), value.decode("latin-1"))
        content = await response.aread()
        if len(content) > max_body:
            reason = f"the answer is larger than {max_body} bytes"
            raise TooLarge(reason, response.status_code, named, content[:max_body])
        return WireResponse(response.status_code, named, content)

    async def aclose(self) -> None:
        """Nothing is open."""
