"""How a field is parsed and filled: its names, the escaping of values, and checks of the result."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from deliveryd.rendering.template import Naming, is_word, is_words

EmailFormat = Literal["auto", "html", "text"]
"""The format of e-mail bodies; `auto` detects it from the template."""

_TAG = re.compile(r"<(?:!doctype\b|/?[a-z][a-z0-9-]*+(?:\s[^<>]*+)?/?>)", re.IGNORECASE)
_BREAK = re.compile("[\0\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")


class Escaping(NamedTuple):
    """What is a name in a field, what becomes of values before they go in, and what is wrong with the result.

    A flaw is None, or goes on from the field's name ("holds ...") and quotes nothing of the text.
    """

    naming: Naming
    values: Callable[[Mapping[str, str]], Mapping[str, str]]
    flaw: Callable[[str], str | None]


def escaping_for(block: str, field: str, email_format: EmailFormat) -> Escaping:
    """Return the escaping: only bodies of HTML e-mails are HTML, only subjects must be one line.

    Only the text of an SMS must not be empty: other blocks have further fields.
    """
    if block != "email":
        return NOT_EMPTY if block == "sms" else VERBATIM
    if field == "subject":
        return ONE_LINE
    return HTML if email_format == "html" and field == "body" else VERBATIM


def is_html(template: str) -> bool:
    """Whether a template contains an HTML tag or a doctype."""
    return _TAG.search(template) is not None


def _as_they_are(values: Mapping[str, str]) -> Mapping[str, str]:
    return values


def _html_escaped(values: Mapping[str, str]) -> Mapping[str, str]:
    return {name: html.escape(value) for name, value in values.items()}


def _not_unicode(text: str) -> str | None:
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half a surrogate pair"
    return None


def _empty(text: str) -> str | None:
    if not text or text.isspace():
        return "is empty"
    return None if text.isascii() else _not_unicode(text)


def _not_one_line(text: str) -> str | None:
    return "holds a line break" if _BREAK.search(text) else _not_unicode(text)


VERBATIM = Escaping(is_words, _as_they_are, _not_unicode)
"""Values are inserted unchanged."""

NOT_EMPTY = Escaping(is_words, _as_they_are, _empty)
"""Values are inserted unchanged; a result that is empty, or only white space, is a flaw."""

ONE_LINE = Escaping(is_words, _as_they_are, _not_one_line)
"""Values are inserted unchanged; the result is a header, so any kind of line break is a flaw."""

HTML = Escaping(is_word, _html_escaped, _not_unicode)
"""Values are escaped for HTML, also for quoted attributes."""
