"""The tables of `auth` for tokens and signatures."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictBool, model_validator

from deliveryd.errors import how_to_install
from deliveryd.http.apns_tokens import ProviderKey
from deliveryd.http.oauth2 import read_service_account, read_signing_key
from deliveryd.http.request_signing import AzureKey, access_key_id, secret_access_key, session_token
from deliveryd.http.target import target_of
from deliveryd.network.address import SECURE_ADDRESS, goes_out_plain, plain_text_problem
from deliveryd.options.authentication import unusable_secret
from deliveryd.options.connections import ProxyOptions, TlsOptions, tls_problems
from deliveryd.options.tables import Table
from deliveryd.options.units import SecretDocumentPath, SecretPath

OWN_FIELDS = frozenset(
    {"grant_type", "scope", "client_id", "client_secret", "client_assertion", "client_assertion_type"}
)
"""Fields of a request for a token that the other keys decide about."""


def _address(url: str) -> str:
    target_of(url)
    if "#" in url:
        raise ValueError("an address of a token server has no fragment")
    return url


def _check_installed(is_needed: bool, package: str, extra: str) -> None:
    if is_needed and not _is_installed(package):
        raise ValueError("from_environment needs a package that isn't installed" + how_to_install(extra))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


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
        yield from unusable_secret("key_file", self.key_file, read_signing_key)
        if problem := self.plain_text_problem():
            yield f"proxy: {problem}"
        yield from tls_problems("tls", self.tls.files())
        if not self.allow_plain_text and goes_out_plain(self.token_url, self.proxy):
            host = urlsplit(self.token_url).netloc
            yield f"token_url: {plain_text_problem('the token', host, SECURE_ADDRESS)}"


class GoogleOptions(ProxyOptions):
    """Tokens for a service account of Google Cloud."""

    key_file: SecretDocumentPath | None = Field(
        None, description="key of the service account, JSON as Google issues it"
    )
    from_environment: StrictBool = Field(
        False,
        description="tokens of the identity that this machine has (workload identity) instead; extra google",
    )
    scope: str = Field(min_length=1, description="what the token is for, separated by blanks")

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.from_environment is (self.key_file is not None):
            raise ValueError("give one of key_file and from_environment = true")
        _check_installed(self.from_environment, "google.auth", "google")
        return self

    def problems(self) -> Iterator[str]:
        """Yield what keeps a readable file and the proxy from being used, as `key: what`."""
        yield from unusable_secret("key_file", self.key_file, read_service_account)
        if problem := self.plain_text_problem():
            yield f"proxy: {problem}"


class SigV4Options(Table):
    """Signatures for services of AWS (Signature Version 4)."""

    region: Annotated[str, Field(pattern="^[a-z0-9-]+$")] = Field(description="region, such as eu-central-1")
    service: Annotated[str, Field(pattern="^[a-z0-9-]+$")] = Field(
        description="name in signatures, such as ses"
    )
    access_key_file: SecretPath | None = Field(None, description="access key ID")
    secret_key_file: SecretPath | None = Field(None, description="secret access key")
    session_token_file: SecretPath | None = Field(None, description="session token of temporary keys")
    from_environment: StrictBool = Field(
        False, description="keys of the role of this container, instance or web identity instead; extra aws"
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        files = (self.access_key_file, self.secret_key_file)
        if self.from_environment:
            if any(file is not None for file in (*files, self.session_token_file)):
                raise ValueError("from_environment = true needs no files of keys; remove them")
        elif any(file is None for file in files):
            raise ValueError("give access_key_file and secret_key_file, or from_environment = true")
        _check_installed(self.from_environment, "botocore", "aws")
        return self

    def problems(self) -> Iterator[str]:
        """Yield what keeps readable files from being used, as `key: what`."""
        yield from unusable_secret("access_key_file", self.access_key_file, access_key_id)
        yield from unusable_secret("secret_key_file", self.secret_key_file, secret_access_key)
        yield from unusable_secret("session_token_file", self.session_token_file, session_token)


class AzureOptions(Table):
    """Signatures for Azure Communication Services."""

    key_file: SecretPath = Field(description="access key of the resource")

    def problems(self) -> Iterator[str]:
        """Yield what keeps a readable file from being used, as `key: what`."""
        yield from unusable_secret("key_file", self.key_file, AzureKey.read)


class ApnsOptions(Table):
    """Provider tokens for Apple's push service (APNs)."""

    key_file: SecretPath = Field(description="key of the team, P-256, PEM as Apple issues it (.p8)")
    key_id: Annotated[str, Field(pattern="^[A-Z0-9]{10}$")] = Field(description="id of the key")
    team_id: Annotated[str, Field(pattern="^[A-Z0-9]{10}$")] = Field(description="id of the team")

    def problems(self) -> Iterator[str]:
        """Yield what keeps a readable file from being used, as `key: what`."""
        yield from unusable_secret("key_file", self.key_file, ProviderKey.read)
