"""What the sandbox saw of two workers: which one sent what, and which one took which receipt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from deliveryd.commands.sandbox.demo_worker import WORKER_HEADER
from deliveryd.commands.sandbox.takeover_outcome import Fate, Killed, ReceiptsTaken
from deliveryd.sandbox.records import ReceivedMessage
from deliveryd.sandbox.state import SandboxState

KEY_HEADER = "idempotency-key"


def sent_by(state: SandboxState, worker: str) -> int:
    """Return how many messages a provider accepted from this worker."""
    return sum(each.headers.get(WORKER_HEADER) == worker for each in state.accepted())


def fates_of(state: SandboxState, ids: Sequence[int]) -> Sequence[Fate]:
    """Return what was seen of these messages."""
    received: defaultdict[int, list[ReceivedMessage]] = defaultdict(list)
    asked: defaultdict[str, list[str]] = defaultdict(list)
    for each in state.received:
        received[each.message_id or 0].append(each)
    for request in state.seen:
        if (key := request.headers.get(KEY_HEADER)) is not None:
            asked[key].append(request.headers[WORKER_HEADER])
    return [_fate(state, id_, received[id_], asked) for id_ in ids]


def _fate(
    state: SandboxState, id_: int, received: Sequence[ReceivedMessage], asked: dict[str, list[str]]
) -> Fate:
    keys = frozenset(each.idempotency_key or "" for each in received)
    return Fate(
        id=id_,
        channel=received[0].channel if received else "-",
        asked=[worker for key in sorted(keys) for worker in asked.get(key, ())],
        accepted=[each.headers[WORKER_HEADER] for each in received if each.duplicate_of is None],
        keys=keys,
        statuses=state.statuses(id_),
    )


def receipts_taken(state: SandboxState, killed: Killed) -> ReceiptsTaken:
    """Return who took the receipts: of SMS it was worker one, until that was killed."""
    senders = {each.provider_id: each.headers[WORKER_HEADER] for each in state.accepted()}
    by: Counter[str] = Counter()
    elsewhere = 0
    for place, receipt in enumerate(state.receipts):
        if receipt.answered is None or not 200 <= receipt.answered < 300:
            continue
        taker = "one" if receipt.channel == "sms" and place < killed.receipts else "two"
        by[taker] += 1
        elsewhere += senders.get(receipt.provider_id) != taker
    return ReceiptsTaken(by, elsewhere)
