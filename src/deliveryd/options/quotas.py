"""Amounts per calendar period, as in "100000 parts/day", and what is done when one is used up."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple, cast

from pydantic import BaseModel, BeforeValidator, PlainSerializer

from deliveryd.options.suggestion import suggestion

QuotaUnit = Literal["parts", "messages"]
QuotaPeriod = Literal["hour", "day", "month"]
WhenSpent = Literal["next", "wait", "error"]
"""What becomes of a message for which a budget has too little left."""

_QUOTA = re.compile(r"([0-9]{1,15})\s*(parts?|messages?)\s*/\s*(hour|day|month)")
NEARLY_SPENT = 0.8
"""The share of a budget from which its use is pointed at."""

COST_GUARD = "cost_guard"
"""In whose name settings are paused that suddenly cost more."""

_SPENT = ("next", "wait", "error")


class Quota(NamedTuple):
    """At most so many SMS parts, or messages, in each calendar period."""

    most: int
    unit: QuotaUnit
    period: QuotaPeriod


def parse_quota(value: object) -> Quota:
    """Parse "100000 parts/day". Raises ValueError."""
    match = _QUOTA.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            'expected a string such as "100000 parts/day": parts or messages, per hour, day or month'
        )
    unit = cast("QuotaUnit", match[2].rstrip("s") + "s")
    return Quota(int(match[1]), unit, cast("QuotaPeriod", match[3]))


def format_quota(quota: Quota) -> str:
    """Format a quota as in the configuration file."""
    unit = quota.unit.removesuffix("s") if quota.most == 1 else quota.unit
    return f"{quota.most} {unit}/{quota.period}"


def _spent(value: object) -> object:
    if value not in _SPENT:
        meant = suggestion(value, _SPENT) if isinstance(value, str) else ""
        raise ValueError(f'must be "next", "wait" or "error"{meant}')
    return value


def check_spent(table: BaseModel) -> None:
    """Raise ValueError where a table has `spent` without a budget."""
    if "spent" in table.model_fields_set and getattr(table, "budget", None) is None:
        raise ValueError('spent has no effect without budget: set that too, such as "100000 parts/day"')


QuotaLimit = Annotated[Quota, BeforeValidator(parse_quota), PlainSerializer(format_quota, return_type=str)]
SpentChoice = Annotated[WhenSpent, BeforeValidator(_spent)]

BUDGET_MEANING = 'most that is sent in a calendar period, such as "100000 parts/day"; left out: no limit'
SPENT_MEANING = '"next": messages take the next provider or channel then; "wait": the next period; "error"'
