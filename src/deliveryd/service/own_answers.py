"""Distinguishes the service's answers from those of something else in its place, such as a proxy or a portal.

All bodies of the service are JSON (interface 4), so a page or any other text isn't its answer. Nothing may be
sent with an error, and in answer to events.
"""

from __future__ import annotations

import re

from deliveryd.errors import ServiceUnavailable
from deliveryd.http.pages import is_page
from deliveryd.http.wire import WireResponse
from deliveryd.service.array_text import BYTE_ORDER_MARK

_JSON = re.compile(rb"[ \t\r\n]*+(?:[{\[\"]|(?:null|true|false|-?\d[\d.eE+-]*+)[ \t\r\n]*+\Z)")


def begins_as_json(body: bytes) -> bool:
    """Whether a body is JSON, or was meant to be."""
    return _JSON.match(body.removeprefix(BYTE_ORDER_MARK)) is not None


def check_json(answer: WireResponse) -> None:
    """Raise ServiceUnavailable if an answer that must be JSON isn't the service's."""
    if not begins_as_json(answer.body):
        raise _in_its_place(answer)


def check_refusal(answer: WireResponse) -> None:
    """Raise ServiceUnavailable if an error, which may have no body, isn't the service's."""
    if answer.body.strip():
        check_json(answer)


def check_no_page(answer: WireResponse) -> None:
    """Raise ServiceUnavailable if an answer, whose body may be anything else, is a page."""
    if is_page(answer.body):
        raise _in_its_place(answer)


def _in_its_place(answer: WireResponse) -> ServiceUnavailable:
    what = "a page" if is_page(answer.body) else "a text" if answer.body.strip() else "nothing"
    reason = f"something else seems to answer for the service: {answer.status} with {what} instead of JSON"
    return ServiceUnavailable(reason, status=answer.status)
