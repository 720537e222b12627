"""How a field is read and filled: what is a name in it, how values go in, and what it may not hold then."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from deliveryd.rendering.template import Naming, is_word, is_words

EmailFormat = Literal["auto", "html", "text"]
"""How an e-mail's body is meant; `auto` asks its template."""

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
    """Only bodies of HTML e-mails are HTML, and only subjects must fit on a line."""
    if block != "email":
        return VERBATIM
    if field == "subject":
        return ONE_LINE
    return HTML if email_format == "html" and field == "body" else VERBATIM


def is_html(template: str) -> bool:
    """Whether a text, read as written by its author, holds an HTML tag or a doctype."""
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


def _not_one_line(text: str) -> str | None:
    return "holds a line break" if _BREAK.search(text) else _not_unicode(text)


VERBATIM = Escaping(is_words, _as_they_are, _not_unicode)
"""Values go in as they are."""

ONE_LINE = Escaping(is_words, _as_they_are, _not_one_line)
"""Values go in as they are, and the result is a header: what some reader takes for a line break is a flaw."""

HTML = Escaping(is_word, _html_escaped, _not_unicode)
"""Values go in so that HTML shows them as they are, between quotes too."""
