"""Times of the week at which messages may be sent, by the wall clock of a time zone. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

from deliveryd.model import NEVER, SECOND

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_MOST_KEPT = 10_000
"""Settings ids and channels whose rule is kept."""

LOOKED_AHEAD = 400
"""Days within which a window opens again, or never."""

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")
_PRECISION = timedelta(seconds=1)


class Window(NamedTuple):
    """From `begin` to before `end` of each of `days` (0: Monday) that is no holiday.

    Where `end` isn't after `begin`, the window closes on the next day, and belongs to the day it opens on.
    With both at midnight it is open all day.
    """

    days: frozenset[int]
    begin: time
    end: time
    holidays: Collection[date] = frozenset()

    @property
    def is_always(self) -> bool:
        """Whether the window never closes, in no zone."""
        return len(self.days) == len(DAYS) and self.begin == self.end and not self.holidays

    def opening(self, now: int, zone: tzinfo) -> int | None:
        """Return `now` if the window is open, else the instant at which it opens next; None: never.

        Wall times that a change of the clock skips or repeats count as the wall clock shows them: nothing is
        sent while it shows a time outside of the window.
        """
        at = _moment(now)
        if self._is_open(at, zone):
            return now
        today = at.astimezone(zone).date()
        for days in range(LOOKED_AHEAD):
            for begin in self._begins(today + timedelta(days), zone):
                if begin > at:
                    return (begin - _EPOCH) // timedelta(microseconds=1)
        return None

    def _is_open(self, at: datetime, zone: tzinfo) -> bool:
        local = at.astimezone(zone)
        shown, today = local.time(), local.date()
        if self.begin < self.end:
            return self.begin <= shown < self.end and self._opens_on(today)
        if shown >= self.begin:
            return self._opens_on(today)
        return shown < self.end and self._opens_on(today - timedelta(1))

    def _opens_on(self, day: date) -> bool:
        return day.weekday() in self.days and day not in self.holidays

    def _begins(self, day: date, zone: tzinfo) -> Iterator[datetime]:
        """Yield the moments of a day at which the window opens: two where its time comes twice."""
        if not self._opens_on(day):
            return
        local = datetime.combine(day, self.begin, zone)
        first, second = sorted(local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
        if self._is_open(first, zone):
            yield first
        if second != first and self._is_open(second, zone):
            yield second if self._is_open(first, zone) else self._change(first, second, zone)

    def _change(self, closed: datetime, opened: datetime, zone: tzinfo) -> datetime:
        """Return the first moment after `closed` at which it is open, where the clock skips its begin."""
        while opened - closed > _PRECISION:
            middle = (closed + (opened - closed) / 2).replace(microsecond=0)
            closed, opened = (closed, middle) if self._is_open(middle, zone) else (middle, opened)
        return opened


class WindowRule(NamedTuple):
    """Which messages have which window: those of `settings` on `channels`; of all, where these are empty.

    Without a `zone` it is the customer's. `sends_outside`: what would expire before the window opens is sent
    at once. `place` is that of its table among the rules.
    """

    settings: frozenset[int]
    channels: frozenset[str]
    window: Window
    zone: tzinfo | None = None
    sends_outside: bool = False
    place: int = 0

    @property
    def needs_customer(self) -> bool:
        """Whether the window opens by the customer's zone."""
        return self.zone is None and not self.window.is_always


class Windows:
    """The rules of windows: the first that names a message's settings id and channel counts.

    `zone` is that of customers whose field `zone` names none; None: UTC.
    """

    def __init__(self, rules: Sequence[WindowRule] = (), zone: tzinfo | None = None) -> None:
        self.rules = tuple(rules)
        self.zone = zone
        self._found: dict[tuple[int, str], WindowRule | None] = {}

    @property
    def terms(self) -> object:
        """What decides: equal where nothing differs."""
        return self.rules, self.zone

    def rule_for(self, settings_id: int, channel: str) -> WindowRule | None:
        """Return the rule of such messages; None: they may be sent at any time."""
        key = settings_id, channel
        if key not in self._found:
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            fitting = (
                rule
                for rule in self.rules
                if (not rule.settings or settings_id in rule.settings)
                and (not rule.channels or channel in rule.channels)
            )
            self._found[key] = next(fitting, None)
        return self._found[key]

    def zone_of(self, rule: WindowRule, zone: str | None) -> tzinfo:
        """Return the zone by which a rule's window opens for a customer whose field `zone` is this."""
        return rule.zone or (zone_named(zone) if zone else None) or self.zone or UTC

    def opening(self, settings_id: int, channel: str, zone: str | None, now: int) -> int:
        """Return the instant at which such a message may be sent: `now`, or when its window opens."""
        rule = self.rule_for(settings_id, channel)
        if rule is None or rule.window.is_always:
            return now
        opening = rule.window.opening(now, self.zone_of(rule, zone))
        return NEVER if opening is None else opening

    def sends_outside(self, settings_id: int, channel: str) -> bool:
        """Whether such a message is sent outside of its window if it would expire before that opens."""
        rule = self.rule_for(settings_id, channel)
        return rule is not None and rule.sends_outside


ALWAYS = Windows()
"""Every message may be sent at any time."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(instant: int) -> datetime:
    return _EPOCH + timedelta(seconds=instant // SECOND, microseconds=instant % SECOND)


@lru_cache(1000)
def zone_named(name: str) -> tzinfo | None:
    """Return the time zone of an IANA name, such as "Europe/Berlin"; None: there is none of that name."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415  # loaded only where there are windows

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # also for names that would leave the folder of zones
        return None


def known_zone(name: str) -> str:
    """Check the name of a time zone. Raises ValueError."""
    if zone_named(name) is None:
        expected = 'expected an IANA name such as "Europe/Berlin"'
        if zone_named("UTC") is None:
            expected = "this machine has no time zone files: install tzdata"
        raise ValueError(f"{name!r} is no time zone; {expected}")
    return name


def parse_days(text: str) -> frozenset[int]:
    """Parse "Mon-Sat", "Mon, Wed" or "Sat-Mon". Raises ValueError."""
    if (found := _days_of(text)) is None:
        short = re.sub("[A-Za-z]+", lambda word: word[0][:3].title(), text)
        meant = "" if _days_of(short) is None else f'; did you mean "{short}"?'
        raise ValueError(f'expected days such as "Mon-Sat" or "Mon, Wed", of {", ".join(DAYS)}{meant}')
    return found


def _days_of(text: str) -> frozenset[int] | None:
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        if first not in DAYS or (dash and last not in DAYS):
            return None
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found.update(day % 7 for day in range(begin, end + 1 if begin <= end else end + 8))
    return frozenset(found)


def parse_time(text: str) -> time:
    """Parse "08:00"; "24:00" is the midnight that ends a day. Raises ValueError."""
    if _TIME.fullmatch(text) is None:
        raise ValueError('expected a time such as "08:00"')
    return time(0) if text == "24:00" else time.fromisoformat(text)
