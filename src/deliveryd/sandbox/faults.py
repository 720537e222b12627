"""What goes wrong on purpose: faults planned for requests, and recipients that fail by their address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Literal, TypeAlias, get_args

StandInChannel: TypeAlias = Literal["sms", "messenger", "inApp", "email"]

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


class Temper(Enum):
    """A provider's behaviour for one recipient."""

    GOOD = "accepted, and delivered"
    PERMANENT = "refused for good"
    TEMPORARY = "refused the first two times"
    TIMEOUT = "not answered the first time"
    FAILED = "accepted, and later reported as failed"
    DOWN = "refused every time, as if the provider were down"
    STOPPED = "refused, since the recipient opted out"
    SILENT = "accepted, and never reported"
    TWICE = "accepted, and reported twice"


REFUSED_TRIES: Mapping[Temper, float] = {
    Temper.PERMANENT: inf,
    Temper.TEMPORARY: 2,
    Temper.TIMEOUT: 1,
    Temper.DOWN: inf,
    Temper.STOPPED: inf,
}
"""How many tries for one message aren't accepted."""

_NUMBERS = {
    "15550100": Temper.PERMANENT,
    "15550101": Temper.TEMPORARY,
    "15550102": Temper.TIMEOUT,
    "15550103": Temper.FAILED,
    "15550104": Temper.DOWN,
    "15550105": Temper.STOPPED,
    "15550106": Temper.SILENT,
    "15550107": Temper.TWICE,
}

_PREFIXES = {
    "permerror": Temper.PERMANENT,
    "temperror": Temper.TEMPORARY,
    "timeout": Temper.TIMEOUT,
    "failed": Temper.FAILED,
    "down": Temper.DOWN,
    "stopped": Temper.STOPPED,
    "silent": Temper.SILENT,
    "twice": Temper.TWICE,
}


def temper_of(channel: StandInChannel, to: str) -> Temper:
    """Return the behaviour for this recipient: by its number, or by the prefix of another address."""
    if channel == "sms" or to.lstrip("+").isdecimal():
        return _NUMBERS.get("".join(filter(str.isdecimal, to)), Temper.GOOD)
    lowered = to.lower()
    return next((temper for prefix, temper in _PREFIXES.items() if lowered.startswith(prefix)), Temper.GOOD)
