"""Parsing and verification of a provider's receipts: `[channels.NAME.receipt]`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deliveryd.options.pointer import Pointer
from deliveryd.options.units import SecretPaths


class SignatureOptions(BaseModel):
    """The signature of a receipt: a keyed hash of its raw body in a header, after `prefix`.

    All secrets in `secret_file` are valid, so that they can be rotated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
    secret_file: SecretPaths
    algorithm: Literal["hmac-sha256", "hmac-sha384", "hmac-sha512"] = "hmac-sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""

    def secrets(self) -> list[str]:
        """Read the secrets from their files. Raises ValueError."""
        return [secret.read() for secret in self.secret_file]

    @property
    def problems(self) -> list[str]:
        """Return why secrets can't be used."""
        return [problem for secret in self.secret_file if (problem := secret.problem()) is not None]


class ReceiptOptions(BaseModel):
    """The JSON Pointers of a receipt's values, and the meaning of its statuses; others are ignored.

    `reference` is where the gateway echoes the message's key or ID, whichever it was given. With it, a
    receipt settles a message whose acceptance, and so whose provider ID, is unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    provider_id: Pointer
    status: Pointer
    delivered: Annotated[list[str], Field(min_length=1)]
    failed: list[str] = []
    reported_at: Pointer | None = None
    reference: Pointer | None = None
    signature: SignatureOptions | None = None

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        both = sorted(set(self.delivered) & set(self.failed))
        if both:
            raise ValueError(f"in both delivered and failed: {', '.join(both)}")
        return self
