"""Authentication of requests: one kind of table for every server that is called over HTTP (design 5)."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from deliveryd.http.target import target_of
from deliveryd.network.address import SECURE_ADDRESS, goes_out_plain, plain_text_problem
from deliveryd.options.connections import ProxyOptions, TlsOptions, tls_problems
from deliveryd.options.tables import OnUse, Table, leaves
from deliveryd.options.units import SecretDocumentPath, SecretPath
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


def _address(url: str) -> str:
    target_of(url)
    if "#" in url:
        raise ValueError("an address of a token server has no fragment")
    return url


class OAuth2Options(ProxyOptions):
    """Tokens for a client: a secret, a key or a certificate proves which client asks."""

    token_url: Annotated[str, AfterValidator(_address)] = Field(description="address of the token server")
    client_id: str = Field(min_length=1, description="name of the client there")
    client_secret_file: SecretPath | None = Field(None, description="secret of the client")
    sent_in: Literal["header", "body"] = Field("header", description="where the secret is sent")
    key_file: SecretPath | None = Field(None, description="key of the client instead, RSA or P-256, PEM")
    key_id: str | None = Field(None, description="name of the key, if the server has several")
    audience: str | None = Field(None, description="with key_file: for whom assertions are; none: token_url")
    scope: str | None = Field(None, description="what the token is for, separated by blanks")
    parameters: dict[str, str] = Field({}, description="further fields of the request, such as resource")
    tls: TlsOptions = Field(TlsOptions.model_construct(), description="certificates")

    @model_validator(mode="after")
    def _proves_the_client(self) -> Self:
        ways = (self.client_secret_file, self.key_file, self.tls.cert_file)
        if sum(way is not None for way in ways) != 1:
            raise ValueError("give one of client_secret_file, key_file, tls.cert_file")
        if self.key_file is None and (self.key_id is not None or self.audience is not None):
            raise ValueError("key_id and audience need key_file")
        if own := OWN_FIELDS & self.parameters.keys():
            raise ValueError(f"parameters: {min(own)} is sent by another key")
        return self

    def problems(self) -> Iterator[str]:
        """Yield what keeps readable files and the addresses from being used, as `key: what`."""
        from deliveryd.http.oauth2 import read_signing_key  # noqa: PLC0415  # few need it

        yield from _unfit("key_file", self.key_file, read_signing_key)
        if problem := self.plain_text_problem():
            yield f"proxy: {problem}"
        yield from tls_problems("tls", self.tls.files())
        if not self.allow_plain_text and goes_out_plain(self.token_url, self.proxy):
            host = urlsplit(self.token_url).netloc
            yield f"token_url: {plain_text_problem('the token', host, SECURE_ADDRESS)}"


class GoogleOptions(ProxyOptions):
    """Tokens for a service account of Google Cloud."""

    key_file: SecretDocumentPath = Field(description="key of the service account, JSON as Google issues it")
    scope: str = Field(min_length=1, description="what the token is for, separated by blanks")

    def problems(self) -> Iterator[str]:
        """Yield what keeps a readable file and the proxy from being used, as `key: what`."""
        from deliveryd.http.oauth2 import read_service_account  # noqa: PLC0415  # few need it

        yield from _unfit("key_file", self.key_file, read_service_account)
        if problem := self.plain_text_problem():
            yield f"proxy: {problem}"


class SigV4Options(Table):
    """Signatures for services of AWS (Signature Version 4)."""

    region: Annotated[str, Field(pattern="^[a-z0-9-]+$")] = Field(description="region, such as eu-central-1")
    service: Annotated[str, Field(pattern="^[a-z0-9-]+$")] = Field(
        description="name in signatures, such as ses"
    )
    access_key_file: SecretPath = Field(description="access key ID")
    secret_key_file: SecretPath = Field(description="secret access key")
    session_token_file: SecretPath | None = Field(None, description="session token of temporary keys")

    def problems(self) -> Iterator[str]:
        """Yield what keeps readable files from being used, as `key: what`."""
        yield from _unfit("access_key_file", self.access_key_file, check_ascii)
        yield from _unfit("session_token_file", self.session_token_file, check_ascii)


class AzureOptions(Table):
    """Signatures for Azure Communication Services."""

    key_file: SecretPath = Field(description="access key of the resource")

    def problems(self) -> Iterator[str]:
        """Yield what keeps a readable file from being used, as `key: what`."""
        from deliveryd.http.request_signing import AzureKey  # noqa: PLC0415  # few need it

        yield from _unfit("key_file", self.key_file, AzureKey.read)


OWN_FIELDS = frozenset(
    {"grant_type", "scope", "client_id", "client_secret", "client_assertion", "client_assertion_type"}
)
"""Fields of a request for a token that the other keys decide about."""


_AWS_HEADERS = frozenset({"x-amz-date", "x-amz-content-sha256", "x-amz-security-token"})
_AZURE_HEADERS = frozenset({"x-ms-date", "x-ms-content-sha256"})

_WAYS = ("token_file", "username", "header", "oauth2", "google", "sigv4", "azure")
"""Keys that choose a way; two of them come with another key."""


class AuthOptions(Table):
    """One way to authenticate requests; secrets are in files, which are read again when they change."""

    token_file: SecretPath | None = Field(None, description="bearer token")
    username: str | None = Field(None, description="basic authentication, together with password_file")
    password_file: SecretPath | None = Field(None, description="password of basic authentication")
    header: str | None = Field(None, description="name of any other header, together with value_file")
    value_file: SecretPath | None = Field(None, description="value of that header")
    oauth2: OnUse[OAuth2Options] | None = Field(None, description="tokens of an OAuth2 server")
    google: OnUse[GoogleOptions] | None = Field(None, description="tokens for a service account of Google")
    sigv4: OnUse[SigV4Options] | None = Field(None, description="signatures for AWS")
    azure: OnUse[AzureOptions] | None = Field(None, description="signatures for Azure Communication Services")

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
    def table(self) -> OAuth2Options | GoogleOptions | SigV4Options | AzureOptions | None:
        """Return the table that chooses the way, if it is one."""
        return self.oauth2 or self.google or self.sigv4 or self.azure

    def problems(self) -> Iterator[str]:
        """Yield the problems of its files and addresses, as `key: what`."""
        for key, value in leaves(self):
            if isinstance(value, SecretFile) and (problem := value.problem()) is not None:
                yield f"{key}: {problem}"
        yield from self.other_problems()

    def other_problems(self) -> Iterator[str]:
        """Yield what keeps files that can be read, and addresses, from being used, as `key: what`."""
        yield from _unfit("token_file", self.token_file, check_ascii)
        yield from _unfit("value_file", self.value_file, check_ascii)
        if self.table is not None:
            yield from (f"{self.way}.{problem}" for problem in self.table.problems())


def _unfit(key: str, file: SecretFile | None, read: Callable[[str], object]) -> Iterator[str]:
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
