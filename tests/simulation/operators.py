"""Operators: they look at what lies aside and give orders, to a worker or with the journal at rest."""

from __future__ import annotations

import socket

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
from deliveryd.delivery.passed_time import at_next_start
from deliveryd.errors import DeliverydError
from deliveryd.journal.orders import Action, ItemKind, Order
from simulation.expectation import address_of
from simulation.kept_in_file import JOURNAL
from simulation.ledger import Change, Ordered
from simulation.new_beginnings import BEGINS, FORGETS, ids_for, note_forgotten
from simulation.opting_out import ADDRESSED
from simulation.plan import Errand
from simulation.world import World

_IN_DOUBT = frozenset({Action.RESEND, Action.RESEND_ANEW, Action.SETTLE_SENT, Action.SETTLE_FAILED})


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
            begun = self._world.ledger.number()
            order = self._order(errand)
            if order is not None:
                async with self._world.kept.at_rest() as journal:
                    providers = list(self._world.plan.weights)
                    clock = self._world.clock
                    at = await at_next_start(journal, clock) if order.verb is Action.PAUSE else clock.now()
                    decided = await journal.decide(order, at, providers)
                note_forgotten(self._world, order.verb, decided.done)
                self._note_changes(order, begun, is_carried_out=True)

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
        begun = self._world.ledger.number()
        order = self._order(errand)
        if order is not None:
            is_carried_out = False
            try:
                is_carried_out = await self._ask(order)
            finally:
                self._note_changes(order, begun, is_carried_out=is_carried_out)
        self.waiting -= 1

    def _note_changes(self, order: Order, begun: int, *, is_carried_out: bool) -> None:
        """Note what was ordered about recipients."""
        if order.kind is not ItemKind.RECIPIENT:
            return
        ledger = self._world.ledger
        known = ledger.number() if is_carried_out else None
        for key in order.keys:
            channel, _, address = key.partition(" ")
            stopped = order.verb is Action.STOP
            ledger.changes.append(Change(begun, channel, address, stopped, known, anyio.current_time()))

    def _order(self, errand: Errand) -> Order | None:
        """An order about all that lies aside; noted before it is given, since no answer may come."""
        world = self._world
        if errand.kind is ItemKind.RECIPIENT:
            return Order(errand.verb, errand.kind, self._recipients())
        if errand.verb in BEGINS | FORGETS:
            ids = ids_for(world, errand.verb)
            keys = tuple(map(str, ids))
        elif errand.verb in _IN_DOUBT:
            ids = list(world.kept.held_in_doubt())
            keys = tuple(map(str, ids))
        else:
            found = world.kept.dead_letters(errand.kind)
            ids = [one.message_id for one in found if one.message_id is not None]
            keys = tuple(one.key for one in found)
        if not keys:
            return None
        receipts = keys if errand.kind is ItemKind.RECEIPT else ()
        provider_ids = tuple(world.kept.provider_ids(receipts))
        ledger = world.ledger
        ledger.ordered.append(Ordered(ledger.number(), errand.verb, errand.kind, tuple(ids), provider_ids))
        return Order(errand.verb, errand.kind, keys)

    def _recipients(self) -> tuple[str, ...]:
        """Everybody whose address is known, on each channel that needs one."""
        people = self._world.plan.people.values()
        found = ((channel, address_of(person, channel)) for channel in ADDRESSED for person in people)
        return tuple(dict.fromkeys(f"{channel} {address}" for channel, address in found if address))

    async def _ask(self, order: Order) -> bool:
        """Over the control socket: what is sent there is there at once, also for a clock that jumps.

        Tells whether the order was carried out.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            with socket_address(socket_of(self._world.folder / JOURNAL)) as address:
                connection.connect(address)
            connection.send(write_request(order))
            await anyio.wait_readable(connection)
            try:
                reply = read_reply(connection.recv(LONGEST_LINE))
            except DeliverydError:
                return False
            note_forgotten(self._world, order.verb, as_control_reply(reply).done)
            return True
