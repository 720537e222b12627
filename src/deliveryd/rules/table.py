"""What a table of `[[rules]]` says, without its model, which is loaded where one is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from deliveryd.options.tables import Table
from deliveryd.rules.windows import WindowRule


class RuleTable(Table):
    """A table of `[[rules]]`."""

    @property
    def named_channels(self) -> Sequence[str]:
        """Return the channels that it names."""
        raise NotImplementedError

    @property
    def ranked(self) -> tuple[Literal["high", "low"], Sequence[int]] | None:
        """Return the priority that it gives, and to which settings ids; None: it gives none."""
        raise NotImplementedError

    def window_rule(self, place: int) -> WindowRule | None:
        """Return which messages have which window by the table at this place; None: it has no window."""
        raise NotImplementedError
