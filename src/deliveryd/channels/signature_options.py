"""How a provider signs its reports: `[channels.NAME.receipt.signature]`, one model for each scheme."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from deliveryd.http.finder import FinderText
from deliveryd.options.units import Positive, SecretPaths
from deliveryd.runtime.secret_file import SecretFile

Secrets = Mapping[str, tuple[SecretFile, ...]]
"""A provider's secrets by their names."""

SIGNED_PARTS = re.compile(r"\{(body|url|method|timestamp|header:[A-Za-z0-9!#$%&'*+.^_`|~-]+)\}")
"""Placeholders of `signed`."""

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_LATE = 300.0


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


def _place_of_token(place: str) -> str:
    kind, _, name = place.partition(":")
    if place == "path" or (kind in ("query", "header") and name):
        return place
    raise ValueError('expected "path", "query:NAME" or "header:NAME"')


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
SignedTemplate = Annotated[str, AfterValidator(_template)]
PlaceOfToken = Annotated[str, AfterValidator(_place_of_token)]


class Signature(BaseModel):
    """What all schemes have in common. Several secrets are valid at once, so that they can be rotated."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

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
            raise ValueError(f"signature.secret: there is no {self.secret} in secrets")
        return self.model_copy(update={"secret_file": secrets[self.secret]})

    def secrets(self) -> list[str]:
        """Read the secrets from their files. Raises ValueError."""
        return [secret.read() for secret in self.secret_file]

    @property
    def problems(self) -> list[str]:
        """Return why secrets can't be used."""
        return [problem for secret in self.secret_file if (problem := secret.problem()) is not None]

    @property
    def covers_url(self) -> bool:
        """Whether the public address of the worker is part of what is signed."""
        return False


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
    tolerance: Positive = Field(_LATE, description="largest difference between that time and now")

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


class StandardWebhooksSignature(Signature):
    """Standard Webhooks, also under the names of Svix."""

    scheme: Literal["standard-webhooks"] = Field(description="Standard Webhooks")
    prefix: Literal["webhook-", "svix-"] = Field("webhook-", description="beginning of the headers' names")
    tolerance: Positive = Field(_LATE, description="largest difference between the time of signing and now")


class TwilioSignature(Signature):
    """Twilio's X-Twilio-Signature over the public address and the form."""

    scheme: Literal["twilio"] = Field(description="Twilio")

    @property
    def covers_url(self) -> bool:
        """The address is signed."""
        return True


class PlivoSignature(Signature):
    """Plivo's signature over the public address and a nonce; version 3 covers the parameters, too."""

    scheme: Literal["plivo"] = Field(description="Plivo")
    versions: Annotated[list[Literal["v2", "v3"]], Field(min_length=1)] = Field(
        ["v2", "v3"], description="accepted versions; v2 covers neither query nor body"
    )

    @property
    def covers_url(self) -> bool:
        """The address is signed."""
        return True


class VonageSignature(Signature):
    """Vonage's `sig` over the sorted parameters (SMS API)."""

    scheme: Literal["vonage"] = Field(description="Vonage, SMS API")
    algorithm: Literal["md5", "hmac-md5", "hmac-sha1", "hmac-sha256", "hmac-sha512"] = Field(
        "hmac-sha256", description="the account's signature method"
    )
    tolerance: Positive | None = Field(
        None, description="largest difference between the parameter timestamp and now; left out: any"
    )


class JwtSignature(Signature):
    """A JSON Web Token with hashes of the body and of the address."""

    scheme: Literal["jwt"] = Field(description="JSON Web Token")
    header: HeaderName = Field("Authorization", description='header that holds it, with or without "Bearer "')
    algorithms: Annotated[list[Literal["HS256", "HS384", "HS512"]], Field(min_length=1)] = Field(
        ["HS256"], description="accepted algorithms"
    )
    covers: Annotated[list[Literal["payload_hash", "url_hash"]], Field(min_length=1)] = Field(
        ["payload_hash"], description="claims that must fit: SHA-256 of the body, of the address"
    )
    issuer: str | None = Field(None, description="required claim iss; left out: any")
    tolerance: Positive = Field(_LATE, description="largest difference between the time of signing and now")

    @property
    def covers_url(self) -> bool:
        """Whether the address is signed."""
        return "url_hash" in self.covers


class EcdsaSignature(Signature):
    """ECDSA over the time of signing and the raw body; the secret is the provider's public key."""

    scheme: Literal["ecdsa"] = Field(description="ECDSA, as SendGrid signs")
    header: HeaderName = Field(
        "X-Twilio-Email-Event-Webhook-Signature", description="header that holds the signature"
    )
    timestamp_header: HeaderName = Field(
        "X-Twilio-Email-Event-Webhook-Timestamp", description="header that holds the time of signing"
    )
    tolerance: Positive = Field(600.0, description="largest difference between that time and now")


class MailgunSignature(Signature):
    """Mailgun's signature in the body, which covers a time and a token."""

    scheme: Literal["mailgun"] = Field(description="Mailgun")
    tolerance: Positive = Field(43200.0, description="largest difference between the time of signing and now")


class SnsSignature(Signature):
    """Amazon SNS: signed by a certificate that the message names and only Amazon can offer."""

    needs_secret: ClassVar[bool] = False

    scheme: Literal["sns"] = Field(description="Amazon SNS")
    topics: Annotated[list[str], Field(min_length=1)] = Field(description="accepted topics, as ARN")
    tolerance: Positive = Field(3600.0, description="largest difference between the time of signing and now")


class BasicSignature(Signature):
    """User name and password in each request; the secret is the password."""

    scheme: Literal["basic"] = Field(description="user name and password")
    username: Annotated[str, Field(pattern=r"^[^:]+$")] = Field(description="user name")


class TokenSignature(Signature):
    """A secret in each request, in its path, its query or a header."""

    scheme: Literal["token"] = Field(description="secret in the request")
    at: PlaceOfToken = Field(description='"path": a last part of the path; "query:NAME"; "header:NAME"')
    prefix: str = Field("", description='text before the secret, such as "Bearer "')


def _scheme_of(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return getattr(value, "scheme", None)
    return value.get("scheme", "hmac") if isinstance(value, dict) else "hmac"


SCHEMES: Mapping[str, type[Signature]] = {
    "hmac": HmacSignature,
    "standard-webhooks": StandardWebhooksSignature,
    "twilio": TwilioSignature,
    "plivo": PlivoSignature,
    "vonage": VonageSignature,
    "jwt": JwtSignature,
    "ecdsa": EcdsaSignature,
    "mailgun": MailgunSignature,
    "sns": SnsSignature,
    "basic": BasicSignature,
    "token": TokenSignature,
}
"""The options of each scheme."""

SignatureOptions = Annotated[
    Annotated[HmacSignature, Tag("hmac")]
    | Annotated[StandardWebhooksSignature, Tag("standard-webhooks")]
    | Annotated[TwilioSignature, Tag("twilio")]
    | Annotated[PlivoSignature, Tag("plivo")]
    | Annotated[VonageSignature, Tag("vonage")]
    | Annotated[JwtSignature, Tag("jwt")]
    | Annotated[EcdsaSignature, Tag("ecdsa")]
    | Annotated[MailgunSignature, Tag("mailgun")]
    | Annotated[SnsSignature, Tag("sns")]
    | Annotated[BasicSignature, Tag("basic")]
    | Annotated[TokenSignature, Tag("token")],
    Discriminator(
        _scheme_of,
        custom_error_type="unknown_scheme",
        custom_error_message=f"unknown scheme; use one of {', '.join(SCHEMES)}",
    ),
]
"""The options of a signature, by `scheme`; without one it is `hmac`."""
