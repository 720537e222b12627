"""The token server of a run, and what the worker's clients have from it."""

from __future__ import annotations

import json

import anyio

from deliveryd.http.client import HttpClient
from deliveryd.http.oauth2 import by_secret, open_tokens
from deliveryd.http.target import target_of
from deliveryd.http.tokens import Tokens
from deliveryd.http.wire import Headers, Target, WireResponse
from deliveryd.runtime.secret_file import RenewedValue
from simulation.ledger import TokenAsked, TokenRefused
from simulation.plan import SERVER, Step, TokenTerms, Trouble
from simulation.wire import Request, TroubledWire
from simulation.world import Accepting, World

TIMEOUT = 5.0
"""Seconds that a client waits for a token."""


class Issuer(Accepting):
    """Issues tokens, each for the client that its path names."""

    def __init__(self, world: World, terms: TokenTerms) -> None:
        self._world = world
        self._terms = terms
        self._issued: dict[str, tuple[str, float]] = {}
        """The client of each token, and the second of the run at which it was issued."""

    def accepts(self, client: str, headers: Headers) -> bool:
        """Whether a request of one of the worker's clients needs no token, or shows one that is good now."""
        if client not in self._terms.clients:
            return True
        shown = next((value.decode() for name, value in headers if name == b"authorization"), "")
        owner, issued_at = self._issued.get(shown.removeprefix("Bearer "), ("", 0.0))
        now = anyio.current_time()
        has_ended = now >= issued_at + self._terms.lifetime
        is_revoked = any(issued_at <= moment <= now for moment in self._terms.revoked)
        if owner == client and not has_ended and not is_revoked:
            return True
        self._world.ledger.tokens_refused.append(TokenRefused(owner, has_ended))
        return False

    def endpoint(self, _target: Target) -> str:
        """It has a schedule of troubles of its own."""
        return "token"

    def provider(self, _target: Target) -> str | None:
        """It is none."""
        return None

    def steps(self, _endpoint: str) -> tuple[Step, Step] | None:
        """Nothing of note happens."""
        return None

    def rejection(self, _target: Target, _headers: Headers, _body: bytes) -> Trouble | None:
        """It knows all clients."""
        return None

    def hang(self, _request: Request) -> str | None:
        """It can give no answer for long."""
        return SERVER

    def arrives(self, request: Request) -> None:
        """Note who asks."""
        ledger, client = self._world.ledger, request.path.removeprefix("/")
        asked = request.number, client, request.trouble, anyio.current_time()
        ledger.tokens_asked.append(TokenAsked(ledger.number(), request.life, *asked))

    def work(self, request: Request) -> WireResponse:
        """Issue a token."""
        token = f"t{len(self._issued) + 1}"
        self._issued[token] = (request.path.removeprefix("/"), anyio.current_time())
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": self._terms.lifetime}
        return WireResponse(200, {}, json.dumps(answer).encode())

    def spoiled(self, _request: Request, _status: int) -> None:
        """Nothing to note."""

    def lost(self, _request: Request, _received: bytes) -> None:
        """Nothing to note: a token that didn't arrive is used by no client."""


def tokens_for(world: World, client: str) -> Tokens | None:
    """What authenticates a client's requests; None: they need no token."""
    if world.plan.tokens is None or client not in world.plan.tokens.clients:
        return None
    assert isinstance(world.issuer, Issuer)
    wire = TroubledWire(world, world.issuer)
    return open_tokens(
        HttpClient(wire, timeout=TIMEOUT),
        target_of(f"http://tokens/{client}"),
        {"grant_type": "client_credentials"},
        RenewedValue((), lambda: lambda: by_secret("worker", "secret")),
    )
