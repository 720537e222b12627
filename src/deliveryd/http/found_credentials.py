"""Credentials that the machine has, as AWS's and Google's own programs find them: of a role, or an identity.

Their libraries block, for long if a server hangs, and raise whatever they meet.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from threading import Thread
from typing import Any, Generic, TypeVar, cast

import anyio

from deliveryd.errors import NotSent
from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.oauth2 import UNNAMED_LIFETIME
from deliveryd.http.request_signing import AwsKey, Signed
from deliveryd.http.responses import Now, utc_now
from deliveryd.http.tokens import Lent, Token, Tokens
from deliveryd.http.wire import Headers, Proxy

ROLE_KEYS_KEPT = 300.0
"""Seconds after which a role is looked up again at the latest."""

_PRINTED = re.compile(r"[!-~]+")
_OF_AWS = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_PROFILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ACCESS_KEY_ID"),
)
_OF_GOOGLE = ("GOOGLE_APPLICATION_CREDENTIALS",)
"""Variables that say where credentials are, which an error names if they are set."""

T = TypeVar("T")


class Search(Generic[T]):
    """Runs what blocks in a thread that keeps no process from ending, one at a time.

    What comes later than whoever asked for it waited is there for the next who asks. `variables` and `maker`
    are named in errors.
    """

    def __init__(self, find: Callable[[], T], timeout: float, maker: str, variables: Sequence[str]) -> None:
        self._find = find
        self._timeout = timeout
        self._maker = maker
        self._variables = variables
        self._under_way: asyncio.Future[T] | None = None

    async def found(self) -> T:
        """Return what is found. Raises NotSent with the reason."""
        if self._under_way is None:
            self._under_way = self._begun()
        with anyio.move_on_after(self._timeout):
            await asyncio.wait([self._under_way])
        if not self._under_way.done():
            raise NotSent(f"{self._named()} within {self._timeout:g} s")
        ended, self._under_way = self._under_way, None
        try:
            return ended.result()
        except NotSent as error:
            raise NotSent(f"{self._named()}: {error}") from None
        except Exception as error:  # whatever these libraries raise
            raise NotSent(f"{self._named()}: {type(error).__name__}") from None

    def _named(self) -> str:
        given = [name for name in self._variables if os.environ.get(name)]
        return f"{self._maker} ({', '.join(given)})" if given else self._maker

    def _begun(self) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def tell(set_: Callable[[Any], None], value: object) -> None:
            if not future.done():
                set_(value)

        def search() -> None:
            try:
                told = future.set_result, self._find()
            except Exception as error:  # as above
                told = cast("Any", (future.set_exception, error))
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell, *told)

        Thread(target=search, name="found credentials", daemon=True).start()
        return future


class RoleSigning:
    """Signs requests by the keys of the role that this machine, container or web identity has."""

    def __init__(self, region: str, service: str, timeout: float, now: Now = utc_now) -> None:
        def find() -> tuple[AwsKey, datetime | None]:
            return _role_keys(region, service)

        self._search = Search(find, timeout, "AWS gives no keys", _OF_AWS)
        self._lent = Lent(self._fetch, "AWS gives no keys")
        self._now = now

    async def _fetch(self) -> tuple[AwsKey, float]:
        key, ends = await self._search.found()
        return key, min(_seconds_to(ends, ROLE_KEYS_KEPT), ROLE_KEYS_KEPT)

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


def _role_keys(region: str, service: str) -> tuple[AwsKey, datetime | None]:
    """Return the present keys and when they end. A new session looks everywhere again."""
    from botocore.session import Session  # noqa: PLC0415  # loads much, for few

    found: Any = Session().get_credentials()
    if found is None:
        raise NotSent("this machine has no role, and the environment names none")
    keys = found.get_frozen_credentials()
    _check_printed(keys.access_key, keys.secret_key, *([] if keys.token is None else [keys.token]))
    ends = getattr(found, "_expiry_time", None)
    return AwsKey(keys.access_key, keys.secret_key, region, service, keys.token), ends


def identity_tokens(scope: str, proxy: Proxy | None, timeout: float) -> Tokens:
    """Open the tokens of the identity that this machine has at Google Cloud."""
    search = Search(_identity(scope.split(), proxy, timeout), timeout, "Google gives no token", _OF_GOOGLE)

    async def fetch() -> Token:
        value, ends = await search.found()
        return Token(value, _seconds_to(ends, UNNAMED_LIFETIME))

    async def close() -> None:
        """Nothing is open."""

    return Tokens(fetch, close, "Google gives no token")


def _identity(
    scopes: list[str], proxy: Proxy | None, timeout: float
) -> Callable[[], tuple[str, datetime | None]]:
    """Return what requests a token."""

    def find() -> tuple[str, datetime | None]:
        import google.auth  # noqa: PLC0415  # loads much, for few
        import urllib3  # noqa: PLC0415  # as above
        from google.auth.transport.urllib3 import Request  # noqa: PLC0415  # as above

        bounds: Any = {"timeout": urllib3.Timeout(timeout), "retries": False}
        pool = urllib3.PoolManager(**bounds)
        if proxy is not None:
            login = proxy.login()
            headers = {} if login is None else {login[0].decode(): login[1].decode("ascii")}
            pool = urllib3.ProxyManager(proxy.url, proxy_headers=headers, **bounds)
        request = cast("Any", Request)(pool)
        identity: Any = google.auth.default(scopes=scopes, request=request)[0]
        identity.refresh(request)
        _check_printed(identity.token)
        return identity.token, None if identity.expiry is None else identity.expiry.replace(tzinfo=UTC)

    return find


def _check_printed(*parts: object) -> None:
    """Raise NotSent for what no header can hold."""
    if not all(isinstance(part, str) and _PRINTED.fullmatch(part) for part in parts):
        raise NotSent("what was found holds blanks, line breaks or other letters than ASCII")


def _seconds_to(ends: datetime | None, unnamed: float) -> float:
    """Return the seconds that are left. Raises NotSent: none are."""
    left = unnamed if ends is None else (ends - datetime.now(UTC)).total_seconds()
    if left <= 0:
        raise NotSent("what was found has ended already, by the clock of this machine")
    return left
