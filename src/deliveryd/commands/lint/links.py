"""Rules about links: in texts, in buttons and pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from deliveryd.commands.lint.rules import LintFinding
from deliveryd.commands.lint.subject import Field, Subject, fields_of

_HTTP = re.compile(r"\bhttp://[^\s<>\"']+", re.IGNORECASE)
_BARE = re.compile(r"(?<![\w/.@-])www\.[\w-]+\.[^\s<>\"']+", re.IGNORECASE)
_ADDRESSES = ("image", "button.url")
_APP = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_LONGEST_SHOWN = 60


def link_findings(subject: Subject) -> Iterator[LintFinding]:
    """Check the links of every text."""
    for field in fields_of(subject):
        if field.name in _ADDRESSES:
            yield from _of_address(field)
        for match in _HTTP.finditer(field.text):
            said = f"{_shown(match[0])} isn't encrypted, and clients warn of it"
            yield _finding("insecure-link", said, "write https://", field, match.start())
        if field.name not in _ADDRESSES and not field.is_html:
            for match in _BARE.finditer(field.text):
                said = f"{_shown(match[0])} is opened with http:// or isn't a link at all"
                yield _finding("link-without-scheme", said, "write https://", field, match.start())


def _of_address(field: Field) -> Iterator[LintFinding]:
    """Check a whole field that is an address. One that begins with a placeholder may be anything."""
    address = field.text.strip()
    if not address or address.startswith("{"):
        return
    if problem := _problem(field, address):
        remedy = "write an address such as https://shop.example.com/offers"
        yield _finding("bad-link", f"{_shown(address)} {problem}", remedy, field, 0)


def _problem(field: Field, address: str) -> str | None:
    if any(char.isspace() for char in re.sub(r"\{[^{}]*\}", "", address)):
        return "holds a blank"
    if not _APP.match(address):
        return "has no https://"
    try:
        parts = urlsplit(address)
    except ValueError:
        return "isn't an address"
    if parts.scheme.lower() in ("http", "https"):
        return None if parts.netloc else "names no host"
    if parts.scheme.lower() in ("javascript", "data", "file", "vbscript"):
        return f"begins with {parts.scheme}:, which no provider accepts"
    return None if field.name == "button.url" else "isn't a picture on the web"  # an app's own: shop://offers


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _finding(rule: str, text: str, remedy: str, field: Field, offset: int) -> LintFinding:
    return LintFinding(rule, text, remedy, field.language, field.block, field.name, offset)
