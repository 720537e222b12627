"""Deliberate breaks of how tokens are had and renewed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

import pytest

from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.oauth2 import TokenServer
from deliveryd.http.tokens import Lent, Token, Tokens
from deliveryd.http.wire import Headers

Patch = pytest.MonkeyPatch


def a_token_for_each_request(patch: Patch) -> None:
    """Whoever has no good token asks for one, also while another request does."""

    async def present(self: Lent[Headers]) -> Headers:
        await self._renew()
        if self._present is None:
            raise self._failure
        return self._present

    patch.setattr(Lent, "present", present)


def rejected_tokens_are_shown_on(patch: Patch) -> None:
    """A 401 has no token replaced before its time."""
    patch.setattr(Lent, "reject", lambda *_: False)


def a_dead_token_server_is_a_doubt(patch: Patch) -> None:
    """A message whose token didn't come may have been sent."""
    fetch: Callable[[TokenServer], Awaitable[Token]] = TokenServer.fetch
    headers: Callable[[Tokens, OutgoingRequest], Awaitable[Headers]] = Tokens.headers

    async def doubtful(self: Tokens, request: OutgoingRequest) -> Headers:
        try:
            return await headers(self, request)
        except NotSent as error:
            raise OutcomeUnknown(str(error)) from None

    patch.setattr(TokenServer, "fetch", fetch)
    patch.setattr(Tokens, "headers", doubtful)


def tokens_that_never_end(patch: Patch) -> None:
    """What the server says of a token's life isn't read."""
    fetch: Callable[[TokenServer], Awaitable[Token]] = TokenServer.fetch

    async def for_ever(self: TokenServer) -> Token:
        return (await fetch(self))._replace(lifetime=inf)

    patch.setattr(TokenServer, "fetch", for_ever)


def a_dead_token_server_is_never_asked_again(patch: Patch) -> None:
    """After a failure there is no other request."""
    renew: Callable[[Lent[Headers]], Awaitable[None]] = Lent._renew

    async def once(self: Lent[Headers]) -> None:
        await renew(self)
        if self._next_request > 0:
            self._next_request = inf

    patch.setattr(Lent, "_renew", once)
