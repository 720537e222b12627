"""Responses of the sandbox."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response


class UnreadableError(ValueError):
    """A request can't be parsed; the text is for the client."""


class UnknownAddressError(UnreadableError):
    """A gateway has no such address; the text is for the client."""


def json_answer(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return json_response(json.dumps(value, ensure_ascii=False, separators=(",", ":")), status)


def json_response(text: str | bytes, status: int = 200) -> Response:
    """Return a JSON text as a response."""
    return Response(text, status, media_type="application/json")


def problem(status: int, error: str, **more: Any) -> Response:
    """Return an error as JSON: `error` is a sentence."""
    return json_answer({"error": error, **more}, status)
