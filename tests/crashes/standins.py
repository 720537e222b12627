"""The service, the providers and an operator in a process of their own, which outlives every worker.

`python -m crashes.standins` opens one stand-in after the other, by orders on its standard input. Whatever a
stand-in sees it adds to its ledger at once, before it answers; at a place in the ledger that it was told it
sends a signal to the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crashes.ledger import Asked, Handed, LedgerWriter, Ordered, Record, Refused, Reported, Taken, Told
from crashes.tearing import TornQueue
from deliveryd.control.protocol import read_reply, socket_address, socket_of, write_request
from deliveryd.errors import DeliverydError
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.model import message_key
from deliveryd.sandbox.faults import (
    ApplyThenHangUp,
    CutInHalf,
    Delay,
    Fault,
    Pass,
    StandInChannel,
    StandInEndpoint,
)
from deliveryd.sandbox.server import Sandbox
from deliveryd.sandbox.state import (
    Attempt,
    PlannedReceipt,
    ReceivedMessage,
    ReportedEvent,
    SandboxState,
)
from deliveryd.states import State

OPERATORS_PAUSE = 0.005
LATE = 0.3
"""Seconds that the first answer about settings takes: longer than messages wait for it in memory."""


class Strike(NamedTuple):
    """A signal for a worker, `delay` seconds after so many records of a kind, counted from its start on.

    The kind "Heard" counts the different events that were told in all lives.
    """

    kind: str
    times: int
    number: int
    delay: float


class WatchedState(SandboxState):
    """A sandbox's memory that keeps a ledger. A life that begins is offered again what wasn't confirmed."""

    def __init__(self, folder: Path, add: Callable[[Record], None], on_held: Callable[[int], None]) -> None:
        super().__init__()
        self._journal = folder / "journal.db"
        self._add = add
        self._on_held = on_held
        self._fault: Fault = Pass()
        self._message_of: dict[str, int] = {}
        self.offer_again = False

    def next_fault(self, endpoint: StandInEndpoint) -> Fault:
        self._fault = super().next_fault(endpoint)
        return self._fault

    def take(self, count: int) -> list[str]:
        self.redeliver_after = 0.0 if self.offer_again else math.inf
        self.offer_again = False
        batch = super().take(count)
        for text in batch:
            self._add(Handed(json.loads(text).get("id")))
        return batch

    def record_events(self, events: Sequence[ReportedEvent]) -> None:
        for event in events:
            self._add(Told(event, self._is_lost()))
        super().record_events(events)

    def refuse_batch(self, reason: str) -> None:
        self._add(Refused(reason))
        super().refuse_batch(reason)

    def accept(self, message: ReceivedMessage) -> ReceivedMessage:
        message = super().accept(message)
        self._message_of[message.provider_id] = message.message_id or 0
        again = message.duplicate_of is not None
        self._add(Taken(message.message_id or 0, message.channel, _key(message), message.provider_id, again))
        if message.channel == "email":
            self._ask(message.message_id or 0, "email", _key(message), 250)
        return message

    def record_attempt(self, attempt: Attempt) -> None:
        if attempt.channel != "email":
            key = attempt.idempotency_key or ""
            self._ask(int(attempt.reference or 0), attempt.channel, key, attempt.status)
        super().record_attempt(attempt)

    def _ask(self, id_: int, channel: StandInChannel, key: str, status: int) -> None:
        refused = status >= 400 and isinstance(self._fault, CutInHalf)  # its head arrives, and says so
        lost = channel != "email" and self._is_lost() and not refused
        unreadable = lost and isinstance(self._fault, CutInHalf)
        self._add(Asked(id_, channel, key, status, self._intents(id_, key), lost, unreadable))
        if channel == "messenger" and lost:
            self._on_held(id_)

    def record_receipt(self, receipt: PlannedReceipt) -> None:
        self._add(Reported(self._message_of[receipt.provider_id], receipt.answered))
        super().record_receipt(receipt)

    def _is_lost(self) -> bool:
        """Whether the answer to the request that is being carried out will not arrive."""
        return isinstance(self._fault, ApplyThenHangUp | CutInHalf)

    def _intents(self, id_: int, key: str) -> int:
        """How many tries under this key the journal's file has, if it says that the latest is under way."""
        query = (
            "SELECT m.stay_tries, meta.value, m.provider, m.generation FROM message m"
            " JOIN meta ON meta.key = 'namespace' WHERE m.id = ? AND m.state = ?"
        )
        with contextlib.closing(sqlite3.connect(f"file:{self._journal}?mode=ro", uri=True)) as db:
            row = db.execute(query, (id_, State.SENDING)).fetchone()
        if row is None or message_key(row[1], id_, *row[2:]) != key:
            return 0
        return int(row[0])


def _key(message: ReceivedMessage) -> str:
    """What the provider knows an attempt by: its idempotency key, or the first part of a Message-ID."""
    return message.idempotency_key or message.provider_id.lstrip("<").partition("@")[0]


class StandIn:
    """One service and its providers, with one ledger."""

    def __init__(self, folder: Path, plan: Mapping[str, Any]) -> None:
        self._folder = folder
        self._ledger = LedgerWriter(folder / "ledger.jsonl")
        self._strike: Strike | None = None
        self._counts: Counter[str] = Counter()
        self._heard: set[str] = set()
        self._operators: set[asyncio.Task[None]] = set()
        self._state = WatchedState(folder, self._add, self._begin_to_operate)
        self._sandbox = Sandbox(state=self._state)
        self._torn: TornQueue | None = None
        self._load(plan)

    def _load(self, plan: Mapping[str, Any]) -> None:
        self._state.enqueue(*plan["elements"])
        self._state.settings.update({int(id_): settings for id_, settings in plan["settings"].items()})
        self._state.receipt_targets["inApp"] = plan["receipts"]
        unheard = set(plan["unheard"])
        self._state.reject_event = lambda event: event["messageId"] in unheard and event["status"] == "sent"
        self._state.fail("provider.messenger", *[ApplyThenHangUp()] * plan["held"])
        for endpoint, faults in _faults(plan).items():
            self._state.fail(endpoint, *faults)
        self._state.fail("settings", Delay(LATE))  # their messages wait in the journal for it

    async def open(self, tears: Sequence[str]) -> dict[str, Any]:
        """Listen."""
        await self._sandbox.__aenter__()
        base_url = self._sandbox.base_url
        if tears:
            self._torn = TornQueue(self._sandbox.port, tears, self._add, self.offer_again)
            base_url = await self._torn.open()
        return {"base_url": base_url, "smtp_port": self._sandbox.smtp_port}

    async def close(self) -> None:
        """Drop everybody."""
        self._disarm()
        for operator in self._operators:
            operator.cancel()
        await asyncio.gather(*self._operators, return_exceptions=True)
        if self._torn is not None:
            await self._torn.close()
        await self._sandbox.__aexit__(None, None, None)
        self._ledger.close()

    async def begin(self, *, offer_again: bool) -> None:
        """Another worker is about to be started: what the last one asked for is done first."""
        self._disarm()
        while self._sandbox.busy:  # noqa: ASYNC110 - uvicorn tells nobody when it has become idle
            await asyncio.sleep(0.001)
        self._counts.clear()
        self._counts["Heard"] = len(self._heard)
        self._state.offer_again = offer_again

    def arm(self, pid: int, strike: Strike) -> None:
        """Send this worker a signal at that place in the ledger."""
        self._disarm()
        self._strike, self._target = strike, os.pidfd_open(pid)
        self._look()

    def _disarm(self) -> None:
        if self._strike is not None:
            os.close(self._target)
            self._strike = None

    def offer_again(self) -> None:
        """Let the queue hand out once more what wasn't confirmed."""
        self._state.offer_again = True

    def _add(self, record: Record) -> None:
        self._ledger.add(record)
        self._counts[type(record).__name__] += 1
        if isinstance(record, Told):
            self._heard.add(record.body)
            self._counts["Heard"] = len(self._heard)
        self._look()

    def _look(self) -> None:
        """Strike when it is time to."""
        strike = self._strike
        if strike is None or self._counts[strike.kind] < strike.times:
            return
        if strike.delay:
            asyncio.get_running_loop().call_later(strike.delay, self._hit, strike)
        else:
            self._hit(strike)

    def _hit(self, strike: Strike) -> None:
        if strike is not self._strike:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._target, strike.number)
        self._disarm()

    # the operator

    def _begin_to_operate(self, id_: int) -> None:
        task = asyncio.get_running_loop().create_task(self._resend(id_))
        self._operators.add(task)
        task.add_done_callback(self._operators.discard)

    async def _resend(self, id_: int) -> None:
        """Order a message in doubt to be sent again, as often as it takes, while the worker lives."""
        order = write_request(Order(Action.RESEND, ItemKind.MESSAGE, (str(id_),)))
        self._add(Ordered(id_))
        orders = socket_of(self._folder / "journal.db")
        with contextlib.suppress(OSError, ValueError), socket_address(orders) as address:
            while True:
                reader, writer = await asyncio.open_unix_connection(address)
                with contextlib.closing(writer):
                    writer.write(order)
                    with contextlib.suppress(DeliverydError):
                        if read_reply(await reader.readline()).get("done"):
                            return
                await asyncio.sleep(OPERATORS_PAUSE)


def _faults(plan: Mapping[str, Any]) -> dict[StandInEndpoint, list[Fault]]:
    """What goes wrong beyond the messages' own fates."""
    faults: dict[StandInEndpoint, list[Fault]] = {}
    if plan["lossy"]:
        draw = random.Random(plan["lossy"])
        kinds: list[Fault] = [Pass(), ApplyThenHangUp(), CutInHalf()]
        for endpoint in ("events", "provider.sms"):
            faults[endpoint] = draw.choices(kinds, [20, 1, 1], k=400)
    return faults


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    standin: StandIn | None = None
    while line := await orders.readline():
        answer: Mapping[str, Any] = {}
        match json.loads(line):
            case {"do": "open", "folder": folder, "plan": plan}:
                standin = StandIn(Path(folder), plan)
                answer = await standin.open(plan["tears"])
            case {"do": "begin", "offer_again": offer_again} if standin is not None:
                await standin.begin(offer_again=offer_again)
            case {"do": "offer again"} if standin is not None:
                standin.offer_again()
            case {"do": "arm", "pid": pid, "strike": strike} if standin is not None:
                standin.arm(pid, Strike(*strike))
            case {"do": "close"} if standin is not None:
                await standin.close()
                standin = None
        os.write(1, json.dumps(answer).encode() + b"\n")
    if standin is not None:
        await standin.close()


if __name__ == "__main__":
    asyncio.run(_serve())
