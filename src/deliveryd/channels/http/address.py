"""The address of a provider's request, with percent-encoded values in path segments and query values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from unicodedata import normalize
from urllib.parse import quote

from deliveryd.channels.base import Dispatch
from deliveryd.channels.filling import ABSENT, Encode, MappingContext, TextTemplate
from deliveryd.channels.mapping import Name, Unfit, split
from deliveryd.http.target import target_of
from deliveryd.http.wire import Target

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


def compile_address(
    url: str, query: QueryPairs | None, context: MappingContext
) -> Callable[[Dispatch], Target]:
    """Compile an address, its own query before the table's, into what writes it, which raises Unfit.

    Raises ValueError if a secret makes it no address.
    """
    match = _ADDRESS.fullmatch(url)
    if match is None:
        raise ValueError("not an address")
    segments = [
        TextTemplate(segment, context, value=_encode_for_path, constant=encode_component)
        for segment in match[2].split("/")
    ]
    own = (match[3] or "").split("&")
    pairs = [TextTemplate(pair, context, value=encode_component) for pair in own if pair]
    pairs += compile_pairs(query or {}, context, encode_component)

    def joined(path: Iterable[str], query: str) -> Target:
        return target_of(f"{origin}{'/'.join(path)}{'?' if query else ''}{query}")

    origin = match[1]
    constants = [text.constant for text in (*segments, *pairs) if text.constant is not None]
    if len(constants) == len(segments) + len(pairs):
        target = joined(constants[: len(segments)], "&".join(constants[len(segments) :]))
        return lambda _: target
    return lambda dispatch: joined(
        [_fill_segment(segment, dispatch) for segment in segments], fill_pairs(pairs, dispatch)
    )


def _fill_segment(segment: TextTemplate, dispatch: Dispatch) -> str:
    filled = segment.fill(dispatch)
    if filled is ABSENT or not (filled.strip(".") or segment.constant is not None):  # dots together
        raise Unfit(UNFIT_FOR_PATH)
    return filled


def compile_pairs(table: QueryPairs, context: MappingContext, encode: Encode) -> list[TextTemplate]:
    """Compile a table into encoded `key=value` texts, one for each member of a list."""
    texts = []
    for key, value in table.items():
        members = value if isinstance(value, list) else [value]
        for member in members:
            text = str(member).lower() if isinstance(member, bool) else str(member)
            prefix = f"{encode(key)}="
            texts.append(TextTemplate(text, context, literal=encode, value=encode, prefix=prefix))
    return texts


def fill_pairs(texts: list[TextTemplate], dispatch: Dispatch) -> str:
    """The pairs for one message, without those that have a placeholder without a value. Raises Unfit."""
    return "&".join([pair for text in texts if (pair := text.fill(dispatch)) is not ABSENT])
