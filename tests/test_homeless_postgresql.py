"""What waits at a provider that nobody has any more goes elsewhere while workers run: how often they look."""

from __future__ import annotations

import psycopg
import pytest

from deliveryd import transitions
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.connection import Db
from deliveryd.journal.postgresql.homeless import LOOKED_AGAIN_AFTER, LOOKED_FOR_EVERY, Homeless
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.runtime import waits
from journal.samples import NOW, ONE_SECOND, make_ready, sample_entry
from support.postgres import new_database

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def source() -> JournalDatabase:
    """Message 1 waits for the recovery of `old`."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    source = JournalDatabase(url)
    async with open_shared_journal(source) as journal:
        await journal.recover(NOW, ["old"])
        await make_ready(journal, 1)
        until = NOW + 3600 * ONE_SECOND
        entry = sample_entry(1)
        await journal.change([transitions.deferred(entry, NOW, until, waits.recovery("old"))])
    return source


class Watch:
    """One worker's looks, at the times of a clock."""

    def __init__(self, source: JournalDatabase) -> None:
        self.now = 0.0
        self._source = source
        self._homeless = Homeless(lambda: self.now)
        self._homeless.begin(["old"])

    def look(self, seconds: float = 1.0) -> None:
        """Look after some seconds; `old` is nobody's."""
        self.now += seconds
        with psycopg.connect(self._source.url) as db:
            self._homeless.sweep(db, NOW, [], ["sms"])
        self._homeless.remember()

    def still_waits(self) -> bool:
        with psycopg.connect(self._source.url) as db:
            return db.execute("SELECT 1 FROM waiting WHERE waits_for IS NOT NULL").fetchone() is not None


@pytest.mark.parametrize("seconds", [1.0, LOOKED_FOR_EVERY])
async def test_what_another_worker_was_changing_goes_elsewhere_a_few_seconds_later(
    source: JournalDatabase, seconds: float
) -> None:
    """Also when the provider goes in the moment of the look at all that waits."""
    watch = Watch(source)
    with psycopg.connect(source.url) as other:
        other.execute("UPDATE waiting SET due_at = due_at - 1")
        watch.look(seconds)
        assert watch.still_waits()
    watch.look(LOOKED_AGAIN_AFTER)
    assert not watch.still_waits()


async def test_a_provider_of_nobody_is_looked_for_twice_and_not_each_second(
    source: JournalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time reads all that waits."""
    looks: list[float] = []
    watch = Watch(source)

    def leave(_db: Db, _gone: object, _now: int, _limit: int) -> tuple[int, int]:
        looks.append(watch.now)
        return 0, 0

    monkeypatch.setattr("deliveryd.journal.postgresql.homeless.leave", leave)
    for _ in range(50):
        watch.look()
    assert looks == [1.0, 1.0 + LOOKED_AGAIN_AFTER]
