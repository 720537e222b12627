"""Deliberate breaks of what a provider's rejections are taken for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deliveryd.channels.base import InDoubt, Misconfigured, Refused, TryAgain
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.refusals import Refusals

Patch = pytest.MonkeyPatch


def one_rejection_is_the_providers(patch: Patch) -> None:
    """A single 401 says that the provider is misconfigured, until it accepts something: then all go on."""
    failed: Callable[[Provider, TryAgain | InDoubt | Misconfigured | Refused], None] = Provider.failed

    def noted(self: Provider, verdict: TryAgain | InDoubt | Misconfigured | Refused) -> None:
        failed(self, verdict)
        if isinstance(verdict, Misconfigured):
            self._note_misconfigured(verdict)

    patch.setattr(Provider, "failed", noted)
    patch.setattr(Refusals, "rejects_alone", lambda *_: False)
    patch.setattr(Refusals, "is_accepting", False)


def rejections_use_up_no_tries(patch: Patch) -> None:
    """A message that is rejected again and again is never at fault."""
    patch.setattr(Refusals, "rejects_alone", lambda *_: False)
