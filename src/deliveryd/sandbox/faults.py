"""Faults that can be planned for requests to the sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

StandInEndpoint: TypeAlias = Literal[
    "queue",
    "events",
    "settings",
    "customers",
    "entities",
    "provider.sms",
    "provider.messenger",
    "provider.inApp",
    "provider.email",
]

ENDPOINTS: tuple[StandInEndpoint, ...] = get_args(StandInEndpoint)


@dataclass(frozen=True, slots=True)
class Pass:
    """No fault: a placeholder in a plan such as "the third request fails"."""


@dataclass(frozen=True, slots=True)
class FaultAnswer:
    """This response is sent, and the request isn't executed."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


@dataclass(frozen=True, slots=True)
class HangUp:
    """The connection is closed without a response; the request isn't executed."""


@dataclass(frozen=True, slots=True)
class ApplyThenAnswer:
    """The request is executed, but answered with this status."""

    status: int


@dataclass(frozen=True, slots=True)
class ApplyThenHangUp:
    """The request is executed, then the connection is closed without a response."""


@dataclass(frozen=True, slots=True)
class CutInHalf:
    """The request is executed; the response declares its full length and breaks off half-way."""


@dataclass(frozen=True, slots=True)
class Drip:
    """The request is executed; the response arrives one byte at a time, `pause` seconds apart."""

    pause: float = 0.1


@dataclass(frozen=True, slots=True)
class Delay:
    """The request is executed and answered `seconds` after its arrival."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ApplyThenDelay:
    """The request is executed at once and answered `seconds` later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """The request is never executed and never answered."""


Fault: TypeAlias = (
    Pass
    | FaultAnswer
    | HangUp
    | ApplyThenAnswer
    | ApplyThenHangUp
    | CutInHalf
    | Drip
    | Delay
    | ApplyThenDelay
    | Hang
)


def html_page(status: int = 200) -> FaultAnswer:
    """The page of a captive portal or proxy in place of JSON."""
    page = b"<!doctype html><html><body><h1>Please come back later</h1></body></html>"
    return FaultAnswer(status, page, (("content-type", "text/html; charset=utf-8"),))
