"""What must be true when the faults are over and nothing waits any more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from deliveryd.sandbox.providers import PAUSES
from deliveryd.sandbox.state import SandboxState

WORKER = "x-worker"
"""The header in which a worker says which one of the fleet it is."""

POSTS = len(PAUSES) + 1
"""How often the provider posts a receipt that isn't accepted."""

PLACES = {"dequeued": 0, "sent": 1, "error": 1, "delivered": 2}


class Verdict(NamedTuple):
    """The violations, by message; how many messages were sent, how often one was repeated under its key."""

    violations: Mapping[int, Sequence[str]]
    sent: int
    repeats: int


class Lost(NamedTuple):
    """What the database lost for good: messages that the service counts as taken, and the first receipts."""

    messages: frozenset[int] = frozenset()
    receipts: int = 0


NOTHING = Lost()


def all_is_told(state: SandboxState, enqueued: int, lost: Lost = NOTHING) -> bool:
    """Whether the service knows the end of each message, and each receipt is posted and told."""
    ids = [id_ for id_ in range(1, enqueued + 1) if id_ not in lost.messages]
    told: defaultdict[int, set[str]] = defaultdict(set)
    for event in state.events:
        told[event["messageId"]].add(event["status"])
    if not all(told[id_] & {"sent", "error"} for id_ in ids):
        return False
    return (
        _receipts_are_over(state)
        and all("delivered" in told[id_] for id_ in _reported(state, lost, "delivered"))
        and all("error" in told[id_] for id_ in _reported(state, lost, "failed"))
    )


def _receipts_are_over(state: SandboxState) -> bool:
    """Whether the provider got each receipt accepted, or gave it up after its last attempt."""
    posts: Counter[str] = Counter()
    over = set()
    for receipt in state.receipts:
        posts[receipt.provider_id] += 1
        is_answered = receipt.answered is not None and receipt.answered < 500
        if is_answered or posts[receipt.provider_id] == POSTS:
            over.add(receipt.provider_id)
    return all(message.provider_id in over for message in state.received)


def judge(state: SandboxState, enqueued: int, lost: Lost = NOTHING) -> Verdict:
    """Compare what was sent and told with what was in the queue.

    Of what is lost only that holds which the providers know: one key for each message.
    """
    keys: defaultdict[int, set[str | None]] = defaultdict(set)
    for received in state.received:
        keys[int(received.reference or 0)].add(received.idempotency_key)
    told: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    for event in state.events:
        told[event["messageId"]].append((event["status"], event["timestamp"]))
    confirmed = _reported(state, lost, "delivered")
    failed = _reported(state, lost, "failed")
    violations: defaultdict[int, list[str]] = defaultdict(list)
    for id_ in range(1, enqueued + 1):
        if len(keys[id_]) > 1:
            violations[id_].append(f"was sent under {len(keys[id_])} keys")
        if id_ not in lost.messages:
            if found := list(_contradictions(bool(keys[id_]), id_ in confirmed, told[id_])):
                violations[id_] += found
            if id_ in failed and "error" not in (firsts := [status for status, _ in told[id_]]):
                violations[id_].append(f"a failure was reported, and the service heard {firsts}")
    sent = sum(map(bool, keys.values()))
    return Verdict(violations, sent, len(state.received) - sent)


def _contradictions(was_sent: bool, was_confirmed: bool, told: Sequence[tuple[str, str]]) -> Iterator[str]:
    """What the service heard of a message that isn't so, or didn't hear."""
    firsts = list(dict.fromkeys(status for status, _ in told))
    if not was_sent and "sent" in firsts:
        yield "is told to be sent, and wasn't"
    if was_sent and "sent" not in firsts:
        yield f"was sent, and the service heard {firsts}"
    if firsts[:1] != ["dequeued"] or not _is_in_order(firsts):
        yield f"its events came as {firsts}"
    stamps = [dict(reversed(told)).get(status, "") for status in firsts]
    if stamps != sorted(stamps):
        yield f"the instants of {firsts} are {stamps}"
    if was_confirmed and "delivered" not in firsts:
        yield f"a receipt was answered, and the service heard {firsts}"


def _is_in_order(statuses: Sequence[str]) -> bool:
    places = [PLACES[status] for status in statuses]
    return places == sorted(places)


def _reported(state: SandboxState, lost: Lost, status: str) -> set[int]:
    """The messages of which a receipt with this status was answered with success."""
    ids = {message.provider_id: int(message.reference or 0) for message in state.received}
    reported = {
        ids[receipt.provider_id]
        for receipt in state.receipts[lost.receipts :]
        if receipt.status == status and _is_success(receipt.answered) and receipt.provider_id in ids
    }
    return reported - lost.messages


def _is_success(answered: int | None) -> bool:
    return answered is not None and answered < 300


def came_elsewhere(state: SandboxState, receivers: Sequence[Sequence[str]]) -> int:
    """How many messages have receipts that came to another worker than those that sent it.

    `receivers`: the provider's ids of what came to each worker.
    """
    senders: defaultdict[str, set[int]] = defaultdict(set)
    for message in state.received:
        senders[message.provider_id].add(int(message.headers[WORKER]))
    return sum(
        any(provider_id in ids for number, ids in enumerate(map(set, receivers), 1) if number not in numbers)
        for provider_id, numbers in senders.items()
    )
