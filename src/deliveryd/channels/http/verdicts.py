"""The usual meanings of HTTP statuses other than 2xx (design 5)."""

from __future__ import annotations

from deliveryd.channels.base import Attempted, InDoubt, Misconfigured, Refused, TryAgain
from deliveryd.channels.http.answer_options import LONGEST_PAUSE
from deliveryd.http.responses import Now, retry_after, utc_now

SAID_BY_OTHERS = 503
"""A status that gateways also send if the provider behind them took the message."""

_NOT_TAKEN = frozenset({425, 429, 503})
_IN_DOUBT = frozenset({408, 409})
_NOT_FOR_US = frozenset({401, 403, 405, 407})


def failure(status: int, wait: str | None, host: str | None = None, now: Now = utc_now) -> Attempted:
    """Return the verdict on a status other than 2xx; `wait` is the answer's Retry-After.

    Any 5xx but 503 is in doubt: the server may have taken the message before it failed, and a gateway doesn't
    know what its upstream did. So are 408, and 409, the usual answer to a repeat while the first request is
    still in progress.
    """
    reason = f"provider answered {status}"
    if status in _NOT_TAKEN:
        after = retry_after(wait, LONGEST_PAUSE, now)
        return TryAgain(reason, after, may_have_arrived=status == SAID_BY_OTHERS)
    if status >= 500 or status in _IN_DOUBT:
        return InDoubt(reason, retry_after(wait, LONGEST_PAUSE, now))
    if status in _NOT_FOR_US or status < 400:
        return Misconfigured(reason, host)
    return Refused(reason, host)
