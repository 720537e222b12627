"""The address of a provider's request, with percent-encoded values in path segments and query values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple
from unicodedata import normalize
from urllib.parse import quote

from deliveryd.channels.base import Dispatch
from deliveryd.channels.filling import ABSENT, Encode, MappingContext, TextTemplate
from deliveryd.channels.filters import Unfit
from deliveryd.channels.mapping import Name, split
from deliveryd.http.target import target_of

Fill = Callable[[Dispatch], str]
QueryPairs = Mapping[str, object]

encode_component = partial(quote, safe="")

_ADDRESS = re.compile(r"(https?://[^/?#{}\s]+)([^?#]*)(?:\?([^#]*))?")
_STEERING = re.compile(r"[/\\%;\x00-\x1f\x7f-\x9f]")
"""What a server or a proxy on the way may take for more than text of a segment, also after it was decoded."""

UNFIT_FOR_PATH = "a value can't be part of the address"


def fits_path(value: str) -> bool:
    """Whether a value may be a part of a path's segment, whatever reads and decodes it on the way.

    It may hold no separators, escapes and controls, in no width, and not only dots.
    """
    forms = [value] if value.isascii() else [value, normalize("NFKC", value)]
    return all(_STEERING.search(form) is None and form.strip(". ") for form in forms)


def _encode_for_path(value: str) -> str:
    if not fits_path(value):
        raise Unfit(UNFIT_FOR_PATH)
    return encode_component(value)


def customer_fields_in_path(url: str) -> frozenset[str]:
    """Return the customer's fields that stand in the path of an address as they are."""
    path = url.partition("?")[0]
    return frozenset(
        piece.field
        for piece in split(path)
        if isinstance(piece, Name) and piece.root == "customer" and not piece.filters
    ) - {"id"}


def address_problem(url: str) -> str | None:
    """Return why an address with placeholders is invalid, or None."""
    match = _ADDRESS.fullmatch(url)
    if match is None:
        return (
            "expected http:// or https:// and a host; placeholders are allowed in the path and the query only"
        )
    keys = [pair.partition("=")[0] for pair in (match[3] or "").split("&")]
    if any(isinstance(piece, Name) for key in keys for piece in split(key)):
        return "in the query, placeholders are allowed in values only"
    without = "".join("x" if isinstance(piece, Name) else piece for piece in split(url))
    if not (without.isascii() and without.isprintable()) or " " in without:
        return "spaces and non-ASCII characters must be percent-encoded"
    try:
        target_of(without)
    except ValueError as error:
        return str(error)
    return None


class AddressTemplate(NamedTuple):
    """A compiled address: `fill` writes it for one message and raises Unfit.

    `constant` is its text when it is the same for every message.
    """

    fill: Fill
    constant: str | None


def compile_address(url: str, query: QueryPairs | None, context: MappingContext) -> AddressTemplate:
    """Compile an address, its own query before the table's."""
    match = _ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError("not an address")
    segments = [
        TextTemplate(segment, context, value=_encode_for_path, constant=encode_component)
        for segment in match[2].split("/")
    ]
    pairs = _compile_query(match[3] or "", query or {}, context)
    constants = [text.constant for text in (*segments, *pairs)]
    fill = partial(_fill_address, match[1], segments, pairs)
    if None in constants:
        return AddressTemplate(fill, None)
    path, own_query = constants[: len(segments)], constants[len(segments) :]
    return AddressTemplate(fill, _join(match[1], map(str, path), map(str, own_query)))


def _fill_address(
    origin: str, segments: list[TextTemplate], pairs: list[TextTemplate], dispatch: Dispatch
) -> str:
    return _join(origin, [_fill_segment(segment, dispatch) for segment in segments], _filled(pairs, dispatch))


def _join(origin: str, segments: Iterable[str], pairs: Iterable[str]) -> str:
    query = "&".join(pairs)
    return f"{origin}{'/'.join(segments)}{'?' if query else ''}{query}"


def _fill_segment(segment: TextTemplate, dispatch: Dispatch) -> str:
    if segment.constant is not None:
        return segment.constant
    filled = segment.fill(dispatch)
    if filled is ABSENT or not filled.strip("."):  # parts that are dots together
        raise Unfit(UNFIT_FOR_PATH)
    return filled


def _compile_query(own: str, table: QueryPairs, context: MappingContext) -> list[TextTemplate]:
    texts = [TextTemplate(pair, context, value=encode_component) for pair in own.split("&") if pair]
    return texts + compile_pairs(table, context, encode_component)


def compile_pairs(table: QueryPairs, context: MappingContext, encode: Encode) -> list[TextTemplate]:
    """Compile a table into encoded `key=value` texts, one for each member of a list."""
    texts = []
    for key, value in table.items():
        members = value if isinstance(value, list) else [value]
        texts += [_compile_pair(key, _table_text(member), context, encode) for member in members]
    return texts


def _compile_pair(key: str, value: str, context: MappingContext, encode: Encode) -> TextTemplate:
    return TextTemplate(value, context, literal=encode, value=encode, prefix=f"{encode(key)}=")


def _table_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def fill_pairs(texts: list[TextTemplate], dispatch: Dispatch) -> str:
    """The pairs for one message, without those that have a placeholder without a value. Raises Unfit."""
    return "&".join(_filled(texts, dispatch))


def _filled(texts: list[TextTemplate], dispatch: Dispatch) -> list[str]:
    pairs = [text.constant if text.constant is not None else text.fill(dispatch) for text in texts]
    return [pair for pair in pairs if pair is not ABSENT]
