"""The listening time by itself: when it goes on, and when it stands still."""

from __future__ import annotations

import trio

from deliveryd.delivery.listening import UNRECORDED, ListeningTime
from support.virtual import live


def test_the_listening_time_goes_on_while_an_acceptance_may_be_unrecorded() -> None:
    """However often it is found meanwhile that no deadline waits in the journal."""

    async def scene() -> None:
        time = ListeningTime()
        time.start(0)
        deadline = time.instant_in(5_000_000)
        for _ in range(3):
            await trio.sleep(UNRECORDED / 4)
            time.nothing_waits()
            assert not time.stands_still
        await trio.sleep(UNRECORDED / 4)
        time.nothing_waits()
        assert time.stands_still
        assert deadline == 5_000_000

    live(scene)
