"""Rules about how many messages are taken."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.ledger import read_event
from simulation.run import History


def broken_takes(history: History) -> Iterator[str]:
    """While the service accepts no `dequeued`, as many are taken ahead as there are places, and no more."""
    tuning, ledger = history.plan.tuning, history.ledger
    if not tuning.take_ahead or history.is_shared or history.plan.reloads:
        return
    most = 2 * tuning.in_flight + tuning.take
    accepted = {
        event.message_id: post.order
        for post in reversed(ledger.posted)
        for event in map(read_event, post.bodies)
        if event.status == "dequeued"
    }
    # A message at whose event the service fails, while it accepts others, holds no place.
    failed = {event.message_id for event in map(read_event, (*ledger.failed_events, *ledger.refused_events))}
    handed = {
        each.id: each.order
        for each in reversed(ledger.handed)
        if each.request in ledger.answered and each.id is not None and each.id not in failed
    }
    for polled in ledger.polled:
        open_ = [
            id_ for id_, order in handed.items() if order < polled.order < accepted.get(id_, polled.order + 1)
        ]
        if len(open_) > most:
            yield f"messages were asked for, while the service had accepted none of {len(open_)}"
            return
