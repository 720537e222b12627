"""How providers sign their reports other than by a keyed hash: one model for each scheme."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from deliveryd.channels.signature_options import LATE, LEAST_SECRET, HeaderName, HmacSignature, Signature
from deliveryd.options.units import Positive


def _place_of_token(place: str) -> str:
    kind, _, name = place.partition(":")
    if place == "path" or (kind in ("query", "header") and name):
        return place
    raise ValueError('expected "path", "query:NAME" or "header:NAME"')


PlaceOfToken = Annotated[str, AfterValidator(_place_of_token)]


class StandardWebhooksSignature(Signature):
    """Standard Webhooks, also under the names of Svix."""

    scheme: Literal["standard-webhooks"] = Field(description="Standard Webhooks")
    prefix: Literal["webhook-", "svix-"] = Field("webhook-", description="beginning of the headers' names")
    tolerance: Positive = Field(LATE, description="largest difference between the time of signing and now")

    @property
    def signed_headers(self) -> Collection[str]:
        """The id and the time of signing."""
        return (f"{self.prefix}id", f"{self.prefix}timestamp")


class TwilioSignature(Signature):
    """Twilio's X-Twilio-Signature over the public address and the form."""

    scheme: Literal["twilio"] = Field(description="Twilio")

    @property
    def covers_url(self) -> bool:
        """The address is signed."""
        return True


class PlivoSignature(Signature):
    """Plivo's signature of version 3 over the public address, its query and the form."""

    scheme: Literal["plivo"] = Field(description="Plivo, version 3")

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
        ["payload_hash"],
        description="claims that must fit: SHA-256 of the body, which a body always needs; of the address",
    )
    issuer: str | None = Field(None, description="required claim iss; left out: any")
    tolerance: Positive = Field(LATE, description="largest difference between the time of signing and now")

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

    @property
    def signed_headers(self) -> Collection[str]:
        """The time of signing."""
        return (self.timestamp_header.lower(),)


class MailgunSignature(Signature):
    """Mailgun's signature in the body, which covers a time and a token."""

    scheme: Literal["mailgun"] = Field(description="Mailgun")
    tolerance: Positive = Field(43200.0, description="largest difference between the time of signing and now")


class SnsSignature(Signature):
    """Amazon SNS: signed by a certificate that the message names and only Amazon can offer.

    `secret_file` holds the certificate of a stand-in for Amazon (PEM), which signs instead: for trials.
    """

    needs_secret: ClassVar[bool] = False

    scheme: Literal["sns"] = Field(description="Amazon SNS")
    topics: Annotated[list[str], Field(min_length=1)] = Field(description="accepted topics, as ARN")
    tolerance: Positive = Field(3600.0, description="largest difference between the time of signing and now")


class BasicSignature(Signature):
    """User name and password in each request; the secret is the password, of at least 16 characters."""

    least_secret: ClassVar[int] = LEAST_SECRET

    scheme: Literal["basic"] = Field(description="user name and password")
    username: Annotated[str, Field(pattern=r"^[^:]+$")] = Field(description="user name")

    def signs(self, _place: str) -> bool:
        """A sender with the secret may report anything."""
        return True


class TokenSignature(Signature):
    """A secret of at least 16 characters in each request, in its path, its query or a header."""

    least_secret: ClassVar[int] = LEAST_SECRET

    scheme: Literal["token"] = Field(description="secret in the request")
    at: PlaceOfToken = Field(description='"path": a last part of the path; "query:NAME"; "header:NAME"')
    prefix: str = Field("", description='text before the secret, such as "Bearer "')

    def signs(self, _place: str) -> bool:
        """A sender with the secret may report anything."""
        return True


class EventGridSignature(TokenSignature):
    """A secret of at least 16 characters in each request, and Azure's handshake for a subscription."""

    scheme: Literal["event-grid"] = Field(description="Azure Event Grid")  # type: ignore[assignment]


class GoogleRcsSignature(Signature):
    """RCS for Business: a keyed hash of the event in the envelope; the secret is the agent's client token."""

    scheme: Literal["google-rcs"] = Field(description="RCS for Business")


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
    "event-grid": EventGridSignature,
    "google-rcs": GoogleRcsSignature,
}
"""The options of each scheme."""
