"""Recipients that fail on purpose, selected by their address."""

from __future__ import annotations

from enum import Enum

from deliveryd.sandbox.records import StandInChannel

TEMPORARY_FAILURES = 2


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
