"""What a channel adapter is: it makes one attempt and says, in one of six verdicts, what became of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from deliveryd.errors import TooLate
from deliveryd.model import Clock, Customer, Entry, Rendered


class Dispatch(NamedTuple):
    """All that an adapter needs for one attempt.

    `key` is the idempotency key: the same for all tries of the message on this channel, unless an operator
    has it begin anew. After `expires_at` nothing may be sent any more, by `clock`: an adapter calls
    `check_time` immediately before the first byte that can't be taken back.
    """

    key: str
    entry: Entry
    customer: Customer | None
    rendered: Rendered
    expires_at: int | None
    clock: Clock

    def check_time(self) -> None:
        """Raise TooLate when the message may not be sent any more."""
        if self.expires_at is not None and self.clock.now() > self.expires_at:
            raise TooLate("the message expired before it was sent")


class Accepted(NamedTuple):
    """The provider has the message. `provider_id` is its own name for it, if it gave one."""

    provider_id: str | None = None


class Refused(NamedTuple):
    """The provider won't ever take this message; the next channel of the order may.

    `by` names the host whose answer said so. Such refusals are counted for each settings id: many in a row
    mean that the template or the channel's set-up is at fault. None: it is about this message or its
    recipient alone, as with an address that is missing, or an SMTP server's answer to RCPT.
    """

    reason: str
    by: str | None = None


class TryAgain(NamedTuple):
    """The provider says that it doesn't have the message, and may take it later, in `after` seconds at least.

    `only_this` says that it is about this message or its recipient alone, such as a mailbox that is full: the
    provider works, and others go on. `may_have_arrived` says that its word isn't certain: the next try there
    says the same, and another channel may take the message after the last one all the same.
    """

    reason: str
    after: float | None = None
    only_this: bool = False
    may_have_arrived: bool = False


class InDoubt(NamedTuple):
    """The attempt left, and nobody knows what became of it: settled by the channel's `on_in_doubt`.

    It isn't repeated before `after` seconds.
    """

    reason: str
    after: float | None = None


class Misconfigured(NamedTuple):
    """The adapter's own configuration is at fault, for any message: no attempt is used up by it.

    `by` names the host that said so, for the log.
    """

    reason: str
    by: str | None = None


class Expired(NamedTuple):
    """The message's time ran out before the provider could have it: `check_time` raised TooLate."""

    reason: str = "expired"


Attempted = Accepted | Refused | TryAgain | InDoubt | Misconfigured
"""What became of an attempt that was made."""

Verdict = Attempted | Expired
"""What became of an attempt. A reason names statuses and rules, never text, names, addresses or secrets."""


class Channel(Protocol):
    """One configured adapter. It is opened once, sends many messages at the same time, and is closed once."""

    @property
    def customer_fields(self) -> frozenset[str]:
        """Which of a customer's values it sends: a repeat of what may have arrived has the same ones."""

    def reaches(self, customer: Customer | None) -> bool:
        """Whether there is an address for this customer, if the adapter needs one. Pure and cheap."""

    async def send(self, dispatch: Dispatch) -> Verdict:
        """Make one attempt. Never raises for anything the provider or the content does.

        When it is cancelled, the attempt counts as in doubt.
        """

    def preview(self, dispatch: Dispatch) -> str:
        """What would be sent, as text for a person, with secrets masked; nothing is sent."""

    async def probe(self) -> str | None:
        """Whether the provider can be reached: None, or what is wrong. Sends no message."""

    async def aclose(self) -> None:
        """Close what the adapter holds open."""
