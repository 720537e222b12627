"""Parsing and verification of a provider's receipts: `[channels.NAME.receipt]`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deliveryd.options.pointer import Pointer
from deliveryd.options.units import SecretPaths


class SignatureOptions(BaseModel):
    """How a receipt is verified: a keyed hash of its raw body, in a header."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")] = Field(
        description="header that holds the signature"
    )
    secret_file: SecretPaths = Field(description="key of the hash; during a rotation several, all valid")
    algorithm: Literal["hmac-sha256", "hmac-sha384", "hmac-sha512"] = Field(
        "hmac-sha256", description="keyed hash of the raw body"
    )
    encoding: Literal["hex", "base64"] = Field("hex", description="how the hash is written")
    prefix: str = Field("", description='text before the hash, such as "sha256="')

    def secrets(self) -> list[str]:
        """Read the secrets from their files. Raises ValueError."""
        return [secret.read() for secret in self.secret_file]

    @property
    def problems(self) -> list[str]:
        """Return why secrets can't be used."""
        return [problem for secret in self.secret_file if (problem := secret.problem()) is not None]


class ReceiptOptions(BaseModel):
    """Where the values of a receipt's JSON are, and what its statuses mean.

    With `reference` a receipt also settles a message whose acceptance, and so the provider's id, is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    provider_id: Pointer = Field(description="JSON Pointer to the provider's id of the message")
    status: Pointer = Field(description="JSON Pointer to the status")
    delivered: Annotated[list[str], Field(min_length=1)] = Field(description="statuses that mean delivered")
    failed: list[str] = Field([], description="statuses that mean failed; any other changes nothing")
    reported_at: Pointer | None = Field(
        None, description="JSON Pointer to the time; left out: when the report came"
    )
    reference: Pointer | None = Field(
        None, description="JSON Pointer to the echoed {message.key} or {message.id}"
    )
    signature: SignatureOptions | None = Field(None, description="left out: reports aren't verified")

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        both = sorted(set(self.delivered) & set(self.failed))
        if both:
            raise ValueError(f"in both delivered and failed: {', '.join(both)}")
        return self
