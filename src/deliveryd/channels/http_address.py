"""The address of a provider's request: placeholders stand in path segments and query values, encoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import quote

from deliveryd.channels.base import Dispatch
from deliveryd.channels.mapping import ABSENT, Name, Text, Unfit, split
from deliveryd.http.client import target_of

Fill = Callable[[Dispatch], str]
Pairs = Mapping[str, object]

encode_component = partial(quote, safe="")

_ADDRESS = re.compile(r"(https?://[^/?#{}\s]+)([^?#]*)(?:\?([^#]*))?")
_NOT_A_SEGMENT = frozenset({"", ".", ".."})  # each would lead to another address than the one configured


def address_problem(url: str) -> str | None:
    """Why an address with placeholders can't be used, or None."""
    match = _ADDRESS.fullmatch(url)
    if match is None:
        return "expected http:// or https://, a host, and placeholders in the path and the query only"
    keys = [pair.partition("=")[0] for pair in (match[3] or "").split("&")]
    if any(isinstance(piece, Name) for key in keys for piece in split(key)):
        return "in the query, placeholders can stand in values only"
    without = "".join("x" if isinstance(piece, Name) else piece for piece in split(url))
    if not (without.isascii() and without.isprintable()) or " " in without:
        return "what isn't ASCII, and spaces, have to be percent-encoded"
    try:
        target_of(without)
    except ValueError as error:
        return str(error)
    return None


def compile_address(url: str, query: Pairs | None, secrets: Mapping[str, str]) -> Fill:
    """Compile an address, its own query before the table's. Filling it raises Unfit."""
    match = _ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError("not an address")
    origin, path, own_query = match[1], match[2], match[3] or ""
    fill_path = _compile_path(path, secrets)
    fill_query = _compile_query(own_query, query or {}, secrets)

    def fill(dispatch: Dispatch) -> str:
        pairs = fill_query(dispatch)
        return f"{origin}{fill_path(dispatch)}{'?' if pairs else ''}{pairs}"

    return fill


def _compile_path(path: str, secrets: Mapping[str, str]) -> Fill:
    segments = [Text(segment, secrets, value=encode_component) for segment in path.split("/")]
    if all(segment.constant is not None for segment in segments):
        constant = "/".join(segment.constant or "" for segment in segments)
        return lambda _: constant
    return lambda dispatch: "/".join(_fill_segment(segment, dispatch) for segment in segments)


def _fill_segment(segment: Text, dispatch: Dispatch) -> str:
    if segment.constant is not None:
        return segment.constant
    filled = segment.fill(dispatch)
    if filled is ABSENT or filled in _NOT_A_SEGMENT:
        raise Unfit("a value doesn't fit into the address")
    return filled


def _compile_query(own: str, table: Pairs, secrets: Mapping[str, str]) -> Fill:
    texts = [Text(pair, secrets, value=encode_component) for pair in own.split("&") if pair]
    texts += compile_pairs(table, secrets, encode_component)
    return partial(fill_pairs, texts)


def compile_pairs(table: Pairs, secrets: Mapping[str, str], encode: Callable[[str], str]) -> list[Text]:
    """Compile a table into encoded `key=value` texts, one for each member of a list."""
    texts = []
    for key, value in table.items():
        members = value if isinstance(value, list) else [value]
        texts += [_compile_pair(key, _table_text(member), secrets, encode) for member in members]
    return texts


def _compile_pair(key: str, value: str, secrets: Mapping[str, str], encode: Callable[[str], str]) -> Text:
    return Text(value, secrets, literal=encode, value=encode, prefix=f"{encode(key)}=")


def _table_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def fill_pairs(texts: list[Text], dispatch: Dispatch) -> str:
    """The pairs for one message, without those that have an absent content field. Raises Unfit."""
    filled = []
    for text in texts:
        pair = text.constant if text.constant is not None else text.fill(dispatch)
        if pair is not ABSENT:
            filled.append(pair)
    return "&".join(filled)
