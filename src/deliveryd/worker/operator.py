"""What the status page may order of a running worker: the same orders that commands give it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic

from deliveryd.control.handlers import OrderHandler
from deliveryd.control.protocol import MOST_KEYS, as_control_reply, check_reason
from deliveryd.errors import DeliverydError
from deliveryd.journal.followers import NOT_FOLLOWED
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.pauses import INTAKE
from deliveryd.journal.reader import Reader, read_found
from deliveryd.journal.selection import FoundMessage, Selection
from deliveryd.model import channel_of
from deliveryd.runtime.threads import in_thread
from deliveryd.states import State
from deliveryd.worker.health import WorkerHealth

CALLER = "status page"
"""Who gives the orders, for the record: the page has a token, and no user."""

MOST_RETRIED = 5000
"""Messages that one order lets begin again; the next order takes the next ones."""

READ_SECONDS = 5.0
"""How long failed messages are read for one answer."""

MOST_REASONS = 50


_ID = re.compile(r"-?[0-9]{1,19}")
_MAY_HAVE_ARRIVED = "may have arrived; send them with deliveryd failed retry --accept-duplicates"
_NOT_FOUND_IN_TIME = (
    f"no such message was found within {READ_SECONDS:.0f} s: run deliveryd failed retry --all --matching TEXT"
)


class _OutOfTime(Exception):
    """The failed messages weren't read in time."""


class Starting(DeliverydError):
    """The worker takes no orders yet."""


class PageOperator:
    """Carries out what the page orders; `providers` are those that are configured.

    `unfollowed` waits until all workers go by a pause, for a while, and returns who doesn't yet.
    """

    def __init__(
        self,
        orders: OrderHandler,
        health: WorkerHealth,
        reader: Reader,
        providers: Collection[str],
        unfollowed: Callable[[], Sequence[str]],
    ) -> None:
        self._orders = orders
        self._health = health
        self._providers = providers
        self._reader = reader
        self._unfollowed = unfollowed

    async def pause(
        self, kind: str, key: str, seconds: float | None, reason: str | None
    ) -> Mapping[str, object]:
        """Pause something for this many seconds; what is skipped are the workers that don't go by it yet."""
        order = _order(Action.PAUSE, ItemKind(kind), [self._key(kind, key)], reason)
        reply = as_control_reply(await self._carry_out(order._replace(lasts=seconds)))
        behind = await in_thread(self._unfollowed, abandon_on_cancel=True) if reply.done else ()
        return {"done": list(reply.done), "skipped": {**reply.skipped, **dict.fromkeys(behind, NOT_FOLLOWED)}}

    async def resume(self, kind: str, key: str, reason: str | None) -> Mapping[str, object]:
        """Resume what is paused."""
        return await self._carry_out(_order(Action.RESUME, ItemKind(kind), [key or INTAKE], reason))

    async def failed(self) -> Mapping[str, object]:
        """The reasons for which messages failed, the most frequent first; as many as are read in time."""
        counts, is_complete = await in_thread(self._count_failed)
        reasons = [{"reason": reason, "count": count} for reason, count in counts.most_common(MOST_REASONS)]
        return {"reasons": reasons, "complete": is_complete and len(counts) <= MOST_REASONS}

    async def retry(self, failure: str, reason: str | None) -> Mapping[str, object]:
        """Let messages begin again that failed for this reason: those that are found in time, up to a bound.

        Raises DeliverydError if none was found in time.
        """
        ids, left_out = await in_thread(partial(self._failed_for, failure))
        done: list[str] = []
        skipped: dict[str, str] = {}
        if left_out:
            skipped[f"{left_out:,} messages"] = _MAY_HAVE_ARRIVED
        for first in range(0, len(ids), MOST_KEYS):
            keys = [str(id_) for id_ in ids[first : first + MOST_KEYS]]
            answer = await self._carry_out(_order(Action.BEGIN_ANEW, ItemKind.MESSAGE, keys, reason))
            reply = as_control_reply(answer)
            done += reply.done
            skipped |= reply.skipped
        return {"done": done, "skipped": skipped}

    async def reload(self) -> Mapping[str, object]:
        """Read the configuration again, and apply it if it would orphan nothing."""
        if self._health.reloader is None:
            raise Starting("the worker is starting; try again later")
        found = await self._health.reloader.reload(accept_orphans=False)
        return {"outcome": found.outcome, "changes": list(found.changes)}

    async def _carry_out(self, order: Order) -> Mapping[str, object]:
        if self._health.reloader is None:
            raise Starting("the worker is starting; try again later")
        return await self._orders.carry_out(order, None)

    def _count_failed(self) -> tuple[Counter[str], bool]:
        """How many failed for each reason, and whether all were read in time."""
        counts: Counter[str] = Counter()
        try:
            counts.update(found.failure for found in self._all_failed())
        except _OutOfTime:
            return counts, False
        return counts, True

    def _failed_for(self, failure: str) -> tuple[Sequence[int], int]:
        """The messages that may begin again, and how many may not, since they could arrive twice."""
        ids: list[int] = []
        left_out = 0
        try:
            for found in self._all_failed():
                if found.failure != failure:
                    continue
                if found.may_have_arrived:
                    left_out += 1
                    continue
                ids.append(found.id)
                if len(ids) == MOST_RETRIED:
                    break
        except _OutOfTime:
            if not ids:
                raise DeliverydError(_NOT_FOUND_IN_TIME) from None
        return ids, left_out

    def _key(self, kind: str, key: str) -> str:
        """The key of what is to be paused. Raises ValueError if there can't be anything with it."""
        match kind:
            case "intake":
                return INTAKE
            case "channel":
                known = sorted({channel_of(each) for each in self._providers})
            case "provider":
                known = sorted(self._providers)
            case _:
                if not _ID.fullmatch(key):
                    raise ValueError(f"{key} is no id: give the {kind}'s number")
                return str(int(key))
        if key not in known:
            raise ValueError(f"there is no {kind} {key}; there are {', '.join(known)}")
        return key

    def _all_failed(self) -> Iterator[FoundMessage]:
        """Read failed messages. Raises _OutOfTime when that takes too long."""
        until = monotonic() + READ_SECONDS

        def check(_examined: int) -> None:
            if monotonic() > until:
                raise _OutOfTime

        return read_found(self._reader, Selection(states=(State.FAILED,)), check)


def _order(verb: Action, kind: ItemKind, keys: Sequence[str], reason: str | None) -> Order:
    return Order(verb, kind, tuple(keys), caller=CALLER, reason=check_reason(reason))
