"""The loop that makes waiting messages ready, in turns."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.due import DueMessages
from deliveryd.delivery.in_flight import InFlightLimit
from deliveryd.delivery.outbox_signals import OutboxSignals
from deliveryd.delivery.recorder import WAKE_BATCH, Recorder
from deliveryd.journal.pauses import Pause
from deliveryd.journal.sqlite import SqliteJournal, open_journal
from deliveryd.metrics import Metrics
from deliveryd.model import WallClock
from deliveryd.runtime.wakeup import Heartbeats
from deliveryd.states import State

HOUR = 3600.0

pytestmark = pytest.mark.anyio

MANY = 3 * WAKE_BATCH


class Roomy:
    """A dispatcher with room."""

    share = room_to_fetch = 500
    is_open = refuses_all = gives_away = False
    pause: Pause | None = None

    def reserve(self, places: int) -> None:
        """Nothing else competes for the places."""

    def route_paused(self) -> None:
        """Nothing is queued."""


async def waiting(path: Path, for_settings: int) -> None:
    """A journal in which so many messages wait for settings 7."""
    async with open_journal(path):
        pass
    now = WallClock().now()
    db = sqlite3.connect(path)
    with db:
        db.executemany(
            "INSERT INTO message"
            " (id, settings_id, customer_id, variables, state, taken_at, due_at, waits_for)"
            " VALUES (?, 7, 1, '{}', ?, ?, ?, 'settings 7')",
            ((id_, State.WAITING, now, now + int(HOUR * 1e6)) for id_ in range(1, for_settings + 1)),
        )
    db.close()


def watched(journal: SqliteJournal, calls: list[str], all_woken: anyio.Event) -> None:
    """Note the order of the journal's calls."""
    wake, due = journal.wake, journal.due

    async def noting_wake(waits_for: Collection[str], at: int, limit: int) -> int:
        calls.append("wake")
        found = await wake(waits_for, at, limit)
        if found < limit:
            all_woken.set()
        return found

    async def noting_due(now: int, room: Mapping[str, int]) -> Any:
        calls.append("due")
        return await due(now, room)

    journal.wake, journal.due = noting_wake, noting_due  # type: ignore[method-assign]


async def test_due_messages_are_fetched_between_the_batches_of_a_large_wake(tmp_path: Path) -> None:
    """Settings that thousands wait for arrive; what is due on a channel doesn't wait until all are woken."""
    path = tmp_path / "journal.db"
    await waiting(path, MANY)
    calls: list[str] = []
    all_woken = anyio.Event()
    async with open_journal(path) as journal, anyio.create_task_group() as tasks:
        watched(journal, calls, all_woken)
        clock = WallClock()
        recorder = Recorder(
            journal, InFlightLimit(1000), OutboxSignals(500), Backlog(), clock, Metrics(["sms"], "0"),
            max_waiting=2_000_000, longest_pause=2 * HOUR,
        )  # fmt: skip
        recorder.backlog.change(MANY)
        recorder.backlog.answered("settings 7")
        due = DueMessages(journal, recorder, {"sms": Roomy()}, clock, Heartbeats(), max_waiting=2_000_000)
        tasks.start_soon(due.run)
        await all_woken.wait()
        tasks.cancel_scope.cancel()
    assert calls.count("wake") == MANY // WAKE_BATCH + 1
    assert "wake wake" not in " ".join(calls)
