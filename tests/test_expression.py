"""Which regular expressions can take exponential time, by their structure."""

from __future__ import annotations

import pytest

from deliveryd.channels.preset_catalogue import Catalogue
from deliveryd.inspection.channel_cautions import _expressions
from deliveryd.options.expression import takes_exponential_time


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+",
        "(a+)+$",
        "(.*)*x",
        "(.*a)*",
        r"(\d+x?)*",
        "([a-z]+|b)+",
        "(?:a|b+)+",
        "(a+?)*",
        "((ab)*c*)*",
        r"(\w+\s?)*",
        "(x+x+)+y",
        "(?i)([A-Z]+z?)+",
        "(?:a(?:b+c?)*)*",
        r"(?:(\w)\1*)+",
        "(é+)+",
    ],
)
def test_a_repeat_that_another_one_repeats_is_found(expression: str) -> None:
    assert takes_exponential_time(expression)


@pytest.mark.parametrize(
    "expression",
    [
        r"(\d+,)*",
        r"(?:\s+\w+)*",
        "a+b+",
        "(?>a+)+",
        "(a++)+",
        "(a{1,5})+",
        "((a+b)+c)+",
        "(?s).*",
        "",
        "(",
        "^(0|190|2[0-9][0-9])$",
        'try again after ([^"]+)',
        r"(?:[^,]+,)*[^,]+",
    ],
)
def test_what_is_read_in_one_way_only_is_not(expression: str) -> None:
    assert not takes_exponential_time(expression)


def test_no_preset_has_such_an_expression() -> None:
    for name in Catalogue().names():
        preset = Catalogue().find(name)
        assert preset is not None
        found = dict(_expressions(preset.file.table))
        assert [key for key, expression in found.items() if takes_exponential_time(expression)] == []
