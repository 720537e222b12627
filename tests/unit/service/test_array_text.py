"""The elements of an array: where each begins and ends, in time that grows with the length alone."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveryd.service.array_text import NoArray, member, spans

pytestmark = pytest.mark.slow

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def elements(text: bytes) -> list[bytes]:
    """The raw texts of the elements."""
    return [text[begin:end] for begin, end in spans(text)]


@given(st.lists(_json, max_size=5), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_every_element_is_found_as_it_was_written(values: list[Any], ascii_only: bool, indent: Any) -> None:
    """The raw texts of an array's elements are those that its writer wrote."""
    text = json.dumps(values, ensure_ascii=ascii_only, indent=indent).encode()
    found = elements(text)
    assert [json.loads(raw) for raw in found] == values
    assert all(raw == raw.strip() and raw in text for raw in found)


@given(st.lists(_json, min_size=1, max_size=5), st.data())
def test_what_is_cut_off_gives_the_elements_before(values: list[Any], data: st.DataObject) -> None:
    """Of an array that is cut anywhere, what is found is the beginning of what was there."""
    text = json.dumps(values).encode()
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    found = []
    with suppress(NoArray):
        for begin, end in spans(cut):
            found.append(json.loads(cut[begin:end]))
    assert found == values[: len(found)]


@given(st.dictionaries(st.text(), _json, max_size=5), _json, st.dictionaries(st.text(), _json, max_size=5))
def test_a_member_is_found_by_its_name(before: dict[str, Any], value: Any, after: dict[str, Any]) -> None:
    """Only the object's own members count, not those of what it holds."""
    members = {**before, "id": value, **{name: it for name, it in after.items() if name != "id"}}
    found = member(json.dumps(members).encode(), 0, b"id")
    assert found is not None
    assert json.loads(found) == value


@pytest.mark.parametrize("text", [b"", b"{", b"{}", b"[]", b'"id"', b'{"id"}', b'{"id":', b'{"a":{"id":1}}'])
def test_a_member_that_is_not_there(text: bytes) -> None:
    """Whatever stands there, nothing is found and nothing fails."""
    assert member(text, 0, b"id") is None


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"[" * 8_000_000,
        b"[[" + b"[[[[[[]]]]]]," * 600_000,
        b"[" + b'"\\"' * 3_000_000,
        b'[[[[[[["' + b'\\"' * 4_000_000,
        b'[{"a": ' * 1_000_000 + b'"',
        b"[" + b"[1" * 4_000_000,
    ],
    ids=["brackets", "deep", "texts", "a text without an end", "objects", "numbers"],
)
def test_eight_megabytes_of_anything_take_a_moment(text: bytes) -> None:
    """Nothing that a service can send holds up the worker for long."""
    started = time.process_time()
    with pytest.raises(NoArray):
        elements(text)
    assert time.process_time() - started < 4


def test_an_element_of_very_many_brackets_hides_no_other() -> None:
    """Its end is found however deep they are, so that it can be set aside with its id."""
    deep = b'{"id": 1, "a": {"b": {"c": {"d": [' + b"[]," * 1_200_000 + b"[]]}}}}"
    text = b"[" + deep + b', {"id": 2}]'
    assert [text[begin:end] for begin, end in spans(text)] == [deep, b'{"id": 2}']
