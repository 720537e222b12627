"""What commands read of a journal, beside a worker or without one.

Each call is a read transaction of its own, and short unless it is said to read the whole journal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from time import perf_counter, sleep
from typing import NamedTuple, Protocol

from deliveryd.journal.attention import DeadLetter, InDoubtMessage, LeftBehind, OverdueMessage
from deliveryd.journal.history import Life
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.pauses import KnownIds, PausedMessages
from deliveryd.journal.reconciliation import Audit
from deliveryd.journal.selection import FoundMessage, Page, Selection
from deliveryd.journal.stopped import StopList, StoppedRecipient
from deliveryd.journal.traces import PersonalData
from deliveryd.journal.variables_seen import NamesSeen

PORTION_SECONDS = 0.01
"""Seconds that one read transaction is meant to take, so that the log can be checkpointed in between."""

FIRST_PORTION, LEAST_PORTION, LARGEST_PORTION = 500, 50, 20_000


class DecisionSelection(NamedTuple):
    """Decisions for which everything that is given is true."""

    since: int | None = None
    until: int | None = None
    message: int | None = None
    user: str | None = None
    verb: str | None = None


class Decision(NamedTuple):
    """An operator's order for one key; `user` as the system reports it, `caller` as the user claimed.

    `message_id` is the message that it concerned; None: none, or one that was erased or forgotten.
    """

    seq: int
    at: int
    verb: str
    kind: str
    key: str
    message_id: int | None
    user: str | None
    caller: str | None
    reason: str | None


class Reader(Protocol):
    """Reads of a journal that don't change it.

    Each raises JournalAbsent when there is no journal yet, JournalUnusable when somebody has to change
    something, and JournalError when another attempt may succeed.
    """

    # messages

    def find(self, selection: Selection, after: tuple[int, ...] | None, limit: int) -> Page:
        """Examine the next `limit` messages behind `after`, and return those that are selected.

        None: from the beginning. The cost of a call is bounded by `limit`, however many messages there are.
        """

    def obstacles(self, verb: Action, ids: Collection[int]) -> Mapping[int, str]:
        """Return which of these messages an order would be refused for now, and why.

        The verb is to begin anew, to forget or to erase.
        """

    def lives(self, ids: Collection[int]) -> Sequence[Life]:
        """Return everything about each of these messages, in the order of the ids."""

    def known(self, messages: Collection[int], settings: Collection[int]) -> KnownIds:
        """Return which of these messages the journal has, and which of these settings its latest messages."""

    # what may need an operator

    def in_doubt(self, channel: str | None, until: int | None) -> Sequence[InDoubtMessage]:
        """Return the messages held in doubt since `until` or earlier, if given, in the order of their ids.

        `channel`: only those at its providers, or at one provider.
        """

    def dead_letters(self, kinds: Sequence[ItemKind], since: int, reason: str) -> Sequence[DeadLetter]:
        """Return dead letters set aside since an instant, with this text in their reason, oldest first."""

    def dead_letter(self, kind: ItemKind, key: str) -> Mapping[str, object] | None:
        """Return everything about one dead letter, with its raw text; None: there is none of this name."""

    def overdue(self, until: Mapping[str, int]) -> Sequence[OverdueMessage]:
        """Return the messages that were sent before these instants, by provider, and never confirmed.

        The oldest first. Reads the messages that were sent and are still kept.
        """

    def left_behind(self, providers: Collection[str]) -> Sequence[LeftBehind]:
        """Return what belongs to providers other than these, in the order of their names."""

    # what operators ordered

    def pauses(self) -> Sequence[PausedMessages]:
        """Return all pauses with how many messages wait for each, the oldest first."""

    def stopped(self, channel: str | None) -> Sequence[StoppedRecipient]:
        """Return the recipients who can't be reached, on one channel if given, oldest first."""

    def stop_list(self) -> StopList:
        """Return what tells whether a recipient is among them."""

    def decisions(self, selection: DecisionSelection, after: int, limit: int) -> Sequence[Decision]:
        """Return the next `limit` decisions with a number above `after`, oldest first."""

    # the whole journal

    def personal_data(self, customer_id: int) -> PersonalData:
        """Return where the journal has a customer's data. Reads all of it, in several transactions."""

    def names_seen(self, settings_ids: Collection[int]) -> Mapping[int, NamesSeen]:
        """Return the names of variables by settings, of messages whose variables are kept."""

    def audit(self) -> Audit:
        """Check the whole journal for contradictions, in one transaction."""


def read_found(
    reader: Reader, selection: Selection, note: Callable[[int], None] = lambda _examined: None
) -> Iterator[FoundMessage]:
    """Find messages in portions, each in a short transaction of its own; `note` gets the number examined.

    Without ids they come in the order of ids; from SQLite, if only ended ones are selected, in that of their
    ends. A message that changes meanwhile may be missed or found as it was.
    """
    after: tuple[int, ...] | None = None
    limit, examined = FIRST_PORTION, 0
    while True:
        began = perf_counter()
        page = reader.find(selection, after, limit)
        took = perf_counter() - began
        limit = next_portion(limit, took)
        examined += page.examined
        note(examined)
        yield from page.found
        if page.after is None:
            return
        after = page.after
        sleep(min(took, PORTION_SECONDS))  # half of the time is left to the worker


def next_portion(limit: int, seconds: float) -> int:
    """Return how many messages the next portion examines, after one that took so long."""
    factor = min(PORTION_SECONDS / max(seconds, 1e-6), 2.0)
    return max(LEAST_PORTION, min(int(limit * factor), LARGEST_PORTION))
