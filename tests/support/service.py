"""The service without the sandbox's server, for wires that a test brings itself."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.routing import compile_path

from deliveryd.sandbox.remote import ADDRESSES, RemoteService
from deliveryd.sandbox.state import SandboxState
from deliveryd.sandbox.wire import StandInRequest, problem

_PATTERNS = {endpoint: (method, compile_path(path)[0]) for endpoint, (method, path) in ADDRESSES.items()}


class Service(SandboxState):
    """The sandbox's memory and rules. It hands out each message once."""

    def __init__(self) -> None:
        super().__init__()
        self.redeliver_after = math.inf
        self._remote = RemoteService(self)

    def work(
        self, method: str, path: str, query: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> Response:
        """Do what a request asks, by the rules of the interface. Header names are in lower case."""
        for endpoint, (allowed, pattern) in _PATTERNS.items():
            if method == allowed and (match := pattern.fullmatch(path)):
                request = StandInRequest(method, match.groupdict(), QueryParams(query), headers or {}, body)
                return self._remote.answer(endpoint, request)
        return problem(404, "no such address")
