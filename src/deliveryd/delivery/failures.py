"""Counts messages that ended with an error event, so that the log needs no line for each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from deliveryd.model import Transition, channel_of
from deliveryd.states import State
from deliveryd.telemetry.log_events import Event, log

MOST_FAILURE_REASONS = 50
"""Reasons that are counted apart at a time; all others are one sum."""

OTHER = "other reasons"
REPORTED = "reported as failed by its provider or an operator"
NO_PROVIDER = "none"

_VALUE = re.compile(r"expired(?= at )|missing placeholders(?=: )|not a language tag(?=: )")
"""What goes before a value of the message in the details of an event."""


def reason_of(transition: Transition) -> tuple[str, str]:
    """The provider at which a message failed, and why, without what differs from message to message."""
    entry = transition.entry
    details = next((event.details for event in transition.events if event.details), None) or ""
    provider, reason = entry.provider or NO_PROVIDER, details
    if entry.spent and entry.provider is None:
        provider, reason, _ = entry.spent[-1]
    found = _VALUE.match(details)
    return provider, found[0] if found else reason.removeprefix(f"{provider}: ")


class Failures:
    """How many messages failed for which reason since the last report."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, transitions: Iterable[Transition]) -> None:
        """Of these steps, those that end a message with an error."""
        for transition in transitions:
            if transition.after is State.FAILED:
                self._count(*reason_of(transition))

    def add_reported(self, count: int) -> None:
        """Add messages that failed by a receipt or an operator's order, after the line was done with them."""
        self._count(NO_PROVIDER, REPORTED, count)

    def _count(self, provider: str, reason: str, count: int = 1) -> None:
        if (provider, reason) not in self._counts and len(self._counts) >= MOST_FAILURE_REASONS:
            provider, reason = NO_PROVIDER, OTHER
        self._counts[provider, reason] += count

    def report(self) -> None:
        """Log the sums, the largest first, and begin again."""
        counts, self._counts = self._counts, Counter()
        for (provider, reason), count in counts.most_common():
            log(
                Event.MESSAGE_FAILED,
                channel=channel_of(provider), provider=provider, reason=reason, count=count,
            )  # fmt: skip
