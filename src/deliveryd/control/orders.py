"""What the worker does with operators' orders: one at a time, through its recorder."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import anyio

from deliveryd.delivery.recorder import Recorder
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, Order
from deliveryd.runtime.rights import at_this_machine
from deliveryd.telemetry.log_events import Event, log


class OrderHandler:
    """Carries out orders; `providers` are those that are configured."""

    def __init__(self, journal: Journal, recorder: Recorder, providers: Collection[str]) -> None:
        self._journal = journal
        self._recorder = recorder
        self._providers = providers
        self._turn = anyio.Lock()

    async def carry_out(self, order: Order, user: str | None) -> Mapping[str, object]:
        """Carry out an order that a user of this machine gave; None: no user of the system.

        Raises JournalError, or ValueError for unusable keys.
        """
        if user is not None and self._journal.is_shared:
            user = at_this_machine(user)
        order = order._replace(user=user)
        async with self._turn:
            decided = await self._recorder.decide(order, self._providers)
            if order.verb is Action.ERASE:
                await self._journal.cut_log()
        log(
            Event.DESK_DECIDED,
            verb=order.verb, kind=order.kind, count=len(decided.done), skipped=len(decided.skipped),
        )  # fmt: skip
        return {"done": list(decided.done), "skipped": dict(decided.skipped)}
