"""Turns a dispatch into an HTTP request; constant parts are prepared once."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import quote_plus

import orjson

from deliveryd import __version__
from deliveryd.channels.base import Dispatch
from deliveryd.channels.filling import (
    ABSENT,
    NOT_UNICODE,
    MappingContext,
    TextTemplate,
    compile_tree,
    getter,
    is_constant,
)
from deliveryd.channels.http.address import compile_address, compile_pairs, fill_pairs
from deliveryd.channels.http.request_options import BasicOptions, RequestOptions, RequestParts, WhenOptions
from deliveryd.channels.http.signing import MoreHeaders, open_signing
from deliveryd.channels.mapping import Unfit, names_in
from deliveryd.http.client import raw_header
from deliveryd.http.wire import Header, Target
from deliveryd.runtime.json_numbers import dumps_exact

Body = Callable[[Dispatch], bytes]

_KEY = b"Idempotency-Key"


class HttpRequest(NamedTuple):
    """One request, ready to be sent."""

    method: str
    target: Target
    headers: list[Header]
    body: bytes


Write = Callable[[Dispatch], HttpRequest]
VariantTest = Callable[[Dispatch], bool]


class RequestWriter:
    """Writes the requests of one channel. Raises ValueError if a secret is invalid where it is used.

    `write` returns the request for one attempt: that of the first variant that fits. It raises Unfit.
    """

    def __init__(self, options: RequestOptions, context: MappingContext) -> None:
        base = options.parts()
        self._base = PartsWriter(base, options.basic, context)
        self._variants: list[tuple[VariantTest, Write]] = []
        for variant in options.variants:
            writer = PartsWriter(variant.over(base), options.basic, context)
            write = (
                _completed(writer.write, variant.over(base), context) if variant.complete else writer.write
            )
            self._variants.append((_compile_conditions(variant.when, context), write))
        write = self._write_first if self._variants else self._base.write
        if options.traceparent:
            write = _followed(write, _trace)
        if options.sign is not None:
            write = _followed(write, open_signing(options.sign, context))
        self.write = write

    def _write_first(self, dispatch: Dispatch) -> HttpRequest:
        for fits, write in self._variants:
            if fits(dispatch):
                return write(dispatch)
        return self._base.write(dispatch)


def _followed(write: Write, more: MoreHeaders) -> Write:
    """Return what writes a request with more headers, which may depend on its body."""

    def followed(dispatch: Dispatch) -> HttpRequest:
        request = write(dispatch)
        return request._replace(headers=[*request.headers, *more(dispatch, request.body)])

    return followed


def _completed(write: Write, parts: RequestParts, context: MappingContext) -> Write:
    """Return what writes a request only if each of its placeholders has a value; else it raises Unfit."""
    mapped = [parts.json_body, parts.form, parts.query, parts.headers]
    needed = {name.written: getter(name, context) for _, name in names_in(mapped) if not is_constant(name)}

    def completed(dispatch: Dispatch) -> HttpRequest:
        for written, read in needed.items():
            if read(dispatch) in (ABSENT, ""):
                raise Unfit(f"{written} has no value")
        return write(dispatch)

    return completed


def _trace(dispatch: Dispatch, _body: bytes) -> list[Header]:
    return [] if dispatch.traceparent is None else [raw_header("traceparent", dispatch.traceparent)]


class PartsWriter:
    """Writes requests that are made from the same parts."""

    def __init__(self, parts: RequestParts, basic: BasicOptions | None, context: MappingContext) -> None:
        self._method = parts.method
        self._target = compile_address(parts.url, parts.query, context)
        self._body = _compile_body(parts, context)
        self._fixed, self._filled = _compile_headers(parts, context)
        if basic is not None:
            self._fixed.append(raw_header("Authorization", f"Basic {basic_login(basic, context)}"))

    def write(self, dispatch: Dispatch) -> HttpRequest:
        """Return the request for one attempt, with the message's key. Raises Unfit."""
        headers = [*self._fixed, (_KEY, dispatch.key.encode("ascii"))]
        for name, text in self._filled:
            value = text.fill(dispatch)
            if value is not ABSENT:
                headers.append(_filled_header(name, value))
        return HttpRequest(self._method, self._target(dispatch), headers, self._body(dispatch))

    def ask(self, dispatch: Dispatch) -> HttpRequest:
        """Return a request that sends no message, and so carries no key. Raises Unfit.

        It isn't made without a header: the answer could be about something else.
        """
        for name, text in self._filled:
            if text.fill(dispatch) is ABSENT:
                raise Unfit(f"the header {name} has no value")
        request = self.write(dispatch)
        return request._replace(headers=[header for header in request.headers if header[0] is not _KEY])


def _compile_conditions(conditions: Sequence[WhenOptions], context: MappingContext) -> VariantTest:
    compiled = [_compile_condition(condition, context) for condition in conditions]
    return lambda dispatch: all(holds(dispatch) for holds in compiled)


def _compile_condition(condition: WhenOptions, context: MappingContext) -> VariantTest:
    read = compile_tree(condition.at, context)
    if condition.is_ is not None:
        values = frozenset(condition.is_)
        return lambda dispatch: (value := read(dispatch)) is not ABSENT and str(value) in values
    return lambda dispatch: (read(dispatch) not in (ABSENT, "")) is condition.present


def basic_login(basic: BasicOptions, context: MappingContext) -> str:
    """Return user name and password as a header has them (RFC 7617), or the mask."""
    if context.mask is not None:
        return context.mask
    username, password = (TextTemplate(text, context).constant for text in (basic.username, basic.password))
    return b64encode(f"{username}:{password}".encode()).decode("ascii")


def _filled_header(name: str, value: str) -> Header:
    if value.isascii() and value.isprintable():
        return raw_header(name, value)
    raise Unfit(f"the header {name} can't carry the value")


def _compile_headers(
    parts: RequestParts, context: MappingContext
) -> tuple[list[Header], list[tuple[str, TextTemplate]]]:
    fixed: list[tuple[str, str]] = []
    filled: list[tuple[str, TextTemplate]] = []
    for name, template in parts.headers.items():
        text = TextTemplate(template, context)
        if text.constant is None:
            filled.append((name, text))
        elif text.constant.isascii() and text.constant.isprintable():
            fixed.append((name, text.constant))
        else:
            raise ValueError(f"headers.{name}: a secret in a header must be printable ASCII")
    given = {name.lower() for name in parts.headers}
    fixed += [(name, value) for name, value in _own_headers(parts) if name.lower() not in given]
    return [raw_header(name, value) for name, value in fixed], filled


def _own_headers(parts: RequestParts) -> list[tuple[str, str]]:
    own = [("User-Agent", f"deliveryd/{__version__}")]
    if parts.json_body is not None:
        own.append(("Content-Type", "application/json"))
    if parts.form is not None:
        own.append(("Content-Type", "application/x-www-form-urlencoded"))
    return own


def _compile_body(parts: RequestParts, context: MappingContext) -> Body:
    if parts.json_body is not None:
        return partial(_json_body, compile_tree(parts.json_body, context), type(parts.json_body))
    if parts.form is not None:
        pairs = compile_pairs(parts.form, context, partial(quote_plus, safe=""))
        return lambda dispatch: fill_pairs(pairs, dispatch).encode("ascii")
    return lambda _: b""


def _json_body(fill: Callable[[Dispatch], object], empty: Callable[[], object], dispatch: Dispatch) -> bytes:
    value = fill(dispatch)
    if value is ABSENT:
        value = empty()
    try:
        return dumps_exact(value)
    except orjson.JSONEncodeError:  # half a surrogate pair; or an integer of more than 64 bits, which is fine
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise Unfit(NOT_UNICODE) from None
