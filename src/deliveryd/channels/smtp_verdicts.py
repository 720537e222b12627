"""What an SMTP failure means: which stage the session had reached, and what the server said there."""

from __future__ import annotations

import ssl
from enum import StrEnum
from typing import TypeVar

from aiosmtplib import SMTPException, SMTPResponseException

from deliveryd.channels.base import InDoubt, Misconfigured, Refused, TryAgain

Failure = Refused | TryAgain | InDoubt | Misconfigured


Error = TypeVar("Error", bound=BaseException)


class Stage(StrEnum):
    """How far a session came, named by the command whose answer is awaited."""

    CONNECT = "connect"
    EHLO = "EHLO"
    STARTTLS = "STARTTLS"
    AUTH = "AUTH"
    RSET = "RSET"
    MAIL = "MAIL FROM"
    RCPT = "RCPT TO"
    DATA = "DATA"
    CONTENT = "content"  # the mail is being written, its final dot isn't
    DOT = "end of data"  # the final dot was written: from here on the server may have the mail


_CLOSING = 421
_TOO_LARGE = 552
_LOG_IN_FIRST = frozenset({530, 535, 538})
_OF_THE_MAIL = frozenset({Stage.RCPT, Stage.DATA, Stage.CONTENT, Stage.DOT})
_OUR_FAULT = frozenset({Stage.STARTTLS, Stage.AUTH, Stage.MAIL})


def verdict_on_code(stage: Stage, code: int) -> Failure:
    """What a reply other than the expected one means. The server's own words may echo the address: no reason
    carries them.
    """
    reason = f"{code} at {stage}"
    if 400 <= code < 500:
        return TryAgain(reason, only_this=stage in _OF_THE_MAIL and code != _CLOSING)
    if not 500 <= code < 600:
        unexpected = f"unexpected reply at {stage}"
        return InDoubt(unexpected) if stage is Stage.DOT else TryAgain(unexpected)
    if code in _LOG_IN_FIRST:
        return Misconfigured(reason)
    if stage in _OUR_FAULT and code != _TOO_LARGE:
        return Misconfigured(reason)
    if stage in (Stage.CONNECT, Stage.EHLO, Stage.RSET):
        return TryAgain(reason)
    return Refused(reason)


def verdict_on_failure(stage: Stage, error: BaseException) -> Failure:
    """What an error of the session means: the server's reply, a broken connection, a failed TLS handshake."""
    if isinstance(error, SMTPResponseException):
        return verdict_on_code(stage, error.code)
    if stage is Stage.DOT:
        return InDoubt(f"the connection broke at {stage}")
    tls = _cause(error, ssl.SSLCertVerificationError)
    if tls is not None:
        return Misconfigured(f"the server's certificate isn't trusted: {tls.verify_message}")
    if _cause(error, ssl.SSLError) is not None:
        return TryAgain(f"TLS failed at {stage}")
    if isinstance(error, SMTPException) and not isinstance(error, OSError):
        return Misconfigured(_UNSUPPORTED.get(stage, f"{stage} isn't supported by the server"))
    return TryAgain(f"the connection failed at {stage}")


_UNSUPPORTED = {
    Stage.STARTTLS: "the server offers no STARTTLS",
    Stage.AUTH: "the server offers no way to log in that is known here",
}


def verdict_on_timeout(stage: Stage, seconds: float) -> Failure:
    """What it means that an attempt's time was up."""
    reason = f"no answer at {stage} within {seconds:g} s"
    return InDoubt(reason) if stage is Stage.DOT else TryAgain(reason)


def _cause(error: BaseException | None, kind: type[Error]) -> Error | None:
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__
    return None
