"""The text of an SMS: coding, parts, what forces UCS-2, and what transliteration saves."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveryd.channels.sms_text import SmsParts, outside_gsm, parts_beyond, sms_parts, transliterate
from support.places import ROOT

PAGE = ROOT / "docs" / "reference" / "sms.md"
_TIMES = re.compile(r"`([^`]*)`(?: \u00d7 ([0-9]+))?")
_ESCAPE = re.compile(r"<U\+([0-9A-F]{4,6})>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", SmsParts("GSM-7", 0, 1), id="nothing is one part"),
        pytest.param("a" * 160, SmsParts("GSM-7", 160, 1), id="160 fit"),
        pytest.param("a" * 161, SmsParts("GSM-7", 161, 2), id="161 don't"),
        pytest.param("a" * 306, SmsParts("GSM-7", 306, 2), id="153 in each of several"),
        pytest.param("a" * 307, SmsParts("GSM-7", 307, 3), id="one more"),
        pytest.param("€" * 80, SmsParts("GSM-7", 160, 1), id="extension characters count twice"),
        pytest.param("a" * 152 + "€" + "a" * 152, SmsParts("GSM-7", 306, 3), id="an escape isn't split"),
        pytest.param("@Δ\n\r¡¿§àÇ^{}\\[~]|\f€", SmsParts("GSM-7", 29, 1), id="the whole alphabet"),
        pytest.param("ç", SmsParts("UCS-2", 1, 1), id="one letter outside"),
        pytest.param("\x1b", SmsParts("UCS-2", 1, 1), id="the escape is no letter"),
        pytest.param("я" * 70, SmsParts("UCS-2", 70, 1), id="70 fit"),
        pytest.param("я" * 71, SmsParts("UCS-2", 71, 2), id="71 don't"),
        pytest.param("я" * 135, SmsParts("UCS-2", 135, 3), id="67 in each of several"),
        pytest.param("😀" * 35, SmsParts("UCS-2", 70, 1), id="pairs count twice"),
        pytest.param("я" * 66 + "😀" + "я" * 66, SmsParts("UCS-2", 134, 3), id="a pair isn't split"),
    ],
)
def test_sms_parts(text: str, expected: SmsParts) -> None:
    """An SMS takes as many parts as its alphabet makes it."""
    assert sms_parts(text) == expected


def _rows() -> list[tuple[str, ...]]:
    table = PAGE.read_text("utf-8").split("## A table of texts")[1]
    lines = [line for line in table.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


def _text(cell: str) -> str:
    match = _TIMES.fullmatch(cell)
    assert match is not None, cell
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), match[1]) * int(match[2] or 1)


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row[0])
def test_the_table_of_texts(row: tuple[str, ...]) -> None:
    """Each row of docs/reference/sms.md is what the code finds: coding, parts, cause, transliteration."""
    written, coding, units, parts, forcing, replaced, coding_then, parts_then = row
    text = _text(written)
    assert sms_parts(text) == (coding, int(units), int(parts))
    assert " ".join(f"U+{ord(char):04X}" for char in outside_gsm(text)) == forcing
    changed = transliterate(text)
    assert changed == (text if replaced == "unchanged" else _text(replaced))
    assert (sms_parts(changed).encoding, sms_parts(changed).parts) == (coding_then, int(parts_then))


def test_the_table_has_rows() -> None:
    """The table is read, not skipped."""
    assert len(_rows()) >= 30


GSM = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./09:;<=>?¡AZÄÖÑÜ§¿azäöñüà\f^{}\\[~]|€"
"""Every kind of character of the alphabet."""


@given(st.text(st.sampled_from(GSM), max_size=700))
def test_a_gsm_text_is_left_as_it_is(text: str) -> None:
    """Transliteration doesn't touch a text that is in GSM-7 already."""
    assert transliterate(text) == text
    assert sms_parts(text).encoding == "GSM-7"
    assert outside_gsm(text) == ()


@given(st.text(max_size=200))
def test_transliteration_is_all_or_nothing(text: str) -> None:
    """The result is either in GSM-7 as a whole, or the text as it was; a second pass changes nothing."""
    changed = transliterate(text)
    assert changed == text or sms_parts(changed).encoding == "GSM-7"
    assert transliterate(changed) == changed


@given(st.text(st.sampled_from(GSM + "я🎁\u2019"), max_size=400), st.integers(1, 8))
def test_the_bound_of_parts_is_exact(text: str, most: int) -> None:
    """A text is over `max_parts` exactly if it has more parts, however fast that is decided."""
    parts = sms_parts(text).parts
    assert parts_beyond(text, most) == (parts if parts > most else None)
