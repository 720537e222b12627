"""Signs each request over what is sent: AWS Signature Version 4, and the scheme of Azure's services."""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote_to_bytes

from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.responses import Now, utc_now
from deliveryd.http.wire import Header, Headers, Target
from deliveryd.runtime.secret_file import RenewedValue


class RequestKey(Protocol):
    """A key that signs requests."""

    def sign(self, request: OutgoingRequest, now: datetime) -> Headers:
        """Return the headers that sign a request at an instant."""

    def secrets(self) -> Iterable[str]:
        """Return its secret parts."""


class Signed(list[Header]):
    """Headers, and the key that signed them."""

    def __init__(self, key: RequestKey, headers: Headers) -> None:
        super().__init__(headers)
        self.key = key


class Signing:
    """Authenticates requests by a key from files, which are read again when they change or are rejected.

    Raises ValueError if they can't be used.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[], RequestKey], now: Now = utc_now) -> None:
        self._key = RenewedValue(paths, make)
        self._now = now

    async def headers(self, request: OutgoingRequest) -> Headers:
        """Sign a request."""
        key = self._key.current()
        return Signed(key, key.sign(request, self._now()))

    async def renew(self, shown: Headers) -> bool:
        """Read the files again, unless another request has done so already."""
        key = shown.key if isinstance(shown, Signed) else None
        if self._key.current() == key:
            self._key.renew()
        return self._key.current() != key

    def secrets(self) -> Iterable[str]:
        """Return the secret parts of the key."""
        return self._key.current().secrets()

    async def aclose(self) -> None:
        """Nothing is open."""


_ACCESS_KEY_ID = re.compile(r"[A-Za-z0-9_]{16,128}")
_SECRET_KEY = re.compile(r"[A-Za-z0-9/+=]{40}")
_TOKEN = re.compile(r"[!-~]+")
_USUAL_ID = re.compile(r"A[A-Z]{3}[A-Z0-9]{16}")


def access_key_id(text: str) -> str:
    """Return an access key ID of AWS. Raises ValueError, without the text, for what can't be one."""
    if _ACCESS_KEY_ID.fullmatch(text):
        return text
    if _SECRET_KEY.fullmatch(text):
        raise ValueError("has the form of a secret access key, not of an access key ID: swap the two files")
    raise ValueError("must be an access key ID: 16 to 128 letters and digits, such as AKIA...")


def secret_access_key(text: str) -> str:
    """Return a secret access key of AWS. Raises ValueError, without the text, for what can't be one."""
    if _SECRET_KEY.fullmatch(text):
        return text
    if _USUAL_ID.fullmatch(text):
        raise ValueError("has the form of an access key ID, not of a secret access key: swap the two files")
    raise ValueError("must be a secret access key: 40 letters, digits, + and /")


def session_token(text: str) -> str:
    """Return a session token of AWS. Raises ValueError, without the text, for what can't be one."""
    if _TOKEN.fullmatch(text):
        return text
    raise ValueError("must be a session token: ASCII without blanks")


_CHANGED_ON_THE_WAY = frozenset({"user-agent", "x-amzn-trace-id"})
"""Headers that proxies may change, and that no client of AWS signs."""


class AwsKey(NamedTuple):
    """Credentials for a service of AWS in a region. `token` comes with temporary ones."""

    access_key: str
    secret_key: str
    region: str
    service: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"AwsKey({self.region!r}, {self.service!r})"

    def secrets(self) -> Iterable[str]:
        """Return the secret access key and the session token."""
        return [self.secret_key, *([] if self.token is None else [self.token])]

    def sign(self, request: OutgoingRequest, now: datetime) -> Headers:
        """Sign by Signature Version 4: method, path, query, all headers, and the body's digest."""
        at = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        digest = hashlib.sha256(request.body).hexdigest()
        added = [(b"x-amz-date", at.encode()), (b"x-amz-content-sha256", digest.encode())]
        if self.token is not None:
            added.append((b"x-amz-security-token", self.token.encode("ascii")))
        signed = _canonical_headers(request.target, [*request.headers, *added])
        names = ";".join(signed)
        path, query = _path_and_query(request.target)
        canonical = "\n".join(
            (
                request.method,
                _canonical_path(path, self.service),
                _canonical_query(query),
                *(f"{name}:{value}" for name, value in signed.items()),
                "",
                names,
                digest,
            )
        )
        scope = f"{at[:8]}/{self.region}/{self.service}/aws4_request"
        hashed = hashlib.sha256(canonical.encode("latin-1")).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashed}"
        signature = hmac.new(self._signing_key(at[:8]), text.encode(), hashlib.sha256).hexdigest()
        credential = f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}"
        header = f"{credential}, SignedHeaders={names}, Signature={signature}"
        return [*added, (b"authorization", header.encode("ascii"))]

    def _signing_key(self, day: str) -> bytes:
        key = f"AWS4{self.secret_key}".encode()
        for part in (day, self.region, self.service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return key


def _canonical_headers(target: Target, headers: Headers) -> dict[str, str]:
    """Return the headers by name, sorted, repeated ones joined, runs of blanks in values as one."""
    found: dict[str, list[str]] = {"host": [target.authority]}
    for raw, value in headers:
        name = raw.decode("ascii").lower()
        if name not in _CHANGED_ON_THE_WAY:
            words = filter(None, re.split(r"[ \t]+", value.decode("latin-1")))
            found.setdefault(name, []).append(" ".join(words))
    return {name: ",".join(values) for name, values in sorted(found.items())}


def _path_and_query(target: Target) -> tuple[str, str]:
    path, _, query = target.path.decode("ascii").partition("?")
    return path, query


def _canonical_path(path: str, service: str) -> str:
    """Encode each segment once more than it is sent, without empty ones; S3 takes the path as it is sent."""
    return path if service == "s3" else quote(re.sub("/+", "/", path), safe="/-_.~")


def _canonical_query(query: str) -> str:
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return "&".join(f"{name}={value}" for name, value in sorted((_again(n), _again(v)) for n, _, v in pairs))


def _again(text: str) -> str:
    """Encode a part of a query again, so that only unreserved characters are left as they are."""
    return quote(unquote_to_bytes(text), safe="-_.~")


class AzureKey(NamedTuple):
    """An access key of an Azure Communication Services resource."""

    key: bytes

    def __repr__(self) -> str:
        return "AzureKey()"

    def secrets(self) -> Iterable[str]:
        """Return the key as the portal shows it."""
        return [b64encode(self.key).decode()]

    @classmethod
    def read(cls, secret: str) -> AzureKey:
        """Read an access key as the portal shows it. Raises ValueError."""
        try:
            return cls(b64decode(secret, validate=True))
        except ValueError:
            raise ValueError("must be an access key in base64") from None

    def sign(self, request: OutgoingRequest, now: datetime) -> Headers:
        """Sign method, path with query, date, host and the body's digest."""
        date = format_datetime(now.astimezone(UTC), usegmt=True)
        digest = b64encode(hashlib.sha256(request.body).digest()).decode()
        path = request.target.path.decode("ascii")
        text = f"{request.method}\n{path}\n{date};{request.target.authority};{digest}"
        signature = b64encode(hmac.digest(self.key, text.encode(), "sha256")).decode()
        header = f"HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256&Signature={signature}"
        return [
            (b"x-ms-date", date.encode()),
            (b"x-ms-content-sha256", digest.encode()),
            (b"authorization", header.encode()),
        ]
