"""What a journal must do, and the values that go in and out of it.

What a method records is durable when it returns, all of it in one transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from deliveryd.journal.orders import Decided, Effect, Order
from deliveryd.journal.pauses import Pause
from deliveryd.journal.used_tokens import SignedToken
from deliveryd.model import Clock, Entry, Malformed, QueuedMessage, Reported, StopChange, Transition
from deliveryd.states import State


class OutboxRow(NamedTuple):
    """An event that the service hasn't accepted yet; `body` is its JSON as it is sent."""

    seq: int
    message_id: int
    status: str
    body: str


class Doubtful(NamedTuple):
    """A message whose latest try has an intent and no outcome, or that is held: then `reason` says why."""

    entry: Entry
    state: State
    reason: str | None = None


class Recorded(NamedTuple):
    """What receipts did that were kept until their message took its next step.

    `settled` are the messages that a receipt ended: their steps weren't taken, or count no more. `effects`
    are the changes of the recorder's counts. `elsewhere` are messages that ended and whose events another
    worker of a shared journal reports, behind earlier ones: this one will never see those accepted.
    """

    settled: Collection[int] = ()
    effects: Sequence[Effect] = ()
    elsewhere: Collection[int] = ()


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
    messages, by provider, whose deadline was dropped since nobody would report on them. `next_by` is the next
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

    `in_order`: it ended its lease itself, or only something is left of it that nobody could take before.
    """

    name: str
    in_order: bool


class Recovery(NamedTuple):
    """What an earlier run left.

    `taken`: messages whose `dequeued` isn't accepted yet. `doubtful`: those with an attempt in doubt.
    `waiting`: how many wait for their time, those that were in the line's hands among them, but none that is
    paused. `reporting`: ids of ended messages whose last event isn't accepted yet. `pauses`: those in force.
    `paused`: how many messages are paused, by what they wait for. `elsewhere`: the providers that other
    workers have, or had until a short while ago. `ended`: the workers it was taken over from while this one
    ran; there may be events of them alone. `effects`: how messages ended by receipts that were kept for them
    and applied now; the other numbers are of afterwards.
    """

    taken: list[Entry]
    doubtful: list[Doubtful]
    waiting: int
    reporting: list[int]
    down_since: Mapping[str, int] = {}
    pauses: Sequence[Pause] = ()
    paused: Mapping[str, int] = {}
    elsewhere: frozenset[str] = frozenset()
    ended: Sequence[EndedWorker] = ()
    effects: Sequence[Effect] = ()


class FromOthers(NamedTuple):
    """What the other workers of a shared journal did since the last look; what isn't known to differ is None.

    `adopted`: what workers left whose leases are over; it is this one's now. `pauses`: all that are in
    force. `stops`: recipients who were put on the stopped list or taken off it, by any worker.
    `down_since`: as in Recovery. `waiting`: how many waited just before, in all and without those that are
    paused; `paused`: those, by what they wait for. `events`: how many events others left to be reported by
    this one. `effects`: the changes of the recorder's counts by receipts that were matched now, since their
    messages' steps were recorded at the same time. `elsewhere`: as in Recovery. `any_ended`: whether a
    worker is gone that was there at the last look.
    """

    adopted: Recovery | None = None
    pauses: Sequence[Pause] | None = None
    stops: Sequence[StopChange] = ()
    down_since: Mapping[str, int] | None = None
    waiting: int | None = None
    paused: Mapping[str, int] | None = None
    events: int = 0
    effects: Sequence[Effect] = ()
    elsewhere: frozenset[str] | None = None
    any_ended: bool = False


class Allotment(NamedTuple):
    """Attempts at a provider that this worker may make, evenly spaced at the provider's rate.

    The first of them `delay` seconds after the question was asked. No `attempts`: there are none now; after
    `delay` seconds there may be.
    """

    attempts: int
    delay: float


class Due(NamedTuple):
    """Waiting messages whose time has come, now READY, and when the next one of the same providers is due.

    `left` says how many more are due; they are counted up to `MOST_COUNTED`. `paused`: how many of the
    entries were paused.
    """

    entries: list[Entry]
    next_due: int | None
    left: int = 0
    paused: int = 0


MOST_COUNTED = 500


class Orphans(NamedTuple):
    """What would be left of a provider if it were removed.

    `in_doubt`: messages that nobody could repeat there. `waiting`: others bound to it. `unconfirmed`: those
    that it accepted and hasn't reported on. `deadlines`: receipt deadlines among them.
    """

    in_doubt: int = 0
    waiting: int = 0
    unconfirmed: int = 0
    deadlines: int = 0


class Left(NamedTuple):
    """What became of messages that waited at removed providers: how many are held, and how many go on."""

    held: int
    released: int


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
    `oldest_event`: the instant of the first event that the service hasn't accepted yet.
    """

    waiting: Mapping[str, int] = {}
    in_doubt: Mapping[str, int] = {}
    oldest_message: int | None = None
    oldest_event: int | None = None


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


class Journal(SharedLimits, Protocol):
    """The durable memory of the line. One worker works on it at a time, or several if it is shared."""

    is_shared: bool
    """Whether other workers may work on it at the same time: then `follow` tells what they did."""

    common_clock: Clock | None
    """What all who work on it go by, whatever their machines' clocks say; None: a machine's own."""

    namespace: str
    stop_key: bytes
    """The key of the digests of stopped recipients."""

    reserve: int
    """Bytes of free space on the disk below which nothing more is taken in."""

    last_at: int
    """When an earlier run last wrote, by the clock of that time; 0: never."""

    kept_clock: str
    """What an earlier run gave `keep_clock`; "": nothing, or all go by the clock of a database."""

    @property
    def full(self) -> bool:
        """Whether something waits for room on the disk, or for a database that can't be reached.

        Everything does but `receive` and `decide`, which raise JournalFull: their callers can repeat them.
        """

    @property
    def is_unreachable(self) -> bool:
        """Whether what is waited for is a database that can't be reached, or doesn't answer."""

    def has_room(self) -> bool:
        """Whether more may be taken in: what is under way already must find room later as well."""

    def room(self) -> int:
        """The bytes that are free on the disk."""

    def misplaced(self) -> str | None:
        """Why what is recorded would be lost with this process, and what to do; None: it wouldn't be.

        Nothing more may be taken in then. What is under way goes on, in what is open.
        """

    async def renew(self) -> None:
        """Return when this worker's lease was renewed a moment ago, however long that takes.

        What another worker has taken over isn't this one's to take for: see `base.FromOthers`.
        """

    def outlasts(self, seconds: float) -> bool:
        """Whether this worker's lease lasts for so many seconds more, so that nobody adopts meanwhile.

        Measured by a clock that goes on while the machine sleeps, from before the last renewal was sent.
        """

    async def follow(self, now: int, providers: Collection[str]) -> FromOthers:
        """Return what other workers did since the last call, and tell them which providers this one has.

        What workers left whose leases are over is adopted, unless it is bound to a provider that isn't among
        these and that another live worker has.
        """

    async def take(
        self, messages: Sequence[QueuedMessage], malformed: Sequence[Malformed], at: int, lost: int = 0
    ) -> Mapping[int, int]:
        """Record a batch: each new message in TAKEN with its `dequeued` event.

        Returns the ids that are new, each with its beginning: 1, or more for one that was forgotten.
        `lost` is how many batches may be lost, besides what is given of them. A malformed element with an id
        is a message too, which has failed: its `dequeued` is followed by an `error`.

        A message id seen before is not recorded again: its `dequeued` and its latest event are put into the
        outbox once more, unless events of it are waiting there anyway. A `dequeued` that was refused is put
        there at once the first time, and then after 1, 2, 4 minutes and so on, up to an hour.
        """

    async def change(self, transitions: Sequence[Transition]) -> Recorded:
        """Record steps of messages, at most one of each, and apply the receipts that were kept for them.

        A step from READY isn't taken by a message that a receipt proves to be sent: it ends instead. A step
        from SENDING is taken first. Either way the message is among those settled, and whatever its step
        leads to must not be done, above all no intent be carried out.
        An acceptance with a confirmation keeps the variables. A step from READY to SENT restores the accepted
        try; if its provider reported meanwhile that it failed, the message ends with an `error` instead.
        An intent keeps the digest of what is sent. An outcome that may have arrived keeps the content, until
        the message ends or its key changes.
        Raises IllegalTransition when a message isn't where its step begins; then none of the steps is taken.
        """

    async def due(self, now: int, room: Mapping[str, int]) -> Due:
        """Make waiting messages READY whose time has come, the longest due first.

        At most `room[provider]` of each provider; "" stands for those that aren't bound to one. Those that
        wait for something aren't among them.
        """

    async def overdue(self, now: int, limit: int) -> Due:
        """The same for messages that wait for something, at any provider: they have waited long enough.

        Those that are paused have when they expired.
        """

    async def resume(self, waits_for: Sequence[str], limit: int) -> list[Entry]:
        """Make messages READY that wait for one of these: the first named first, then the first due."""

    async def wake(self, waits_for: Collection[str], at: int, limit: int) -> int:
        """Let messages that wait for one of these be due at `at`; return how many, `limit` at most.

        Those that another worker holds in this moment follow with the next `follow`. `limit` also where some
        of so many are held: there may be more.
        """

    async def release(self, provider: str, at: int, limit: int) -> int:
        """Let messages that are bound to a provider and wait be due at `at`, bound to none.

        Those in doubt stay, and those that are paused. Returns how many were released, `limit` at most.
        """

    async def park(self, waits_for: str, instead_of: Collection[str], limit: int) -> int:
        """Let messages that wait for one of these wait for the end of a pause; return how many.

        They stay due when they were, at the latest.
        """

    async def end_pauses(self, now: int) -> Sequence[Pause]:
        """Resume what was paused until an instant that has come, and record that; return all other pauses.

        Their messages go on when they are woken (see `wake`).
        """

    async def retime_pauses(self, back: int, now: int) -> Sequence[Pause]:
        """Bring pauses in line with a clock that was put back by so many microseconds (negative: forward).

        Each lasts no longer from `now` on than it was ordered to. Returns all pauses.
        """

    async def largest_cause(self) -> tuple[str, int]:
        """What most of the waiting messages wait for, in an operator's words, and how many they are.

        Those that are paused don't count.
        """

    async def outbox(self, after: int, limit: int) -> list[OutboxRow]:
        """The oldest events that aren't accepted or refused yet, behind the one with this `seq`; 0: all."""

    async def accept(self, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Mark events as accepted by the service. A message whose `dequeued` is among them becomes READY.

        So does one in SET_ASIDE, unless an operator dropped it; those are returned, and those that an order
        at another worker gave to this one, if `follow` hasn't returned them yet.
        Events are settled in the order of the outbox, and those that were settled already change nothing.
        Raises OutOfOrder when one that waits further ahead isn't among them.
        """

    async def accept_early(self, rows: Sequence[OutboxRow], at: int) -> list[Entry]:
        """Let messages go on whose `dequeued` the service accepted before it answered about events ahead.

        Does to messages what `accept` does, and returns the same. The events stay in the outbox for `accept`,
        and are known as accepted.
        """

    async def put_last(self, rows: Sequence[OutboxRow]) -> None:
        """Have events wait behind all others, each with the later ones of its message.

        None of them may be accepted or refused, nor a later one of its message.
        """

    async def refuse(self, row: OutboxRow, reason: str, at: int) -> int:
        """Set an event aside. A message whose `dequeued` was refused is set aside with it.

        Returns how often this event was refused by now; 0: it was settled already. Raises OutOfOrder like
        `accept`.
        """

    async def receive(
        self, reports: Sequence[Reported], stops: Sequence[StopChange] = ()
    ) -> list[MatchedReceipt]:
        """Record providers' updates; return what each one did, those about recipients (`stops`) last.

        A reference names a key, and so all tries under it, or the message, and so its latest key on the
        provider.
        "matched": at most it turned one end into another. "settled": its message was held in doubt or had
        failed, and is sent. "recalled": the same for a message that waited. "unmatched": kept until an
        attempt fits it, or until its message, being in the line's hands, takes the next step. "repeated": it
        was known. Of a progress: "told" to the service if the message is sent and the status new, or "noted".
        Of a report that can't be read: "unread", it is kept. Of a SharedReceipt and a RecipientReport that
        names no message: "not_ours", nothing of it is kept.
        Of a recipient: "matched" if it changed the list, else "repeated"; the latest in time counts.
        """

    async def pass_deadlines(
        self, listened: int, at: int, providers: Collection[str], limit: int
    ) -> PassedDeadlines:
        """Add microseconds to the listening time; send messages on whose deadline passed.

        They wait, due `at` once, at no provider and under a new key, with their accepted try kept. At most
        `limit` of each of the providers. If a provider reported on no message since, up to
        `MOST_UNREPORTED` go on; if more are due, its deadlines stand still until it reports, and begin anew.
        `providers` are all that report: messages of another one, which was removed, stay sent without a
        deadline, and their variables are emptied.
        """

    async def count_overdue(self, provider: str, since: int | None, until: int) -> int:
        """Count what a provider accepted between two instants and nobody confirmed.

        `since` None: from where an earlier run ended.
        """

    async def id_in_doubt(self, message_id: int, key: int) -> str | None:
        """The provider's id of a message, as the latest try in doubt under this key had it in its outcome."""

    async def stopped(self) -> list[tuple[str, bytes]]:
        """The channel and the digest of each recipient who can't be reached any more."""

    async def recover(self, now: int, providers: Collection[str]) -> Recovery:
        """Put in order what an earlier run left; called once, before anything else.

        Waiting messages whose provider isn't among `providers` lose it; those with an attempt in doubt there
        are held in doubt. Those that waited for settings or a customer are due: nothing is asked for yet.
        Those that are paused stay so.
        """

    async def use_token(self, token: SignedToken, at: int) -> bool:
        """Note what a token was used for; return whether it wasn't used for another report before.

        It is kept until its signature isn't accepted any more.
        """

    async def leave(self, providers: Collection[str], at: int, limit: int) -> Left:
        """Do to messages that wait at these removed providers what `recover` does; at most `limit` of each.

        Those in doubt are held; the others are due at `at`, bound to none.
        """

    async def held(self, providers: Collection[str], after: int, limit: int) -> list[Doubtful]:
        """The messages held in doubt at these providers, by their ids, from the one behind `after` on."""

    async def orphans(self, provider: str, sent_since: int) -> Orphans:
        """Count what the removal of a provider would leave; of what it accepted, since that instant."""

    async def note_down(self, since: Mapping[str, int]) -> None:
        """Keep since when these providers are down."""

    async def retime(self, back: int, now: int, longest: int) -> None:
        """Bring due times in line with a clock that was put back by so many microseconds (0: it wasn't).

        None lies more than `longest` microseconds ahead then, but of messages that are paused: they are due
        when they expire.
        """

    async def hasten(self, due: Mapping[int, int]) -> None:
        """Let waiting messages, by their ids, be due at these instants, if they aren't earlier."""

    async def counts(self) -> Counts:
        """The sums of what is open."""

    async def open_work(self) -> Open:
        """What hasn't ended, by provider, and the oldest of it; for those who look, some seconds old."""

    async def account(self) -> Account:
        """Where all messages are that were ever taken."""

    async def decide(self, order: Order, at: int, providers: Collection[str]) -> Decided:
        """Carry out an operator's order, each key for itself; `providers` are the providers that there are.

        What is paused can be paused again: it stays paused since the first time, with the new end and reason.

        What is dropped stays recorded, and so does each decision.
        """

    async def cut_log(self) -> bool:
        """Empty what a journal keeps beside its file, so that nothing deleted is left there.

        False while another connection reads the journal as of an earlier instant: try again later.
        """

    async def keep_clock(self, record: str) -> None:
        """Keep what is known of the clock for the next run."""

    async def prune(self, before: int, limit: int) -> int:
        """Delete ended messages whose end was before that instant and whose events are all accepted.

        A journal may forget by whole days, and so a message only when the day is over on which it was taken.
        A refused event keeps its message until it is retried or dropped. The ids of all are kept, so that a
        repeat is still recognised. Malformed elements that weren't seen since,
        and unmatched receipts from before, are deleted too. At most `limit` of each kind. Returns how many
        messages were deleted.
        """

    async def give_back(self, limit: int) -> int:
        """Give room that pruning left back to the disk, as far as what comes next won't need it.

        At most `limit` portions, each of some kilobytes. Returns how many it were; 0: there is no more.
        """
