"""Deliberate breaks of when messages may be sent."""

from __future__ import annotations

import pytest

from deliveryd.delivery.attempts import Attempts
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.routing import Router
from deliveryd.rendering.content import CompiledSettings
from deliveryd.rules.windows import Windows

Patch = pytest.MonkeyPatch


def windows_are_asked_once(patch: Patch) -> None:
    """What was let in goes, though its window closed while it was queued."""
    begin = Attempts.begin

    def at_any_time(self: Attempts, message: Delivery, now: int) -> object:
        self._windows = Windows()
        return begin(self, message, now)

    patch.setattr(Attempts, "begin", at_any_time)


def all_customers_live_in_one_zone(patch: Patch) -> None:
    """Windows open by the zone of the configuration."""
    zone_of = Windows.zone_of
    patch.setattr(Windows, "zone_of", lambda self, rule, _zone: zone_of(self, rule, None))


def repeats_go_at_any_time(patch: Patch) -> None:
    """Only what is new waits for its window."""
    shut_out = Delivery.shut_out

    def if_new(self: Delivery, windows: Windows, now: int) -> object:
        return None if self.entry.was_tried else shut_out(self, windows, now)

    patch.setattr(Delivery, "shut_out", if_new)


def lifetimes_begin_anew(patch: Patch) -> None:
    """A message lives from its latest preparation on."""
    route = Router.route

    def from_now(self: Router, message: Delivery, now: int) -> object:
        settings = message.settings
        if isinstance(settings, CompiledSettings):
            message.expires_at = settings.expiry_of(now)
        return route(self, message, now)

    patch.setattr(Router, "route", from_now)
