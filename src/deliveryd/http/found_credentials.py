"""Credentials that the machine has: of a role at AWS, or an identity at Google Cloud."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import anyio

from deliveryd.errors import NotSent, OutOfFiles
from deliveryd.http import credential_search
from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.oauth2 import UNNAMED_LIFETIME
from deliveryd.http.request_signing import AwsKey, Signed
from deliveryd.http.responses import Now, utc_now
from deliveryd.http.tokens import Lent, Token, Tokens
from deliveryd.http.wire import Headers, Proxy

ROLE_KEYS_KEPT = 300.0
"""Seconds after which a role is looked up again at the latest."""

LATE_KEPT = 60.0
"""Seconds for which what came later than whoever asked for it waited is used: credentials, or a reason."""

_OF_AWS = (
    *("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_PROFILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ACCESS_KEY_ID"),
    *("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
)
_OF_GOOGLE = ("GOOGLE_APPLICATION_CREDENTIALS",)
"""Variables that say where credentials are, which an error names if they are set."""

_PROGRAM = (sys.executable, "-P", "-m", credential_search.__name__)


class Search:
    """Finds credentials in a process of its own, one at a time.

    Whoever asks next joins a search under way, and gets what it found, or why it found nothing, shortly
    before. `question` is what to search for; `maker` and `variables` are named in errors.
    """

    def __init__(
        self,
        question: Callable[[], Mapping[str, object]],
        timeout: float,
        maker: str,
        variables: Sequence[str],
    ) -> None:
        self._question = question
        self._timeout = timeout
        self._maker = maker
        self._variables = variables
        self._under_way: asyncio.Task[tuple[dict[str, Any], float]] | None = None

    async def found(self, unnamed: float) -> tuple[list[str], float]:
        """Return the parts of what is found, and the seconds until it ends, or `unnamed`. Raises NotSent."""
        search = self._under_way
        if search is None or (search.done() and search.result()[1] + LATE_KEPT < anyio.current_time()):
            search = self._under_way = asyncio.create_task(_searched(self._question))
        with anyio.move_on_after(self._timeout):
            await asyncio.wait([search])
        if not search.done():
            raise NotSent(f"{self._named()} within {self._timeout:g} s")
        self._under_way = None
        answer, _ = search.result()
        failure = answer.get("failure")
        left = unnamed
        if failure is None and answer["ends"] is not None:
            left = answer["ends"] - datetime.now(UTC).timestamp()
            if left <= 0:
                failure = "what was found has ended already, by the clock of this machine"
        if failure is not None:
            raise (OutOfFiles if answer.get("lacks_files") else NotSent)(f"{self._named()}: {failure}")
        return answer["found"], left

    async def aclose(self) -> None:
        """End a search under way."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])

    def _named(self) -> str:
        given = [name for name in self._variables if os.environ.get(name)]
        return f"{self._maker} ({', '.join(given)})" if given else self._maker


async def _searched(question: Callable[[], Mapping[str, object]]) -> tuple[dict[str, Any], float]:
    """Return the answer of a search, and when it came."""
    try:
        answer = await _answer(json.dumps(question()).encode())
    except ValueError as error:  # the proxy's password can't be read
        answer = {"failure": str(error)}
    except (OSError, RuntimeError) as error:  # no file, process or thread is left
        answer = {
            "failure": f"no process can be begun; files or processes may be used up ({error})",
            "lacks_files": True,
        }
    return answer, anyio.current_time()


async def _answer(question: bytes) -> dict[str, Any]:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM, stdin=pipe, stdout=pipe, stderr=null, start_new_session=True
    )
    try:
        printed, _ = await process.communicate(question)
    finally:
        if process.returncode is None:  # with the programs that it began
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    try:
        answer: dict[str, Any] = json.loads(printed)
    except ValueError:
        return {"failure": f"a search ended with status {process.returncode}"}
    return answer


class RoleSigning:
    """Signs requests by the keys of the role that this machine, container or web identity has."""

    def __init__(self, region: str, service: str, timeout: float, now: Now = utc_now) -> None:
        self._region = region
        self._service = service
        self._search = Search(lambda: {"search": "role", "with": {}}, timeout, "AWS gives no keys", _OF_AWS)
        self._lent = Lent(self._fetch, "AWS gives no keys")
        self._now = now

    async def _fetch(self) -> tuple[AwsKey, float]:
        (key_id, secret, token), left = await self._search.found(ROLE_KEYS_KEPT)
        return AwsKey(key_id, secret, self._region, self._service, token), min(left, ROLE_KEYS_KEPT)

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
        """End a search under way."""
        await self._search.aclose()


def identity_tokens(scope: str, proxy: Proxy | None, timeout: float) -> Tokens:
    """Open the tokens of the identity that this machine has at Google Cloud."""

    def question() -> Mapping[str, object]:
        login = None if proxy is None else proxy.login()
        found = {
            "scopes": scope.split(),
            "proxy": None if proxy is None else proxy.url,
            "proxy_headers": {} if login is None else {login[0].decode(): login[1].decode("ascii")},
            "timeout": timeout,
        }
        return {"search": "identity", "with": found}

    search = Search(question, timeout, "Google gives no token", _OF_GOOGLE)

    async def fetch() -> Token:
        (value,), left = await search.found(UNNAMED_LIFETIME)
        return Token(value, left)

    return Tokens(fetch, search.aclose, "Google gives no token")
