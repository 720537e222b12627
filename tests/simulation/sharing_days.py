"""Short days, which end while workers share a journal, and are dropped between the statements of others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from deliveryd.journal.postgresql import days as partitions
from deliveryd.journal.postgresql import retention, schema
from deliveryd.model import SECOND
from deliveryd.worker import supervisor
from simulation.sharing_plan import Days

AT_ONCE = "1ms"
"""How long a drop waits for others, of the machine's own time: in a run they don't go on meanwhile."""


@contextmanager
def short_days(days: Days | None) -> Iterator[None]:
    """While it lasts, days are as short as a plan says, and what is old is forgotten often."""
    if days is None:
        yield
        return
    day = int(days.seconds * SECOND)
    is_read = retention._IS_READ_FOR_LONG.replace(f"interval '{retention._LONG}'", "interval '1h'")
    with ExitStack() as stack:
        for module in (schema, retention):
            stack.enter_context(patch.object(module, "DAY", day))
        for module in (schema, retention, partitions):
            stack.enter_context(patch.object(module, "partition_of", _name))
        stack.enter_context(patch.object(retention, "_IS_READ_FOR_LONG", is_read))
        stack.enter_context(patch.object(retention, "_DROP_PATIENCE", AT_ONCE))
        stack.enter_context(patch.object(supervisor, "PRUNE_INTERVAL", days.pruned_every))
        yield


def _name(table: str, day: int) -> str:
    """There are more such days than a date can name."""
    return f"{table}_{day}"
