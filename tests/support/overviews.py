"""Overviews of workers that are idle, busy or in trouble, and a worker that shows what a test sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from deliveryd.delivery.tail import Tail, TailFeed, TailFilter
from deliveryd.errors import ConfigError, DeliverydError
from deliveryd.telemetry.overview import (
    Disk,
    EventsView,
    Failure,
    Oldest,
    Overview,
    Paused,
    Points,
    ProviderView,
    Rates,
    Reload,
    SendDelay,
)

AT = "2026-11-22T10:00:00.000000Z"


def provider(identity: str, **values: object) -> ProviderView:
    """A provider that works and has nothing to do, but for what is named."""
    idle = ProviderView(
        identity, identity.partition("/")[0], enabled=True, waiting=0, queued=0, under_way=0, concurrency=50,
        rate=0.0, rate_limit=None, breaker="closed", since=None, refused_settings=[], last_failure=None,
        in_doubt=0, receipts="none", accepted=0, failed=0, delivered=0, unconfirmed=0, overdue=0,
    )  # fmt: skip
    return replace(idle, **values)  # type: ignore[arg-type]


IDLE = Overview(
    at=AT, version="0.1.0", pid=4711, uptime_seconds=95.0, alive=True, ready=True, reason="taking messages",
    rates_10s=Rates(), rates_60s=Rates(), delay=SendDelay(),
    in_flight=0, in_flight_limit=1000, places_free=1000,
    messages={}, waiting_for={}, events=EventsView(0, 0), oldest=Oldest(), malformed=0,
    receipts_unmatched=0, providers=[provider("sms"), provider("email")], disk=Disk(180 << 30, 64 << 20),
    paused=[], paused_left_out=0, warnings=[], last_reload=None, lanes={}, loops={"intake": 0.2},
)  # fmt: skip

BUSY = replace(
    IDLE,
    uptime_seconds=3 * 86400 + 7200.0,
    rates_10s=Rates(1984.2, 1979.9, 1633.0, 2.4),
    rates_60s=Rates(1975.8, 1976.1, 1598.3, 2.1),
    delay=SendDelay(0.312, 1.84),
    in_flight=742,
    places_free=258,
    messages={"taken": 120, "ready": 80, "sending": 310, "waiting": 1204, "in_doubt": 2},
    waiting_for={"providers": 1017, "windows": 170, "settings": 17},
    events=EventsView(486, 0),
    oldest=Oldest(211.0, 0.4),
    providers=[
        provider("inApp", under_way=41, concurrency=100, rate=402.5, accepted=4_201_554),
        provider("messenger/north", under_way=60, concurrency=80, rate=611.2, rate_limit="800/s",
                 waiting=12, queued=8, receipts="reporting", accepted=9_102_331, delivered=8_800_120),
        provider("messenger/south", under_way=22, concurrency=40, rate=212.9, rate_limit="300/s",
                 receipts="reporting", accepted=2_910_442, delivered=2_754_113, unconfirmed=31,
                 last_failure=Failure("try_again", "provider answered 503",
                                      "2026-11-22T09:41:10.000000Z")),
        provider("sms", under_way=187, queued=96, waiting=1175, concurrency=200, rate=700.0,
                 rate_limit="700/s", receipts="reporting", accepted=12_998_120, delivered=11_764_001,
                 in_doubt=2),
        provider("email", under_way=18, rate=53.1, accepted=801_201),
    ],
    warnings=[
        {"at": "2026-11-22T09:41:10.000000Z", "level": "warning", "event": "message.in_doubt",
         "channel": "sms", "provider": "sms", "message_id": 90211,
         "reason": "the connection broke before the answer"},
        {"at": "2026-11-22T09:52:44.000000Z", "level": "warning", "event": "message.failed", "count": 12,
         "provider": "email", "reason": "missing placeholders"},
    ],
    last_reload=Reload("2026-11-22T08:12:00.000000Z", "applied", ["channels.sms.rate"]),
)  # fmt: skip

DOWN = replace(
    BUSY,
    reason="taking messages, but a provider keeps failing",
    rates_10s=Rates(1320.0, 1284.4, 1101.7, 0.3),
    rates_60s=Rates(1404.2, 1377.0, 1288.8, 0.4),
    delay=SendDelay(0.498, 6.1),
    in_flight=1000,
    places_free=0,
    messages={"ready": 400, "sending": 290, "waiting": 184_220, "in_doubt": 2},
    oldest=Oldest(1266.0, 95.0),
    events=EventsView(1204, 3),
    providers=[
        each
        if each.identity != "sms"
        else replace(
            each, breaker="open", since="2026-11-22T09:39:02.000000Z", rate=0.1, under_way=0, queued=10,
            waiting=183_911, receipts="silent",
            last_failure=Failure("no_connection", "the connection was refused",
                                 "2026-11-22T09:59:31.000000Z"),
        )
        for each in BUSY.providers
    ],
    paused=[
        Paused("settings", "17", "2026-11-22T09:45:00.000000Z", None, 1310, "anna", None,
               "wrong price in the text"),
        Paused("provider", "messenger/south", "2026-11-22T09:20:00.000000Z",
               "2026-11-22T11:20:00.000000Z", 0, "root", None, None),
    ],
    last_reload=Reload("2026-11-22T09:58:00.000000Z", "refused", (),
                       ["config.toml:channels.sms.rate: expected a string such as \"50/s\""]),
)  # fmt: skip


def hour(scale: float = 1.0, points: int = 360) -> Points:
    """A history that goes up and down."""

    def wave(height: float, shift: float) -> list[float]:
        return [
            round(scale * height * (1 + 0.35 * math.sin(i / 37 + shift) + 0.08 * math.sin(i * 1.7)), 2)
            for i in range(points)
        ]

    failed = [scale * 2 if i % 50 < 4 else 0 for i in range(points)]
    p50 = [0.3 + 0.05 * math.sin(i / 9) for i in range(points)]
    p99 = [1.5 + 0.6 * math.sin(i / 21) for i in range(points)]
    return Points(10.0, wave(1900, 0), wave(1890, 0.1), wave(1550, 0.4), failed, p50, p99)


class _Nobody:
    """In place of a recorder: a test hands its events to the feed itself."""

    def watch(self, watcher: TailFeed) -> None:
        """Do nothing."""

    def unwatch(self, watcher: TailFeed) -> None:
        """Do nothing."""


@dataclass
class Worker:
    """A worker whose signs of life a test sets."""

    is_alive: bool = True
    is_ready: bool = True
    shown: Overview = IDLE
    tails: TailFeed = field(default_factory=lambda: TailFeed([]))
    past: Points = field(default_factory=lambda: Points(10.0))

    def alive(self) -> tuple[bool, Sequence[tuple[str, float]]]:
        """As set."""
        return self.is_alive, [("intake", 0.25), ("reporting", 1.5)]

    def ready(self) -> tuple[bool, str]:
        """As set."""
        return self.is_ready, "taking work" if self.is_ready else "the outbox is full"

    def receiving(self) -> tuple[bool, str]:
        """As set."""
        return self.is_ready, "receipts are taken"

    def tail(self, wanted: TailFilter) -> Tail:
        """A reader of what a test records."""
        return self.tails.open(wanted)

    def overview(self) -> Overview:
        """As set."""
        return self.shown

    def hour(self) -> Points:
        """As set."""
        return self.past


TOKEN = "correct-horse-battery-staple"


class Operator:
    """Notes what is ordered, or refuses it. What is paused is shown by `worker`, if there is one."""

    def __init__(self, worker: Worker | None = None) -> None:
        self.worker = worker
        self.orders: list[tuple[object, ...]] = []
        self.refusal: str | list[str] | None = None

    async def pause(
        self, kind: str, key: str, seconds: float | None, reason: str | None
    ) -> Mapping[str, object]:
        """Note it."""
        self._note("pause", kind, key, seconds, reason)
        if self.worker is not None:
            pause = Paused(kind, key, AT, None, 0, None, "status page", reason)
            self.worker.shown = replace(self.worker.shown, paused=[*self.worker.shown.paused, pause])
        return {"done": [key], "skipped": {}}

    async def resume(self, kind: str, key: str, reason: str | None) -> Mapping[str, object]:
        """Note it."""
        self._note("resume", kind, key, reason)
        if self.worker is not None:
            left = [each for each in self.worker.shown.paused if (each.kind, each.key) != (kind, key)]
            self.worker.shown = replace(self.worker.shown, paused=left)
        return {"done": [key], "skipped": {}}

    async def failed(self) -> Mapping[str, object]:
        """One reason."""
        return {"reasons": [{"reason": "no", "count": 3}], "complete": True}

    async def retry(self, failure: str, reason: str | None) -> Mapping[str, object]:
        """Note it."""
        self._note("retry", failure, reason)
        return {"done": ["1", "2"], "skipped": {"3": "it has expired"}}

    async def reload(self) -> Mapping[str, object]:
        """Note it."""
        self._note("reload")
        return {"outcome": "applied", "changes": []}

    def _note(self, *order: object) -> None:
        if isinstance(self.refusal, list):
            raise ConfigError(self.refusal)
        if self.refusal is not None:
            raise DeliverydError(self.refusal)
        self.orders.append(order)
