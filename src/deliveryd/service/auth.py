"""Authentication of requests; the interface leaves it open, so it is configured (design 5)."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deliveryd.options.units import SecretPath
from deliveryd.runtime.secret_file import SecretFile

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-length", "content-type", "expect", "host",
        "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade", "user-agent",
    }
)  # fmt: skip
"""Headers that the client writes itself, and so can't be used for authentication."""


class AuthOptions(BaseModel):
    """One of: bearer token; user name with password; any header with its value. Secrets are in files."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    token_file: SecretPath | None = Field(None, description="bearer token")
    username: str | None = Field(None, description="basic authentication, together with password_file")
    password_file: SecretPath | None = Field(None, description="password of basic authentication")
    header: str | None = Field(None, description="name of any other header, together with value_file")
    value_file: SecretPath | None = Field(None, description="value of that header")

    @model_validator(mode="after")
    def _one_way(self) -> AuthOptions:
        for one, other in (("username", "password_file"), ("header", "value_file")):
            if (getattr(self, one) is None) is not (getattr(self, other) is None):
                raise ValueError(f"{one} and {other} must be given together")
        if sum(way is not None for way in (self.token_file, self.username, self.header)) > 1:
            raise ValueError("give one of token_file, username + password_file, header + value_file")
        if self.header is not None and not _HEADER_NAME.fullmatch(self.header):
            raise ValueError("header isn't a name of an HTTP header")
        if self.header is not None and self.header.lower() in _OWN_HEADERS:
            raise ValueError(f"the header {self.header} is written by the client itself")
        if self.username is not None and (":" in self.username or not self.username.isprintable()):
            raise ValueError("username must be printable and must not contain a colon")
        return self

    @property
    def paths(self) -> Sequence[Path]:
        """Return the secrets' files."""
        files = (self.token_file, self.password_file, self.value_file)
        return [file.path for file in files if file is not None]

    @property
    def is_given(self) -> bool:
        """Whether requests are authenticated."""
        return any(way is not None for way in (self.token_file, self.username, self.header))

    def headers(self) -> Sequence[tuple[str, str]]:
        """Return the headers that authenticate a request, read from the files now. Raises ValueError."""
        if self.token_file is not None:
            return [("authorization", f"Bearer {_visible(self.token_file)}")]
        if self.username is not None and self.password_file is not None:
            pair = f"{self.username}:{self.password_file.read()}".encode()
            return [("authorization", f"Basic {base64.b64encode(pair).decode()}")]
        if self.header is not None and self.value_file is not None:
            return [(self.header.lower(), _visible(self.value_file))]
        return []


def _visible(file: SecretFile) -> str:
    secret = file.read()
    if not secret.isascii():
        raise ValueError(f"{file.path} contains characters not allowed in a header: only ASCII is")
    return secret
