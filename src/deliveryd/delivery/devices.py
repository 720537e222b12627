"""What the verdicts on several devices of a customer come to for their one message. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deliveryd.channels.base import (
    Accepted,
    AtDevice,
    AtDevices,
    Expired,
    InDoubt,
    Misconfigured,
    OneVerdict,
    Refused,
    Stopped,
    TryAgain,
    Unsent,
)
from deliveryd.channels.devices import MOST_DEVICES
from deliveryd.transitions import NOT_OUTLASTED

MOST_SHOWN = 20
"""Most devices that a reason lists."""

_REPEATED = InDoubt | TryAgain | Misconfigured | Unsent
_WORST_FIRST = (InDoubt, TryAgain, Misconfigured, Unsent, Expired, Refused, Stopped)


def first_accepted(found: AtDevices) -> Accepted | None:
    """The verdict of the first device that accepted the message, if any did."""
    return next((each.verdict for each in found.each if isinstance(each.verdict, Accepted)), None)


def to_repeat(found: AtDevices) -> list[str]:
    """The devices that may take the message later, or may have it."""
    return [each.device for each in found.each if isinstance(each.verdict, _REPEATED)]


def unreachable(found: AtDevices) -> Iterator[tuple[str, str]]:
    """The address of each device that can't be reached any more, and why."""
    for each in found.each:
        if isinstance(each.verdict, Stopped) and each.recipient is not None:
            yield each.recipient, each.verdict.reason


def pause_asked(found: AtDevices) -> float | None:
    """The longest pause in seconds that was asked for by any device's answer."""
    asked = [each.verdict.after for each in found.each if isinstance(each.verdict, TryAgain | InDoubt)]
    return max((after for after in asked if after is not None), default=None)


def summary(found: AtDevices, digest: Callable[[str], str]) -> str:
    """What became of each device, which its digest stands for, and how many were left out."""
    parts = [f"device {digest(_address(each))}: {_word(each.verdict)}" for each in found.each]
    more = [f"and {len(parts) - MOST_SHOWN} more"] if len(parts) > MOST_SHOWN else []
    if found.left_out:
        more.append(f"the first {found.left_out} were left out, as a message goes to {MOST_DEVICES} devices")
    return "; ".join([*parts[:MOST_SHOWN], *more])


def put_off(found: AtDevices) -> AtDevices:
    """The verdicts of an attempt within the message's time: what was too late was so for the lease alone."""
    return found._replace(
        each=tuple(
            each._replace(verdict=Unsent(NOT_OUTLASTED)) if isinstance(each.verdict, Expired) else each
            for each in found.each
        )
    )


def of_rest(verdict: OneVerdict) -> OneVerdict:
    """A verdict on the rest of a message that some devices have: what puts it off concerns this rest alone.

    The provider accepted the same message for another device.
    """
    if isinstance(verdict, Misconfigured):
        return TryAgain(verdict.reason, only_this=True, words=verdict.words)
    return verdict._replace(only_this=True) if isinstance(verdict, TryAgain) else verdict


def common(found: AtDevices, reason: str) -> OneVerdict:
    """The verdict on a message that no device accepted: of the device that leaves most open.

    It is in doubt if any device may have it, and is tried again if any may take it later.
    """
    kind = next(kind for kind in _WORST_FIRST if any(isinstance(each.verdict, kind) for each in found.each))
    worst = [each.verdict for each in found.each if isinstance(each.verdict, kind)]
    first, after = worst[0], pause_asked(found)
    match first:
        case InDoubt():
            unreadable = all(isinstance(each, InDoubt) and each.unreadable for each in worst)
            return first._replace(reason=reason, after=after, provider_id=None, unreadable=unreadable)
        case TryAgain():
            only_this = all(isinstance(each, TryAgain) and each.only_this for each in worst)
            uncertain = any(isinstance(each, TryAgain) and each.may_have_arrived for each in worst)
            counts = any(isinstance(each, TryAgain) and each.counts for each in worst)
            return first._replace(
                reason=reason, after=after, only_this=only_this, may_have_arrived=uncertain, new_key=False,
                counts=counts,
            )  # fmt: skip
        case Refused():
            is_all = len(worst) == len(found.each)
            by = first.by if is_all and all(isinstance(each, Refused) and each.by for each in worst) else None
            unsent = is_all and all(isinstance(each, Refused) and each.unsent for each in worst)
            ends = all(isinstance(each, Refused) and each.ends_channel for each in worst)
            return first._replace(reason=reason, by=by, unsent=unsent, ends_channel=ends)
        case Misconfigured() | Stopped() | Unsent() | Expired():
            return first._replace(reason=reason)
    raise AssertionError(f"{type(first).__name__} is no verdict on one device")


def _address(each: AtDevice) -> str:
    return each.device if each.recipient is None else each.recipient


def _word(verdict: OneVerdict) -> str:
    match verdict:
        case Accepted():
            return "accepted"
        case Stopped(reason=reason):
            return f"suppressed, {reason}"
        case _:
            return verdict.reason
