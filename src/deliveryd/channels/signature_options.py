"""How a provider signs its reports: `[channels.NAME.receipt.signature]`, by `hmac` or another scheme."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    model_validator,
)

from deliveryd.http.finder import HEADER, QUERY, FinderText
from deliveryd.options.tables import Table
from deliveryd.options.units import Positive, SecretPaths
from deliveryd.runtime.secret_file import SecretFile

Secrets = Mapping[str, tuple[SecretFile, ...]]
"""A provider's secrets by their names."""

SIGNED_PARTS = re.compile(r"\{(body|url|method|timestamp|header:[A-Za-z0-9!#$%&'*+.^_`|~-]+)\}")
"""Placeholders of `signed`."""

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
LEAST_SECRET = 16
"""Characters of a secret that requests carry as it is: it mustn't be guessed."""

LATE = 300.0
"""Largest difference in seconds between the time of signing and now, unless a scheme has another."""


def _template(signed: str) -> str:
    for placeholder in _PLACEHOLDER.findall(signed):
        if SIGNED_PARTS.fullmatch(placeholder) is None:
            raise ValueError(
                f"{placeholder} isn't known here; use {{body}}, {{url}}, {{method}}, {{timestamp}}"
                " or {header:NAME}"
            )
    if "{body}" not in signed and "{url}" not in signed:
        raise ValueError("must contain {body} or {url}: otherwise a signature fits any report")
    return signed


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
SignedTemplate = Annotated[str, AfterValidator(_template)]


class NamedSecret(Table):
    """A table with a secret: from files of its own, or one of the provider's secrets.

    Several are valid at once, so that they can be rotated.
    """

    needs_secret: ClassVar[bool] = True

    secret_file: SecretPaths = Field((), description="secret; during a rotation several, all valid")
    secret: str | None = Field(None, description="name of one of the provider's secrets, instead")

    @model_validator(mode="after")
    def _has_a_secret(self) -> Self:
        if self.needs_secret and bool(self.secret_file) == (self.secret is not None):
            raise ValueError("needs one of secret_file and secret")
        return self

    def with_secrets(self, secrets: Secrets) -> Self:
        """Return the options with the files of the secret that they name. Raises ValueError."""
        if self.secret is None:
            return self
        if self.secret not in secrets:
            raise ValueError(f"secret: there is no {self.secret} in secrets")
        return self.model_copy(update={"secret_file": secrets[self.secret]})


class Signature(NamedSecret):
    """What all schemes have in common."""

    least_secret: ClassVar[int] = 1

    def secrets(self) -> list[str]:
        """Read the secrets from their files. Raises ValueError, also for one that can be guessed."""
        return [self._read(file) for file in self.secret_file]

    def _read(self, file: SecretFile) -> str:
        secret = file.read()
        if len(secret) < self.least_secret:
            raise ValueError(
                f"must have at least {self.least_secret} characters: openssl rand -hex 32 >{file.path}"
            )
        return secret

    @property
    def problems(self) -> list[str]:
        """Return why secrets can't be used; the files of the provider's `secrets` are checked there."""
        return [text for secret in self.secret_file if (text := self._problem_of(secret)) is not None]

    def _problem_of(self, file: SecretFile) -> str | None:
        try:
            self._read(file)
        except ValueError as error:
            return None if self.secret is not None and file.problem() is not None else str(error)
        return None

    @property
    def covers_url(self) -> bool:
        """Whether the public address of the worker is part of what is signed."""
        return False

    def signs(self, place: str) -> bool:
        """Whether what stands at a place such as "query:status" is signed, also beside a body."""
        if place.startswith(HEADER):
            return place.removeprefix(HEADER).lower() in self.signed_headers
        return self.covers_url or not place.startswith(QUERY)

    @property
    def signed_headers(self) -> Collection[str]:
        """The headers that are signed, in lower case."""
        return ()


class HmacSignature(Signature):
    """A keyed hash of the raw body, or of a template that contains it."""

    scheme: Literal["hmac"] = Field("hmac", description="keyed hash")
    header: HeaderName | None = Field(None, description="header that holds the signature")
    at: FinderText | None = Field(None, description='place of the signature instead, such as "query:sig"')
    algorithm: Literal["hmac-sha256", "hmac-sha384", "hmac-sha512", "hmac-sha1", "hmac-md5"] = Field(
        "hmac-sha256", description="keyed hash"
    )
    encoding: Literal["hex", "base64"] = Field("hex", description="how the hash is written")
    prefix: str = Field("", description='text before the hash, such as "sha256="')
    signed: SignedTemplate = Field(
        "{body}", description="what is signed; {body}, {url}, {method}, {timestamp}, {header:NAME}"
    )
    timestamp: FinderText | None = Field(
        None, description='place of the time of signing, in seconds or milliseconds, such as "header:X-Time"'
    )
    tolerance: Positive = Field(LATE, description="largest difference between that time and now")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.header is None) == (self.at is None):
            raise ValueError("needs one of header and at")
        if ("{timestamp}" in self.signed) != (self.timestamp is not None):
            raise ValueError("timestamp and {timestamp} in signed need each other")
        return self

    @property
    def covers_url(self) -> bool:
        """Whether the template contains the address."""
        return "{url}" in self.signed

    @property
    def signed_headers(self) -> Collection[str]:
        """The headers of the template, and the one that holds the time of signing."""
        parts = [*SIGNED_PARTS.findall(self.signed), self.timestamp or ""]
        return [part.removeprefix(HEADER).lower() for part in parts if part.startswith(HEADER)]
