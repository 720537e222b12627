"""Deliberate breaks of whom an installation sends to."""

from __future__ import annotations

import pytest

from deliveryd.delivery.attempts import Attempts
from deliveryd.delivery.choice import Choice
from deliveryd.delivery.routing import Router
from deliveryd.delivery.safety import Safety

Patch = pytest.MonkeyPatch


def repeated_to_whom_the_list_left_out(patch: Patch) -> None:
    """Only what is new is looked at: what may have arrived is repeated whoever it is for."""
    admits, why = Attempts._is_admitted, Router._why_kept_from

    def of_new_ones(self: Attempts, message: object) -> bool:
        return message.entry.may_have_arrived or admits(self, message)  # type: ignore[attr-defined, arg-type]

    patch.setattr(Attempts, "_is_admitted", of_new_ones)
    patch.setattr(Router, "_why_kept_from", lambda *arguments: why(*arguments) and None)


def list_read_once(patch: Patch) -> None:
    """A reload doesn't change whom the worker sends to."""
    follow = Safety.follow

    def first(self: Safety, *arguments: object) -> None:
        if not getattr(self, "is_read", False):
            follow(self, *arguments)  # type: ignore[arg-type]
            self.is_read = True  # type: ignore[attr-defined]

    patch.setattr(Safety, "follow", first)


def one_address_allows_all_channels(patch: Patch) -> None:
    """Whoever is on the list by one address is sent to at each."""
    patch.setattr(
        Choice, "_reaches", lambda self, name, _, customer: self.senders[name].adapter.reaches(customer)
    )
    patch.setattr(Attempts, "_is_admitted", lambda *_: True)
