"""What the worker answers: orders, through its recorder; its state, and events as they happen."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping

import anyio

from deliveryd.control.protocol import StatusRequest, TailRequest
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.tail import Tail, TailFilter
from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, Order
from deliveryd.runtime.rights import at_this_machine
from deliveryd.telemetry.log_events import Event, log
from deliveryd.telemetry.overview import Overview, as_json


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


class ViewHandler:
    """Answers from the overview of the worker, and from what happens to messages."""

    def __init__(self, overview: Callable[[], Overview], open_tail: Callable[[TailFilter], Tail]) -> None:
        self._overview = overview
        self._open_tail = open_tail

    async def status(self, _request: StatusRequest, _user: str) -> Mapping[str, object]:
        """Return the state of the worker."""
        return {"status": as_json(self._overview())}

    async def tail(self, request: TailRequest, _user: str) -> AsyncGenerator[Mapping[str, object], None]:
        """Yield events in portions, the first one empty: from then on none is missed."""
        with self._open_tail(TailFilter(*request)) as tail:
            yield {"events": []}
            while True:
                if events := await tail.next_events():
                    yield {"events": [event.as_data() for event in events]}
