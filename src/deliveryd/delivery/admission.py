"""Admission: whether a message is sent by a provider now, waits there and for what, or goes elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from deliveryd.delivery.common import Common
from deliveryd.delivery.dispatch_queue import KEPT, NEW, REPEATS
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.terms import DispatchTerms
from deliveryd.journal.pauses import Pause
from deliveryd.model import Entry, Transition, channel_of
from deliveryd.runtime import waits

PROBE_CANDIDATES = 100
"""How many messages become ready at a time for a provider whose breaker is open.

They may have expired, take their turns as probes, or wait for room.
"""

LONGEST_WAIT_ALONE = 300.0
"""Seconds after which it is looked again whether another provider or channel takes a message."""


class Admission:
    """What one provider takes now, by its breaker, its room, pauses and refusals.

    `under_way` are the attempts that began before these terms were in force.
    """

    def __init__(self, terms: DispatchTerms, common: Common, under_way: int = 0) -> None:
        self.under_way = under_way
        """How many attempts have an intent and no outcome yet."""

        self.share = terms.share
        """How many places are the provider's own."""

        self.provider = terms.provider
        """Its breaker, its queue, and the settings that it refuses."""

        self._name = terms.provider.name
        self._channel_name = channel_of(self._name)
        self._choice = terms.choice
        self._is_enabled = terms.is_enabled
        self._breaker = terms.provider.breaker
        self._refusals = terms.provider.refusals
        self._queue = terms.provider.queue
        self._in_flight = common.memory.in_flight
        self._pauses = common.memory.pauses
        self._limits = common.memory.limits
        self._clock = common.clock
        self._owed = 0

    # room

    @property
    def held(self) -> int:
        """How many messages are queued or under way."""
        return len(self._queue) + self.under_way

    @property
    def room(self) -> int:
        """How many more messages may be queued: up to the share, beyond it what is spare."""
        return max(self.share - self.held, self._in_flight.spare, 0)

    @property
    def room_to_fetch(self) -> int:
        """How many may be fetched from the journal: they take places themselves, and must find room then."""
        return max(self.share - self.held, self._in_flight.spare - 1, 0)

    @property
    def kept(self) -> int:
        """How many repeats stay queued while the breaker is open, and how many new messages.

        While everything is refused, all are repeats, whose settings ids take turns.
        """
        most = min(self.share, KEPT)
        return most if self._refusals.refuses_all else max(most // 2, 1)

    @property
    def lacking(self) -> Mapping[str, int]:
        """How many may be fetched from the journal while the breaker is open, by what they wait for."""
        if self._refusals.refuses_all:
            keys = waits.repeat(self._name), waits.room(self._name)
            return dict.fromkeys(keys, PROBE_CANDIDATES // len(keys))
        return {
            waits.room(self._name): max(self.kept - self._queue.count_of(NEW), 0),
            waits.repeat(self._name): max(self.kept - self._queue.count_of(REPEATS), 0),
        }

    def begin(self, attempts: int) -> None:
        """Count attempts that begin."""
        self.under_way += attempts

    def end(self, attempts: int) -> None:
        """Count attempts that ended, or don't begin after all."""
        self.under_way -= attempts

    def reserve(self, owed: int) -> None:
        """Leave room, up to half of the share, to so many due messages that were taken long ago."""
        self._owed = owed

    # before the queue

    def admit(self, message: Delivery) -> Transition | None:
        """Queue a message; or return the step of one that waits in the journal instead.

        That is the message itself if there is no room, and an earlier one while the breaker is open: one that
        just came may show that the provider works for others than those that fail.
        """
        if not self._has_room_for(message):
            return self.defer(message)
        if self._refusals.refuses_all:
            self._queue.add_first(message)
            return None
        queue, kind = self._queue, REPEATS if message.entry.was_tried else NEW
        queue.add(message, kind)
        if not self._breaker.is_open or queue.count_of(kind) <= self.kept:
            return None
        leaving = queue.take_middle(kind, self.kept)
        self._refusals.unanswered(leaving.entry.settings_id)
        return self.defer(leaving)

    def _has_room_for(self, message: Delivery) -> bool:
        """Whether there is room, and the message wouldn't be given away at once."""
        entry, queue, refusals = message.entry, self._queue, self._refusals
        if self._is_orphan(entry) and not self.provider.is_reached:
            return False
        held = queue.count + self.under_way
        if self._breaker.is_open:
            has_room = not refusals.refuses_all or held < self.kept
        else:
            owed = 0
            if self._owed and not (entry.was_tried or entry.provider == self._name):  # no wait for room yet
                owed = min(self._owed, self.share // 2)
            has_room = held + owed < self.share or self.room > owed
        return has_room and (not refusals.waiting or self.provider.may_try(entry.settings_id))

    def defer(self, message: Delivery) -> Transition:
        """The step of a message for which there is no room, or that is to be the next probe of none."""
        entry, name = message.entry, self._name
        # No other channel can take it: the router tries them first.
        waits_alone = (
            (self._breaker.is_open and self._is_given_up and not entry.doubt)
            or self._is_orphan(entry)
            or (
                self._breaker.is_open
                and self._choice.has_other_for(entry, name)
                and not self._can_move(message)
            )
        )
        if waits_alone:
            return message.deferred(self._clock.now(), LONGEST_WAIT_ALONE, waits.alone(name))
        return self.provider.defer(message)

    # in the queue

    @property
    def pause(self) -> Pause | None:
        """The pause of the provider or of its channel."""
        return self._pauses.at(self._name)

    @property
    def gives_away(self) -> bool:
        """Whether its breaker is open or it is paused, and another provider takes what waits for it."""
        if self.pause is not None:
            return self._pauses.of_channel(self._channel_name) is None and self._choice.has_other(self._name)
        return self._breaker.is_open and (self._is_given_up or self._choice.has_other(self._name))

    @property
    def passed_over(self) -> Collection[Pause]:
        """The pauses here whose messages may go elsewhere, but for those in doubt.

        The provider isn't enabled, or another one of its channel isn't paused.
        """
        in_channel, here = self._pauses.of_channel(self._channel_name), self._pauses.of_provider(self._name)
        enabled = self._choice.enabled.values()
        if in_channel is not None:
            goes_on = not enabled
        else:
            goes_on = not self._is_enabled or not all(each.standing.is_paused for each in enabled)
        return [pause for pause in (in_channel, here) if goes_on and pause is not None]

    @property
    def needs_probe(self) -> bool:
        """Whether a connection is to be made, so that a message may be the next probe.

        Where others take the messages, none comes before that; a lone provider's next one waits for it. While
        all providers of the channel are down, messages may wait for any of them.
        """
        if self.pause is not None or self.provider.is_reached:
            return False
        return bool(self._queue) or self.gives_away or (self._is_enabled and self._choice.is_down_with_others)

    def moves(self, message: Delivery) -> bool:
        """Whether a message doesn't wait here while no connection can be made: another provider takes it.

        While all are down, one takes a message as its probe; but none what may have arrived here.
        """
        entry = message.entry
        if entry.may_have_arrived:
            return self._is_orphan(entry)
        return self._can_move(message)

    def _can_move(self, message: Delivery) -> bool:
        """Whether another provider takes a message and reaches its customer, and has a budget left."""
        choice, limits = self._choice, self._limits
        without = limits.spent(message, choice.enabled, self._clock.now()) if limits.any else ()
        return choice.can_move(message.entry, message.customer, self._name, without)

    def is_paused(self, message: Delivery) -> bool:
        """Whether a message is paused, or its settings, its channel or its provider."""
        return self._pauses.holding(message.entry, self._name) is not None

    @property
    def _is_given_up(self) -> bool:
        """Whether the provider is down for so long that what waits for it alone goes to the next channel."""
        return self._name in self._choice.given_up

    def _is_orphan(self, entry: Entry) -> bool:
        """Whether a message that may have arrived here may go elsewhere; offered here, it can go nowhere."""
        may_have_arrived = entry.doubt or entry.content is not None  # the property costs more
        return may_have_arrived and self._choice.leaves(entry, self._name)


class Sends(Protocol):
    """What sends at one provider."""

    @property
    def admission(self) -> Admission:
        """What the provider takes now."""

    def route_paused(self) -> None:
        """Have queued messages routed again that are paused."""
