"""What a journal must do, and the values that go in and out of it.

What a method records is durable when it returns, all of it in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from deliveryd.journal.orders import Effect
from deliveryd.journal.pauses import Pause
from deliveryd.model import Entry, StopChange
from deliveryd.states import State

InCommit = Callable[[], int]
"""Reads an instant in a commit, which may be later than when it was asked for: on a full disk."""

AheadOf = Callable[[int], int]
"""In a commit: how far ahead the due time of a step is, by its instant; see `rows.by_the_clock`."""


class OutboxRow(NamedTuple):
    """An event that the service hasn't accepted yet; `body` is its JSON as it is sent."""

    seq: int
    message_id: int
    status: str
    body: str


class Doubtful(NamedTuple):
    """A message whose latest try has an intent and no outcome, or that is held: then `reason` is why."""

    entry: Entry
    state: State
    reason: str | None = None


class BudgetUse(NamedTuple):
    """How much of a budget is used in a period; `changes`: how often that changed by then."""

    budget: str
    since: int
    until: int
    messages: int
    parts: int
    changes: int


class Counted(NamedTuple):
    """What was counted with intents, or given back.

    The intents of messages `refused` weren't recorded: they would exceed a budget or a cap. `uses` are those
    of the budgets that changed. `full`: until when a cap is reached for a customer's digest, by both.
    """

    refused: Collection[int] = ()
    uses: Sequence[BudgetUse] = ()
    full: Mapping[tuple[str, str], int] = {}


NOTHING_COUNTED = Counted()


class Recorded(NamedTuple):
    """What receipts did that were kept until their message took its next step, and what was counted.

    `settled` are the messages that a receipt ended: their steps weren't taken, or count no more. `effects`
    are the changes of the recorder's counts.
    """

    settled: Collection[int] = ()
    effects: Sequence[Effect] = ()
    counted: Counted = NOTHING_COUNTED


def recorded_in_logs(found: Sequence[Recorded]) -> Recorded:
    """What was recorded in several logs, or for several callers."""
    return Recorded(
        [id_ for each in found for id_ in each.settled],
        [effect for each in found for effect in each.effects],
        Counted(
            [id_ for each in found for id_ in each.counted.refused],
            [use for each in found for use in each.counted.uses],
            {key: until for each in found for key, until in each.counted.full.items()},
        ),
    )


NOT_OURS = "not_ours"
"""What a report did that names no message of ours: nothing of it is kept."""


class MatchedReceipt(NamedTuple):
    """What a receipt did: the word of the reply to the provider, and the change of the recorder's counts.

    `message_id` is the message that it was matched to.
    """

    result: str
    effect: Effect | None = None
    message_id: int | None = None


class PassedDeadlines(NamedTuple):
    """What became of receipt deadlines.

    `listened` is the listening time, `passed` the number of messages that go on to the next channel, by
    provider, and `silent` names the providers whose deadlines stand still. `dropped` is the number of
    messages, by provider, whose deadline was dropped because no report would come. `next_by` is the next
    deadline; None: none waits. `is_complete` False: there was more than one portion.
    """

    listened: int
    passed: Mapping[str, int]
    silent: frozenset[str]
    dropped: Mapping[str, int]
    next_by: int | None
    is_complete: bool


class EndedWorker(NamedTuple):
    """A worker of a shared journal that is gone.

    `in_order`: it ended its lease itself.
    """

    name: str
    in_order: bool


class Recovery(NamedTuple):
    """What an earlier run left.

    `taken`: messages whose `dequeued` isn't accepted yet. `doubtful`: those with an attempt in doubt.
    `waiting`: how many wait for their time, those that were in the line's hands among them, but none that is
    paused. `reporting`: ids of ended messages whose last event isn't accepted yet. `pauses`: those in force.
    `paused`: how many messages are paused, by what they wait for. `ended`: the workers it was taken over from
    while this one ran; there may be events of them alone. `effects`: how messages ended by receipts that were
    kept for them and applied now; the other numbers are of afterwards.
    """

    taken: list[Entry]
    doubtful: list[Doubtful]
    waiting: int
    reporting: list[int]
    down_since: Mapping[str, int] = {}
    pauses: Sequence[Pause] = ()
    paused: Mapping[str, int] = {}
    ended: Sequence[EndedWorker] = ()
    effects: Sequence[Effect] = ()


class FromOthers(NamedTuple):
    """What the other workers of a shared journal did since the last look; what isn't known to differ is None.

    `adopted`: what workers left whose leases are over; it is this one's now. `pauses`: all that are in
    force. `stops`: recipients who were put on the suppression list or taken off it, by any worker.
    `down_since`: as in Recovery. `waiting`: how many waited just before, in all and without those that are
    paused; `paused`: those, by what they wait for. `effects`: the changes of the recorder's counts by what
    was in the inboxes. `any_ended`: whether a worker is gone that was there at the last look. `has_more`: the
    inboxes may hold more than one look reads.
    """

    adopted: Recovery | None = None
    pauses: Sequence[Pause] | None = None
    stops: Sequence[StopChange] = ()
    down_since: Mapping[str, int] | None = None
    waiting: int | None = None
    paused: Mapping[str, int] | None = None
    effects: Sequence[Effect] = ()
    any_ended: bool = False
    has_more: bool = False


class Allotment(NamedTuple):
    """Attempts at a provider that this worker may make, evenly spaced at the provider's rate.

    The first of them `delay` seconds after the question was asked. No `attempts`: there are none now; after
    `delay` seconds there may be.
    """

    attempts: int
    delay: float


class Due(NamedTuple):
    """Waiting messages whose time has come, now READY, and when the next one of the same providers is due.

    `left` is how many more are due; they are counted up to `MOST_COUNTED`. `paused`: how many of the
    entries were paused.
    """

    entries: list[Entry]
    next_due: int | None
    left: int = 0
    paused: int = 0


MOST_COUNTED = 500

LOWEST_ID = -(2**63)


class Turn(NamedTuple):
    """How many messages of its settings id are ahead of one that waits for room, and how many other ids wait.

    Both are counted up to `MOST_COUNTED`.
    """

    ahead: int
    others: int


class FetchPortion(NamedTuple):
    """How many messages are fetched of some settings ids, which take turns.

    `after` is the id that had the latest turn. `only`: these ids; None: all but `without`.
    """

    most: int
    after: int = LOWEST_ID
    only: frozenset[int] | None = None
    without: frozenset[int] = frozenset()


class Orphans(NamedTuple):
    """What would be left of a provider if it were removed.

    `in_doubt`: messages that couldn't be repeated there. `waiting`: others bound to it. `unconfirmed`: those
    that it accepted and hasn't reported on. `deadlines`: receipt deadlines among them.
    """

    in_doubt: int = 0
    waiting: int = 0
    unconfirmed: int = 0
    deadlines: int = 0


class Left(NamedTuple):
    """What became of messages at providers that take nothing new.

    How many are held that waited, how many waited and are due at any provider, and how many were held.
    """

    held: int
    released: int
    resumed: int


class Counts(NamedTuple):
    """How many messages are in each state that isn't an end, and how many events and other things wait.

    `paused`: how many of the waiting messages are paused, by what they wait for.
    """

    states: Mapping[State, int]
    events_waiting: int
    events_refused: int
    malformed: int
    receipts_unmatched: int
    paused: Mapping[str, int] = {}


class Open(NamedTuple):
    """What hasn't ended and isn't paused, by provider ("": bound to none), and what is oldest of it.

    `oldest_message`: when the message was taken that was taken first, of those that wait or are in the line's
    hands; of those that wait, the ones with the lowest id are looked at, as the queue's ids grow.
    `oldest_event`: the instant of the first event that the service hasn't accepted yet. `limited`: how many
    wait for a budget or a cap, by `waits_for`. `causes`: how many wait for what (`waits.cause_of`).
    """

    waiting: Mapping[str, int] = {}
    in_doubt: Mapping[str, int] = {}
    oldest_message: int | None = None
    oldest_event: int | None = None
    limited: Mapping[str, int] = {}
    causes: Mapping[str, int] = {}


class Account(NamedTuple):
    """Where the messages are that were ever taken. `taken` is counted apart, so that a loss shows as a gap.

    `states` holds those that haven't ended, `ends` the others. Of those `pruned` only the ids are kept,
    and of those `forgotten` by an operator's order nothing but how often they began.
    """

    taken: int
    states: Mapping[State, int]
    ends: Mapping[State, int]
    pruned: int
    forgotten: int = 0

    @property
    def ended(self) -> int:
        """How many have ended, and are neither pruned nor forgotten."""
        return sum(self.ends.values())

    @property
    def gap(self) -> int:
        """How many are missing; 0 when the account is balanced."""
        return self.taken - sum(self.states.values()) - self.ended - self.pruned - self.forgotten


class SharedLimits(Protocol):
    """What the workers of a shared journal share of a provider's limits. Each method raises JournalError."""

    async def allot(self, provider: str, interval: float, wanted: int) -> Allotment:
        """Reserve attempts at a provider out of those that its rate allows to all workers together.

        `interval`: the rate's seconds between two attempts. At most `wanted` are reserved, and at most those
        of a slice of 250 ms, or one. What isn't used is lost.
        """

    async def claim_probe(self, provider: str, pause: float, longest: float) -> float:
        """Take this worker's turn to probe a provider that is down, so that all together probe like one.

        Returns 0 if no worker took it within its `pause` (seconds, `longest` at most), else the seconds until
        it may be free.
        """

    async def free_probe(self, provider: str) -> None:
        """Let the other workers probe a provider at once, since it answers again."""


class Shared(SharedLimits, Protocol):
    """What a shared journal decides about attempts."""

    def lease_covers(self, seconds: float) -> bool:
        """Whether this worker's lease lasts for this many more seconds, so that no worker adopts meanwhile.

        Measured by a clock that goes on while the machine sleeps, from before the last renewal was sent.
        """
