"""Verdicts on providers' HTTP answers: a table of statuses, and the content of 2xx answers."""

from __future__ import annotations

from deliveryd.channels.base import Accepted, InDoubt, Misconfigured, Refused, TryAgain, Verdict
from deliveryd.channels.http_options import HttpChannelOptions
from deliveryd.http.finder import Document, compile_finder
from deliveryd.http.retry_after import retry_after
from deliveryd.http.wire import WireResponse

LONGEST_RETRY_AFTER = 3600.0
"""Most seconds for which a provider's Retry-After is honoured."""

_NOT_TAKEN = frozenset({425, 429, 503})
_SAID_BY_OTHERS = 503  # also sent by gateways whose provider took the message
_IN_DOUBT = frozenset({408, 409})
_NOT_FOR_US = frozenset({401, 403, 405, 407})


class AnswerReader:
    """Reads the answers of one channel's provider."""

    def __init__(self, options: HttpChannelOptions) -> None:
        self._provider_id = compile_finder(options.provider_id) if options.provider_id else None
        self._success = options.success
        self._said = compile_finder(options.success.pointer) if options.success else None

    def verdict(self, answer: WireResponse) -> Verdict:
        """Return the verdict. Of the body, it contains only the provider's ID."""
        if not 200 <= answer.status < 300:
            return failure(answer.status, answer.headers.get("retry-after"))
        return self._doubt(answer) or Accepted(
            self._provider_id.find(Document(answer.body, answer.headers)) if self._provider_id else None
        )

    def _doubt(self, answer: WireResponse) -> Verdict | None:
        if self._success is None or self._said is None:
            return None
        said = self._said.find(Document(answer.body, answer.headers))
        if said in self._success.equals:
            return None
        if said is None:
            return InDoubt(f"provider answered {answer.status} without saying whether it accepted")
        if said in self._success.try_again:
            return TryAgain(
                f"provider answered {answer.status} with a temporary error",
                retry_after(answer.headers.get("retry-after"), LONGEST_RETRY_AFTER),
            )
        return Refused(f"provider answered {answer.status} with an error")


def failure(status: int, wait: str | None) -> Verdict:
    """Return the verdict on a status other than 2xx; `wait` is the answer's Retry-After.

    Any 5xx but 503 is in doubt: the server may have taken the message before it failed, and a gateway doesn't
    know what its upstream did. So are 408, and 409, the usual answer to a repeat while the first request is
    still in progress.
    """
    reason = f"provider answered {status}"
    if status in _NOT_TAKEN:
        after = retry_after(wait, LONGEST_RETRY_AFTER)
        return TryAgain(reason, after, may_have_arrived=status == _SAID_BY_OTHERS)
    if status >= 500 or status in _IN_DOUBT:
        return InDoubt(reason, retry_after(wait, LONGEST_RETRY_AFTER))
    if status in _NOT_FOR_US or status < 400:
        return Misconfigured(reason)
    return Refused(reason)
