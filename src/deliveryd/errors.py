"""The error tree: everything that deliveryd raises on purpose.

    DeliverydError
    ├── ConfigError               the configuration can't be used: exit status 78
    ├── AddressInUse              an address to listen on can't be had now
    ├── WireError                 an HTTP exchange gave no answer
    │   ├── NotSent               nothing of the request left: safe to send again
    │   │   ├── TooLate           its time ran out before the first byte
    │   │   └── ProxyRefused      the proxy answered that it makes no connection
    │   └── OutcomeUnknown        it left, and no whole answer came back
    │       └── BrokenOff         the head of the answer came back whole, its body didn't
    ├── ServiceError              the remote service
    │   ├── ServiceUnavailable    no usable answer, in spite of the retries inside one call: try later
    │   ├── ServiceRefused        it answered that this very request is wrong: don't repeat it
    │   └── ServiceUnreadable     it answered with something that isn't what the interface describes
    ├── SettingsUnusable          these settings don't exist or can't be read: their messages end in an error
    ├── LanguageUnreadable        a customer's language is no language tag
    ├── DirectoryUnavailable      the customer directory can't answer now: its messages wait
    ├── JournalError              the journal can't be used
    │   ├── JournalUnusable       its file or its folder has to be changed: exit status 78
    │   ├── JournalLocked         another process works on it
    │   └── JournalFull           there is no room left on its disk
    ├── IllegalTransition         a message was about to take a step that the state table doesn't have
    └── OutOfOrder                an event was about to be settled before another one that waits ahead of it

Errors of libraries are translated into these once, at the edge where the library is called.
"""

from __future__ import annotations

from collections.abc import Mapping


class DeliverydError(Exception):
    """Base of all errors that deliveryd raises on purpose."""


class ConfigError(DeliverydError):
    """The configuration can't be used.

    `problems` holds one line for each mistake, each naming where it stands and what to do.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class AddressInUse(DeliverydError):
    """An address to listen on that another process has, or that this machine doesn't have yet."""


class WireError(DeliverydError):
    """An HTTP exchange gave no answer; the text says why, without addresses' secrets or bodies."""


class NotSent(WireError):
    """Nothing of the request left this process, so it can be sent again without doubling anything."""


class TooLate(NotSent):
    """The time until which the request may be sent ran out before its first byte was written."""


class ProxyRefused(NotSent):
    """The proxy was asked for a connection and answered with another status than 2xx."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class OutcomeUnknown(WireError):
    """The request left, and no whole answer came back: the other side may have acted on it."""


class BrokenOff(OutcomeUnknown):
    """The head of the answer arrived whole; its body was cut off, late, too large or wrongly encoded.

    `headers` have lower-case names; `body` is what had arrived of it, or had fit into the bound.
    """

    def __init__(self, message: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = body


class ServiceError(DeliverydError):
    """The remote service didn't do what was asked."""


class ServiceUnavailable(ServiceError):
    """No usable answer, in spite of the retries inside one call. Worth trying again, in `after` seconds.

    `status` is that of the answer, if there was one.
    """

    def __init__(self, message: str, after: float | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.after = after
        self.status = status


class ServiceRefused(ServiceError):
    """The service answered that this request is wrong; repeating it would change nothing."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServiceUnreadable(ServiceError):
    """The service answered with something that isn't what the interface describes."""


class SettingsUnusable(DeliverydError):
    """Settings that don't exist or can't be read: each of their messages ends in an `error` event."""


class LanguageUnreadable(DeliverydError):
    """A language that is no language tag (BCP 47)."""


class DirectoryUnavailable(DeliverydError):
    """The customer directory can't answer now; messages that need it wait, `after` seconds if it said so."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        self.after = after


class JournalError(DeliverydError):
    """The journal can't be used."""


class JournalUnusable(JournalError):
    """Somebody has to change the journal's file, its folder or `journal.url`; waiting doesn't mend it."""


class JournalLocked(JournalError):
    """Another process works on this journal."""


class JournalFull(JournalError):
    """There is no room left on the journal's disk."""


class IllegalTransition(DeliverydError):
    """A message was about to take a step that the table of states doesn't have."""


class OutOfOrder(DeliverydError):
    """An event was about to be settled before another one that waits ahead of it."""
