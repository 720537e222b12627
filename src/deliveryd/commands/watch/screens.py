"""What `status` and `top` show of a worker: pure functions from its overview to lines of a width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from textwrap import wrap
from typing import NamedTuple

from rich.text import Text

from deliveryd.admin.notices import NoticeLevel, level_of, notices_of
from deliveryd.admin.words import age, ago, measured_time, size, time_of_day
from deliveryd.commands.watch.columns import Cell, Column, fitted, fitted_table
from deliveryd.telemetry.overview import Overview, Paused, ProviderView

WIDE = 76
"""Cells from which rates and facts stand side by side."""

_RATES = 40
_WARNINGS = 3
_WORDS: dict[NoticeLevel, Cell] = {
    "good": Cell("WELL", "bold green"),
    "fair": Cell("ATTENTION", "bold yellow"),
    "bad": Cell("NOT READY", "bold red"),
}
_MARKS: dict[NoticeLevel, str] = {"good": "green", "fair": "yellow", "bad": "red"}


class StatusRow(NamedTuple):
    """A line of the table: a provider, or the sums of a channel."""

    name: str
    state: Cell
    waiting: int
    under_way: int
    concurrency: int
    rate: float
    in_doubt: int
    accepted: int
    failed: int
    receipts: str
    last_failure: str


def status_lines(overview: Overview, width: int) -> list[Text]:
    """Everything on one screen."""
    return [
        *head(overview, width),
        *numbers(overview, width),
        Text(""),
        *fitted_table(provider_columns(provider_rows(overview.providers, overview)), width),
        *_section("attention", notice_lines(overview, width), width),
        *_section("paused", paused_lines(overview, width), width),
        *_section("last warnings", warning_lines(overview, width)[:_WARNINGS], width),
        *_section("last reload", reload_lines(overview, width), width),
    ]


def head(overview: Overview, width: int) -> list[Text]:
    """How the worker is, in a word and a sentence."""
    word = _WORDS[level_of(overview, notices_of(overview))]
    line = Text.assemble((word.text, word.style), f"  deliveryd {overview.version}", no_wrap=True, end="")
    right = f"up {age(overview.uptime_seconds)}, process {overview.pid}"
    if line.cell_len + len(right) + 2 <= width:
        line.append(" " * (width - line.cell_len - len(right)) + right, "dim")
    line.truncate(width, overflow="ellipsis")
    return [line, *_folded(overview.reason, width)]


def numbers(overview: Overview, width: int) -> list[Text]:
    """Rates beside facts, or below each other where that is too wide."""
    rates, facts = _rates(overview, min(width, _RATES)), list(_facts(overview))
    if width < WIDE:
        return [Text(""), *rates, Text(""), *(_plain(fact, width) for fact in facts)]
    lines = [Text("")]
    for index in range(max(len(rates), len(facts))):
        line = rates[index].copy() if index < len(rates) else Text(no_wrap=True, end="")
        if index < len(facts):
            line.append(" " * (_RATES - line.cell_len) + fitted(facts[index], width - _RATES))
        lines.append(line)
    return lines


def _rates(overview: Overview, width: int) -> list[Text]:
    names = ("taken", "sent", "delivered", "failed")
    now, minute = (
        [Cell(per_second(getattr(measured, name))) for name in names]
        for measured in (overview.rates_10s, overview.rates_60s)
    )
    titles = Column("messages", [Cell(name) for name in names])
    rates = [Column("last 10 s", now, is_number=True), Column("last 60 s", minute, 1, is_number=True)]
    return fitted_table([titles, *rates], width)


def _facts(overview: Overview) -> Iterator[str]:
    delay, oldest, messages = overview.delay, overview.oldest, overview.messages
    if delay.p50 is not None and delay.p99 is not None:
        yield f"delay      p50 {measured_time(delay.p50)}, p99 {measured_time(delay.p99)}"
    else:
        yield "delay      nothing sent for a minute"
    yield f"in flight  {overview.in_flight:,} of {overview.in_flight_limit:,}"
    waiting = messages.get("waiting", 0)
    waits = f"waiting    {waiting:,}"
    if waiting and oldest.message is not None:
        waits += f", oldest {age(oldest.message)}"
    yield waits
    yield f"in doubt   {messages.get('in_doubt', 0):,}"
    events = f"events     {overview.events.waiting:,} to report"
    if overview.events.waiting and oldest.event is not None:
        events += f", oldest {age(oldest.event)}"
    yield events
    if overview.disk is not None:
        yield f"disk       {size(overview.disk.free)} free, reserve {size(overview.disk.reserve)}"


def per_second(rate: float) -> str:
    """Write a rate: with a decimal only if it is small."""
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.1f}/s"


def provider_rows(providers: Sequence[ProviderView], overview: Overview) -> list[StatusRow]:
    """The lines of providers."""
    paused = {(each.kind, each.key) for each in overview.paused}
    return [_row_of(each, paused) for each in providers]


def _row_of(provider: ProviderView, paused: AbstractSet[tuple[str, str]]) -> StatusRow:
    failure = provider.last_failure
    is_paused = not paused.isdisjoint({("provider", provider.identity), ("channel", provider.channel)})
    return StatusRow(
        provider.identity,
        _state_of(provider, is_paused=is_paused),
        provider.waiting + provider.queued,
        provider.under_way,
        provider.concurrency,
        provider.rate,
        provider.in_doubt,
        provider.accepted,
        provider.failed,
        provider.receipts,
        "" if failure is None else failure.reason,
    )


def _state_of(provider: ProviderView, *, is_paused: bool) -> Cell:
    if not provider.enabled:
        return Cell("off", "dim")
    if provider.breaker != "closed":
        return Cell("down" if provider.breaker == "open" else "probing", "bold red")
    if is_paused:
        return Cell("paused", "yellow")
    return Cell("refusing", "yellow") if provider.refused_settings else Cell("up", "green")


def channel_rows(overview: Overview) -> list[StatusRow]:
    """The sums of each channel, in the order of its providers."""
    channels = dict.fromkeys(each.channel for each in overview.providers)
    providers = {name: [each for each in overview.providers if each.channel == name] for name in channels}
    return [_sum_of(name, provider_rows(own, overview)) for name, own in providers.items()]


def _sum_of(name: str, rows: Sequence[StatusRow]) -> StatusRow:
    if len(rows) == 1:
        return rows[0]._replace(name=name)
    up = sum(row.state.text in ("up", "refusing") for row in rows)
    style = "green" if up == len(rows) else "yellow" if up else "bold red"
    return StatusRow(
        name,
        Cell(f"{up} of {len(rows)} up", style),
        waiting=sum(row.waiting for row in rows),
        under_way=sum(row.under_way for row in rows),
        concurrency=sum(row.concurrency for row in rows),
        rate=sum(row.rate for row in rows),
        in_doubt=sum(row.in_doubt for row in rows),
        accepted=sum(row.accepted for row in rows),
        failed=sum(row.failed for row in rows),
        receipts="silent" if any(row.receipts == "silent" for row in rows) else rows[0].receipts,
        last_failure=next((row.last_failure for row in rows if row.last_failure), ""),
    )


def provider_columns(rows: Sequence[StatusRow], title: str = "provider") -> list[Column]:
    """The table of providers or channels."""
    return [
        Column(title, [Cell(row.name) for row in rows]),
        Column("state", [row.state for row in rows]),
        _number("waiting", [row.waiting for row in rows], 0),
        Column("under way", [Cell(f"{row.under_way:,}/{row.concurrency:,}") for row in rows], 3, True),
        Column("rate", [Cell(per_second(row.rate)) for row in rows], 1, True),
        _number("in doubt", [row.in_doubt for row in rows], 2),
        _number("failed", [row.failed for row in rows], 5),
        _number("accepted", [row.accepted for row in rows], 6),
        Column("receipts", [_receipts(row) for row in rows], 7),
        Column("last failure", [Cell(fitted(row.last_failure, 40), "dim") for row in rows], 4),
    ]


def _number(title: str, numbers: Sequence[int], rank: int) -> Column:
    return Column(title, [Cell(f"{number:,}", "" if number else "dim") for number in numbers], rank, True)


def _receipts(row: StatusRow) -> Cell:
    return Cell(row.receipts, "yellow" if row.receipts == "silent" else "dim")


def notice_lines(overview: Overview, width: int) -> list[Text]:
    """What needs attention, the most urgent first; long sentences take several lines."""
    return [
        line
        for notice in notices_of(overview)
        for line in _wrapped(f"{notice.about}: {notice.text}", width, _MARKS[notice.level])
    ]


def paused_lines(overview: Overview, width: int) -> list[Text]:
    """What is paused, since when and why."""
    texts = [_pause(each, overview.at) for each in overview.paused]
    if overview.paused_left_out:
        texts.append(f"and {overview.paused_left_out:,} more: see deliveryd paused")
    return [line for text in texts for line in _wrapped(text, width, "yellow")]


def _pause(pause: Paused, now: str) -> str:
    what = pause.kind if pause.kind == "intake" else f"{pause.kind} {pause.key}"
    by = f" by {pause.user}" if pause.user else ""
    until = f", until {time_of_day(pause.until, now)}" if pause.until else ""
    return f"{what}, {ago(pause.since, now)}{by}{until}{f': {pause.reason}' if pause.reason else ''}"


def warning_lines(overview: Overview, width: int) -> list[Text]:
    """The last lines of the log from warning on, the latest first."""
    return [
        line
        for warning in reversed(overview.warnings)
        for line in [_plain(_warning(dict(warning)), width, "red" if warning.get("level") == "error" else "")]
    ]


def _warning(warning: dict[str, object]) -> str:
    at, event = str(warning.pop("at", "")), str(warning.pop("event", ""))
    warning.pop("level", None)
    return f"{at[11:19]} {event} {' '.join(f'{name}={value}' for name, value in warning.items())}"


def reload_lines(overview: Overview, width: int) -> list[Text]:
    """The last reload of the configuration."""
    if (last := overview.last_reload) is None:
        return []
    problems = [line for problem in last.problems for line in _wrapped(problem, width, "red")]
    return [*_folded(f"{ago(last.at, overview.at)}: {last.outcome}", width), *problems]


def _section(title: str, lines: Sequence[Text], width: int) -> list[Text]:
    return [Text(""), _plain(title, width, "dim"), *lines] if lines else []


def _plain(text: str, width: int, style: str = "") -> Text:
    return Text(fitted(text, width), style, no_wrap=True, end="")


def _wrapped(text: str, width: int, style: str) -> list[Text]:
    """Return the words of a text in lines, after a mark of the style."""
    lines: list[Text] = []
    for index, line in enumerate(wrap(text, max(width - 2, 1)) or [""]):
        lines.append(Text.assemble(("! " if index == 0 else "  ", style), line, no_wrap=True, end=""))
        lines[-1].truncate(width)
    return lines


def _folded(text: str, width: int) -> list[Text]:
    return [Text(line, no_wrap=True, end="") for line in wrap(text, max(width, 1))]


SORTS: dict[str, Callable[[StatusRow], tuple[float, str] | tuple[str, str]]] = {
    "name": lambda row: (row.name, ""),
    "waiting": lambda row: (-row.waiting, row.name),
    "rate": lambda row: (-row.rate, row.name),
    "in doubt": lambda row: (-row.in_doubt, row.name),
    "failed": lambda row: (-row.failed, row.name),
}
"""The orders of the table, by the column that leads."""
