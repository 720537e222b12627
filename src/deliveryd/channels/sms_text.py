"""The text of an SMS: its coding, its number of parts, and what forces the wider coding.

The alphabet is the default one of 3GPP TS 23.038, section 6.2.1, with its extension table; the parts are
those of 3GPP TS 23.040. Pure functions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from deliveryd.model import Rendered

_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENSION = frozenset("\f^{}\\[~]|€")
_GSM = _BASIC | _EXTENSION

_WHOLE_GSM, _PART_GSM = 160, 153
_WHOLE_UCS, _PART_UCS = 70, 67
_SMALLEST_PART = (_PART_UCS - 1) // 2
"""Characters that fit into a part whatever they are."""

_MOST_PARTS = 255
"""Parts that a text can have, as their number is one byte."""

_SINGLE_SEPTETS = re.compile(r"[\n\r !\"#$%&'()*+,\-./0-9:;<=>?@A-Z_a-z]*")
"""The ASCII characters of one septet: most texts consist of them, and this is the fastest check."""

_TYPOGRAPHY: Mapping[str, str] = {
    # Quotation marks and primes.
    "\u2018": "'", "\u2019": "'", "\u201a": "'", "\u201b": "'", "\u2032": "'", "\u2035": "'",
    "\u201c": '"', "\u201d": '"', "\u201e": '"', "\u201f": '"', "\u2033": '"', "\u2036": '"',
    "\u2039": "'", "\u203a": "'", "\u00ab": '"', "\u00bb": '"', "\u0060": "'", "\u00b4": "'",
    # Hyphens, dashes, the minus sign and bullets.
    "\u2010": "-", "\u2011": "-", "\u2012": "-", "\u2013": "-", "\u2014": "-", "\u2015": "-",
    "\u2212": "-", "\u2022": "-", "\u2023": "-", "\u2043": "-",
    # Dot leaders and the fraction slash.
    "\u2024": ".", "\u2025": "..", "\u2026": "...", "\u2044": "/",
    # Blanks of any width.
    "\t": " ", "\u00a0": " ", "\u2000": " ", "\u2001": " ", "\u2002": " ", "\u2003": " ", "\u2004": " ",
    "\u2005": " ", "\u2006": " ", "\u2007": " ", "\u2008": " ", "\u2009": " ", "\u200a": " ", "\u202f": " ",
    "\u205f": " ", "\u3000": " ", "\u2028": "\n", "\u2029": "\n",
    # Invisible: soft hyphen, zero-width characters, marks of direction.
    "\u00ad": "", "\u200b": "", "\u200c": "", "\u200d": "", "\u2060": "", "\ufeff": "", "\u200e": "",
    "\u200f": "", "\u202a": "", "\u202b": "", "\u202c": "", "\u202d": "", "\u202e": "", "\u2066": "",
    "\u2067": "", "\u2068": "", "\u2069": "",
}  # fmt: skip
"""Typographic characters outside the alphabet and what stands for them there.

They are the quotation marks, dashes, leaders, blanks and invisible characters of the Unicode charts Latin-1
and General Punctuation (U+2000 to U+206F), and U+2212, U+3000 and U+FEFF. Letters, symbols with a meaning of
their own (™, ©) and emoji have no substitute.
"""

_SUBSTITUTES = str.maketrans(dict(_TYPOGRAPHY))


class SmsParts(NamedTuple):
    """The size of an SMS: septets of GSM-7 or UTF-16 units of UCS-2, and the number of parts."""

    encoding: Literal["GSM-7", "UCS-2"]
    units: int
    parts: int


def sms_parts(text: str) -> SmsParts:
    """Count the parts. Characters of two units are never split; an empty text is one part."""
    if _SINGLE_SEPTETS.fullmatch(text):
        size = len(text)
        return SmsParts("GSM-7", size, 1 if size <= _WHOLE_GSM else -(-size // _PART_GSM))
    if _GSM.issuperset(text):
        units = len(text) + sum(map(text.count, _EXTENSION))
        if units <= _WHOLE_GSM:
            return SmsParts("GSM-7", units, 1)
        widths = [2 if char in _EXTENSION else 1 for char in text]
        return SmsParts("GSM-7", sum(widths), _parts(widths, whole=_WHOLE_GSM, part=_PART_GSM))
    widths = [2 if char > "\uffff" else 1 for char in text]
    return SmsParts("UCS-2", sum(widths), _parts(widths, whole=_WHOLE_UCS, part=_PART_UCS))


def _parts(widths: Iterable[int], *, whole: int, part: int) -> int:
    widths = list(widths)
    if sum(widths) <= whole:
        return 1
    parts, free = 1, part
    for width in widths:
        if width > free:
            parts, free = parts + 1, part
        free -= width
    return parts


def count_parts(text: str) -> int:
    """Return the number of parts; of a text that is too long for an SMS, about that many."""
    return -(-len(text) // _PART_GSM) if len(text) > _MOST_PARTS * _WHOLE_GSM else sms_parts(text).parts


def parts_beyond(text: str, most: int) -> int | None:
    """Return the number of parts if it is greater than `most`."""
    if len(text) <= most * _SMALLEST_PART:
        return None
    if len(text) > max(most, _MOST_PARTS) * _WHOLE_GSM:
        return -(-len(text) // _PART_GSM)  # at least, and that is counted at once
    parts = sms_parts(text).parts
    return parts if parts > most else None


def outside_gsm(text: str) -> tuple[str, ...]:
    """Return the characters that force UCS-2, each once, in order of first appearance."""
    return tuple(dict.fromkeys(char for char in text if char not in _GSM))


def transliterate(text: str) -> str:
    """Replace typography by what GSM-7 has, if that is enough to keep the text in GSM-7.

    Letters that are written as a letter and an accent become the one character that they are equivalent to.
    If anything is left that GSM-7 doesn't have, or the text is too long for an SMS, it is returned unchanged.
    """
    if len(text) > _MOST_PARTS * _WHOLE_GSM or _SINGLE_SEPTETS.fullmatch(text) or _GSM.issuperset(text):
        return text
    replaced = unicodedata.normalize("NFC", text).translate(_SUBSTITUTES)
    return replaced if _GSM.issuperset(replaced) else text


class SmsRules(NamedTuple):
    """The keys `max_parts` and `transliterate` of a channel."""

    max_parts: int | None
    transliterate: bool

    def apply(self, rendered: Rendered) -> Rendered:
        """Return the block as it is sent."""
        if not self.transliterate:
            return rendered
        text = rendered.fields["text"]
        changed = transliterate(text)
        return rendered if changed is text else rendered._replace(fields={**rendered.fields, "text": changed})

    def flaw(self, rendered: Rendered) -> str | None:
        """Return why a block, as it would be sent, isn't: the message takes the next channel. None: it is."""
        if self.max_parts is None:
            return None
        parts = parts_beyond(rendered.fields["text"], self.max_parts)
        return None if parts is None else f"{parts} SMS parts, more than max_parts = {self.max_parts}"
