"""A message on its way to a provider: the record that each step of its walk takes and adds to."""

from __future__ import annotations

from deliveryd import transitions
from deliveryd.channels.sms_text import count_parts
from deliveryd.delivery.pauses import Pauses
from deliveryd.errors import CustomerUnreadable, DeliverydError
from deliveryd.journal.pauses import Pause
from deliveryd.model import SECOND, Claim, Customer, Entry, Rendered, Transition, channel_of, size_of
from deliveryd.rendering.content import CompiledSettings
from deliveryd.rules.windows import Windows
from deliveryd.runtime import waits
from deliveryd.states import State

ZONE_FIELD = "zone"
"""The customer's field that names a time zone, such as "Europe/Berlin"."""

LOOK_AGAIN = 600 * SECOND
"""How long a message waits for a window while a channel is given up, which needs probes."""

UNRENDERED = Rendered("", "", {})
"""The content of a message in doubt that can't be rendered any more: its provider may be asked for it."""


def is_expired(expires_at: int | None, now: int) -> bool:
    """Whether nothing may be sent any more (interface 8)."""
    return expires_at is not None and now > expires_at


class Delivery:
    """A message, from the moment when it is ready to the end of its attempt.

    `settings` are the error for which there are none, if they can't be had or their customer can't be read;
    kept content then expires as it did with the settings that it was made from. `customer` is None when they
    aren't in the directory, and when they don't matter; `looked_up`: they were asked for. The router adds the
    `provider`, what it is `rendered` to, and its `size`: the number of characters that work on it may grow
    with. `zone` is the customer's time zone, if they were looked up and have one. `flaw` is why one in doubt
    can't be rendered any more. With its intent, `entry` becomes what the journal has then. `claim` is what
    it counts for, until it is known that the provider has it or may have it.
    """

    __slots__ = (
        "_parts",
        "claim",
        "customer",
        "entry",
        "expires_at",
        "flaw",
        "looked_up",
        "provider",
        "rendered",
        "settings",
        "size",
        "zone",
    )

    def __init__(self, entry: Entry, settings: CompiledSettings | DeliverydError) -> None:
        self.entry = entry
        self.settings = settings
        if isinstance(settings, CompiledSettings):
            self.expires_at = settings.expires_at
            if settings.lifetime is not None:
                self.expires_at = settings.expiry_of(entry.taken_at)
        else:
            self.expires_at = None if entry.content is None else entry.content.expires_at
        self.customer: Customer | None = None
        self.looked_up = False
        self.provider = ""
        self.rendered = UNRENDERED
        self.flaw: str | None = None
        self.size = self._parts = 0
        self.zone: str | None = None
        self.claim: Claim | None = None

    def of(self, customer: Customer | None) -> None:
        """The customer was looked up; None: the directory doesn't have them."""
        self.customer = customer
        self.looked_up = True
        if customer is not None:
            self.zone = customer.fields.get(ZONE_FIELD)
            if customer.flaw is not None:
                self.settings = CustomerUnreadable(customer.flaw)

    def to(self, provider: str, rendered: Rendered, customer: Customer | None) -> Delivery:
        """The message, which can be sent: by which provider, what, and with which values of the customer."""
        self.provider = provider
        self.rendered = rendered
        self._parts = 0
        self.customer = customer
        self.size = size_of(self.entry, rendered, customer)
        return self

    @property
    def parts(self) -> int:
        """How many parts its SMS has, as it is sent; 1 for any other block. They are counted once."""
        if not self._parts:
            is_sms = self.rendered.block == "sms"
            self._parts = count_parts(str(self.rendered.fields.get("text", ""))) if is_sms else 1
        return self._parts

    def becomes(self, entry: Entry) -> Entry:
        """Go on with what the message is now: it left a provider, or has its intent."""
        self.entry = entry
        return entry

    @property
    def bound(self) -> Entry:
        """The message as the journal has it, bound to its provider if that is chosen."""
        return self.entry.bound(self.provider) if self.provider else self.entry

    def held_back(self, pauses: Pauses, now: int) -> Transition | None:
        """The step of a message whose time is over, or that is paused; None: it goes on.

        Each place asks where a message may be sent or end: the walk when it begins, and the dispatcher again.
        """
        if self.expires_at is not None and is_expired(self.expires_at, now):
            return transitions.expired(self.bound, State.READY, now, self.expires_at)
        if pauses.any and (pause := pauses.holding(self.entry, self.provider)) is not None:
            return self.parked(pause, now)
        return None

    def opening(self, windows: Windows, channel: str, now: int) -> int | None:
        """When its window on a channel opens; None: it may be sent now."""
        settings_id = self.entry.settings_id
        opening = windows.opening(settings_id, channel, self.zone, now)
        if opening == now:
            return None
        expires_first = self.expires_at is not None and self.expires_at <= opening
        return None if expires_first and windows.sends_outside(settings_id, channel) else opening

    def shut_out(self, windows: Windows, now: int) -> Transition | None:
        """The step of a message that waits for its window to open; None: it may be sent now."""
        opening = self.opening(windows, channel_of(self.provider), now)
        if opening is None:
            return None
        return self.within_its_time(transitions.deferred(self.entry, now, opening, waits.WINDOW))

    def parked(self, pause: Pause, now: int) -> Transition:
        """Wait for the end of a pause, or until the message expires."""
        return transitions.parked(self.entry, now, self.expires_at, pause.waits_for)

    def within_its_time(self, step: Transition) -> Transition:
        """The step; by one that waits, the message is due when it expires at the latest."""
        return step if self.expires_at is None else transitions.no_later_than(step, self.expires_at + 1)

    def deferred(self, now: int, seconds: float, waits_for: str | None) -> Transition:
        """Wait in the journal for so many seconds at most, and no longer than until the message expires.

        `waits_for` names what wakes it; None: only its time does.
        """
        due_at = now + int(seconds * SECOND)
        return self.within_its_time(transitions.deferred(self.bound, now, due_at, waits_for))
