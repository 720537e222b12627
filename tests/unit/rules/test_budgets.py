"""The calendar periods of budgets, by the wall clock of a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from deliveryd.options.quotas import QuotaPeriod, format_quota, parse_quota
from deliveryd.rules.budgets import Budget, period_of
from deliveryd.rules.options import RuleOptions

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(text: str) -> int:
    """Microseconds of an instant in UTC."""
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("period", "zone", "now", "since", "until"),
    [
        ("day", "Europe/Berlin", "2026-03-29T12:00", "2026-03-28T23:00", "2026-03-29T22:00"),
        ("day", "Europe/Berlin", "2026-10-25T00:30", "2026-10-24T22:00", "2026-10-25T23:00"),
        ("day", "Europe/Berlin", "2026-10-25T22:59", "2026-10-24T22:00", "2026-10-25T23:00"),
        ("day", "Europe/Berlin", "2026-10-25T23:00", "2026-10-25T23:00", "2026-10-26T23:00"),
        ("day", "Pacific/Kiritimati", "2026-06-01T09:59", "2026-05-31T10:00", "2026-06-01T10:00"),
        ("day", "Australia/Lord_Howe", "2026-04-04T14:00", "2026-04-04T13:00", "2026-04-05T13:30"),
        ("month", "UTC", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("month", "America/New_York", "2026-03-01T04:00", "2026-02-01T05:00", "2026-03-01T05:00"),
        ("month", "Europe/Berlin", "2026-03-31T21:59", "2026-02-28T23:00", "2026-03-31T22:00"),
        ("hour", "UTC", "2026-06-01T12:59", "2026-06-01T12:00", "2026-06-01T13:00"),
        ("hour", "Asia/Kolkata", "2026-06-01T12:29", "2026-06-01T11:30", "2026-06-01T12:30"),
        ("hour", "Europe/Berlin", "2026-10-25T01:30", "2026-10-25T01:00", "2026-10-25T02:00"),
    ],
)
def test_periods_are_those_of_the_calendar(
    period: QuotaPeriod, zone: str, now: str, since: str, until: str
) -> None:
    """Days with 23 or 25 hours too; each instant is in one period."""
    assert period_of(period, instant(now), ZoneInfo(zone)) == (instant(since), instant(until))


def test_a_budget_counts_from_its_period_s_beginning_on() -> None:
    """What is kept of the present period is replaced when that is over, and when the clock is put back."""
    budget = Budget("sms", parse_quota("100 parts/day"), "wait", ZoneInfo("UTC"))
    first, second = instant("2026-06-01T12:00"), instant("2026-06-02T00:00")
    assert budget.share(first).until == budget.share(second).since == second
    assert budget.share(first).since == instant("2026-06-01T00:00")


@pytest.mark.parametrize("text", ["100000 parts/day", "1 message/hour", "2 messages/hour", "0 parts/month"])
def test_a_quota_is_written_as_it_is_read(text: str) -> None:
    assert format_quota(parse_quota(text)) == text


@pytest.mark.parametrize("text", ["100 parts", "parts/day", "-1 parts/day", "1.5 parts/day", "9 parts/week"])
def test_what_is_no_quota_is_an_error(text: str) -> None:
    """It says what is expected."""
    with pytest.raises(ValueError, match="parts or messages, per hour, day or month"):
        parse_quota(text)


def test_budgets_of_the_same_messages_have_the_period_in_their_names() -> None:
    """Those of an hour and of a day are told apart in metrics, warnings and reasons."""
    scopes: list[dict[str, object]] = [
        {"settings": (1,)}, {"channels": ("sms",)}, {"settings": (1, 2), "channels": ("sms",)}, {}
    ]  # fmt: skip
    rules = [
        RuleOptions.model_validate({**scope, "budget": f"1 message/{period}"})
        for scope in scopes
        for period in ("hour", "day")
    ]
    assert [budget.name for rule in rules if (budget := rule.budget_rule(0, UTC))] == [
        "settings 1 per hour", "settings 1 per day",
        "all messages on sms per hour", "all messages on sms per day",
        "settings 1, 2 on sms per hour", "settings 1, 2 on sms per day",
        "all messages per hour", "all messages per day",
    ]  # fmt: skip
