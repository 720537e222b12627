"""Checks header fields that an operator writes, of HTTP requests and of mails."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def header_problems(headers: Mapping[str, str], own: Collection[str]) -> Iterator[str]:
    """Yield names that are invalid or among `own`, in lower case, and values with control characters."""
    seen = set()
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            yield f"{name!r} isn't a header name"
        elif name.lower() in own:
            yield f"{name} is set by the adapter"
        elif name.lower() in seen:
            yield f"{name} is given twice"
        elif not (value.isascii() and value.isprintable()):
            yield f"{name}: a header value must be printable ASCII"
        seen.add(name.lower())
