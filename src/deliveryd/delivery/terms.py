"""What a dispatcher works by."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd.channels.base import Channel
from deliveryd.delivery.choice import Choice
from deliveryd.delivery.listening import Awaited
from deliveryd.delivery.policy import DispatchPolicy, DoubtPolicy
from deliveryd.delivery.provider import Provider
from deliveryd.rules.priorities import NO_RULES, Priorities
from deliveryd.rules.windows import ALWAYS, Windows


class DispatchTerms(NamedTuple):
    """What a dispatcher works by: all of it follows from the configuration.

    `share` is how many places are the provider's own.
    """

    provider: Provider
    choice: Choice
    channel: Channel
    policy: DispatchPolicy
    doubt: DoubtPolicy
    share: int
    intermediate: frozenset[str]
    awaited: Awaited | None = None
    windows: Windows = ALWAYS
    priorities: Priorities = NO_RULES

    @property
    def is_enabled(self) -> bool:
        """Whether the provider takes new messages."""
        return self.choice.senders[self.provider.name].is_enabled
