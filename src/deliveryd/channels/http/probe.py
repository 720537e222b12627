"""Asks an HTTP provider whether address, account and credentials are right; sends no message."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from deliveryd import __version__
from deliveryd.channels.base import Dispatch
from deliveryd.channels.filling import MappingContext, TextTemplate, compile_tree
from deliveryd.channels.http.address import compile_address
from deliveryd.channels.http.probe_options import ProbeOptions
from deliveryd.channels.http.request import HttpRequest, basic_credentials
from deliveryd.channels.http.request_options import BasicOptions
from deliveryd.http.client import raw_header
from deliveryd.http.finder import Document, all_hold, compile_conditions
from deliveryd.http.target import target_of
from deliveryd.http.wire import WireResponse
from deliveryd.model import Entry, Rendered, WallClock

_REJECTED = {
    401: "it rejects the credentials",
    403: "it doesn't permit this with these credentials",
    404: "it knows no such account, or the address is wrong",
}


class ProbeResult(NamedTuple):
    """What the provider says of the account. `unknown`: it didn't answer that."""

    verdict: Literal["good", "rejected", "unknown"]
    text: str


def write_probe(options: ProbeOptions, basic: BasicOptions | None, context: MappingContext) -> HttpRequest:
    """Return the request. Raises ValueError, or Unfit, if a secret is invalid where it is used."""
    nothing = Dispatch("", Entry(0, 0, 0, {}), None, Rendered("", "", {}), None, WallClock())
    headers = {"User-Agent": f"deliveryd/{__version__}", "Accept": "application/json"}
    if options.json_body is not None:
        headers["Content-Type"] = "application/json"
    given = {name.lower() for name in options.headers}
    headers = {name: value for name, value in headers.items() if name.lower() not in given}
    headers |= {
        name: str(TextTemplate(value, context).fill(nothing)) for name, value in options.headers.items()
    }
    if (login := options.basic or basic) is not None and "authorization" not in given:
        headers["Authorization"] = basic_credentials(login, context)
    body = b""
    if options.json_body is not None:
        body = json.dumps(compile_tree(options.json_body, context)(nothing)).encode()
    target = target_of(compile_address(options.url, options.query, context).fill(nothing))
    return HttpRequest(options.method, target, [raw_header(*header) for header in headers.items()], body)


def read_probe(options: ProbeOptions, answer: WireResponse) -> ProbeResult:
    """Return what an answer says."""
    document = Document(answer.body, answer.headers)
    for row in options.answers:
        if answer.status in row.statuses and all_hold(compile_conditions(row.where), document):
            meaning = row.says or (
                "the account is good" if row.verdict == "good" else "the account is rejected"
            )
            return ProbeResult(row.verdict, f"answered {answer.status}: {meaning}")
    if 200 <= answer.status < 300:
        return ProbeResult("good", f"answered {answer.status}")
    if answer.status in _REJECTED:
        return ProbeResult("rejected", f"answered {answer.status}: {_REJECTED[answer.status]}")
    if 300 <= answer.status < 400:
        text = f"answered {answer.status}, a redirect, which isn't followed: is the address right?"
        return ProbeResult("rejected", text)
    return ProbeResult("unknown", f"answered {answer.status}, which doesn't show whether the account is good")
