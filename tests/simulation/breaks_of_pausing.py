"""Deliberate breaks of what holds messages that operators paused."""

from __future__ import annotations

import pytest

from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.pausing import Pausing
from deliveryd.journal.pauses import Pause
from deliveryd.model import Transition, channel_of

Patch = pytest.MonkeyPatch


def pause_passed_over_by_what_is_queued(patch: Patch) -> None:
    """Messages that are queued for a provider are sent though they are paused."""
    held_back = Delivery.held_back

    def only_before(self: Delivery, pauses: Pauses, now: int) -> Transition | None:
        return held_back(self, Pauses() if self.provider else pauses, now)

    patch.setattr(Dispatcher, "route_paused", lambda _: None)
    patch.setattr(Delivery, "held_back", only_before)


def provider_used_while_it_is_paused(patch: Patch) -> None:
    """Only channels are paused, not single providers."""

    def at(self: Pauses, provider: str) -> Pause | None:
        return self.of_channel(channel_of(provider))

    patch.setattr(Pauses, "at", at)
    patch.setattr(Pauses, "of_provider", lambda *_: None)


def pauses_forgotten_by_a_restart(patch: Patch) -> None:
    """A pause lasts as long as the worker that was given it."""
    recover = Pausing.recover
    patch.setattr(
        Pausing,
        "recover",
        lambda self, left, providers: recover(self, left._replace(pauses=()), providers),
    )


def messages_left_behind_after_a_pause(patch: Patch) -> None:
    """What was paused isn't woken when it is resumed."""

    def replace(self: Pausing, pauses: tuple[Pause, ...]) -> None:
        self.pauses.replace(pauses, self.here)

    patch.setattr(Pausing, "_replace", replace)


def messages_taken_while_the_intake_is_paused(patch: Patch) -> None:
    """The pause of the intake is listed, and that is all."""
    replace = Pauses.replace

    def without_intake(self: Pauses, pauses: tuple[Pause, ...], providers: tuple[str, ...]) -> object:
        return replace(self, [pause for pause in pauses if pause.key != "intake"], providers)

    patch.setattr(Pauses, "replace", without_intake)
