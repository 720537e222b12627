"""Tables written as TOML are read back as what they were."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveryd.options.toml_text import toml_lines

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_what_is_written_is_read_back(table: dict[str, Any]) -> None:
    assert tomllib.loads("\n".join(toml_lines(table))) == table


@pytest.mark.parametrize("long", ["x" * 200])
def test_long_tables_stand_by_themselves_and_short_ones_inline(long: str) -> None:
    table = {"url": "https://x", "json": {"to": "a"}, "answers": [{"status": 400, "reason": long}]}
    assert list(toml_lines(table, "channels.sms")) == [
        'url = "https://x"',
        'json = { to = "a" }',
        "",
        "[[channels.sms.answers]]",
        "status = 400",
        f'reason = "{long}"',
    ]
