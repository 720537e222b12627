"""The number of parts of an SMS, and its alphabet (3GPP TS 23.038 and 23.040)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

_BASIC = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENSION = frozenset("\f^{}\\[~]|€")
_GSM = _BASIC | _EXTENSION


class SmsParts(NamedTuple):
    """The size of an SMS: septets of GSM-7 or UTF-16 units of UCS-2, and the number of parts."""

    encoding: Literal["GSM-7", "UCS-2"]
    units: int
    parts: int


def sms_parts(text: str) -> SmsParts:
    """Count the parts. Characters of two units are never split; an empty text is one part."""
    if _GSM.issuperset(text):
        widths = [2 if char in _EXTENSION else 1 for char in text]
        return SmsParts("GSM-7", sum(widths), _parts(widths, whole=160, part=153))
    widths = [2 if char > "\uffff" else 1 for char in text]
    return SmsParts("UCS-2", sum(widths), _parts(widths, whole=70, part=67))


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
