"""Turns a dispatch into a provider's HTTP request; what is the same for every message is prepared once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple
from urllib.parse import quote_plus

from deliveryd import __version__
from deliveryd.channels.base import Dispatch
from deliveryd.channels.http_address import compile_address, compile_pairs, fill_pairs
from deliveryd.channels.http_options import HttpOptions
from deliveryd.channels.mapping import ABSENT, Text, Unfit, compile_tree

Header = tuple[str, str]
Body = Callable[[Dispatch], bytes]

_write_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class HttpRequest(NamedTuple):
    """One request, ready to be sent."""

    method: str
    url: str
    headers: list[Header]
    body: bytes


class RequestWriter:
    """Writes the requests of one channel. Raises ValueError when a secret can't stand where it is put."""

    def __init__(self, options: HttpOptions, secrets: Mapping[str, str]) -> None:
        self._method = options.method
        self._address = compile_address(options.url, options.query, secrets)
        self._body = _compile_body(options, secrets)
        self._fixed, self._filled = _compile_headers(options, secrets)

    def write(self, dispatch: Dispatch) -> HttpRequest:
        """The request for one attempt. Raises Unfit."""
        headers = [*self._fixed, ("Idempotency-Key", _header_value("Idempotency-Key", dispatch.attempt_id))]
        for name, text in self._filled:
            value = text.fill(dispatch)
            if value is not ABSENT:
                headers.append((name, _header_value(name, value)))
        return HttpRequest(self._method, self._address(dispatch), headers, self._body(dispatch))


def _header_value(name: str, value: str) -> str:
    if value.isascii() and value.isprintable():
        return value
    raise Unfit(f"the header {name} can't carry the value")


def _compile_headers(
    options: HttpOptions, secrets: Mapping[str, str]
) -> tuple[list[Header], list[tuple[str, Text]]]:
    fixed: list[Header] = []
    filled: list[tuple[str, Text]] = []
    for name, template in options.headers.items():
        text = Text(template, secrets)
        if text.constant is None:
            filled.append((name, text))
        elif text.constant.isascii() and text.constant.isprintable():
            fixed.append((name, text.constant))
        else:
            raise ValueError(f"headers.{name}: a secret in a header is printable ASCII")
    given = {name.lower() for name in options.headers}
    fixed += [(name, value) for name, value in _own_headers(options) if name.lower() not in given]
    return fixed, filled


def _own_headers(options: HttpOptions) -> list[Header]:
    own = [("User-Agent", f"deliveryd/{__version__}")]
    if options.json_body is not None:
        own.append(("Content-Type", "application/json"))
    if options.form is not None:
        own.append(("Content-Type", "application/x-www-form-urlencoded"))
    return own


def _compile_body(options: HttpOptions, secrets: Mapping[str, str]) -> Body:
    if options.json_body is not None:
        return partial(_json_body, compile_tree(options.json_body, secrets), type(options.json_body))
    if options.form is not None:
        pairs = compile_pairs(options.form, secrets, partial(quote_plus, safe=""))
        return lambda dispatch: fill_pairs(pairs, dispatch).encode("ascii")
    return lambda _: b""


def _json_body(fill: Callable[[Dispatch], object], empty: Callable[[], object], dispatch: Dispatch) -> bytes:
    value = fill(dispatch)
    try:
        return _write_json(empty() if value is ABSENT else value).encode("utf-8")
    except UnicodeEncodeError:
        raise Unfit("a value isn't valid Unicode text") from None
