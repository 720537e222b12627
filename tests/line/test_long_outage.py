"""The service is gone for six hours, then overloaded, then well; providers and their reports never stop."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, TryAgain, Verdict
from deliveryd.delivery.intake import TOP_UP
from deliveryd.journal.reader import file_reader
from deliveryd.receipts.request import ReceiptRequest
from support.virtual import VirtualSupervisor, VirtualWorld, live

pytestmark = pytest.mark.slow

HOUR = 3600.0
DOWN_AT = 60.0
BUSY_AT = DOWN_AT + 6 * HOUR
WELL_AT = BUSY_AT + 20 * 60
BACKLOG_EVERY = 10.0
"""Seconds between messages that come into the queue while the service is down."""

SETTINGS = range(1, 7)
UNKNOWN = (4, 5, 6)
"""Those of the ids whose settings can't be had before the service is well again."""

PLACES, BATCH, POSTED, FLUSH, RATE = 500, 50, 100, 0.25, 20
SERVICE_SECONDS = 0.05
RETRY_AFTER = 20.0
TASKS = 100 + 30
"""Attempts that may be under way, and the worker's loops."""

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
CONFIG = f"""
provider_id = "/id"
receipt = {{ provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"] }}
rate = "{RATE}/s"
[queue]
max_in_flight = {PLACES}
batch_size = {BATCH}
[events]
batch_size = {POSTED}
flush_interval = "250ms"
"""


class Held(NamedTuple):
    """What a worker holds in memory, in numbers."""

    places: int
    awaiting: int
    ready: int
    settled: int
    in_dispatchers: int
    settings: int
    tasks: int


def held_by(worker: VirtualSupervisor) -> Held:
    recorder, stations = worker.parts.recorder, worker.parts.stations
    settings = stations.preparer._settings
    return Held(
        worker.parts.memory.in_flight.held,
        len(recorder._awaiting),
        len(worker.parts.memory.ready),
        stations.outcomes.pending,
        sum(dispatcher.admission.held for dispatcher in stations.dispatchers.values()),
        len(settings._known) + len(settings._open),
        trio.lowlevel.current_statistics().tasks_living,
    )


class Stage:
    """A world whose service is away as the plan says, and what was seen of it."""

    def __init__(self, folder: Path) -> None:
        self.world = VirtualWorld(folder)
        text = self.world.path.read_text(encoding="utf-8")
        text = text.replace('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"')
        self.world.path.write_text(text + CONFIG, encoding="utf-8")
        self.service = self.world.service
        for settings_id in SETTINGS:
            self.service.settings[settings_id] = SMS
        self.count = 0
        self.reported: list[int] = []
        self.held: list[Held] = []
        self.under_way: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()
        self.put_off: Counter[str] = Counter()
        self.well: tuple[int, int] = (0, 0)
        self._most = cycle([True, True, True, True, False])
        work = self.service.handle

        async def handle(request: httpx.Request) -> httpx.Response:
            path = request.url.path
            self.under_way[path] += 1
            self.most_at_once[path] = max(self.most_at_once[path], self.under_way[path])
            try:
                await self._suffer(path)
                return work(request)
            finally:
                self.under_way[path] -= 1

        self.service.handle = handle  # type: ignore[method-assign, assignment]
        self.service.trouble = self._trouble
        self.world.channels["sms"].verdict = self._send

    async def _suffer(self, path: str) -> None:
        """Every third hour of the outage the service takes requests and answers none."""
        await trio.sleep(SERVICE_SECONDS)
        now = trio.current_time()
        if DOWN_AT <= now < BUSY_AT and (now - DOWN_AT) // HOUR % 3 == 1:
            self.service.asked.append((now, path))
            await trio.sleep_forever()

    def _trouble(self, request: httpx.Request) -> httpx.Response | None:
        now = trio.current_time()
        if now < BUSY_AT and request.url.path in {f"/settings/{id_}" for id_ in UNKNOWN}:
            return httpx.Response(500)
        if DOWN_AT <= now < BUSY_AT:
            if (now - DOWN_AT) // HOUR % 3 == 0:
                raise httpx.ConnectError("refused")
            return httpx.Response(503)
        if BUSY_AT <= now < WELL_AT and next(self._most):
            self.put_off[request.url.path] += 1
            return httpx.Response(429, headers={"Retry-After": f"{RETRY_AFTER:g}"})
        return None

    def _send(self, dispatch: Dispatch) -> Verdict:
        """A provider that asks to be left alone now and then, for longer than a tenth of the outage."""
        late = dispatch.entry.id % 10 == 0 and trio.current_time() < DOWN_AT + HOUR
        return TryAgain("provider answered 503", 2400.0) if late else Accepted(f"p-{dispatch.entry.id}")

    def enqueue(self, number: int, *settings_ids: int) -> None:
        for index in range(number):
            self.count += 1
            self.service.enqueue(
                {
                    "id": self.count,
                    "settingsId": settings_ids[index % len(settings_ids)],
                    "customerId": 1,
                    "variables": {},
                }
            )

    async def live_through(self) -> None:
        async with self.world.at_work() as worker:
            for _ in range(int(DOWN_AT) - 1):  # every second five, of settings that become known
                self.enqueue(5, 1, 2, 3)
                await trio.sleep(1)
            self.enqueue(100, *SETTINGS)
            await trio.sleep_until(DOWN_AT + 1)
            async with trio.open_nursery() as meanwhile:
                meanwhile.start_soon(self._go_on)
                meanwhile.start_soon(self._report, worker)
                meanwhile.start_soon(self._watch, worker)
                meanwhile.start_soon(self._look_at_the_end)
                while not self.is_over():  # noqa: ASYNC110 - nothing tells the end of everything
                    await trio.sleep(5)
                meanwhile.cancel_scope.cancel()

    async def _go_on(self) -> None:
        """Messages come into the queue as if nothing was wrong."""
        while trio.current_time() < BUSY_AT:
            self.enqueue(1, *SETTINGS)
            await trio.sleep(BACKLOG_EVERY)

    async def _report(self, worker: VirtualSupervisor) -> None:
        """Providers report on what was sent before the outage, evenly over its six hours."""
        receipts = worker.parts.receipts
        assert receipts is not None
        sent = [one.entry.id for _, one in self.world.channels["sms"].attempts if one.entry.id % 10]
        for id_ in sent:
            body = json.dumps({"id": f"p-{id_}", "status": "delivered"}).encode()
            request = ReceiptRequest("POST", "/receipts/sms", b"", [], body)
            assert (await receipts.take_in("sms", request)).status == 200
            self.reported.append(id_)
            await trio.sleep(5.9 * HOUR / len(sent))

    async def _watch(self, worker: VirtualSupervisor) -> None:
        while True:
            self.held.append(held_by(worker))
            await trio.sleep(20)

    async def _look_at_the_end(self) -> None:
        """Note what waits when the service is well: in its queue, and how many events it has heard."""
        await trio.sleep_until(WELL_AT)
        self.well = self.service.offers.waiting, len(self.service.events)

    def is_over(self) -> bool:
        if trio.current_time() <= WELL_AT:
            return False
        sent = sum(event["status"] == "sent" for event in self.service.events)
        return bool(sent == self.count)

    def asked(self, begin: float, end: float) -> dict[str, int]:
        """How many requests there were within a time, by endpoint."""
        return Counter(path for at, path in self.service.asked if begin <= at < end)


def most_in_a_second(times: Sequence[float]) -> int:
    """The most that lie within any second; the times are in order."""
    return max((bisect_left(times, start + 1, index) - index for index, start in enumerate(times)), default=0)


def test_six_hours_without_the_service_and_its_return_with_429s(tmp_path: Path) -> None:
    """What is held stays bounded, the service is asked rarely, nothing storms, all is told, the sums agree.

    An endpoint gets one request at a time: takes as there are places, ten in a second at most; posts for full
    batches, for takes, and after the flush interval. Providers get what waited at the channel's rate.
    """
    stage = Stage(tmp_path)
    end = live(stage.live_through, hours=8)
    service, attempts = stage.service, stage.world.channels["sms"].attempts
    most = Held(*map(max, zip(*stage.held, strict=True)))
    hours = [stage.asked(DOWN_AT + hour * HOUR, DOWN_AT + (hour + 1) * HOUR) for hour in range(6)]
    after = stage.asked(WELL_AT, end)
    queued, heard = stage.well
    peaks = {
        path: most_in_a_second([at for at, other in service.asked if at >= WELL_AT and other == path])
        for path in after
    }
    sends = most_in_a_second([at for at, _ in attempts if at >= BUSY_AT])
    figures = (
        f"{stage.count} messages, {len(stage.reported)} reports; most held: {most}; requests in each hour"
        f" without the service: {[sum(hour.values()) for hour in hours]}; answered with 429:"
        f" {dict(stage.put_off)}; then {queued} messages and {len(service.events) - heard} events in"
        f" {end - WELL_AT:.0f} s: {dict(after)}, most in a second: {peaks}, sends in a second: {sends}"
    )

    assert max(most.places, most.awaiting, most.in_dispatchers, most.ready, most.settled) <= PLACES, figures
    assert most.settings <= 2 * len(SETTINGS), figures
    assert most.tasks <= TASKS, figures

    tries_in_an_hour = 3 * HOUR / 15  # three for each pause of 15 s at least
    for hour in hours:
        assert all(number <= tries_in_an_hour for number in hour.values()), figures
    assert all(number <= (WELL_AT - BUSY_AT) / RETRY_AFTER + 1 for number in stage.put_off.values()), figures
    assert set(stage.most_at_once.values()) == {1}, figures

    assert queued > 1000, figures
    assert after["/queue"] <= queued / BATCH + (end - WELL_AT) / TOP_UP, figures
    events = len(service.events) - heard
    assert after["/events"] <= events / POSTED + (end - WELL_AT) / FLUSH + after["/queue"], figures
    assert max(peaks.values()) <= 1 / SERVICE_SECONDS, figures
    assert sends <= RATE * 1.05 + 1, figures

    delivered = set(stage.reported)
    told: dict[int, list[str]] = defaultdict(list)
    for event in service.events:
        told[event["messageId"]].append(event["status"])
    for id_ in range(1, stage.count + 1):
        assert told[id_] == ["dequeued", "sent", *(["delivered"] if id_ in delivered else [])], id_
    sums = file_reader(tmp_path / "journal.db").audit()
    assert sums.is_balanced, sums
    assert (sums.account.taken, sums.account.ended) == (stage.count, stage.count)
