"""The places where a worker of a shared journal may die or stand still: around its commits and its calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from crashes.boundaries import commits as operations
from deliveryd.channels.http.adapter import HttpChannel
from deliveryd.delivery.recorder import Recorder
from deliveryd.journal.postgresql.pacing import Pacing
from deliveryd.receipts.batcher import ReceiptBatcher
from deliveryd.service.client import ServiceClient
from deliveryd.states import State

SIDES = ("before", "after")

STEPS: tuple[tuple[type, str], ...] = (
    (HttpChannel, "send"),
    (Pacing, "allot"),
    (ReceiptBatcher, "record"),
    *((Recorder, name) for name in ("accept", "follow", "receive", "record", "recover", "take")),
    *((ServiceClient, name) for name in ("report", "take")),
)
"""Steps around which something is known to one side alone.

After `HttpChannel.send` the provider has answered, and nothing is recorded of that. After
`ServiceClient.take` the service has given messages away, and nobody has them; after `ServiceClient.report` it
has accepted events. After `ReceiptBatcher.record` a receipt is recorded, and the provider doesn't know.
"""

CHANGES: tuple[tuple[State, State], ...] = (
    (State.READY, State.SENDING),
    (State.READY, State.WAITING),
    (State.READY, State.FAILED),
    (State.SENDING, State.READY),
    (State.SENDING, State.SENT),
    (State.SENDING, State.WAITING),
)
"""Steps of messages in the scenario: the intent, and the outcomes."""

KEPT = "receive(unmatched)"
"""A receipt that fits no attempt yet."""

ONLY_READ = frozenset(
    {"account", "cut_log", "give_back", "largest_cause", "open_work", "orphans", "others_at_work"}
)
"""Operations of the journal's protocol without a commit."""

UNUSUAL: Mapping[str, str] = {
    "count_overdue": "nothing is overdue: nothing is noted",
    "held": "nobody reloads anything",
    "id_in_doubt": "the provider isn't asked what became of a message",
    "keep_parts": "no channel has a cost_guard",
    "kept_parts": "no channel has a cost_guard",
    "leave": "nobody reloads anything",
    "note_down": "no other channel comes after this one, so nobody asks since when it is down",
    "pass_deadlines": "no other channel comes after this one, so it has no deadline",
    "put_last": "the service fails at no event",
    "refuse": "the service accepts every event",
    "release": "no other provider could take what waits",
    "repeat_is_ordered": "what is in doubt is repeated, without an order",
    "retime_pauses": "nobody puts a clock back",
    "use_token": "no report is signed",
}
"""Operations that the scenario doesn't lead to, and why."""


class Beside(StrEnum):
    """What a commit does beside what it was asked for, when it comes to that."""

    FENCE = "fence"
    TAKE_OVER = "take over a log"
    GIVE_BACK_LOG = "give back a log"
    HAND_OVER = "put into an inbox"
    READ_INBOX = "read an inbox"
    MATCH_AGAIN = "match again"


OWN = ("begin_work", "release_lease")
"""What is committed in a transaction of its own: the lease's beginning and end."""


def commit_boundaries() -> list[str]:
    """The names of the boundaries before and after each COMMIT, by what it makes durable."""
    asked = [name for name in operations() if name not in ONLY_READ | UNUSUAL.keys() | {"change"}]
    changed = [change_name(*each) for each in CHANGES]
    names = (*asked, *changed, *Beside, KEPT, *OWN)
    return [f"{commit_name(each)}/{side}" for each in names for side in SIDES]


def call_boundaries() -> list[str]:
    """The names of the boundaries around the steps."""
    return [f"{owner.__name__}.{name}/{side}" for owner, name in STEPS for side in SIDES]


def all_boundaries() -> list[str]:
    """Both."""
    return commit_boundaries() + call_boundaries()


def commit_name(operation: str) -> str:
    """The name for the COMMIT of a transaction in which this was done."""
    return f"COMMIT {operation}"


def change_name(before: State, after: State) -> str:
    """The name for the recording of such a step of a message."""
    return f"change({before.name.lower()}-{after.name.lower()})"
