"""What can go wrong with one request to the sandbox, as plain values that a plan is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

StandInEndpoint: TypeAlias = Literal[
    "queue",
    "events",
    "settings",
    "customers",
    "entities",
    "provider.sms",
    "provider.messenger",
    "provider.inApp",
]

ENDPOINTS: tuple[StandInEndpoint, ...] = (
    "queue",
    "events",
    "settings",
    "customers",
    "entities",
    "provider.sms",
    "provider.messenger",
    "provider.inApp",
)


@dataclass(frozen=True, slots=True)
class Pass:
    """Nothing goes wrong: holds a place in a plan, for "the third request fails"."""


@dataclass(frozen=True, slots=True)
class FaultAnswer:
    """This answer is given and the request is not carried out."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)


@dataclass(frozen=True, slots=True)
class HangUp:
    """The connection is closed without an answer; the request is not carried out."""


@dataclass(frozen=True, slots=True)
class ApplyThenAnswer:
    """The request is carried out, and answered with this status all the same."""

    status: int


@dataclass(frozen=True, slots=True)
class ApplyThenHangUp:
    """The request is carried out, then the connection is closed without an answer."""


@dataclass(frozen=True, slots=True)
class CutInHalf:
    """The request is carried out; its answer announces its full length and stops half-way."""


@dataclass(frozen=True, slots=True)
class Drip:
    """The request is carried out; its answer arrives a byte at a time, `pause` seconds apart."""

    pause: float = 0.1


@dataclass(frozen=True, slots=True)
class Delay:
    """The request is carried out, and answered, `seconds` after its arrival."""

    seconds: float


@dataclass(frozen=True, slots=True)
class ApplyThenDelay:
    """The request is carried out at once and answered `seconds` later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang:
    """The request is not carried out and not answered for as long as the sandbox is open."""


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
    """The page a captive portal or a proxy puts where JSON was expected."""
    page = b"<!doctype html><html><body><h1>Please come back later</h1></body></html>"
    return FaultAnswer(status, page, (("content-type", "text/html; charset=utf-8"),))
