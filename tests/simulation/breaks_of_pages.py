"""Deliberate breaks of how answers are told that something else gave, or that can't be read."""

from __future__ import annotations

from typing import Any

import pytest

from deliveryd.delivery.policy import DoubtPolicy
from deliveryd.http.wire import WireResponse
from deliveryd.service import client


def page_taken_for_settings(patch: pytest.MonkeyPatch) -> None:
    """Whatever answers instead of the service says that there are no such settings."""
    patch.setattr(client, "_check_json", _checks_nothing)
    patch.setattr(client, "_check_refusal", _checks_nothing)


def page_taken_for_acceptance(patch: pytest.MonkeyPatch) -> None:
    """Whatever answers instead of the service accepts events."""
    patch.setattr(client, "_check_no_page", _checks_nothing)


def unreadable_answers_repeated_again(patch: pytest.MonkeyPatch) -> None:
    """An answer that can't be read is like none."""
    after_try = DoubtPolicy.after_try

    def forgetful(self: DoubtPolicy, *arguments: Any, is_unreadable: bool = False, **options: Any) -> Any:
        return after_try(self, *arguments, **options)

    patch.setattr(DoubtPolicy, "after_try", forgetful)


def _checks_nothing(_answer: WireResponse) -> None:
    return None
