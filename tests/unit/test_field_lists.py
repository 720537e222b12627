"""Lists in a customer's field, and how their members are written."""

from __future__ import annotations

import json

import pytest

from deliveryd.field_lists import members_of

ONE, OTHER = '{"auth":"x","p":{"a":"1","b":"2"}}', '{ "p": {"b": 2, "a": 1},  "auth": "x" }'


@pytest.mark.parametrize("field", [ONE, OTHER, f"[{OTHER}]", json.dumps([OTHER]), json.dumps([ONE, OTHER])])
def test_an_object_is_one_member_however_it_is_written(field: str) -> None:
    """As an object, as text in a list, alone, or twice."""
    assert members_of(field) == (ONE,)


@pytest.mark.parametrize(
    ("field", "members"),
    [
        ("", ()),
        ("token", ("token",)),
        ("[token", ("[token",)),
        ("{token", ("{token",)),
        ("{}", ()),
        ('["a","b","a"," ",null,["c"],7]', ("a", "b", "7")),
        ('["\\ud800x","a"]', ("a",)),
        ('{"a":"\\ud800"}', ('{"a":"\\ud800"}',)),
        ('{"a":' * 5000, ('{"a":' * 5000,)),
    ],
)
def test_members(field: str, members: tuple[str, ...]) -> None:
    """What can't be read as JSON is one member, as it is."""
    assert members_of(field) == members
