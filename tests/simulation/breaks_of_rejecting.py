"""Deliberate breaks of what a provider's rejections are taken for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deliveryd.channels.base import InDoubt, Misconfigured, Refused, TryAgain
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.refusals import WIDESPREAD, Refusals

Patch = pytest.MonkeyPatch


def one_rejection_is_the_providers(patch: Patch) -> None:
    """A single 401 says that the provider is misconfigured, until it accepts something: then all go on."""
    failed: Callable[[Provider, TryAgain | InDoubt | Misconfigured | Refused], None] = Provider.failed

    def noted(self: Provider, verdict: TryAgain | InDoubt | Misconfigured | Refused) -> None:
        failed(self, verdict)
        if isinstance(verdict, Misconfigured):
            self._note_misconfigured(verdict)

    patch.setattr(Provider, "failed", noted)
    patch.setattr(Refusals, "rejects_alone", lambda *_, **__: False)
    patch.setattr(Refusals, "is_accepting", False)


def rejections_use_up_no_tries(patch: Patch) -> None:
    """A message that is rejected again and again is never at fault."""
    patch.setattr(Refusals, "rejects_alone", lambda *_, **__: False)


def channel_closed_by_three_refused_ids(patch: Patch) -> None:
    """When three settings ids wait, the provider refuses everything, whatever else it accepts."""
    are_widespread = Refusals._are_widespread
    patch.setattr(
        Refusals, "_are_widespread", lambda self: len(self.waiting) >= WIDESPREAD or are_widespread(self)
    )


def refused_ids_never_wait(patch: Patch) -> None:
    """All messages of a refused template end at once, not only the first ones."""
    patch.setattr(Refusals, "refused", lambda *_: False)
