"""Credentials that the machine has, as AWS's and Google's own programs find them: of a role, or an identity.

Their libraries block, for long if a server hangs, and raise whatever they meet.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from threading import Thread
from typing import Any, Generic, TypeVar, cast
from urllib.parse import urlsplit

import anyio

from deliveryd.errors import NotSent, OutOfFiles
from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.oauth2 import UNNAMED_LIFETIME
from deliveryd.http.request_signing import AwsKey, Signed
from deliveryd.http.responses import Now, utc_now
from deliveryd.http.tokens import Lent, Token, Tokens
from deliveryd.http.wire import Headers, Proxy
from deliveryd.runtime.process import is_out_of_files, lacks_files

ROLE_KEYS_KEPT = 300.0
"""Seconds after which a role is looked up again at the latest."""

_PRINTED = re.compile(r"[!-~]+")
_OF_AWS = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_PROFILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ACCESS_KEY_ID"),
)
_OF_GOOGLE = ("GOOGLE_APPLICATION_CREDENTIALS",)
"""Variables that say where credentials are, which an error names if they are set."""

_TOLD = frozenset(
    (
        "PartialCredentialsError",
        "InvalidConfigError",
        "ProfileNotFound",
        "ConfigNotFound",
        "DefaultCredentialsError",
    )
)
"""Errors of the two libraries whose texts name a file or a variable, and nothing that was found."""

HANGING = 300.0
"""Seconds after which a search is taken for one that never ends, and another begins."""

LATE_KEPT = 60.0
"""Seconds for which what came later than whoever asked for it waited is used."""

T = TypeVar("T")


class Search(Generic[T]):
    """Runs what blocks in a thread that keeps no process from ending, one at a time.

    Whoever asks next joins a search under way, and has what it found shortly before. `variables` and `maker`
    are named in errors.
    """

    def __init__(self, find: Callable[[], T], timeout: float, maker: str, variables: Sequence[str]) -> None:
        self._find = find
        self._timeout = timeout
        self._maker = maker
        self._variables = variables
        self._under_way: _UnderWay[T] | None = None

    async def found(self) -> T:
        """Return what is found. Raises NotSent with the reason."""
        now = anyio.current_time()
        if self._under_way is None or not self._under_way.is_of_use(now):
            self._under_way = _UnderWay(self._find, now)
        search = self._under_way.result
        with anyio.move_on_after(self._timeout):
            await asyncio.wait([search])
        if not search.done():
            raise NotSent(f"{self._named()} within {self._timeout:g} s")
        self._under_way = None
        try:
            return search.result()
        except OutOfFiles as error:
            raise OutOfFiles(f"{self._named()}: {error}") from None
        except NotSent as error:
            raise NotSent(f"{self._named()}: {error}") from None

    def _named(self) -> str:
        given = [name for name in self._variables if os.environ.get(name)]
        return f"{self._maker} ({', '.join(given)})" if given else self._maker


class _UnderWay(Generic[T]):
    """A search in its thread."""

    def __init__(self, find: Callable[[], T], now: float) -> None:
        self._begun = now
        self._ended: float | None = None
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self._loop.create_future()
        self._find = find
        try:
            Thread(target=self._search, name="found credentials", daemon=True).start()
        except RuntimeError as error:  # there are too many
            self.result.set_exception(OutOfFiles(str(error)))

    def is_of_use(self, now: float) -> bool:
        """Whether it may still find something, or found it a short time ago."""
        if self._ended is None:
            return now < self._begun + HANGING
        return now < self._ended + LATE_KEPT and self.result.exception() is None

    def _search(self) -> None:
        try:
            told: Any = (self.result.set_result, self._find())
        except BaseException as error:  # whatever these libraries raise, or what they are built on
            told = (self.result.set_exception, _failure(error))
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._end, *told)

    def _end(self, set_: Callable[[Any], None], value: object) -> None:
        if not self.result.done():
            set_(value)
            self.result.exception()  # asyncio would write of one that nobody asks for
            self._ended = self._loop.time()


def _failure(error: BaseException) -> NotSent:
    """Return the error for a failed search. What can't open a file may find nothing, and not say why."""
    if is_out_of_files(error) or lacks_files():
        return OutOfFiles(os.strerror(errno.EMFILE))
    return NotSent(_told(error))


def _told(error: BaseException) -> str:
    """Return why a search failed, without what may have been found."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, NotSent | ImportError) or kind in _TOLD:
        return " ".join(str(error).split())[:300] or kind
    return kind


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
        direct = through = cast("Any", Request)(urllib3.PoolManager(**bounds))
        if proxy is not None:
            login = proxy.login()
            headers = {} if login is None else {login[0].decode(): login[1].decode("ascii")}
            through = cast("Any", Request)(urllib3.ProxyManager(proxy.url, proxy_headers=headers, **bounds))

        def request(url: str, *args: Any, **named: Any) -> Any:
            return (direct if _is_of_machine(url) else through)(url, *args, **named)

        identity: Any = google.auth.default(scopes=scopes, request=cast("Any", request))[0]
        identity.refresh(request)
        _check_printed(identity.token)
        return identity.token, None if identity.expiry is None else identity.expiry.replace(tzinfo=UTC)

    return find


def _is_of_machine(url: str) -> bool:
    """Whether an address is that of the machine's own metadata, for which no proxy answers."""
    named = [
        os.environ.get(name, "") for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP")
    ]
    return urlsplit(url).netloc in {"metadata.google.internal", "169.254.169.254", *named}


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
