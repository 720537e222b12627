"""Verify and parse a provider's report: pure functions on its raw bytes."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from deliveryd.channels.receipt_options import ReceiptOptions, SignatureOptions
from deliveryd.http.json_pointer import follow, parse_pointer, scalar_text
from deliveryd.model import Receipt, parse_instant

_MILLISECONDS_FROM = 100_000_000_000  # in seconds, this would be the year 5138


class Unreadable(ValueError):
    """A report doesn't match the configuration; the text names the place, never a value."""


class NoNews(NamedTuple):
    """A report with a status that is neither a delivery nor a failure."""


def is_genuine(options: SignatureOptions, secrets: Iterable[str], header: str | None, body: bytes) -> bool:
    """Whether the signature of the raw bytes matches one of the secrets, in constant time."""
    if header is None or not header.startswith(options.prefix):
        return False
    given = header.removeprefix(options.prefix).strip()
    try:
        signature = (
            bytes.fromhex(given) if options.encoding == "hex" else base64.b64decode(given, validate=True)
        )
    except (ValueError, binascii.Error):
        return False
    algorithm = options.algorithm.removeprefix("hmac-")
    expected = [hmac.digest(secret.encode(), body, algorithm) for secret in secrets]
    fits = [
        hmac.compare_digest(signature, each) for each in expected
    ]  # compare with all, so that the time doesn't depend on which one matches
    return any(fits)


def read_receipt(options: ReceiptOptions, provider: str, body: bytes, received_at: int) -> Receipt | NoNews:
    """Parse a report. Raises Unreadable."""
    try:
        report = json.loads(body)
    except (ValueError, RecursionError):
        raise Unreadable("the body isn't JSON") from None
    status = _text(report, options.status)
    delivered = status in options.delivered
    if not delivered and status not in options.failed:
        return NoNews()
    provider_id = _text(report, options.provider_id)
    reported_at = received_at if options.reported_at is None else _instant(report, options.reported_at)
    reference = None if options.reference is None else _text_if_any(report, options.reference)
    return Receipt(provider, provider_id, delivered, status, reported_at, received_at, reference)


def _text_if_any(report: object, pointer: str) -> str | None:
    return scalar_text(follow(report, parse_pointer(pointer)))


def _text(report: object, pointer: str) -> str:
    text = _text_if_any(report, pointer)
    if text is None:
        raise Unreadable(f"there is no usable value at {pointer}")
    return text


def _instant(report: object, pointer: str) -> int:
    """Return an instant given in ISO 8601, or in seconds or milliseconds since 1970."""
    value: Any = follow(report, parse_pointer(pointer))
    try:
        if isinstance(value, str):
            return parse_instant(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e14:
            seconds = value / 1000 if value >= _MILLISECONDS_FROM else value
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
            return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        pass
    raise Unreadable(f"there is no instant at {pointer}")
