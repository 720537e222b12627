"""Recovery: what an earlier run left is taken up before anything else moves a message.

What another worker of a shared journal left is taken up while the line runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deliveryd import transitions
from deliveryd.delivery.admission import Sends
from deliveryd.delivery.availability import Availability
from deliveryd.delivery.common import Common
from deliveryd.delivery.dispatch_queue import KEPT
from deliveryd.delivery.policy import DoubtPolicy
from deliveryd.delivery.recorder import Recorder
from deliveryd.errors import IllegalTransition
from deliveryd.journal.base import Doubtful, Recovery
from deliveryd.model import Outcome, Transition
from deliveryd.runtime import waits
from deliveryd.states import State
from deliveryd.telemetry.log_events import Event, log


async def recover_line(
    common: Common, providers: Mapping[str, DoubtPolicy], availability: Availability
) -> None:
    """Record what becomes of messages in doubt, and probe each provider with a few that wait for it."""
    recorder = common.recorder
    await common.journal.look_around()  # may wait for its database, while the clock is set
    ahead = common.clock.ahead()
    step = common.memory.passed.stepped()
    await common.waiting.follow_between_runs(step, ahead)
    left = await recorder.recover(providers, -step)
    availability.resume(left.down_since, step)
    if common.journal.is_shared:
        availability.follow(left.down_since, step)
        await common.waiting.bound_due_times()
    await _take_up(common, left, providers)
    recorder.open()
    if _has_work(left):
        log(Event.JOURNAL_RECOVERED, count=len(left.taken) + left.waiting, in_flight=len(left.doubtful))


async def adopt_line(common: Common, left: Recovery, providers: Mapping[str, DoubtPolicy]) -> None:
    """Do the same with what the recorder took over from a worker that ended, beside the line's own work."""
    await common.waiting.bound_due_times()
    await _take_up(common, left, providers)
    died = [each.name for each in left.ended if not each.in_order]
    if died or (left.ended and _has_work(left)):
        log(
            Event.JOURNAL_ADOPTED if died else Event.JOURNAL_HANDED_OVER,
            workers=died or [each.name for each in left.ended],
            count=len(left.taken) + left.waiting,
            in_flight=len(left.doubtful),
        )


async def look_at_paused(common: Common, dispatchers: Mapping[str, Sends]) -> None:
    """Let what is paused go on where another provider or channel may take it, as when providers changed."""
    passed_over = [pause for each in dispatchers.values() for pause in each.admission.passed_over]
    await common.memory.pausing.look_again(passed_over)


def _has_work(left: Recovery) -> bool:
    return bool(left.taken or left.doubtful or left.waiting or left.reporting)


async def _take_up(common: Common, left: Recovery, providers: Mapping[str, DoubtPolicy]) -> None:
    now = common.clock.now()
    steps = [step for doubtful in left.doubtful if (step := _after_crash(doubtful, providers, now))]
    await _record_what_stands(common.recorder, steps)
    for name in providers:
        await common.waiting.wake([waits.recovery(name)], most=KEPT)


async def _record_what_stands(recorder: Recorder, steps: Sequence[Transition]) -> None:
    """Record steps, but not of messages that a receipt or an order settled since they were taken over."""
    try:
        await recorder.record(steps)
    except IllegalTransition:
        if len(steps) > 1:
            middle = len(steps) // 2
            for part in (steps[:middle], steps[middle:]):
                await _record_what_stands(recorder, part)


def _after_crash(doubtful: Doubtful, providers: Mapping[str, DoubtPolicy], now: int) -> Transition | None:
    """The step of a message whose try has no outcome, or that was held; None: it stays held.

    The try isn't counted: it may not have been made, and the worker is at fault. Without its provider a
    message in doubt is held.
    """
    entry, state, reason = doubtful
    policy = providers.get(entry.provider or "")
    if state is State.IN_DOUBT:
        if policy is None:
            return None if entry.doubt else transitions.released(entry, state, now)
        return policy.after_hold(entry, reason or "", now)
    if policy is not None:
        return policy.after_try(entry, transitions.WORKER_ENDED, now)
    return transitions.held_in_doubt(entry, now, Outcome("in_doubt", None, transitions.WORKER_ENDED))
