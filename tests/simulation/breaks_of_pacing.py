"""Deliberate breaks of rates in parts."""

from __future__ import annotations

import pytest

from deliveryd.channels.sms_text import count_parts
from deliveryd.delivery import message
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.pace import Pace

Patch = pytest.MonkeyPatch


def every_text_counted_as_latin(patch: Patch) -> None:
    """A part has 160 characters, whichever they are."""
    patch.setattr(message, "count_parts", lambda text: -(-len(text) // 160))


def parts_beyond_the_permit_are_free(patch: Patch) -> None:
    """A message uses up the permit that there is, and no more."""
    spend = Pace.spend
    patch.setattr(Pace, "spend", lambda self, number: spend(self, min(number, 1)))


def repeats_use_no_parts(patch: Patch) -> None:
    """Only what is new counts with all of its parts."""
    patch.setattr(Delivery, "parts", property(lambda self: 0 if self.entry.was_tried else _parts_of(self)))


def _parts_of(of: Delivery) -> int:
    return count_parts(of.rendered.fields["text"])
