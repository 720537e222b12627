"""The languages to try for a customer, in order (design 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import ModuleType

from deliveryd.cleaning import cleaned
from deliveryd.errors import LanguageUnreadable

STANDING = frozenset(
    {"ar", "bg", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "he", "hr", "hu", "is", "it", "ja"}
    | {"lt", "lv", "mt", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sq", "sr", "sv", "tr", "uk", "zh"}
)
"""Tags that are standard as they are."""

_LONGEST = 100  # far longer than any tag in use; the parser below recurses per subtag


def candidates(customer_language: str | None, configured: Sequence[str]) -> tuple[str, ...]:
    """Return the customer's language, then the configured ones, each with its fallbacks (RFC 4647, 3.4).

    The tags are standard, in lower case, and occur once. Raises LanguageUnreadable.
    """
    return _candidates(customer_language, tuple(configured))


@lru_cache(maxsize=1024)
def _candidates(customer_language: str | None, configured: tuple[str, ...]) -> tuple[str, ...]:
    own = (customer_language,) if customer_language and cleaned(customer_language) else ()
    return tuple(dict.fromkeys(tag for language in (*own, *configured) for tag in _fallbacks(language)))


@lru_cache(maxsize=1024)
def standard_tag(tag: str) -> str:
    """Return the tag in lower case, with `-` for `_` and current codes for withdrawn ones (BCP 47).

    Raises LanguageUnreadable, which quotes no more than the beginning of the tag.
    """
    text = cleaned(tag)
    if text in STANDING:
        return text
    if len(text) > _LONGEST:
        raise _unreadable(text)
    langcodes, error = load_tags()
    try:
        return str(langcodes.standardize_tag(text)).lower()
    except error:
        raise _unreadable(text) from None


def load_tags() -> tuple[ModuleType, type[Exception]]:
    """Return the library of language tags, and its error. A worker loads it as soon as it is ready.

    Its tables take a tenth of the start, and are seldom needed.
    """
    import langcodes  # noqa: PLC0415
    from langcodes.tag_parser import LanguageTagError  # noqa: PLC0415

    return langcodes, LanguageTagError


def _unreadable(text: str) -> LanguageUnreadable:
    return LanguageUnreadable(f"not a language tag: {text[:20]!r}")


def _fallbacks(tag: str) -> Iterator[str]:
    subtags = standard_tag(tag).split("-")
    while subtags:
        yield "-".join(subtags)
        subtags.pop()
        while subtags and len(subtags[-1]) == 1:  # what a single letter introduces has just been cut off
            subtags.pop()
