"""Budgets: how much may be sent in each calendar period, and what holds when that is used up. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta, tzinfo

from deliveryd.model import SECOND, BudgetShare, channel_of
from deliveryd.options.quotas import Quota, QuotaPeriod, WhenSpent

_MOST_KEPT = 10_000
"""Settings ids and providers whose budgets are kept."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
HOUR_LENGTH = 3600 * SECOND


class Budget:
    """An amount for each period of what is sent with some settings ids, on some channels, by a provider.

    Each of these may be empty: all. `name`, which its counts are kept under, is its `scope` and its period.
    `place` is its key in the file.
    """

    def __init__(
        self,
        scope: str,
        quota: Quota,
        spent: WhenSpent,
        zone: tzinfo,
        *,
        settings: Collection[int] = (),
        channels: Collection[str] = (),
        provider: str = "",
        place: str = "",
    ) -> None:
        self.scope = scope
        self.name = f"{scope} per {quota.period}"
        self.quota = quota
        self.spent = spent
        self.place = place
        self._zone = zone
        self._settings = frozenset(settings)
        self._channels = frozenset(channels)
        self._provider = provider
        self._share = BudgetShare(self.name, 0, 0, quota.most, in_parts=quota.unit == "parts")

    @property
    def terms(self) -> object:
        """What decides: equal where nothing differs."""
        return self.name, self.quota, self.spent, str(self._zone)

    def applies(self, settings_id: int, provider: str) -> bool:
        """Whether what a provider sends with these settings counts."""
        return (
            (not self._settings or settings_id in self._settings)
            and (not self._channels or channel_of(provider) in self._channels)
            and self._provider in ("", provider)
        )

    def share(self, now: int) -> BudgetShare:
        """The budget in the period of this instant."""
        share = self._share
        if not share.since <= now < share.until:
            since, until = period_of(self.quota.period, now, self._zone)
            share = self._share = share._replace(since=since, until=until)
        return share


def period_of(period: QuotaPeriod, now: int, zone: tzinfo) -> tuple[int, int]:
    """Return when the calendar period of an instant begins and ends, by the wall clock of a zone."""
    local = (_EPOCH + timedelta(microseconds=now)).astimezone(zone)
    if period == "hour":
        ahead = (local.utcoffset() or timedelta()) // _MICROSECOND
        since = (now + ahead) // HOUR_LENGTH * HOUR_LENGTH - ahead
        return since, since + HOUR_LENGTH
    begin = local.date() if period == "day" else local.date().replace(day=1)
    end = begin + timedelta(days=1) if period == "day" else (begin + timedelta(days=32)).replace(day=1)
    since, until = (
        (datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC) - _EPOCH) // _MICROSECOND
        for day in (begin, end)
    )
    return since, until


class Budgets:
    """All budgets; several may count one message."""

    def __init__(self, budgets: Sequence[Budget] = ()) -> None:
        self.all = tuple(budgets)
        self._found: dict[tuple[int, str], Sequence[Budget]] = {}

    @property
    def terms(self) -> object:
        """What decides: equal where nothing differs."""
        return [budget.terms for budget in self.all]

    def of(self, settings_id: int, provider: str) -> Sequence[Budget]:
        """Those that count what a provider sends with these settings."""
        key = settings_id, provider
        if key not in self._found:
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[key] = [each for each in self.all if each.applies(settings_id, provider)]
        return self._found[key]


NO_BUDGETS = Budgets()
"""Nothing is counted."""
