"""The tables `[[rules]]`: what holds for the messages of some settings ids, or on some channels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import date, time, tzinfo
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, StrictInt, model_validator

from deliveryd.model import SECOND, CapShare
from deliveryd.options.quotas import BUDGET_MEANING, SPENT_MEANING, QuotaLimit, SpentChoice, check_spent
from deliveryd.options.suggestion import closest, suggestion
from deliveryd.options.tables import Table
from deliveryd.options.units import FilePath, Positive
from deliveryd.rules.budgets import Budget
from deliveryd.rules.caps import Cap
from deliveryd.rules.windows import (
    Window,
    WindowRule,
    known_zone,
    parse_days,
    parse_time,
    zone_named,
)

_RANKED = ("high", "low")
"""The priorities that a rule gives; all other settings ids have the one between."""

_LONGEST_CAP = 366 * 86400.0
"""Seconds for which it is kept what customers got, at most."""

_LONGEST_NAME = 60
"""Characters of the ids, or channels, in the name of a budget or a cap."""

_LARGEST = 1 << 20
"""Bytes of a file of holidays at most."""


_CUSTOMER = "customer"
"""The zone of a window that opens by each customer's own."""

_SETTINGS_EXAMPLE = "[501, 502]"


def _zone(name: str) -> str:
    if name == _CUSTOMER:
        return name
    if zone_named(name) is None and closest(name, [_CUSTOMER]):
        raise ValueError(f'{name!r} is no time zone; did you mean "{_CUSTOMER}"?')
    return known_zone(name)


def _quoted_time(value: object) -> object:
    """Raise ValueError for a time that lacks its quotes, with what to write."""
    if isinstance(value, time):
        raise ValueError(f'write "{value:%H:%M}", in quotes')  # noqa: TRY004  # pydantic reports only these
    if type(value) is int and value in range(25):
        raise ValueError(f'write "{value:02}:00", in quotes')
    return value


def _id_list(value: object) -> object:
    if not isinstance(value, list | tuple):
        text = f"expected a list of settings ids, such as {_SETTINGS_EXAMPLE}"
        raise ValueError(text)  # noqa: TRY004  # pydantic reports only these
    return value


def _read_by(parse: Callable[[str], object]) -> AfterValidator:
    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


_TimeOfDay = Annotated[str, BeforeValidator(_quoted_time), _read_by(parse_time)]


class WindowOptions(Table):
    """Times of the week at which messages may be sent."""

    days: Annotated[str, _read_by(parse_days)] = Field("Mon-Sun", description='such as "Mon-Sat", "Mon, Wed"')
    from_: _TimeOfDay = Field(alias="from", description='such as "08:00"')
    to: _TimeOfDay = Field(description='such as "20:00"; the next day where it is not after from')
    zone: Annotated[str, AfterValidator(_zone)] = Field(
        "customer", description='an IANA name, or "customer": the customer\'s field zone, else content.zone'
    )
    holidays_file: FilePath | None = Field(
        None, description="file of days on which it does not open, a date such as 2026-12-25 on each line"
    )
    outside: Literal["expire", "send"] = Field(
        "expire", description="what becomes of a message that expires before the window opens"
    )

    _holidays: frozenset[date] = PrivateAttr(frozenset())

    @model_validator(mode="after")
    def _opens(self) -> Self:
        if self.from_ == self.to:
            raise ValueError('from and to are the same; a whole day is from = "00:00", to = "24:00"')
        if self.holidays_file is not None:
            try:
                self._holidays = frozenset(_days_in(_content_of(self.holidays_file)))
            except OSError as error:
                raise ValueError(f"holidays_file: {self.holidays_file}: {error.strerror or error}") from None
            except ValueError as error:
                raise ValueError(f"holidays_file: {self.holidays_file}: {error}") from None
        return self

    def window(self) -> Window:
        """Return the window."""
        return Window(parse_days(self.days), parse_time(self.from_), parse_time(self.to), self._holidays)


def _content_of(path: Path) -> bytes:
    """Read a file. Raises ValueError or OSError, and never waits."""
    if path.exists() and not path.is_file():
        raise ValueError("is no regular file")
    with path.open("rb") as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError("is larger than 1 MiB")
    return content


def _days_in(content: bytes) -> Iterator[date]:
    """Yield the dates of a file, with comments behind a #. Raises ValueError."""
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        if not (text := line.partition("#")[0].strip()):
            continue
        try:
            yield date.fromisoformat(text)
        except ValueError:
            raise ValueError(f"line {number} is no date such as 2026-12-25") from None


def _priority(text: object) -> object:
    if text == "normal":
        raise ValueError('must be "high" or "low"; all other settings ids are normal: leave it out')
    if text not in _RANKED:
        meant = suggestion(text, _RANKED) if isinstance(text, str) else ""
        raise ValueError(f'must be "high" or "low"{meant}')
    return text


def _named(names: tuple[object, ...]) -> tuple[object, ...]:
    if not names:
        raise ValueError("names none; name at least one, or leave the key out for all")
    return names


_NOT_EMPTY = AfterValidator(_named)


class CapOptions(Table):
    """How many messages one customer gets."""

    messages: StrictInt = Field(ge=1, le=1000, description="most that providers accept for one customer")
    per: Positive = Field(le=_LONGEST_CAP, description='within this time, such as "1d"')
    over: Literal["wait", "error"] = Field(
        "wait", description='more "wait" until the oldest is that old, or end as "error"'
    )


class RuleOptions(Table):
    """What holds for messages of `settings` on `channels`; for all, where these are left out."""

    settings: Annotated[tuple[StrictInt, ...], BeforeValidator(_id_list), _NOT_EMPTY] | None = Field(
        None, description="settings ids; left out: all"
    )
    channels: Annotated[tuple[str, ...], _NOT_EMPTY] | None = Field(
        None, description="channels; left out: all"
    )
    priority: Annotated[Literal["high", "low"], BeforeValidator(_priority)] | None = Field(
        None, description='"high": before all others; "low": after them; a tenth is left to those below'
    )
    window: WindowOptions | None = Field(None, description="when they may be sent; left out: at any time")
    budget: QuotaLimit | None = Field(None, description=BUDGET_MEANING)
    spent: SpentChoice = Field("wait", description=SPENT_MEANING)
    cap: CapOptions | None = Field(None, description="how many one customer gets; left out: all")

    @model_validator(mode="after")
    def _rules_something(self) -> Self:
        check_spent(self)
        if (self.priority, self.window, self.budget, self.cap) == (None, None, None, None):
            raise ValueError("the rule has no effect: set priority, window, budget or cap")
        if self.cap is not None and self.channels is not None:
            raise ValueError("a cap counts settings ids on all channels: leave channels out")
        if self.priority is not None and self.settings is None:
            raise ValueError(f"priority needs settings: add the ids, such as settings = {_SETTINGS_EXAMPLE}")
        if self.priority is not None and self.channels is not None:
            raise ValueError("priority holds on all channels: leave channels out")
        return self

    @property
    def ranked(self) -> tuple[Literal["high", "low"], Sequence[int]] | None:
        """Return the priority that it gives, and to which settings ids; None: it gives none."""
        return None if self.priority is None else (self.priority, self.settings or ())

    def window_rule(self, place: int) -> WindowRule | None:
        """Return which messages have which window by the table at this place; None: it has no window."""
        if self.window is None:
            return None
        return WindowRule(
            frozenset(self.settings or ()),
            frozenset(self.channels or ()),
            self.window.window(),
            None if self.window.zone == "customer" else zone_named(self.window.zone),
            self.window.outside == "send",
            place,
        )

    def budget_rule(self, place: int, zone: tzinfo) -> Budget | None:
        """Return the budget of the table at this place, with the periods of a zone; None: it has none."""
        if self.budget is None:
            return None
        scope = f"{self._names('settings') or 'all messages'} {self._names('channels')}".rstrip()
        return Budget(
            scope, self.budget, self.spent, zone,
            settings=self.settings or (),
            channels=self.channels or (),
            place=f"rules.{place}",
        )  # fmt: skip

    def cap_rule(self, place: int) -> Cap | None:
        """Return the cap of the table at this place; None: it has none."""
        if self.cap is None:
            return None
        name, per = self._names("settings") or "all messages", int(self.cap.per * SECOND)
        share = CapShare(name, frozenset(self.settings or ()), self.cap.messages, per)
        return Cap(share, self.cap.over, f"rules.{place}")

    def _names(self, key: Literal["settings", "channels"]) -> str:
        """Return what a table names, as part of a name: of many the first ones, and a digest of all."""
        if not (names := [str(each) for each in sorted(set(getattr(self, key) or ()))]):
            return ""
        text = ", ".join(names)
        if len(text) > _LONGEST_NAME:
            digest = hashlib.sha256(text.encode()).hexdigest()[:8]
            text = f"{text[:_LONGEST_NAME].rpartition(',')[0]} and more ({digest})"
        return f"{'settings' if key == 'settings' else 'on'} {text}"
