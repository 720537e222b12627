"""Asks an HTTP provider: whether it has a message in doubt, and about the account. Sends no message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

from deliveryd.channels.base import AskLater, Dispatch, Found, NotTaken, Taken, Unknown
from deliveryd.channels.filling import MappingContext
from deliveryd.channels.http.answer_options import LONGEST_PAUSE, RowOptions
from deliveryd.channels.http.ask_options import LookupOptions, ProbeOptions
from deliveryd.channels.http.request import HttpRequest, PartsWriter
from deliveryd.channels.http.request_options import BasicOptions
from deliveryd.http.finder import Document, all_hold, compile_conditions, compile_finder
from deliveryd.http.responses import is_page, retry_after
from deliveryd.http.wire import WireResponse
from deliveryd.model import Entry, Rendered, WallClock

_OF_THE_MESSAGE = frozenset({400, 404, 409, 410, 422})
"""Statuses beside 2xx that show that the provider looked for the message; any other is about the question."""

_REJECTED = {
    401: "it rejects the credentials",
    403: "it doesn't permit this with these credentials",
    404: "it has no such account, or the address is wrong",
}

_Row = TypeVar("_Row", bound=RowOptions)


class ProbeResult(NamedTuple):
    """The provider's verdict on the account. `unknown`: it didn't answer that."""

    verdict: Literal["good", "rejected", "unknown"]
    text: str


def _fitting(rows: Sequence[_Row], answer: WireResponse) -> _Row | None:
    """Return the first row that fits an answer."""
    document = Document(answer.body, answer.headers)
    for row in rows:
        if answer.status in row.statuses and all_hold(compile_conditions(row.where), document):
            return row
    return None


def read_lookup(options: LookupOptions, answer: WireResponse) -> Found:
    """Return what an answer means for a message in doubt."""
    said = f"asked whether it has the message, the provider answered {answer.status}"
    row = _fitting(options.answers, answer)
    if (row is None or not row.where) and is_page(answer.body):
        return AskLater(f"{said} with a page, which isn't about the message")
    if row is None or (row.verdict == "unknown" and not row.where):
        if 200 <= answer.status < 300 or answer.status in _OF_THE_MESSAGE:
            return Unknown(said)
        return AskLater(said, retry_after(answer.headers.get("retry-after"), LONGEST_PAUSE))
    match row.verdict:
        case "taken" if options.provider_id is not None:
            return Taken(compile_finder(options.provider_id).find(Document(answer.body, answer.headers)))
        case "taken":
            return Taken()
        case "not_taken":
            return NotTaken()
    return Unknown(said)


def write_probe(options: ProbeOptions, basic: BasicOptions | None, context: MappingContext) -> HttpRequest:
    """Return the question about the account. Raises ValueError if a secret is invalid where it is used."""
    nothing = Dispatch("", Entry(0, 0, 0, {}), None, Rendered("", "", {}), None, WallClock())
    has_login = any(name.lower() == "authorization" for name in options.headers)
    return PartsWriter(options.parts(), None if has_login else options.basic or basic, context).ask(nothing)


def read_probe(options: ProbeOptions, answer: WireResponse) -> ProbeResult:
    """Return what an answer means for the account."""
    if (row := _fitting(options.answers, answer)) is not None:
        meaning = row.says or ("the account is good" if row.verdict == "good" else "the account is rejected")
        return ProbeResult(row.verdict, f"answered {answer.status}: {meaning}")
    if 200 <= answer.status < 300:
        return ProbeResult("good", f"answered {answer.status}")
    if answer.status in _REJECTED:
        return ProbeResult("rejected", f"answered {answer.status}: {_REJECTED[answer.status]}")
    if 300 <= answer.status < 400:
        text = f"answered {answer.status}, a redirect, which isn't followed: is the address right?"
        return ProbeResult("rejected", text)
    return ProbeResult("unknown", f"answered {answer.status}, which doesn't show whether the account is good")
