"""The forms an answer of the sandbox takes."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response


class UnreadableError(ValueError):
    """What a client sent cannot be read; says why in words meant for that client."""


def json_answer(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return json_response(json.dumps(value, ensure_ascii=False, separators=(",", ":")), status)


def json_response(text: str | bytes, status: int = 200) -> Response:
    """JSON that is text already."""
    return Response(text, status, media_type="application/json")


def problem(status: int, error: str, **more: Any) -> Response:
    """A refusal as JSON: `error` says what is wrong in a sentence."""
    return json_answer({"error": error, **more}, status)
