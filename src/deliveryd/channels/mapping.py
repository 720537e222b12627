"""Mappings: strings with placeholders in a parsed structure, filled in as data (design 6)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from deliveryd.channels.base import Dispatch
from deliveryd.errors import DeliverydError
from deliveryd.options.suggestion import closest, suggestion


class Unfit(DeliverydError):
    """The message can't be turned into a provider's request; the text is safe to report."""


class Absent(Enum):
    """The type of `ABSENT`: a `{content.FIELD}` that the rendered block doesn't have."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

Value = str | int | Absent
Getter = Callable[[Dispatch], Value]
Encode = Callable[[str], str]


class Name(NamedTuple):
    """A placeholder: `{customer.phone}` is root `customer`, field `phone`."""

    root: str
    field: str


ROOTS = ("message", "customer", "content", "secret")

BLOCK_FIELDS: Mapping[str, frozenset[str]] = {
    "sms": frozenset({"text"}),
    "messenger": frozenset({"text", "image", "button.text", "button.url"}),
    "inApp": frozenset(
        {"name", "description", "image", "button.text", "button.url"}
        | {"notification.title", "notification.body"}
    ),
    "email": frozenset({"subject", "body", "format"}),
}
"""The fields of rendered blocks (interface 2.2), and the e-mail's `format`, which rendering adds."""

_GETTERS: Mapping[Name, Getter] = {
    Name("message", "id"): lambda dispatch: dispatch.entry.id,
    Name("message", "settingsId"): lambda dispatch: dispatch.entry.settings_id,
    Name("message", "customerId"): lambda dispatch: dispatch.entry.customer_id,
    Name("message", "key"): lambda dispatch: dispatch.key,
}

# After one of the roots a field may be any text without braces, since a customer directory names its fields
# freely; anything else that looks like a name is a mistake, and what doesn't is left as it is.
_PLACEHOLDER = re.compile(r"\{((?:" + "|".join(ROOTS) + r")\.[^{}]+|[A-Za-z_][\w.-]*)\}")
_UNCLOSED = re.compile(r"\{(?:" + "|".join(ROOTS) + r")\.[A-Za-z_][\w.-]*")


def split(text: str) -> Iterator[str | Name]:
    """Split a string into literals and placeholders, known or not."""
    for index, piece in enumerate(_PLACEHOLDER.split(text)):
        if index % 2:
            root, _, field = piece.partition(".")
            yield Name(root, field)
        elif piece:
            yield piece


def names_in(value: object, path: str = "") -> Iterator[tuple[str, Name]]:
    """Yield every placeholder in a parsed value, with its path (`to`, `button.url`)."""
    return ((place, piece) for place, piece in _pieces(value, path) if isinstance(piece, Name))


def _pieces(value: object, path: str) -> Iterator[tuple[str, str | Name]]:
    """Yield the pieces of every string in a parsed value, with its path."""
    if isinstance(value, str):
        yield from ((path, piece) for piece in split(value))
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _pieces(member, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            yield from _pieces(member, f"{path}.{index}" if path else str(index))


def keys_with_placeholders(value: object) -> Iterator[str]:
    """Yield the keys in a parsed value that contain placeholders, which only values may."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            if _PLACEHOLDER.search(key):
                yield key
            yield from keys_with_placeholders(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from keys_with_placeholders(member)


def mapping_problems(value: object, secrets: Mapping[str, object]) -> list[str]:
    """Return the problems of the placeholders in a parsed value, one line each."""
    problems = [f"{key!r}: placeholders are allowed in values only" for key in keys_with_placeholders(value)]
    for path, piece in _pieces(value, ""):
        problem = _name_problem(piece, secrets) if isinstance(piece, Name) else _unclosed_problem(piece)
        if problem:
            problems.append(f"{path}: {problem}" if path else problem)
    return problems


def _unclosed_problem(text: str) -> str | None:
    """Return the problem of a placeholder whose closing brace is missing; it would be sent as it stands."""
    match = _UNCLOSED.search(text)
    return None if match is None else f"{match[0]!r} isn't closed; write {match[0]}}}"


def _name_problem(name: Name, secrets: Mapping[str, object]) -> str | None:
    written = "{" + ".".join(part for part in name if part) + "}"
    if name.root in ("customer", "content"):
        return None if name.field else f"{written} needs a field, such as {_EXAMPLES[name.root]}"
    if name.root == "secret":
        if name.field in secrets:
            return None
        return f"{written} isn't defined in secrets{suggestion(name.field, secrets)}"
    if name in _GETTERS:
        return None
    return f"unknown placeholder {written}{_meant(name, secrets) or _THERE_ARE}"


def _meant(name: Name, secrets: Mapping[str, object]) -> str:
    """Return a suggestion for an unknown placeholder, or an empty string."""
    known = {
        "message": [field for root, field in _GETTERS if root == "message"],
        "content": sorted(frozenset[str]().union(*BLOCK_FIELDS.values())),
        "customer": ["phone", "email", "language"],
        "secret": list(secrets),
    }
    whole = ".".join(filter(None, name))
    for root in [root for root in known if whole in known[root]]:
        return f"; did you mean {{{root}.{whole}}}?"
    if (meant := closest(name.root, known)) is None:
        return ""
    field = name.field if meant in ("customer", "content") else closest(name.field, known[meant])
    return f"; did you mean {{{meant}.{field}}}?" if field else ""


_THERE_ARE = "; there are {message.id}, {message.key}, {customer.FIELD}, {content.FIELD} and {secret.NAME}"
_EXAMPLES = {"customer": "{customer.phone}", "content": "{content.text}"}


def content_problems(value: object, block: str) -> list[str]:
    """Return the placeholders `{content.FIELD}` whose field the block never has, one line each."""
    known = BLOCK_FIELDS.get(block)
    if known is None:
        return []
    return [
        f"{path}: the block {block} has no field {name.field!r}{suggestion(name.field, known)}"
        for path, name in names_in(value)
        if name.root == "content" and name.field not in known
    ]


def customer_fields(value: object) -> frozenset[str]:
    """Return the customer fields that a mapping needs."""
    return frozenset(name.field for _, name in names_in(value) if name.root == "customer")


def as_is(text: str) -> str:
    """Return the text unchanged."""
    return text


class TextTemplate:
    """A compiled string with placeholders: secrets are built in, all other values come per message.

    `literal` encodes text of the configuration, `value` encodes values, secrets included; `prefix` is
    prepended unencoded.
    """

    __slots__ = ("_pieces", "_value", "constant")

    def __init__(
        self,
        text: str,
        secrets: Mapping[str, str],
        *,
        literal: Encode = as_is,
        value: Encode = as_is,
        prefix: str = "",
    ) -> None:
        self._value = value
        self._pieces: list[str | Getter] = [prefix]
        for piece in split(text):
            if isinstance(piece, str):
                self._add_literal(literal(piece))
            elif piece.root == "secret":
                self._add_literal(value(secrets[piece.field]))
            else:
                self._pieces.append(getter(piece))
        self.constant = _only_text(self._pieces)

    def _add_literal(self, text: str) -> None:
        if self._pieces and isinstance(self._pieces[-1], str):
            self._pieces[-1] += text
        else:
            self._pieces.append(text)

    def fill(self, dispatch: Dispatch) -> str | Absent:
        """Return the string for one message, or ABSENT if a content field is absent. Raises Unfit."""
        filled: list[str] = []
        for piece in self._pieces:
            if isinstance(piece, str):
                filled.append(piece)
                continue
            found = piece(dispatch)
            if found is ABSENT:
                return ABSENT
            try:
                filled.append(self._value(str(found)))
            except UnicodeEncodeError:
                raise Unfit("a value isn't valid Unicode text") from None
        return "".join(filled)


def _only_text(pieces: list[str | Getter]) -> str | None:
    match pieces:
        case [str(text)]:
            return text
        case _:
            return None


def getter(name: Name) -> Getter:
    """Return a function that reads a placeholder's value; it raises Unfit for a missing customer field."""
    if name.root == "content":
        return lambda dispatch: dispatch.rendered.fields.get(name.field, ABSENT)
    if name.root == "customer":
        return lambda dispatch: _customer_value(dispatch, name.field)
    return _GETTERS[name]


def _customer_value(dispatch: Dispatch, field: str) -> str | int:
    customer = dispatch.customer
    if customer is not None:
        if field == "id":
            return customer.id
        value = customer.fields.get(field)
        if value:
            return value
    raise Unfit("the customer has no address on this channel")


def compile_tree(value: object, secrets: Mapping[str, str]) -> Callable[[Dispatch], object]:
    """Compile a parsed value into a function that fills it; a string of one placeholder keeps the type.

    A string with an absent content field is ABSENT. An object or a list leaves absent members out, and is
    ABSENT itself when that leaves none.
    """
    if isinstance(value, str):
        return _compile_string(value, secrets)
    if not any(True for _ in names_in(value)):
        return lambda _: value
    if isinstance(value, Mapping):
        members = [(str(key), compile_tree(member, secrets)) for key, member in value.items()]
        return lambda dispatch: _fill_object(members, dispatch)
    items = [compile_tree(member, secrets) for member in value] if isinstance(value, list | tuple) else []
    return lambda dispatch: [got for fill in items if (got := fill(dispatch)) is not ABSENT] or ABSENT


def _fill_object(members: list[tuple[str, Callable[[Dispatch], object]]], dispatch: Dispatch) -> object:
    filled = {}
    for key, fill in members:
        value = fill(dispatch)
        if value is not ABSENT:
            filled[key] = value
    return filled or ABSENT


def _compile_string(text: str, secrets: Mapping[str, str]) -> Callable[[Dispatch], object]:
    match list(split(text)):
        case [Name(root=root) as name] if root != "secret":
            return getter(name)
    compiled = TextTemplate(text, secrets)
    if compiled.constant is not None:
        constant = compiled.constant
        return lambda _: constant
    return compiled.fill
