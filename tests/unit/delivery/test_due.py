"""The loop that makes waiting messages ready, in turns."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from deliveryd.delivery import due
from deliveryd.delivery.due import DueMessages
from deliveryd.delivery.waiting import WAKE_BATCH
from deliveryd.journal.base import InCommit
from deliveryd.journal.pauses import Pause, PauseKind
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.model import WallClock
from deliveryd.states import State
from support.line import common_on, memory_on

HOUR = 3600.0

pytestmark = pytest.mark.anyio

MANY = 3 * WAKE_BATCH


class Room:
    """What a provider that takes messages admits."""

    def __init__(
        self, *, is_down: bool = False, gives_away: bool = False, pause: Pause | None = None
    ) -> None:
        self.share = self.room_to_fetch = 0 if gives_away else 500
        self.gives_away = gives_away
        self.pause = pause
        self.provider = SimpleNamespace(is_down=is_down, refusals=SimpleNamespace(refuses_all=False))

    def reserve(self, places: int) -> None:
        """Nothing else competes for the places."""


class Roomy:
    """A dispatcher with nothing in its queue."""

    def __init__(self, admission: Room | None = None) -> None:
        self.admission: Any = admission or Room()

    def route_paused(self) -> None:
        """Nothing is queued."""


DOWN = Room(is_down=True, gives_away=True)
PAUSED = Room(gives_away=True, pause=Pause(PauseKind.PROVIDER, "sms/a", 1))
"""A provider that is down or paused, beside others that have no room."""


async def waiting(path: Path, number: int, waits_for: str = "settings 7") -> None:
    """A journal in which so many messages wait for something."""
    async with open_journal_file(path):
        pass
    now = WallClock().now()
    db = sqlite3.connect(path)
    with db:
        db.executemany(
            "INSERT INTO message"
            " (id, settings_id, customer_id, variables, state, taken_at, due_at, waits_for)"
            " VALUES (?, 7, 1, '{}', ?, ?, ?, ?)",
            ((id_, State.WAITING, now, now + int(HOUR * 1e6), waits_for) for id_ in range(1, number + 1)),
        )
    db.close()


def watched(journal: SqliteJournal, calls: list[str], all_woken: anyio.Event) -> None:
    """Note the order of the journal's calls."""
    wake, fetch = journal.wake, journal.due

    async def noting_wake(waits_for: Collection[str], at: InCommit, limit: int) -> int:
        calls.append("wake")
        found = await wake(waits_for, at, limit)
        if found < limit:
            all_woken.set()
        return found

    async def noting_due(now: int, room: Mapping[str, int]) -> Any:
        calls.append("due")
        return await fetch(now, room)

    journal.wake, journal.due = noting_wake, noting_due  # type: ignore[method-assign]


async def test_due_messages_are_fetched_between_the_batches_of_a_large_wake(tmp_path: Path) -> None:
    """Settings that thousands wait for arrive; what is due on a channel doesn't wait until all are woken."""
    path = tmp_path / "journal.db"
    await waiting(path, MANY)
    calls: list[str] = []
    all_woken = anyio.Event()
    async with open_journal_file(path) as journal, anyio.create_task_group() as tasks:
        watched(journal, calls, all_woken)
        memory = memory_on(journal)
        memory.backlog.change(MANY)
        memory.backlog.answered("settings 7")
        loop = DueMessages(common_on(journal, memory), {"sms": Roomy()}, max_waiting=2_000_000)
        tasks.start_soon(loop.run)
        await all_woken.wait()
        tasks.cancel_scope.cancel()
    assert calls.count("wake") == MANY // WAKE_BATCH + 1
    assert "wake wake" not in " ".join(calls)


@pytest.mark.parametrize("room", [DOWN, PAUSED], ids=["down", "paused"])
async def test_what_a_provider_gives_to_others_leaves_time_for_new_messages(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands wait there: they are released in portions with a pause after each."""
    monkeypatch.setattr(due, "RELEASE_PAUSE", 0.1)
    path = tmp_path / "journal.db"
    await waiting(path, MANY, "provider sms/a")
    times: list[float] = []
    all_released = anyio.Event()
    async with open_journal_file(path) as journal, anyio.create_task_group() as tasks:
        release = journal.release

        async def noting(provider: str, at: int, limit: int) -> int:
            times.append(anyio.current_time())
            released = await release(provider, at, limit)
            if released < limit:
                all_released.set()
            return released

        journal.release = noting  # type: ignore[method-assign]
        memory = memory_on(journal)
        memory.backlog.change(MANY)
        if room.pause is not None:
            memory.pauses.replace([room.pause], ["sms/a", "sms/b"])
        loop = DueMessages(common_on(journal, memory), {"sms/a": Roomy(room)}, max_waiting=2_000_000)
        tasks.start_soon(loop.run)
        await all_released.wait()
        tasks.cancel_scope.cancel()
    assert len(times) == MANY // WAKE_BATCH + 1
    assert all(later - earlier >= 0.1 for earlier, later in pairwise(times))
