"""The languages to try for a customer, in order (design 5): by BCP 47, and CLDR's relations of languages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby
from types import ModuleType

from deliveryd.cleaning import cleaned
from deliveryd.errors import LanguageUnreadable

STANDING = frozenset(
    {"ar", "bg", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "he", "hr", "hu", "is", "it", "ja"}
    | {"lt", "lv", "mt", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sq", "sr", "sv", "tr", "uk", "zh"}
)
"""Tags that are standard as they are, and have no relations."""

_NORWEGIAN = ("no", "nb", "nn")
"""The one macrolanguage that is written as such and in two forms: who reads one reads all."""

_NEAR = 1
"""CLDR's distance at most of two tags that mean the same, or of a country and its part of the world."""

_LONGEST = 100  # far longer than any tag in use; the parser below recurses per subtag


def candidates(customer_language: str | None, configured: Sequence[str]) -> tuple[str, ...]:
    """Return the customer's language, then the configured ones, each with its fallbacks.

    These are shorter tags (RFC 4647, 3.4), then the macrolanguage. The tags are standard, in lower case, and
    occur once. Raises LanguageUnreadable.
    """
    return _candidates(customer_language, tuple(configured))


@lru_cache(maxsize=1024)
def _candidates(customer_language: str | None, configured: tuple[str, ...]) -> tuple[str, ...]:
    own = (customer_language,) if customer_language and cleaned(customer_language) else ()
    return tuple(dict.fromkeys(tag for language in (*own, *configured) for tag in _fallbacks(language)))


@lru_cache(maxsize=1024)
def matching(tags: tuple[str, ...], there: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the standard tags `there` that serve a customer with these candidates, the best first.

    Each candidate is served by itself, a tag that means the same (`zh-TW` and `zh-Hant`, `de` and `de-DE`),
    and a region's part of the world (`es-MX` and `es-419`).
    """
    languages = set(map(_language, tags))
    if all(tag in tags or _language(tag) not in languages for tag in there):
        return tuple(tag for tag in tags if tag in there)
    ranked = (_ranked(list(wanted), there) for _, wanted in groupby(tags, key=_language))
    return tuple(dict.fromkeys(chain.from_iterable(ranked)))


def _ranked(wanted: Sequence[str], there: Collection[str]) -> list[str]:
    """Sort the tags of one language by the first wanted tag that they fit; leave out those that fit none."""
    langcodes, _ = load_tags()
    ranks: dict[str, tuple[int, int, bool]] = {}
    for tag in there:
        for place, each in enumerate(wanted) if _language(tag) == _language(wanted[0]) else ():
            distance = langcodes.tag_distance(each, tag)
            if distance <= _NEAR:
                ranks[tag] = place, distance, tag != each
                break
    return sorted(ranks, key=ranks.__getitem__)


@lru_cache(maxsize=1024)
def standard_tag(tag: str) -> str:
    """Return the tag in lower case, with `-` for `_` and current codes for withdrawn ones (BCP 47).

    The member that a macrolanguage is mostly used for has its code: `cmn` is `zh`. Raises LanguageUnreadable,
    which quotes no more than the beginning of the tag.
    """
    text = cleaned(tag)
    if text in STANDING:
        return text
    if len(text) > _LONGEST:
        raise _unreadable(text)
    langcodes, error = load_tags()
    try:
        return str(langcodes.standardize_tag(text, macro=True)).lower()
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
    standard = standard_tag(tag)
    if standard in STANDING:
        yield standard
        return
    script = _script(standard)
    yield from _with_script(standard, script)
    language = _language(standard)
    if language in _NORWEGIAN:
        yield from _NORWEGIAN
    elif (wider := _macrolanguage(language)) is not None:
        yield from _with_script(wider, script)


def _with_script(tag: str, script: str | None) -> Iterator[str]:
    """Yield the tag and shorter ones, the last but one with the script if it isn't the usual one."""
    *longer, language = _shortened(tag)
    yield from longer
    if script is not None and script != _script(language):
        yield f"{language}-{script}"
    yield language


def _shortened(tag: str) -> Iterator[str]:
    subtags = tag.split("-")
    while subtags:
        yield "-".join(subtags)
        subtags.pop()
        while subtags and len(subtags[-1]) == 1:  # what a single letter introduces has just been cut off
            subtags.pop()


def _language(tag: str) -> str:
    return tag.partition("-")[0]


@lru_cache(maxsize=1024)
def _script(tag: str) -> str | None:
    """Return the script that a tag names, or implies by CLDR's likely subtags. Raises LanguageUnreadable.

    Some tags can be standardized, and what comes of that can't be read.
    """
    langcodes, error = load_tags()
    try:
        script: str | None = langcodes.Language.get(tag).maximize().script
    except error:
        raise _unreadable(tag) from None
    return None if script is None else script.lower()


def _macrolanguage(language: str) -> str | None:
    """Return the macrolanguage that a language is of (ISO 639-3), if its code is still in use."""
    from langcodes.data_dicts import MACROLANGUAGES  # noqa: PLC0415  # as above

    wider = MACROLANGUAGES.get(language)
    return wider if wider is not None and standard_tag(wider) == wider else None
