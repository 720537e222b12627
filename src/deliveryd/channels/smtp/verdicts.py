"""Verdicts on SMTP failures, by the stage reached and the server's reply."""

from __future__ import annotations

import ssl
from enum import StrEnum

from aiosmtplib import SMTPException, SMTPResponseException

from deliveryd.channels.base import InDoubt, Misconfigured, Refused, TryAgain
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.network.connection import caused_by, connect_reason

SmtpFailure = Refused | TryAgain | InDoubt | Misconfigured


class Stage(StrEnum):
    """The stage of a session, named by the command whose answer is awaited."""

    CONNECT = "connect"
    EHLO = "EHLO"
    STARTTLS = "STARTTLS"
    AUTH = "AUTH"
    RSET = "RSET"
    MAIL = "MAIL FROM"
    RCPT = "RCPT TO"
    DATA = "DATA"
    CONTENT = "content"  # the mail is being written, but not its final dot
    DOT = "end of data"  # the final dot was written: from here on the server may have the mail


_CLOSING = 421
_TOO_LARGE = 552
_LOG_IN_FIRST = frozenset({530, 535, 538})
_OF_THE_MAIL = frozenset({Stage.RCPT, Stage.DATA, Stage.CONTENT, Stage.DOT})
_OUR_FAULT = frozenset({Stage.STARTTLS, Stage.AUTH, Stage.MAIL})


def verdict_on_code(stage: Stage, code: int) -> SmtpFailure:
    """Return the verdict on an unexpected reply. Its text may echo the address, so no reason contains it."""
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


def verdict_on_failure(stage: Stage, error: BaseException, options: SmtpOptions, ca_key: str) -> SmtpFailure:
    """Return the verdict on an error: a reply, a broken connection, or a failed TLS handshake.

    `ca_key` is the configuration key that names the trusted authorities.
    """
    if isinstance(error, SMTPResponseException):
        return verdict_on_code(stage, error.code)
    if stage is Stage.DOT:
        return InDoubt(f"the connection broke at {stage}")
    reason = connect_reason(options.host, options.actual_port, error, ca_key)
    if caused_by(error, ssl.SSLCertVerificationError) is not None:
        return Misconfigured(reason)
    if caused_by(error, ssl.SSLError) is not None:
        begins_late = _BEGINS_WITHOUT_TLS if stage is Stage.CONNECT else ""
        return TryAgain(f"{reason}{options.tls_hint or begins_late}")
    if isinstance(error, SMTPException) and not isinstance(error, OSError):
        return Misconfigured(_UNSUPPORTED.get(stage, f"{stage} isn't supported by the server"))
    return TryAgain(reason if stage is Stage.CONNECT else f"the connection failed at {stage}")


_BEGINS_WITHOUT_TLS = '; servers that start without TLS need tls = "starttls"'
_UNSUPPORTED = {
    Stage.STARTTLS: "the server offers no STARTTLS",
    Stage.AUTH: "the server offers no supported login method",
}


def verdict_on_timeout(stage: Stage, seconds: float, options: SmtpOptions) -> SmtpFailure:
    """Return the verdict on an attempt that timed out."""
    reason = f"no answer at {stage} within {seconds:g} s"
    if stage is Stage.CONNECT:
        reason += options.tls_hint
    return InDoubt(reason) if stage is Stage.DOT else TryAgain(reason)
