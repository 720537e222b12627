"""Masks a provider's secrets in what it answered, however the request wrote them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

MASK = "***"


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets, also as addresses, forms, JSON and headers have them."""
    forms = {form for secret in secrets for form in _forms(secret)}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def _forms(secret: str) -> Iterator[str]:
    for written in (secret, quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield written
        yield json.dumps(written)[1:-1]
        yield json.dumps(written, ensure_ascii=False)[1:-1]
    yield b64encode(secret.encode()).decode("ascii")


def basic_login(username: str, password: str) -> str:
    """Return user name and password as a header has them (RFC 7617)."""
    return b64encode(f"{username}:{password}".encode()).decode("ascii")
