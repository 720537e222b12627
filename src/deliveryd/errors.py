"""The tree of all errors that deliveryd raises on purpose, and how the log names any error.

    DeliverydError
    ├── ConfigError               the configuration can't be used: exit status 78
    ├── AddressInUse              an address to listen on is unavailable now
    ├── WireError                 an HTTP exchange gave no answer
    │   ├── NotSent               nothing of the request left: safe to send again
    │   │   ├── TooLate           its time ran out before the first byte was sent
    │   │   ├── OutOfFiles        this process can open no more files, or begin no thread
    │   │   └── ProxyRefused      the proxy refused to connect
    │   └── OutcomeUnknown        it was sent, and no complete response came back
    │       └── AnswerUnreadable  bytes of a response came back that can't be read
    │           └── BrokenOff     the response's head was complete, its body wasn't
    │               └── TooLarge  its body is larger than the limit
    ├── ServiceError              the remote service
    │   ├── ServiceUnavailable    no usable answer after the retries of one call: try later
    │   │   └── AnswerTooLarge    its answer is larger than the limit
    │   ├── ServiceRefused        it rejected this request: don't repeat it
    │   └── ServiceUnreadable     its answer doesn't match the interface
    ├── SettingsUnusable          the settings don't exist or can't be read: their messages end in an error
    ├── LanguageUnreadable        a customer's language isn't a language tag
    ├── DirectoryUnavailable      the customer directory is unavailable: messages that need it wait
    │   └── CustomerUnreadable    its answer about one customer can't be used
    ├── JournalError              the journal can't be used
    │   ├── JournalUnusable       its file or folder must be changed: exit status 78
    │   ├── JournalLocked         another process uses it
    │   └── JournalFull           its disk is full
    │       └── JournalUnreachable   its database can't be reached now
    ├── IllegalTransition         a transition that the state table doesn't allow
    └── OutOfOrder                an event would be settled before an earlier one

Errors of libraries are translated into these where the library is called.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping


class DeliverydError(Exception):
    """Base of all errors that deliveryd raises on purpose."""


class ConfigError(DeliverydError):
    """The configuration can't be used.

    `problems` holds one line per mistake, each with its location and what to do.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class UsageError(DeliverydError):
    """A mistake on the command line: a name that nothing has, or options that don't go together."""


class AddressInUse(DeliverydError):
    """An address to listen on is used by another process, or isn't assigned to this machine yet."""


class WireError(DeliverydError):
    """An HTTP exchange gave no answer; the text is the reason, without secrets of addresses or bodies."""


class NotSent(WireError):
    """No byte of the request left this process, so it can safely be sent again."""


class TooLate(NotSent):
    """The time for sending the request ran out before its first byte was written."""


class OutOfFiles(NotSent):
    """This process, or its system, can open no more files or threads: it shows nothing of the peer."""


class NoCredentials(NotSent):
    """What authenticates the request can't be had now: an outage, and no fault of the request."""


class ProxyRefused(NotSent):
    """The proxy answered a connection request with a status other than 2xx."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Whether it may connect later, without a change of the configuration."""
        return self.status >= 500 or self.status in (408, 425, 429)


class OutcomeUnknown(WireError):
    """The request was sent, and no complete response came back: the peer may have acted on it."""


class AnswerUnreadable(OutcomeUnknown):
    """Bytes of a response came back that are no complete one: a repeat may bring the same."""


class BrokenOff(AnswerUnreadable):
    """The response's head was complete; its body was cut off, late, too large or wrongly encoded.

    `headers` have lower-case names; `body` is what had arrived within the size limit.
    """

    def __init__(self, message: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = body


class TooLarge(BrokenOff):
    """The response's body is larger than the limit."""


class ServiceError(DeliverydError):
    """The remote service didn't fulfil a request."""


class ServiceUnavailable(ServiceError):
    """No usable answer after the retries of one call. Retry in `after` seconds.

    `status` is the answer's status, if there was one. `was_sent`: the service may have had the request.
    """

    def __init__(
        self, message: str, after: float | None = None, status: int | None = None, *, was_sent: bool = False
    ) -> None:
        super().__init__(message)
        self.after = after
        self.status = status
        self.was_sent = was_sent or status is not None


class AnswerTooLarge(ServiceUnavailable):
    """The service's answer, of this status and beginning, is larger than the limit."""

    def __init__(self, message: str, answered: int, beginning: bytes) -> None:
        super().__init__(message, was_sent=True)
        self.answered = answered
        self.beginning = beginning


class ServiceRefused(ServiceError):
    """The service rejected the request; repeating it would give the same result."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServiceUnreadable(ServiceError):
    """The service's answer doesn't match the interface."""


class SettingsUnusable(DeliverydError):
    """Settings don't exist or can't be read: each of their messages ends in an `error` event."""


class LanguageUnreadable(DeliverydError):
    """A language isn't a language tag (BCP 47)."""


class DirectoryUnavailable(DeliverydError):
    """The customer directory is unavailable; messages that need it wait, for `after` seconds if given."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class CustomerUnreadable(DirectoryUnavailable):
    """What the directory answers about a customer can't be used, or it refuses to: waiting may not help."""


class JournalError(DeliverydError):
    """The journal can't be used."""


class JournalUnusable(JournalError):
    """The journal's file, its folder or `journal.url` must be changed; retrying doesn't help."""


class JournalLocked(JournalError):
    """Another process uses this journal."""


class JournalFull(JournalError):
    """The journal's disk is full."""

    def __init__(self, text: str = "there is no room left on the journal's disk") -> None:
        super().__init__(text)


class JournalUnreachable(JournalFull):
    """The journal's database can't be reached now; like a full disk, it may be later."""

    def __init__(self, text: str = "the journal's database can't be reached") -> None:
        super().__init__(text)


class IllegalTransition(DeliverydError):
    """A transition that the state table doesn't allow."""


class OutOfOrder(DeliverydError):
    """An event would be settled before an earlier one."""


LONGEST_CHAIN = 8
"""Causes of an exception that are named."""


def describe(error: BaseException) -> str:
    """Name an exception and its causes, without the messages of other libraries."""
    return " <- ".join(error_name(link) for link in error_causes(error))


def error_name(error: BaseException) -> str:
    """Name one exception; errors of our own with their message."""
    kind = type(error).__name__
    if isinstance(error, DeliverydError):
        return f"{kind}: {error}" if str(error) else kind
    if isinstance(error, OSError) and error.errno is not None:
        return f"{kind} {errno.errorcode.get(error.errno, '')}".rstrip()
    if (name := getattr(error, "sqlite_errorname", None)) is not None:
        return f"{kind} {name}"
    return kind


def error_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what caused it, the last cause last."""
    link: BaseException | None = error
    for _ in range(LONGEST_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def how_to_install(lock: str) -> str:
    """Return the end of an error about a package that isn't installed: what brings it."""
    return f"; from a checkout: pip install --no-deps --require-hashes -r locks/{lock}.txt"
