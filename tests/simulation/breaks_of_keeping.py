"""Deliberate breaks of what is kept of a message that may have arrived, and of questions about it."""

from __future__ import annotations

import pytest

from deliveryd.channels.base import AskLater, Refused
from deliveryd.delivery.attempts import Attempts
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.routing import Route, Router
from deliveryd.delivery.verdicts import VerdictHandler
from deliveryd.model import Entry, Transition
from deliveryd.states import State
from deliveryd.worker.handover import Handover

Patch = pytest.MonkeyPatch


def tries_without_a_request_counted(patch: Patch) -> None:
    """What is kept and fits the mapping no more is tried all the same, and each time counts."""
    obstacle = Attempts.obstacle

    def only_changed(self: Attempts, message: Delivery) -> str | None:
        return obstacle(self, message) if message.entry.content is None else None

    def refused(self: VerdictHandler, entry: Entry, verdict: Refused) -> Transition:
        return self.decide(entry, None, verdict._replace(unsent=False))

    patch.setattr(Attempts, "obstacle", only_changed)
    patch.setattr(VerdictHandler, "unfit", refused)


def kept_content_filled_up(patch: Patch) -> None:
    """What a mapping needs more is added to what was kept."""
    route = Router.route

    def filled_up(self: Router, message: Delivery, now: int) -> Route | None:
        if not message.looked_up:
            return None
        customer = message.customer
        found = route(self, message, now)
        if isinstance(found, Delivery):
            found.customer = customer
        return found

    patch.setattr(Router, "route", filled_up)


def held_though_the_mapping_is_back(patch: Patch) -> None:
    """A reload that puts a mapping back says nothing of what is held for the one before."""
    wake = Handover._wake

    async def forgetful(self: Handover, difference: object, *rest: object) -> None:
        await wake(self, difference._replace(changed=()), *rest)  # type: ignore[attr-defined, arg-type]

    patch.setattr(Handover, "_wake", forgetful)


def questions_counted_as_tries(patch: Patch) -> None:
    """While the lookup is down, its questions use up the message's tries."""
    ask_later = VerdictHandler.ask_later

    def counted(self: VerdictHandler, entry: Entry, found: AskLater) -> Transition:
        return ask_later(self, entry.tried(), found)

    patch.setattr(VerdictHandler, "ask_later", counted)


def held_without_a_question(patch: Patch) -> None:
    """What would say something else is held at once, whatever its provider knows of it."""

    def hold(self: Attempts, message: Delivery) -> Transition | None:
        why = self.obstacle(message)
        return None if why is None else self._verdicts.not_repeated(message.bound, State.READY, why)

    patch.setattr(Attempts, "hold", hold)
