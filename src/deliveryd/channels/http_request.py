"""Turns a dispatch into an HTTP request; constant parts are prepared once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple
from urllib.parse import quote_plus

import orjson

from deliveryd import __version__
from deliveryd.channels.base import Dispatch
from deliveryd.channels.http_address import compile_address, compile_pairs, fill_pairs
from deliveryd.channels.http_options import HttpChannelOptions
from deliveryd.channels.mapping import ABSENT, TextTemplate, Unfit, compile_tree
from deliveryd.http.client import raw_header, target_of
from deliveryd.http.wire import Header, Target

Body = Callable[[Dispatch], bytes]

_KEY = b"Idempotency-Key"


class HttpRequest(NamedTuple):
    """One request, ready to be sent."""

    method: str
    target: Target
    headers: list[Header]
    body: bytes


class RequestWriter:
    """Writes the requests of one channel. Raises ValueError if a secret is invalid where it is used."""

    def __init__(self, options: HttpChannelOptions, secrets: Mapping[str, str]) -> None:
        self._method = options.method
        self._target = _compile_target(options, secrets)
        self._body = _compile_body(options, secrets)
        self._fixed, self._filled = _compile_headers(options, secrets)

    def write(self, dispatch: Dispatch) -> HttpRequest:
        """Return the request for one attempt. Raises Unfit."""
        headers = [*self._fixed, (_KEY, dispatch.key.encode("ascii"))]
        for name, text in self._filled:
            value = text.fill(dispatch)
            if value is not ABSENT:
                headers.append(_filled_header(name, value))
        return HttpRequest(self._method, self._target(dispatch), headers, self._body(dispatch))


def _filled_header(name: str, value: str) -> Header:
    if value.isascii() and value.isprintable():
        return raw_header(name, value)
    raise Unfit(f"the header {name} can't carry the value")


def _compile_target(options: HttpChannelOptions, secrets: Mapping[str, str]) -> Callable[[Dispatch], Target]:
    address = compile_address(options.url, options.query, secrets)
    if address.constant is None:
        return lambda dispatch: target_of(address.fill(dispatch))
    target = target_of(address.constant)
    return lambda _: target


def _compile_headers(
    options: HttpChannelOptions, secrets: Mapping[str, str]
) -> tuple[list[Header], list[tuple[str, TextTemplate]]]:
    fixed: list[tuple[str, str]] = []
    filled: list[tuple[str, TextTemplate]] = []
    for name, template in options.headers.items():
        text = TextTemplate(template, secrets)
        if text.constant is None:
            filled.append((name, text))
        elif text.constant.isascii() and text.constant.isprintable():
            fixed.append((name, text.constant))
        else:
            raise ValueError(f"headers.{name}: a secret in a header must be printable ASCII")
    given = {name.lower() for name in options.headers}
    fixed += [(name, value) for name, value in _own_headers(options) if name.lower() not in given]
    return [raw_header(name, value) for name, value in fixed], filled


def _own_headers(options: HttpChannelOptions) -> list[tuple[str, str]]:
    own = [("User-Agent", f"deliveryd/{__version__}")]
    if options.json_body is not None:
        own.append(("Content-Type", "application/json"))
    if options.form is not None:
        own.append(("Content-Type", "application/x-www-form-urlencoded"))
    return own


def _compile_body(options: HttpChannelOptions, secrets: Mapping[str, str]) -> Body:
    if options.json_body is not None:
        return partial(_json_body, compile_tree(options.json_body, secrets), type(options.json_body))
    if options.form is not None:
        pairs = compile_pairs(options.form, secrets, partial(quote_plus, safe=""))
        return lambda dispatch: fill_pairs(pairs, dispatch).encode("ascii")
    return lambda _: b""


def _write_json(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # half a surrogate pair; or an integer of more than 64 bits, which is fine
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _json_body(fill: Callable[[Dispatch], object], empty: Callable[[], object], dispatch: Dispatch) -> bytes:
    value = fill(dispatch)
    try:
        return _write_json(empty() if value is ABSENT else value)
    except UnicodeEncodeError:
        raise Unfit("a value isn't valid Unicode text") from None
