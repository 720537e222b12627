"""The line: the whole life of a message, from the queue to the last reported event.

    GET /queue ─► journal ─► POST /events dequeued ─► settings ─► expiry ─► render ─► channel ─► journal ─► POST /events
      intake      (durable)      reporting            (disk cache)                    (lane)    (durable)    sent | error

Only this module knows the order. Each step hands on frozen values; every step of a message goes through `record`,
which makes it durable first and lets the next station know of it afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import anyio

from deliveryd.customers.base import Directory
from deliveryd.errors import DirectoryUnavailable, ServiceUnavailable, SettingsUnusable
from deliveryd.intake import Intake, Places
from deliveryd.journal.base import Change, Journal, OutboxRow, Outcome
from deliveryd.lanes import SECOND, Lane
from deliveryd.metrics import Metrics
from deliveryd.model import Clock, Entry, StatusEvent
from deliveryd.reporting import Reporting
from deliveryd.routing import Routed, Router, Unsendable
from deliveryd.settings import SettingsRoom
from deliveryd.states import ENDED, State
from deliveryd.telemetry import Event, log
from deliveryd.wakeup import LONGEST_WAIT, Bell, Pulse

DIRECTORY_PAUSE = 5.0
"""Seconds that messages wait for a customer directory that can't answer."""

IDLE_CHECK = 0.05
SHORT_OF_ROOM = 0.1
"""Seconds until it is looked again for waiting messages that there was no room for."""

FINAL = frozenset({"sent", "error"})
"""Statuses after which a message holds no place any more."""


class Pipeline:
    """The stations of the line, in their order.

    `intake`, `reporting` and `lanes` are assigned while it is put together, since they call back into the line.
    """

    intake: Intake
    reporting: Reporting
    lanes: Mapping[str, Lane]

    def __init__(
        self,
        journal: Journal,
        settings: SettingsRoom,
        directory: Directory,
        router: Router,
        places: Places,
        clock: Clock,
        metrics: Metrics,
        pulse: Pulse,
        *,
        max_waiting: int,
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._directory = directory
        self._router = router
        self._places = places
        self._clock = clock
        self._metrics = metrics
        self._pulse = pulse
        self._max_waiting = max_waiting
        self._waiting = 0
        self._awaiting: dict[int, Entry] = {}  # taken; the service hasn't accepted their `dequeued` yet
        self._ready: list[Entry] = []
        self._ready_bell = Bell()
        self._due_bell = Bell()
        self._settled: list[Change] = []
        self._settled_bell = Bell()

    async def recover(self) -> None:
        """Take up what an earlier run left in the journal, before anything else."""
        left = await self._journal.recover(self._clock.now(), self.lanes)
        self._awaiting = {entry.id: entry for entry in left.taken}
        self._places.hold([*self._awaiting, *left.reporting])
        self._waiting = left.waiting
        await self.record(
            [change for entry, state in left.doubtful if (change := self._after_crash(entry, state))]
        )
        self._due_bell.ring()
        self.reporting.expect_now(1)
        if left.taken or left.doubtful or left.waiting or left.reporting:
            log(Event.JOURNAL_RECOVERED, count=len(left.taken) + left.waiting, in_flight=len(left.doubtful))

    def _after_crash(self, entry: Entry, state: State) -> Change | None:
        """What an attempt without an outcome comes to: its channel's policy says so, if the channel is still there."""
        now = self._clock.now()
        reason = "the worker ended before the outcome was known"
        lane = self.lanes.get(entry.lane or "")
        if lane is None:
            change = Change(entry, state, State.IN_DOUBT, now, outcome=Outcome("in_doubt", None, reason))
        else:
            tried = entry._replace(tries=entry.tries + (state is State.SENDING))
            change = lane.after_doubt(tried, state, reason, now)
        return None if change.after is state else change

    # 1. from the queue into the journal: `Intake` takes and records, then calls

    def taken(self, entries: Sequence[Entry]) -> None:
        """These messages are in the journal; they wait until the service has accepted their `dequeued`."""
        self._awaiting.update((entry.id, entry) for entry in entries)
        self._places.hold(entry.id for entry in entries)
        self.reporting.expect_now(len(entries))

    def may_take(self) -> bool:
        """Whether the journal may take in more: not while too many messages wait in it already."""
        return self._waiting < self._max_waiting

    # 2. from the journal to the service: `Reporting` posts, then calls

    def accepted(self, rows: Sequence[OutboxRow]) -> None:
        """The service accepted these events: who was taken may now be sent, who ended gives up their place."""
        dequeued = [row.message_id for row in rows if row.status == "dequeued"]
        self._make_ready([entry for id_ in dequeued if (entry := self._awaiting.pop(id_, None))])
        self._places.release(row.message_id for row in rows if row.status in FINAL)

    def refused(self, row: OutboxRow) -> None:
        """The service refused this event for good; it lies in the journal with its reason."""
        if row.status == "dequeued" and row.message_id in self._awaiting:
            del self._awaiting[row.message_id]
            log(Event.MESSAGE_SET_ASIDE, message_id=row.message_id, reason="the service refused its dequeued event")
            self._metrics.ended(State.SET_ASIDE)
            self._places.release([row.message_id])
        elif row.status in FINAL:
            self._places.release([row.message_id])

    # 3. settings, expiry, language, channel, text

    async def deliver(self) -> None:
        """Bring ready messages to their lanes, those of one settings id together."""
        async with anyio.create_task_group() as groups:
            while True:
                self._pulse.beat("delivery")
                await self._ready_bell.wait()
                ready, self._ready = self._ready, []
                by_settings: dict[int, list[Entry]] = defaultdict(list)
                for entry in ready:
                    by_settings[entry.settings_id].append(entry)
                for settings_id, entries in by_settings.items():
                    groups.start_soon(self._prepare, settings_id, entries)

    async def _prepare(self, settings_id: int, entries: Sequence[Entry]) -> None:
        try:
            settings = await self._settings.get(settings_id)
            customers = await self._directory.look_up({entry.customer_id for entry in entries})
        except SettingsUnusable as error:
            await self.record([self._failed(entry, str(error)) for entry in entries])
        except ServiceUnavailable as error:
            await self.record([self._postponed(entry, error.after or 1.0) for entry in entries])
        except DirectoryUnavailable as error:
            log(Event.CUSTOMERS_UNAVAILABLE, reason=str(error), count=len(entries))
            await self.record([self._postponed(entry, DIRECTORY_PAUSE) for entry in entries])
        else:
            now = self._clock.now()
            routes = [
                self._router.route(entry, settings, customers.get(entry.customer_id), now) for entry in entries
            ]
            await self.record([change for route in routes if (change := self._hand_over(route))])

    # 4. to the channel: the lane commits the intent, sends, and settles

    def _hand_over(self, route: Routed | Unsendable) -> Change | None:
        """Put a message into its lane; or the step that it takes instead."""
        if isinstance(route, Unsendable):
            return self._failed(route.entry, route.details)
        if self.lanes[route.lane].offer(route):
            return None
        return self._postponed(route.entry, 0.0)  # the lane is full: it waits in the journal for room there

    def settle(self, change: Change) -> None:
        """What became of an attempt; recorded together with all that came in meanwhile."""
        self._settled.append(change)
        self._settled_bell.ring()

    async def record_settled(self) -> None:
        """Make outcomes durable, as many at a time as there are."""
        while True:
            self._pulse.beat("settling")
            await self._settled_bell.wait()
            settled, self._settled = self._settled, []
            await self.record(settled)

    def news(self) -> None:
        """A provider's receipt put an event into the outbox."""
        self.reporting.expect(1)

    # 5. what waits in the journal comes back when its time has come

    async def wake_due(self) -> None:
        """Fetch waiting messages whose time has come, where there are places for them."""
        pause = 0.0
        while True:
            self._pulse.beat("due")
            await self._due_bell.wait(min(max(pause, 0.01), LONGEST_WAIT))
            pause = await self._fetch_due()

    async def _fetch_due(self) -> float:
        """Fetch what is due; return the seconds until more may be."""
        if not self._waiting:
            return LONGEST_WAIT
        free = self._places.free
        room = {name: min(lane.room, free) for name, lane in self.lanes.items()} | {"": free}
        now = self._clock.now()
        due = await self._journal.due(now, {name: places for name, places in room.items() if places})
        self._waiting -= len(due.entries)
        self._places.hold(entry.id for entry in due.entries)
        self._make_ready(due.entries)
        if due.entries or not all(room.values()):
            return SHORT_OF_ROOM
        return LONGEST_WAIT if due.next_due is None else (due.next_due - now) / SECOND

    # the end

    async def until_idle(self) -> None:
        """Return when the queue is empty, every message ended or is held in doubt, and every event is accepted."""
        while True:
            if self.intake.found_empty and not self._places.held and not self._waiting:
                counts = await self._journal.counts()
                open_states = counts.states.keys() - {State.IN_DOUBT}
                if not open_states and not counts.events_waiting and self.intake.found_empty:
                    return
            await anyio.sleep(IDLE_CHECK)

    async def drain(self) -> None:
        """Finish what is under way, without beginning anything new, and report all of it."""
        self.intake.stop()
        for lane in self.lanes.values():
            lane.stop()
        for lane in self.lanes.values():
            await lane.finish()
        settled, self._settled = self._settled, []
        await self.record(settled)
        self.reporting.hurry()
        await self.reporting.flushed()

    # every step of a message

    async def record(self, changes: Sequence[Change]) -> None:
        """Make steps durable, then let the stations know."""
        if not changes:
            return
        await self._journal.change(changes)
        self._make_ready([change.entry for change in changes if change.after is State.READY])
        parked = [change.entry.id for change in changes if change.after in (State.WAITING, State.IN_DOUBT)]
        if parked:
            self._waiting += sum(change.after is State.WAITING for change in changes)
            self._places.release(parked)
            self._due_bell.ring()
        for change in changes:
            if change.after in ENDED:
                self._metrics.ended(change.after)
        if events := sum(len(change.events) for change in changes):
            self.reporting.expect(events)

    def _make_ready(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._ready += entries
            self._ready_bell.ring()

    def _failed(self, entry: Entry, details: str) -> Change:
        now = self._clock.now()
        log(Event.MESSAGE_FAILED, message_id=entry.id, settings_id=entry.settings_id)
        return Change(
            entry, State.READY, State.FAILED, now, events=(StatusEvent(entry.id, "error", now, details=details),)
        )

    def _postponed(self, entry: Entry, seconds: float) -> Change:
        now = self._clock.now()
        return Change(entry, State.READY, State.WAITING, now, now + int(seconds * SECOND))
