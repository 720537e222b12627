"""Operators: they look at what lies aside and give orders, to a worker or with the journal at rest."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import anyio
from anyio.abc import TaskGroup

from deliveryd.control.protocol import (
    LONGEST_LINE,
    as_control_reply,
    read_reply,
    socket_address,
    socket_of,
    write_request,
)
from deliveryd.journal.dead_letters import read_dead_letters, read_in_doubt
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.sqlite import open_journal
from deliveryd.runtime.threads import inline
from simulation.ledger import Ordered
from simulation.new_beginnings import BEGINS, FORGETS, ids_for, note_forgotten
from simulation.plan import Errand
from simulation.world import World

_IN_DOUBT = frozenset({Action.RESEND, Action.RESEND_ANEW, Action.SETTLE_SENT, Action.SETTLE_FAILED})
_PROVIDER_IDS = "SELECT provider_id FROM receipt WHERE seq IN (SELECT value FROM json_each(?))"


class Operators:
    """Run their errands, each at most once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.waiting = 0
        """How many errands are still to be run in this life."""

    async def decide_at_rest(self, life: int) -> None:
        """Run the errands before a life begins, as a command does that finds no worker."""
        errands = [errand for errand in self._world.plan.errands if errand.life == life]
        for errand in (errand for errand in errands if errand.after is None):
            order = self._order(errand)
            if order is not None:
                async with open_journal(self._world.journal, blocking=inline) as journal:
                    providers = list(self._world.plan.weights)
                    decided = await journal.decide(order, self._world.clock.now(), providers)
                note_forgotten(self._world, order.verb, decided.done)

    def begin(self, tasks: TaskGroup) -> None:
        """A worker runs: send it orders."""
        for errand in self._world.plan.errands:
            if errand.life == self._world.life and errand.after is not None:
                self.waiting += 1
                tasks.start_soon(self._run, errand, errand.after)

    def end(self) -> None:
        """The worker's life is over; nobody comes again."""
        self.waiting = 0

    async def _run(self, errand: Errand, after: float) -> None:
        await anyio.sleep(after)
        order = self._order(errand)
        if order is not None:
            await self._ask(order)
        self.waiting -= 1

    def _order(self, errand: Errand) -> Order | None:
        """An order about all that lies aside; noted before it is given, since no answer may come."""
        world = self._world
        if errand.verb in BEGINS | FORGETS:
            ids = ids_for(world, errand.verb)
            keys = tuple(map(str, ids))
        elif errand.verb in _IN_DOUBT:
            ids = [doubtful.message_id for doubtful in read_in_doubt(world.journal, None, None)]
            keys = tuple(map(str, ids))
        else:
            found = read_dead_letters(world.journal, [errand.kind], 0, "")
            ids = [one.message_id for one in found if one.message_id is not None]
            keys = tuple(one.key for one in found)
        if not keys:
            return None
        receipts = f"[{','.join(keys)}]" if errand.kind is ItemKind.RECEIPT else "[]"
        provider_ids = tuple(str(id_) for (id_,) in world.ask_journal(_PROVIDER_IDS, receipts))
        ledger = world.ledger
        ledger.ordered.append(Ordered(ledger.number(), errand.verb, errand.kind, tuple(ids), provider_ids))
        return Order(errand.verb, errand.kind, keys)

    async def _ask(self, order: Order) -> None:
        """Over the control socket: what is sent there is there at once, also for a clock that jumps."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            with socket_address(socket_of(self._world.journal)) as address:
                connection.connect(address)
            connection.send(write_request(order))
            await anyio.wait_readable(connection)
            reply = read_reply(connection.recv(LONGEST_LINE))
            if isinstance(reply, Mapping):
                note_forgotten(self._world, order.verb, as_control_reply(reply).done)
