"""Requests as a provider signs them, and whether a scheme of the configuration accepts them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from deliveryd.channels.receipt_options import SignatureOptions
from deliveryd.channels.signature_options import Signature
from deliveryd.model import SECOND
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Forged
from deliveryd.receipts.verification import open_scheme, signed_content

NOW = 1_795_286_400


FORM = "application/x-www-form-urlencoded"


class Table(BaseModel):
    """A configuration table with a signature."""

    model_config = ConfigDict(extra="forbid")

    signature: SignatureOptions


def options(**table: Any) -> Signature:
    parsed: Signature = Table.model_validate({"signature": table}).signature
    return parsed


def request(
    body: bytes = b"", method: str = "POST", url: str = "https://cb.example/receipts/sms", **headers: str
) -> ReceiptRequest:
    """A request as it arrives: header names in lower case; `_` in their names stands for `-`."""
    address, _, query = url.partition("?")
    base, slash, path = address.partition("example/")
    raw = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    return ReceiptRequest(
        method, f"{slash[-1:]}{path}", query.encode(), raw, body, base=f"{base}{slash[:-1]}"
    )


def form(text: str, **others: Any) -> ReceiptRequest:
    return request(text.encode(), content_type=FORM, **others)


def is_genuine(table: dict[str, Any], secret: str, sent: ReceiptRequest, now: float = NOW) -> bool:
    scheme = open_scheme(options(**{"secret_file": "/unused", **table}))
    try:
        signed_content(
            scheme, sent, list(map(scheme.read_key, ["another-secret-xyz", secret])), int(now * SECOND)
        )
    except Forged:
        return False
    return True
