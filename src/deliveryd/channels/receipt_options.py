"""How a provider's receipts are read and verified: `[channels.NAME.receipt]`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deliveryd.options.pointer import Pointer
from deliveryd.options.units import SecretPaths


class SignatureOptions(BaseModel):
    """How a receipt proves where it comes from: a keyed hash of its raw body in a header, after `prefix`.

    Each of the secrets in `secret_file` is valid: there are two while the provider goes over to a new one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
    secret_file: SecretPaths
    algorithm: Literal["hmac-sha256", "hmac-sha384", "hmac-sha512"] = "hmac-sha256"
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""

    def secrets(self) -> list[str]:
        """The secrets, read from their files now. Raises ValueError."""
        return [secret.read() for secret in self.secret_file]

    @property
    def problems(self) -> list[str]:
        """Why secrets can't be used."""
        return [problem for secret in self.secret_file if (problem := secret.problem()) is not None]


class ReceiptOptions(BaseModel):
    """Where in a receipt's JSON its values stand, and which statuses mean what; others change nothing.

    `reference` is where the gateway echoes the message's key or its id, whichever it was given. By it a
    receipt settles a message of which no acceptance, and so no id of the provider, is known.
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
            raise ValueError(f"both delivered and failed: {', '.join(both)}")
        return self
