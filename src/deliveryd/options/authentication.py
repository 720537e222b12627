"""Authentication of requests: one kind of table for every server that is called over HTTP (design 5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Protocol, Self

from pydantic import Field, model_validator

from deliveryd.options.tables import LoadedOnUse, Table, leaves
from deliveryd.options.units import SecretPath
from deliveryd.runtime.secret_file import SecretFile

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-length", "content-type", "expect", "host",
        "idempotency-key", "keep-alive", "proxy-authorization", "proxy-connection", "te", "traceparent",
        "trailer", "transfer-encoding", "upgrade", "user-agent",
    }
)  # fmt: skip
"""Headers that the client writes itself, and so can't be used for authentication."""


_AWS_HEADERS = frozenset({"x-amz-date", "x-amz-content-sha256", "x-amz-security-token"})
_AZURE_HEADERS = frozenset({"x-ms-date", "x-ms-content-sha256"})


class AuthTable(Protocol):
    """A table of its own for a way that few configurations have: its module is loaded where it is given."""

    def problems(self) -> Iterator[str]:
        """Yield what keeps files that can be read, and addresses, from being used, as `key: what`."""


_TABLES = "deliveryd.options.authentication_tables"
_OAuth2 = Annotated[AuthTable, LoadedOnUse(_TABLES, "OAuth2Options")]
_Google = Annotated[AuthTable, LoadedOnUse(_TABLES, "GoogleOptions")]
_SigV4 = Annotated[AuthTable, LoadedOnUse(_TABLES, "SigV4Options")]
_Azure = Annotated[AuthTable, LoadedOnUse(_TABLES, "AzureOptions")]
_Apns = Annotated[AuthTable, LoadedOnUse(_TABLES, "ApnsOptions")]

_WAYS = ("token_file", "username", "header", "oauth2", "google", "sigv4", "azure", "apns")
"""Keys that choose a way; two of them come with another key."""


class AuthOptions(Table):
    """One way to authenticate requests; secrets are in files, which are read again when they change."""

    token_file: SecretPath | None = Field(None, description="bearer token")
    username: str | None = Field(None, description="basic authentication, together with password_file")
    password_file: SecretPath | None = Field(None, description="password of basic authentication")
    header: str | None = Field(None, description="name of any other header, together with value_file")
    value_file: SecretPath | None = Field(None, description="value of that header")
    oauth2: _OAuth2 | None = Field(None, description="tokens of an OAuth2 server")
    google: _Google | None = Field(None, description="tokens for a service account of Google")
    sigv4: _SigV4 | None = Field(None, description="signatures for AWS")
    azure: _Azure | None = Field(None, description="signatures for Azure Communication Services")
    apns: _Apns | None = Field(None, description="provider tokens for Apple's push service")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        for one, other in (("username", "password_file"), ("header", "value_file")):
            if (getattr(self, one) is None) is not (getattr(self, other) is None):
                raise ValueError(f"{one} and {other} must be given together")
        if len(self._ways) > 1:
            raise ValueError(f"give one of {', '.join(_WAYS)}")
        if self.header is not None and not _HEADER_NAME.fullmatch(self.header):
            raise ValueError("header isn't a name of an HTTP header")
        if self.header is not None and self.header.lower() in _OWN_HEADERS:
            raise ValueError(f"the header {self.header} is written by the client itself")
        if self.username is not None and (":" in self.username or not self.username.isprintable()):
            raise ValueError("username must be printable and must not contain a colon")
        return self

    @property
    def _ways(self) -> Sequence[str]:
        return [name for name in _WAYS if getattr(self, name) is not None]

    @property
    def way(self) -> str | None:
        """Return the key that chooses the way; None: requests aren't authenticated."""
        return next(iter(self._ways), None)

    @property
    def header_names(self) -> Collection[str]:
        """Return the headers that it sets, in lower case."""
        if not self.is_given:
            return frozenset()
        if self.header is not None:
            return {self.header.lower()}
        also = {"sigv4": _AWS_HEADERS, "azure": _AZURE_HEADERS}.get(self.way or "", frozenset())
        return {"authorization", *also}

    @property
    def is_given(self) -> bool:
        """Whether requests are authenticated."""
        return self.way is not None

    @property
    def table(self) -> AuthTable | None:
        """Return the table that chooses the way, if it is one."""
        return self.oauth2 or self.google or self.sigv4 or self.azure or self.apns

    def problems(self) -> Iterator[str]:
        """Yield the problems of its files and addresses, as `key: what`."""
        for key, value in leaves(self):
            if isinstance(value, SecretFile) and (problem := value.problem()) is not None:
                yield f"{key}: {problem}"
        yield from self.other_problems()

    def other_problems(self) -> Iterator[str]:
        """Yield what keeps files that can be read, and addresses, from being used, as `key: what`."""
        yield from unusable_secret("token_file", self.token_file, check_ascii)
        yield from unusable_secret("value_file", self.value_file, check_ascii)
        if self.table is not None:
            yield from (f"{self.way}.{problem}" for problem in self.table.problems())


def unusable_secret(key: str, file: SecretFile | None, read: Callable[[str], object]) -> Iterator[str]:
    """Yield why a secret that can be read can't be used."""
    if file is None or file.problem() is not None:
        return
    try:
        read(file.read())
    except ValueError as error:
        yield f"{key}: {file.path} {error}"


def check_ascii(secret: str) -> None:
    """Raise ValueError for a secret that no header can hold."""
    if not secret.isascii():
        raise ValueError("contains characters not allowed in a header: only ASCII is")


def secret_paths(table: Table) -> Sequence[Path]:
    """Return the secrets' files of a table."""
    return [value.path for _key, value in leaves(table) if isinstance(value, SecretFile)]


def visible(file: SecretFile) -> str:
    """Return a secret that is sent in a header as it is. Raises ValueError."""
    secret = file.read()
    try:
        check_ascii(secret)
    except ValueError as error:
        raise ValueError(f"{file.path} {error}") from None
    return secret
