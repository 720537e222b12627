"""Deliberate breaks of what a report names: its message, and the provider's id for it."""

from __future__ import annotations

import pytest

from deliveryd.journal.sql.receipt_match import Matching


def id_in_a_report_learnt_by_nobody(patch: pytest.MonkeyPatch) -> None:
    """What was kept under the provider's id stays kept when another report names the message with it."""
    kept_for = Matching._kept_for
    patch.setattr(
        Matching, "_kept_for", lambda self, db, id_, new, _: new or kept_for(self, db, id_, new, {})
    )
