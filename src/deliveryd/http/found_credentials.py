"""Credentials that the machine has, as AWS's and Google's own programs find them: of a role, or an identity.

Their libraries ask servers in threads, and refresh what they have long before its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, cast

from deliveryd.errors import NotSent
from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.request_signing import AwsKey, Signed
from deliveryd.http.responses import Now, utc_now
from deliveryd.http.tokens import Lent, Token, Tokens
from deliveryd.http.wire import Headers
from deliveryd.runtime.threads import in_thread

ROLE_KEYS_KEPT = 300.0
"""Seconds until botocore is asked again, which replaces keys 10 minutes before their end."""

SHORTEST = 1.0
"""Seconds for which a token without an end, or with one that has passed here, is used."""


class RoleSigning:
    """Signs requests by the keys of the role that this machine, container or web identity has."""

    def __init__(self, region: str, service: str, now: Now = utc_now) -> None:
        self._find = _finder(region, service)
        self._lent = Lent(self._fetch)
        self._now = now

    async def _fetch(self) -> tuple[AwsKey, float]:
        return await in_thread(self._find, abandon_on_cancel=True), ROLE_KEYS_KEPT

    async def headers(self, request: OutgoingRequest) -> Headers:
        """Sign a request."""
        key = await self._lent.present()
        return Signed(key, key.sign(request, self._now()))

    async def renew(self, shown: Headers) -> bool:
        """Look for other keys, since those were rejected."""
        key = shown.key if isinstance(shown, Signed) else None
        return self._lent.reject(key if isinstance(key, AwsKey) else None)

    def secrets(self) -> Iterable[str]:
        """Return the secret parts of the keys in use."""
        return [secret for key in self._lent.known() for secret in key.secrets()]

    async def aclose(self) -> None:
        """Nothing is open."""


def _finder(region: str, service: str) -> Callable[[], AwsKey]:
    """Return what finds the present keys, and raises NotSent if there are none."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  # loads much, for few
    from botocore.session import Session  # noqa: PLC0415  # as above

    session: Any = Session()

    def find() -> AwsKey:
        try:
            found = session.get_credentials()
            if found is None:
                raise NotSent("AWS gives no keys: this machine has no role, and the environment names none")
            keys = found.get_frozen_credentials()
        except (BotoCoreError, ClientError) as error:
            raise NotSent(f"AWS gives no keys: {type(error).__name__}") from None
        return AwsKey(keys.access_key, keys.secret_key, region, service, keys.token)

    return find


def identity_tokens(scope: str) -> Tokens:
    """Open the tokens of the identity that this machine has at Google Cloud."""
    find = _identity(scope.split())

    async def fetch() -> Token:
        return await in_thread(find, abandon_on_cancel=True)

    async def close() -> None:
        """Nothing is open."""

    return Tokens(fetch, close)


def _identity(scopes: list[str]) -> Callable[[], Token]:
    """Return what requests a token, and raises NotSent if there is none."""
    import google.auth  # noqa: PLC0415  # loads much, for few
    import urllib3  # noqa: PLC0415  # as above
    from google.auth.exceptions import GoogleAuthError  # noqa: PLC0415  # as above
    from google.auth.transport.urllib3 import Request  # noqa: PLC0415  # as above

    request = cast("Any", Request)(urllib3.PoolManager())
    identities: list[Any] = []

    def find() -> Token:
        try:
            if not identities:
                identities.append(google.auth.default(scopes=scopes, request=request)[0])
            identities[0].refresh(request)
        except GoogleAuthError as error:
            raise NotSent(f"Google gives no token: {type(error).__name__}") from None
        ends: datetime | None = identities[0].expiry
        left = 0.0 if ends is None else (ends.replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()
        return Token(identities[0].token, max(left, SHORTEST))

    return find
