"""The protocol of a channel adapter: it makes one attempt and returns one of seven verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from deliveryd.errors import TooLate
from deliveryd.model import Clock, Customer, Entry, Rendered


class Dispatch(NamedTuple):
    """Everything that an adapter needs for one attempt.

    `key` is the idempotency key: the same for all attempts of the message at this provider, unless an
    operator restarts the message. `provider_id` is that of a message in doubt, for `look_up`, if the provider
    gave one. Nothing may be sent after `expires_at` by `clock`: an adapter calls
    `check_time` immediately before the first byte that can't be withdrawn. `traceparent` continues the
    message's trace (W3C Trace Context); None: it isn't traced. `may_begin` returns whether the worker surely
    keeps the message until an attempt that begins now is over; None: no other worker can take it. `size` is
    the number of characters that writing the message may grow with: see `size_of`.
    """

    key: str
    entry: Entry
    customer: Customer | None
    rendered: Rendered
    expires_at: int | None
    clock: Clock
    may_begin: Callable[[], bool] | None = None
    size: int = 0
    provider_id: str | None = None
    traceparent: str | None = None

    def check_time(self) -> None:
        """Raise TooLate if the message has expired, or another worker could send it meanwhile."""
        if self.expires_at is not None and self.clock.now() > self.expires_at:
            raise TooLate("the message expired before it was sent")
        if self.may_begin is not None and not self.may_begin():
            raise TooLate("another worker could send the message meanwhile")

    @property
    def has_limit(self) -> bool:
        """Whether there is anything to check."""
        return self.expires_at is not None or self.may_begin is not None


class Accepted(NamedTuple):
    """The provider accepted the message. `provider_id` is its ID there, if it returned one.

    `lacks_id`: it returned none, though the configuration names its place.
    """

    provider_id: str | None = None
    lacks_id: bool = False


class Refused(NamedTuple):
    """The provider refused this message for good; the next channel in the order may accept it.

    `by` is the host that refused. Such refusals are counted per settings ID: many in a row mean that the
    template or the channel's configuration is at fault. None: the refusal concerns only this message or its
    recipient, such as a missing address or an SMTP server's answer to RCPT. `ends_channel`: a table of the
    configuration states that any other provider of the channel would refuse the message as well. `unsent`: no
    request can be made of the message, so nothing was sent.
    """

    reason: str
    by: str | None = None
    ends_channel: bool = False
    words: str | None = None
    unsent: bool = False


class Stopped(NamedTuple):
    """The recipient can't be reached on this channel any more: opted out, blocked the sender, token gone.

    The next channel in the order may accept the message. Later messages to the same address don't use this
    channel until the stop is lifted.
    """

    reason: str
    words: str | None = None


class TryAgain(NamedTuple):
    """The provider doesn't have the message and may accept it later, after at least `after` seconds.

    `only_this`: the reason concerns only this message or its recipient, such as a full mailbox; the provider
    works for others. `may_have_arrived`: the answer isn't certain, so a repeat there has the same content;
    another channel may still take the message after the last attempt. `new_key`: the provider rejects what
    comes again under the same key, though it doesn't have the message. `counts`: the attempt is one of
    `retry.attempts`.
    """

    reason: str
    after: float | None = None
    only_this: bool = False
    may_have_arrived: bool = False
    words: str | None = None
    new_key: bool = False
    counts: bool = True


class InDoubt(NamedTuple):
    """The attempt was sent and its outcome is unknown: the channel's `on_in_doubt` decides.

    It isn't repeated for at least `after` seconds. `provider_id` is the provider's id of the message, if the
    answer has one all the same: a receipt with it settles the doubt, and the provider can be asked by it.
    `unreadable`: bytes of an answer came that can't be read, and a repeat may bring the same: it is repeated
    once at most.
    """

    reason: str
    after: float | None = None
    words: str | None = None
    provider_id: str | None = None
    unreadable: bool = False


class Misconfigured(NamedTuple):
    """The channel's configuration is at fault, for any message: the attempt isn't counted.

    `by` is the host that answered so, for the log.
    """

    reason: str
    by: str | None = None
    words: str | None = None


class Expired(NamedTuple):
    """Nothing was sent, since it was too late: `check_time` raised TooLate."""

    reason: str = "expired"


class Unsent(NamedTuple):
    """Nothing was sent for a reason of this process, such as no free file: the provider isn't concerned."""

    reason: str


Attempted = Accepted | Refused | Stopped | TryAgain | InDoubt | Misconfigured
"""The outcome of an attempt that was made."""


OneVerdict = Attempted | Expired | Unsent
"""The outcome of an attempt at one address."""


class AtDevice(NamedTuple):
    """The verdict on one of several devices: its text in the customer's field, and its address."""

    device: str
    recipient: str | None
    verdict: OneVerdict


class AtDevices(NamedTuple):
    """The verdicts on all devices of a customer that one attempt was made for, and how many were left out."""

    each: tuple[AtDevice, ...]
    left_out: int = 0


Verdict = OneVerdict | AtDevices
"""The outcome of an attempt.

Reasons name statuses and rules, never texts, names, addresses or secrets. `words` are the provider's own
words, which may quote any of these: they are kept with the try in the journal and shown by `explain` only.
"""


def of_one(verdict: Verdict) -> OneVerdict:
    """The verdict of an adapter that sent to one address. Raises TypeError for one on several devices."""
    if isinstance(verdict, AtDevices):
        raise TypeError("a verdict on several devices, of an attempt at one address")
    return verdict


NO_ADDRESS = "no address of the customer"
"""Why most adapters don't reach a customer."""


class Taken(NamedTuple):
    """The provider has the message in doubt."""

    provider_id: str | None = None


class NotTaken(NamedTuple):
    """The provider doesn't have the message in doubt: it may be repeated there."""


class Unknown(NamedTuple):
    """The provider was asked, and its answer doesn't show whether it has the message."""

    reason: str


class AskLater(NamedTuple):
    """The provider couldn't be asked now; ask again after at least `after` seconds."""

    reason: str
    after: float | None = None


Found = Taken | NotTaken | Unknown | AskLater
"""What a provider reports about a message in doubt."""


class Channel(Protocol):
    """One configured adapter: opened once, used for many messages concurrently, closed once."""

    @property
    def lookup_after(self) -> float | None:
        """Return the least time in seconds between a doubt and `look_up`; None: it can't be asked."""

    @property
    def customer_fields(self) -> frozenset[str]:
        """Return the customer fields that it sends, which must be the same in a repeat."""

    @property
    def devices_field(self) -> str | None:
        """Return the customer's field that may hold a list of devices; None: there is one address."""

    def reaches(self, customer: Customer | None) -> bool:
        """Whether the customer has the address that the adapter needs. Pure and cheap."""

    def unreached(self, customer: Customer | None) -> str:
        """Return why it doesn't reach a customer, such as `NO_ADDRESS`. The reason quotes no value."""

    def recipients(self, customer: Customer) -> tuple[str, ...]:
        """Return the customer's addresses on this channel, as they are sent; none: they aren't known.

        By them, recipients are kept who can't be reached any more. Pure and cheap.
        """

    async def send(self, dispatch: Dispatch) -> Verdict:
        """Make one attempt. Never raises because of the provider or the content.

        If it is cancelled, the attempt is in doubt.
        """

    async def look_up(self, dispatch: Dispatch) -> Found:
        """Ask whether the provider has the message with this key or id. Sends no message, and never raises.

        Of the dispatch, only the key, the message's id and the provider's id are to be used.
        """

    def preview(self, dispatch: Dispatch) -> str:
        """Return what would be sent as readable text, with secrets masked. Sends nothing."""

    async def probe(self) -> str | None:
        """Return why the provider can't be reached, or None. Sends no message.

        Raises OutOfFiles if this process can open no connection now, which concerns no provider.
        """

    async def aclose(self) -> None:
        """Release the adapter's resources."""
