"""Whose fault a failure is: a message's, its group's (such as a template), or the peer's.

First tries decide: repeats are of messages that failed before. A group is at fault if, since it was served
last, more first tries of others succeeded than failed; a message, if more of all did since it failed before.
Else the peer is: it is down, or serves fewer than it turns away.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import NamedTuple

MOST_BLAMED = 10_000
"""Messages, and groups, that are known to have failed; beyond that the earliest is forgotten."""

SEVERAL = 3
"""Messages that failed in a row, from which on the peer may be at fault, and not one of them."""


class _Tries(NamedTuple):
    """First tries so far: how many succeeded, and failed; and how many of a group failed since then."""

    served: int
    failed: int
    own: int = 0


class Blame:
    """What became of the first tries at one peer, since one failed."""

    def __init__(self) -> None:
        self.has_failures = False
        """Whether a try failed yet: before, none has to be noted."""

        self._served = 0
        self._failed = 0
        self._groups: OrderedDict[int, _Tries] = OrderedDict()  # as they were when one began to fail
        self._messages: OrderedDict[int, _Tries] = OrderedDict()  # as they were when one failed last

    def served(self, group: int, *, is_first: bool) -> None:
        """A try of a message of this group succeeded."""
        self._served += is_first
        if self._groups:
            self._groups.pop(group, None)

    def failed(self, message: int, group: int, *, is_first: bool) -> bool:
        """A try failed; return whether the message or its group is at fault."""
        self.has_failures = True
        since = self._groups.pop(group, _Tries(self._served, self._failed))
        before = self._messages.pop(message, None)
        is_at_fault = self._served - since.served > self._failed - since.failed - since.own
        if before is not None and not is_at_fault:
            is_at_fault = self._served - before.served > self._failed - before.failed
        self._failed += is_first
        self._groups[group] = since._replace(own=since.own + is_first)
        self._messages[message] = _Tries(self._served, self._failed)
        for known in (self._groups, self._messages):
            if len(known) > MOST_BLAMED:
                known.popitem(last=False)
        return is_at_fault

    @property
    def several_failed(self) -> bool:
        """Whether several messages failed since a first try succeeded."""
        latest = [tries.served for tries in islice(reversed(self._messages.values()), SEVERAL)]
        return latest == [self._served] * SEVERAL
