"""JSON Pointers (RFC 6901) as values of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from deliveryd.http.json_pointer import parse_pointer


def _valid(pointer: str) -> str:
    parse_pointer(pointer)
    return pointer


Pointer = Annotated[str, AfterValidator(_valid)]
