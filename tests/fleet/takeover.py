"""A killed worker's messages: how long until the last one has ended elsewhere, and what became of them."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from deliveryd.sandbox.faults import ApplyThenDelay
from deliveryd.sandbox.state import SandboxState
from deliveryd.states import State
from fleet.faults import progress
from fleet.rest import Rest, come_to_rest
from fleet.stage import LEASE, Fleet, FleetWorker, open_fleet

LOAD = 10
"""Messages that come into the queue every `_PAUSE`: with many more the stand-ins would measure themselves."""

_ANSWERED_AFTER = 0.2
"""Seconds that the provider takes for an answer after it has the message, so that a kill leaves doubts."""

_PAUSE = 0.2
_PATIENCE = 120.0
_HELD = """
SELECT m.id, m.state FROM main.message m JOIN main.log l ON l.number = m.log
JOIN main.worker w ON w.id = l.holder WHERE w.name = %s AND m.ended_at IS NULL
"""
_LEFT = """
SELECT m.id, m.state, m.due_at, m.provider, m.counted_tries, l::text,
    array(SELECT each::text FROM main.worker each)
FROM main.message m LEFT JOIN main.log l ON l.number = m.log WHERE m.id = ANY(%s)
"""
_ENDS = frozenset({"sent", "error"})


class Takeovers(NamedTuple):
    """Kills of a worker that had messages, of which its provider had some whose outcome wasn't recorded.

    `seconds`: of each, until the service accepted the end of each message that the worker had. `doubts`: the
    messages that the provider had; `repeated`: those of them that it got once more, under the same key.
    """

    seconds: Sequence[float]
    doubts: Collection[int]
    repeated: Collection[int]
    rest: Rest


class _Held(NamedTuple):
    """What a worker had when it was killed: its messages, and those that the provider had already."""

    ids: Collection[int]
    doubts: set[int]


class _Untold:
    """Which of some messages have no end that the service heard of; looks at each event once."""

    def __init__(self, ids: Collection[int]) -> None:
        self.ids = set(ids)
        self._looked = 0

    def has_none(self, state: SandboxState) -> bool:
        """Whether the service heard the end of each of them."""
        for event in state.events[self._looked :]:
            if event["status"] in _ENDS:
                self.ids.discard(event["messageId"])
        self._looked = len(state.events)
        return not self.ids


def take_over(folder: Path, kills: int, lease: float = LEASE, seed: int = 1) -> Takeovers:
    """Kill one of two workers under load, so often; it starts again at once, but for the last time.

    Raises NoPostgres.
    """
    draw = random.Random(seed)  # a plan
    seconds: list[float] = []
    doubts: set[int] = set()
    with open_fleet(folder, 2, lease=lease) as fleet:
        fleet.state.fail_until_healed("provider.sms", ApplyThenDelay(_ANSWERED_AFTER))
        fleet.open()
        progress(fleet, 30)
        for number in range(1, kills + 1):
            worker = draw.choice(fleet.workers)
            worker.is_given_up = number == kills
            held = _stopped_with(fleet, worker)
            seconds.append(_taken_over(fleet, worker, held.ids))
            doubts |= held.doubts
            progress(fleet, 30)
        rest = come_to_rest(fleet)
        again = {each.message_id for each in fleet.state.received if each.duplicate_of is not None}
        return Takeovers(seconds, doubts, doubts & again, rest)


def _stopped_with(fleet: Fleet, worker: FleetWorker) -> _Held:
    """Stop the process at a moment at which it has a message that the provider has, too."""
    while True:
        worker.signal(signal.SIGSTOP)
        held = dict(fleet.query(_HELD, worker.name))
        received = {each.message_id for each in fleet.state.accepted()}
        if doubts := {id_ for id_, state in held.items() if state == State.SENDING and id_ in received}:
            return _Held(held.keys(), doubts)
        worker.signal(signal.SIGCONT)
        progress(fleet, 1)


def _taken_over(fleet: Fleet, worker: FleetWorker, held: Collection[int]) -> float:
    """Kill the process; return after how many seconds all that it had is told."""
    untold = _Untold(held)
    worker.signal(signal.SIGKILL)
    began = time.monotonic()
    while not _is_soon(fleet.state, untold):
        if time.monotonic() - began > _PATIENCE:
            raise TimeoutError(
                f"what the killed worker had isn't told: {fleet.query(_LEFT, sorted(untold.ids))}"
            )
        fleet.enqueue(LOAD)
    return time.monotonic() - began


def _is_soon(state: SandboxState, untold: _Untold) -> bool:
    try:
        state.wait_for(untold.has_none, _PAUSE)
    except TimeoutError:
        return False
    return True
