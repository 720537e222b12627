"""A program that finds credentials as AWS's and Google's own programs find them: of a role, or an identity.

Their libraries block, read answers of any length, begin other programs, fill more memory with each search,
and raise whatever they meet. So a search is a process of its own, with limits, which ends with all it began.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlsplit

from deliveryd.errors import NotSent
from deliveryd.runtime.process import is_out_of_files, protect_memory

SEARCH_ENDS = 60
"""Seconds after which a search ends."""

SEARCH_MEMORY = 256 << 20
"""Bytes of memory that a search may fill; it needs about 40 MiB."""

_Found = tuple[list[str | None], datetime | None]
"""The parts of what was found, and when it ends."""

_PRINTED = re.compile(r"[!-~]{1,16384}")

_TOLD = frozenset(
    (
        "PartialCredentialsError",
        "InvalidConfigError",
        "ConfigParseError",
        "ProfileNotFound",
        "ConfigNotFound",
        "DefaultCredentialsError",
    )
)
"""Errors of the two libraries whose texts name a file or a variable, and nothing that was found."""

_REASONS = {
    "EOFError": "a profile asks for a code (mfa_serial), which a worker hasn't",
    "JSONDecodeError": "what credential_process printed, or a server answered, isn't JSON",
}
_FOREIGN_HOST = "Unsupported host"
"""The beginning of AWS's text about an address of credentials that isn't one of this machine."""


def answer_on_standard_output() -> None:
    """Answer the question on standard input, both as JSON."""
    protect_memory()
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (SEARCH_MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    signal.signal(signal.SIGALRM, _end)
    signal.alarm(SEARCH_ENDS)
    answer = answer_to(json.load(sys.stdin))
    signal.alarm(0)
    json.dump(answer, sys.stdout)


def _end(*_: object) -> None:
    json.dump({"failure": f"a search found nothing in {SEARCH_ENDS} s"}, sys.stdout)
    sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)


def answer_to(question: Mapping[str, Any]) -> Mapping[str, object]:
    """Return what is found, or why nothing is."""
    finders: dict[str, Callable[..., _Found]] = {"role": _role, "identity": _identity}
    try:
        parts, ends = finders[question["search"]](**question["with"])
        _check_printed(part for part in parts if part is not None)
    except BaseException as error:  # whatever these libraries raise, or what they are built on
        return {"failure": told(error), "lacks_files": is_out_of_files(error)}
    return {"found": parts, "ends": None if ends is None else ends.timestamp()}


def _check_printed(parts: Iterable[object]) -> None:
    """Raise NotSent for what no header can hold."""
    if not all(isinstance(part, str) and _PRINTED.fullmatch(part) for part in parts):
        raise NotSent("what was found holds blanks, line breaks or other letters than ASCII, or is long")


def told(error: BaseException) -> str:
    """Return why a search failed, without what may have been found."""
    kind = type(error).__name__
    if _is_out_of_memory(error):
        return f"what answered is longer than {SEARCH_MEMORY >> 20} MiB"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error.args[0] if len(error.args) > 1 else error).split())[:300]
    if isinstance(error, NotSent | ImportError) or kind in _TOLD or text.startswith(_FOREIGN_HOST):
        return text or kind
    provider = getattr(error, "kwargs", {}).get("provider")
    return _REASONS.get(kind, kind if provider is None else f"{kind} ({provider})")


def _is_out_of_memory(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def _role() -> _Found:
    """Return the present keys of this machine's role."""
    from botocore.session import Session  # noqa: PLC0415  # loads much, and one search needs one library

    found: Any = Session().get_credentials()
    if found is None:
        raise NotSent("this machine has no role, and the environment names none")
    keys = found.get_frozen_credentials()
    return [keys.access_key, keys.secret_key, keys.token], getattr(found, "_expiry_time", None)


def _identity(
    scopes: list[str], proxy: str | None, proxy_headers: Mapping[str, str], timeout: float
) -> _Found:
    """Return a token of this machine's identity at Google Cloud."""
    import google.auth  # noqa: PLC0415  # as above
    import urllib3  # noqa: PLC0415  # as above
    from google.auth.transport.urllib3 import Request  # noqa: PLC0415  # as above

    bounds: Any = {"timeout": urllib3.Timeout(timeout), "retries": False}
    direct = through = cast("Any", Request)(urllib3.PoolManager(**bounds))
    if proxy is not None:
        through = cast("Any", Request)(urllib3.ProxyManager(proxy, proxy_headers=proxy_headers, **bounds))

    def request(url: str, *args: Any, **named: Any) -> Any:
        return (direct if _is_of_machine(url) else through)(url, *args, **named)

    identity: Any = google.auth.default(scopes=scopes, request=cast("Any", request))[0]
    identity.refresh(request)
    if identity.token is None:
        raise NotSent("this machine's identity has no token")
    return [identity.token], None if identity.expiry is None else identity.expiry.replace(tzinfo=UTC)


def _is_of_machine(url: str) -> bool:
    """Whether an address is that of the machine's own metadata, for which no proxy answers."""
    named = [
        os.environ.get(name, "") for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP")
    ]
    return urlsplit(url).netloc in {"metadata.google.internal", "169.254.169.254", *named}


if __name__ == "__main__":
    answer_on_standard_output()
