"""Mappings: strings with placeholders in a parsed structure; what may stand in them, and what is wrong there.

A placeholder is `{ROOT.FIELD}` or `{ROOT.FIELD|FILTER|FILTER}`. `filling` fills them in as data (design 6).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple
from uuid import UUID, uuid5

from deliveryd.errors import DeliverydError
from deliveryd.model import SECOND
from deliveryd.network.address import ascii_domain
from deliveryd.options.suggestion import closest, suggestion

UNREADABLE_PHONE = "the phone number can't be read"

ValueKind = Literal["text", "instant", "seconds", "number"]
"""What a value is: text, an instant in microseconds, a length of time in seconds, or any other number."""


class Unfit(DeliverydError):
    """The message can't be turned into a provider's request; the text is safe to report."""


FilterStep = Callable[[str | int], str | int]


class Filter(NamedTuple):
    """What a filter does to one kind of values, and what the result is."""

    step: FilterStep
    result: ValueKind


_NO_DIGIT = re.compile(r"[^0-9]+")


def _digits(value: str | int) -> str:
    return _NO_DIGIT.sub("", str(value))


def _base64(value: str | int) -> str:
    return b64encode(str(value).encode("utf-8")).decode("ascii")


def _punycode(value: str | int) -> str:
    local, at, domain = str(value).rpartition("@")
    return f"{local}{at}{domain if domain.isascii() else ascii_domain(domain)}"


_UUIDS = UUID("8a0d3c9e-5f0b-5b5e-9a51-6c1f0d2b7e44")


def _uuid(value: str | int) -> str:
    return str(uuid5(_UUIDS, str(value)))


def _unix(value: str | int) -> int:
    return int(value) // SECOND


def _unix_ms(value: str | int) -> int:
    return int(value) * 1000 // SECOND


def _milliseconds(value: str | int) -> int:
    return int(value) * 1000


def _minutes(value: str | int) -> int:
    return max(int(value) // 60, 1)


PHONE = "e164"
"""The filter that reads a phone number: it depends on the provider's `country`."""

FILTERS: Mapping[str, Mapping[ValueKind, Filter]] = {
    "digits": {"text": Filter(_digits, "text"), "number": Filter(_digits, "text")},
    "base64": {"text": Filter(_base64, "text"), "number": Filter(_base64, "text")},
    "punycode": {"text": Filter(_punycode, "text")},
    "uuid": {"text": Filter(_uuid, "text"), "number": Filter(_uuid, "text")},
    "text": {"number": Filter(str, "text"), "seconds": Filter(str, "text")},
    "unix": {"instant": Filter(_unix, "number")},
    "ms": {"instant": Filter(_unix_ms, "number"), "seconds": Filter(_milliseconds, "number")},
    "minutes": {"seconds": Filter(_minutes, "number")},
}
"""All filters but `e164`, by the kinds of values that they apply to."""

FILTER_NAMES = (PHONE, *FILTERS)


def kind_after(kind: ValueKind, filter_: str) -> ValueKind | None:
    """Return what a value of this kind is after a filter; None: the filter doesn't apply to it."""
    if filter_ == PHONE:
        return "text" if kind == "text" else None
    found = FILTERS[filter_].get(kind)
    return None if found is None else found.result


class Name(NamedTuple):
    """A placeholder: `{customer.phone|e164}` is root `customer`, field `phone`, filters `("e164",)`."""

    root: str
    field: str
    filters: tuple[str, ...] = ()

    @property
    def written(self) -> str:
        """Return the placeholder as it stands in the configuration."""
        path = f"{self.root}.{self.field}" if self.field else self.root
        return f"{{{'|'.join((path, *self.filters))}}}"


ROOTS = ("message", "settings", "customer", "content", "variables", "receipt", "secret")

COMPUTED_FIELDS: Mapping[str, ValueKind] = {"coding": "text", "parts": "number"}
"""Fields of the block `sms` that are computed from its text."""

BLOCK_FIELDS: Mapping[str, frozenset[str]] = {
    "sms": frozenset({"text", *COMPUTED_FIELDS}),
    "messenger": frozenset({"text", "image", "button.text", "button.url"}),
    "inApp": frozenset(
        {"name", "description", "image", "button.text", "button.url"}
        | {"notification.title", "notification.body"}
    ),
    "email": frozenset({"subject", "body", "format"}),
}
"""The fields of rendered blocks (interface 2.2), and those that rendering and mappings add."""

FIXED_FIELDS: Mapping[str, Mapping[str, ValueKind]] = {
    "message": {
        "id": "number",
        "settingsId": "number",
        "customerId": "number",
        "key": "text",
        "mime": "text",
        "providerId": "text",
        "expiresAt": "instant",
        "validity": "seconds",
    },
    "settings": {"reference": "text"},
    "receipt": {"url": "text"},
}
"""Roots whose fields are known, and what their values are."""

# After one of the roots a field may be any text without braces and bars, since a customer directory names its
# fields freely; anything else that looks like a name is a mistake, and what doesn't is left as it is.
_PLACEHOLDER = re.compile(r"\{((?:" + "|".join(ROOTS) + r")\.[^{}]+|[A-Za-z_][\w.-]*(?:\|\w+)*)\}")
_UNCLOSED = re.compile(r"\{(?:" + "|".join(ROOTS) + r")\.[A-Za-z_][\w.-]*")


def split(text: str) -> Iterator[str | Name]:
    """Split a string into literals and placeholders, known or not."""
    for index, piece in enumerate(_PLACEHOLDER.split(text)):
        if index % 2:
            path, *filters = piece.split("|")
            root, _, field = path.partition(".")
            yield Name(root, field, tuple(filters))
        elif piece:
            yield piece


def texts_in(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in a parsed value, with its path (`to`, `button.url`)."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from texts_in(member, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            yield from texts_in(member, f"{path}.{index}" if path else str(index))


def names_in(value: object) -> Iterator[tuple[str, Name]]:
    """Yield every placeholder in a parsed value, with its path."""
    for path, text in texts_in(value):
        yield from ((path, piece) for piece in split(text) if isinstance(piece, Name))


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


def is_known_later(name: Name) -> bool:
    """Whether a placeholder's value is known only after the message was sent: there is none in a message."""
    return name[:2] == ("message", "providerId")


def placeholder_kind(name: Name) -> ValueKind:
    """Return what the value of a known placeholder is, before its filters."""
    if name.root == "content":
        return COMPUTED_FIELDS.get(name.field, "text")
    return FIXED_FIELDS.get(name.root, {}).get(name.field, "text")


def mapping_problems(value: object, secrets: Mapping[str, object]) -> list[str]:
    """Return the problems of the placeholders in a parsed value, one line each."""
    problems = [f"{key!r}: placeholders are allowed in values only" for key in keys_with_placeholders(value)]
    for path, text in texts_in(value):
        found = (problem for piece in split(text) if (problem := _piece_problem(piece, secrets)))
        problems += (f"{path}: {problem}" if path else problem for problem in found)
    return problems


def _piece_problem(piece: str | Name, secrets: Mapping[str, object]) -> str | None:
    if isinstance(piece, str):
        return _unclosed_problem(piece)
    return _name_problem(piece._replace(filters=()), secrets) or _filter_problem(piece)


def _unclosed_problem(text: str) -> str | None:
    """Return the problem of a placeholder whose closing brace is missing; it would be sent as it stands."""
    match = _UNCLOSED.search(text)
    return None if match is None else f"{match[0]!r} isn't closed; write {match[0]}}}"


def _name_problem(name: Name, secrets: Mapping[str, object]) -> str | None:
    if name.root in _EXAMPLES:
        return None if name.field else f"{name.written} needs a field, such as {_EXAMPLES[name.root]}"
    if name.root == "secret":
        if name.field in secrets:
            return None
        return f"{name.written} isn't defined in secrets{suggestion(name.field, secrets)}"
    if name.field in FIXED_FIELDS.get(name.root, {}):
        return None
    return f"unknown placeholder {name.written}{_meant(name, secrets) or _THERE_ARE}"


def _filter_problem(name: Name) -> str | None:
    kind: ValueKind | None = placeholder_kind(name)
    for filter_ in name.filters:
        if filter_ not in FILTER_NAMES:
            there_are = suggestion(filter_, FILTER_NAMES) or f"; there are {', '.join(FILTER_NAMES)}"
            return f"{name.written}: unknown filter {filter_!r}{there_are}"
        if kind is not None and (kind := kind_after(kind, filter_)) is None:
            return f"{name.written}: the filter {filter_} doesn't apply to this value"
    return None


def _meant(name: Name, secrets: Mapping[str, object]) -> str:
    """Return a suggestion for an unknown placeholder, or an empty string."""
    known = {
        "message": list(FIXED_FIELDS["message"]),
        "content": sorted(frozenset[str]().union(*BLOCK_FIELDS.values())),
        "settings": ["reference"],
        "customer": ["phone", "email", "language"],
        "variables": [],
        "receipt": ["url"],
        "secret": list(secrets),
    }
    whole = ".".join(filter(None, name[:2]))
    for root in [root for root in known if whole in known[root]]:
        return f"; did you mean {{{root}.{whole}}}?"
    if (meant := closest(name.root, known)) is None:
        return ""
    field = name.field if meant in _EXAMPLES else closest(name.field, known[meant])
    return f"; did you mean {{{meant}.{field}}}?" if field else ""


_THERE_ARE = (
    "; there are {message.id}, {message.key}, {message.expiresAt}, {message.validity},"
    " {settings.reference}, {customer.FIELD}, {content.FIELD}, {variables.NAME},"
    " {receipt.url} and {secret.NAME}"
)
_EXAMPLES = {"customer": "{customer.phone}", "content": "{content.text}", "variables": "{variables.code}"}
"""Roots whose fields aren't known, with an example each."""


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


def uses(value: object, root: str, field: str) -> bool:
    """Whether a mapping contains this placeholder, with or without filters."""
    return any(name[:2] == (root, field) for _, name in names_in(value))


def filtered_fields(value: object, filter_: str) -> frozenset[Name]:
    """Return the placeholders of a mapping that go through this filter, without their filters."""
    return frozenset(name._replace(filters=()) for _, name in names_in(value) if filter_ in name.filters)
