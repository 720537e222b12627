"""What is shown of a worker: the parts of its overview in words, for the status page, `status` and `top`.

Those only lay it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

from deliveryd.model import SECOND, parse_instant
from deliveryd.options.quotas import COST_GUARD, NEARLY_SPENT
from deliveryd.options.safety import limits_text
from deliveryd.telemetry.overview import Disk, LimitView, Overview, Paused, ProviderView

NoticeLevel = Literal["good", "fair", "bad", "held", "off"]
"""How a text is marked: as well, to be looked at, broken, paused, or of no weight."""

EVENT_PATIENCE = 60.0
"""Seconds that a status event may wait before it is pointed at."""

DISK_MARGIN = 2
"""The disk is pointed at when less than this many times its reserve is free."""

_ITEMS_SHOWN = 8
_LONGEST_FIELDS = 300
_WORDS: Mapping[NoticeLevel, str] = {"good": "Well", "fair": "Needs attention", "bad": "Not ready"}
_RELOADS = {
    "applied": "applied; this has changed:",
    "unchanged": "nothing had changed.",
    "refused": "refused; the configuration before stays in force.",
}


class Cell(NamedTuple):
    """A text, its level, and a remark that may be left out."""

    text: str
    level: NoticeLevel | None = None
    aside: str = ""


class Notice(NamedTuple):
    """One thing to look at: what it is about, a sentence, and an instant: when it was or will be over."""

    level: NoticeLevel
    about: str
    text: str
    at: str | None = None


class Fact(NamedTuple):
    """A number and its unit; `asides` may be left out. `share`: how much of what is possible it is."""

    name: str
    number: str
    unit: str
    asides: Sequence[str] = ()
    share: float | None = None


class ProviderRow(NamedTuple):
    """A provider, or a channel with the sums of its providers, at the instant `at`."""

    kind: Literal["provider", "channel"]
    name: str
    state: Cell
    is_paused: bool
    providers: Sequence[ProviderView]
    at: str

    def total(self, *names: str) -> float:
        """Return the sum of these numbers of all its providers."""
        total: float = sum(getattr(each, name) for each in self.providers for name in names)
        return total

    def cells(self) -> Mapping[str, Cell]:
        """Return what is shown beside its name, by the titles of the columns."""
        queued = self.total("queued")
        limit = self.providers[0].rate_limit if self.is_single else None
        failure = next((each.last_failure for each in self.providers if each.last_failure), None)
        return {
            "state": self.state,
            "waiting": Cell(
                f"{self.total('waiting', 'queued'):,}", None, f"{queued:,} of them queued" if queued else ""
            ),
            "under way": Cell(f"{self.total('under_way'):,}/{self.total('concurrency'):,}"),
            "rate": Cell(f"{figure(self.total('rate'))}/s", None, f"of {limit}" if limit else ""),
            "limit": Cell(limit or ""),
            "in doubt": Cell(f"{self.total('in_doubt'):,}", "fair" if self.total("in_doubt") else "off"),
            "failed": Cell(f"{self.total('failed'):,}"),
            "accepted": Cell(f"{self.total('accepted'):,}"),
            "receipts": self._receipts(),
            "last failure": Cell(failure.reason, "off", ago(failure.at, self.at)) if failure else Cell(""),
        }

    @property
    def is_single(self) -> bool:
        """Whether it is one provider, or a channel with one."""
        return len(self.providers) == 1

    def _receipts(self) -> Cell:
        if any(each.receipts == "silent" for each in self.providers):
            return Cell("silent", "fair")
        if all(each.receipts == "none" for each in self.providers):
            return Cell("none", "off")
        late = self.total("unconfirmed", "overdue")
        return Cell("reporting", "off", f"{self.total('delivered'):,} delivered, {late:,} late")


def headline(overview: Overview) -> Cell:
    """Return how the worker is, in a word, and why."""
    level = level_of(overview, notices_of(overview))
    return Cell(_WORDS[level] if overview.alive else "Stuck", level, overview.reason)


def process_of(overview: Overview) -> tuple[str, str]:
    """Return which program it is, and which process."""
    uptime = age(overview.uptime_seconds)
    return f"deliveryd {overview.version}", f"up {uptime}, process {overview.pid}"


def rates_of(overview: Overview) -> Iterator[tuple[str, str, str]]:
    """Yield messages per second: what is done with them, in the last ten seconds, in the last minute."""
    for name in ("taken", "sent", "delivered", "failed"):
        now, minute = (getattr(rates, name) for rates in (overview.rates_10s, overview.rates_60s))
        yield name, f"{figure(now)}/s", f"{figure(minute)}/s"


def facts_of(overview: Overview) -> Iterator[Fact]:
    """Yield what is measured beside the rates."""
    delay, oldest, events, disk = overview.delay, overview.oldest, overview.events, overview.disk
    if delay.p50 is None or delay.p99 is None:
        yield Fact("delay", "", "nothing sent for a minute")
    else:
        yield Fact("delay", measured_time(delay.p50), "p50", [f"{measured_time(delay.p99)} p99"])
    held, most = overview.in_flight, overview.in_flight_limit
    yield Fact("in flight", f"{held:,}", f"of {most:,} places", (), held / max(most, 1))
    waiting, in_doubt = (overview.messages.get(state, 0) for state in ("waiting", "in_doubt"))
    asides = [f"oldest {age(oldest.message)}"] if oldest.message is not None else []
    asides += [f"{in_doubt:,} in doubt"] if in_doubt else []
    most_first = sorted(overview.waiting_for.items(), key=lambda each: -each[1])
    asides += [f"{count:,} for {cause}" for cause, count in most_first]
    yield Fact("waiting", f"{waiting:,}", "message" if waiting == 1 else "messages", asides)
    asides = [f"oldest {age(oldest.event)}"] if events.waiting and oldest.event is not None else []
    asides += [f"{events.refused:,} refused"] if events.refused else []
    yield Fact("events", f"{events.waiting:,}", "to report", asides)
    if disk is None:
        yield Fact("journal", "", "in a database", ["which other workers may share"])
    else:
        yield Fact("journal", size(disk.free), "free", [f"reserve {size(disk.reserve)}"])


def channel_rows(overview: Overview) -> Iterator[tuple[ProviderRow, Sequence[ProviderRow]]]:
    """Yield channels, each with its providers."""
    paused = {(each.kind, each.key) for each in overview.paused}
    for channel in dict.fromkeys(each.channel for each in overview.providers):
        own = [each for each in overview.providers if each.channel == channel]
        rows = [_provider(each, paused, overview.at) for each in own]
        up = sum(row.state.level in ("good", "fair") for row in rows)
        state = Cell(f"{up} of {len(rows)} up", "good" if up == len(rows) else "fair" if up else "bad")
        if is_paused := ("channel", channel) in paused:
            state = Cell("paused", "held")
        sums = ProviderRow("channel", channel, state, is_paused, own, overview.at)
        yield rows[0]._replace(kind="channel", name=channel) if sums.is_single else sums, rows


def _provider(provider: ProviderView, paused: AbstractSet[tuple[str, str]], now: str) -> ProviderRow:
    is_paused = not paused.isdisjoint({("provider", provider.identity), ("channel", provider.channel)})
    remarks = ["paused"] if is_paused else []
    if not provider.enabled:
        state = Cell("disabled", "off", *remarks)
    elif provider.breaker != "closed":
        remarks = [ago(provider.since, now), *remarks] if provider.since else remarks
        state = Cell("probing" if provider.breaker == "probing" else "down", "bad", ", ".join(remarks))
    elif is_paused:
        state = Cell("paused", "held")
    elif provider.refused_settings:
        state = Cell("refusing", "fair", f"{len(provider.refused_settings)} settings")
    elif provider.share is not None and provider.share < 1:
        state = Cell("slow", "fair", f"{provider.share:.0%} of its share")
    else:
        state = Cell("up", "good")
    return ProviderRow("provider", provider.identity, state, is_paused, [provider], now)


def pause_notice(pause: Paused, now: str) -> Notice:
    """Return what is paused, since when, by whom and why; the instant is its end."""
    what = pause.kind if pause.kind == "intake" else f"{pause.kind} {pause.key}"
    who = pause.caller or pause.user
    by = f" by {who}" if who else ""
    why = f": {pause.reason}" if pause.reason else ""
    waits = f" ({_counted(pause.messages, 'message waits', 'messages wait')})" if pause.messages else ""
    return Notice("held", what, f"{ago(pause.since, now)}{by}{why}{waits}", pause.until)


def left_out_of_paused(overview: Overview) -> str:
    """Return how many pauses the overview leaves out."""
    left_out = overview.paused_left_out
    return f"and {left_out:,} more: see deliveryd paused" if left_out else ""


def reload_of(overview: Overview) -> tuple[str, Sequence[str]]:
    """Return the last reload of the configuration, and what it changed or was refused for."""
    reload = overview.last_reload
    if reload is None:
        return f"as read at the start, {age(overview.uptime_seconds)} ago", ()
    items = [*reload.problems, *reload.changes]
    more = [f"and {len(items) - _ITEMS_SHOWN} more"] if len(items) > _ITEMS_SHOWN else []
    words = _RELOADS.get(reload.outcome, reload.outcome)
    return f"reload {ago(reload.at, overview.at)}: {words}", [*items[:_ITEMS_SHOWN], *more]


def warnings_of(overview: Overview) -> Iterator[Notice]:
    """Yield the last lines of the log from warning on, the latest first; the instant is when it was."""
    for line in reversed(overview.warnings):
        shown = {name: value for name, value in line.items() if name not in ("at", "level", "event")}
        fields = " ".join(f"{name}={value}" for name, value in shown.items())[:_LONGEST_FIELDS]
        level: NoticeLevel = "fair" if line.get("level") == "warning" else "bad"
        yield Notice(level, str(line["event"]), fields, str(line["at"]))


def level_of(overview: Overview, notices: list[Notice]) -> NoticeLevel:
    """Return how the worker is, in a word."""
    if not (overview.alive and overview.ready):
        return "bad"
    return "fair" if any(notice.level != "good" for notice in notices) else "good"


def notices_of(overview: Overview) -> list[Notice]:
    """Return what needs attention, the most urgent first."""
    found = [*_of_worker(overview), *_of_events(overview)]
    for provider in overview.providers:
        found += _of_provider(provider, overview.at)
    return sorted(found, key=lambda notice: ("bad", "fair", "good").index(notice.level))


def _of_worker(overview: Overview) -> Iterator[Notice]:
    if not overview.alive and overview.loops:
        loop, seconds = max(overview.loops.items(), key=lambda item: item[1])
        yield Notice("bad", "Worker", f"The loop {loop} has stood still for {age(seconds)}.")
    if overview.disk is not None:
        yield from _of_disk(overview.disk)
    if (limits := overview.safety) is not None:
        text = limits_text(limits.only_to, limits.share)
        yield Notice("fair", "Safety", f"{text[:1].upper()}{text[1:]}.")
    yield from _of_limits(overview.limits)
    for each in overview.paused:
        if each.caller == COST_GUARD:
            then = f"If that is meant: deliveryd resume settings {each.key}."
            text = f"Paused by cost_guard: {each.reason}. {then}"
            yield Notice("fair", f"Settings {each.key}", text)
    if overview.malformed:
        count = _counted(overview.malformed, "element of the queue was", "elements of the queue were")
        yield Notice("fair", "Queue", f"{count} malformed and set aside: see deliveryd dead list.")
    if (reload := overview.last_reload) is not None and reload.problems:
        count = _counted(len(reload.problems), "problem", "problems")
        text = f"The last reload, {ago(reload.at, overview.at)}, was refused with {count}."
        yield Notice("fair", "Configuration", text)


def _of_limits(limits: Sequence[LimitView]) -> Iterator[Notice]:
    """Budgets of which 80 % are used, and what messages wait for."""
    for each in limits:
        waits = f" {_counted(each.waiting, 'message waits', 'messages wait')}." if each.waiting else ""
        name = f"{each.kind.capitalize()} of {each.name}"
        if each.kind == "budget" and each.used >= NEARLY_SPENT * each.most:
            yield Notice("fair", name, f"{each.used:,} of {each.text} are used.{waits}", each.until)
        elif waits:
            yield Notice("fair", name, f"{each.text}.{waits}", each.until)


def _of_disk(disk: Disk) -> Iterator[Notice]:
    if disk.free < disk.reserve:
        text = f"{size(disk.free)} are free, less than the reserve of {size(disk.reserve)}: nothing is taken."
        yield Notice("bad", "Disk", text)
    elif disk.free < DISK_MARGIN * disk.reserve:
        text = f"{size(disk.free)} are free. Below {size(disk.reserve)} nothing more is taken."
        yield Notice("fair", "Disk", text)


def _of_events(overview: Overview) -> Iterator[Notice]:
    oldest = overview.oldest.event
    if overview.events.waiting and oldest is not None and oldest >= EVENT_PATIENCE:
        count = _counted(overview.events.waiting, "status event waits", "status events wait")
        yield Notice("fair", "Service", f"{count} to be accepted, the oldest for {age(oldest)}.")
    if overview.events.failing:
        count = _counted(overview.events.failing, "message has", "messages have")
        text = f"{count} an event that the service fails at: see events.failing in the log."
        yield Notice("fair", "Service", text)
    if overview.events.refused:
        count = _counted(overview.events.refused, "status event was", "status events were")
        yield Notice("fair", "Service", f"{count} refused and set aside: see deliveryd dead list.")


def _of_provider(provider: ProviderView, now: str) -> Iterator[Notice]:
    name = provider.identity
    if provider.breaker != "closed" and provider.since is not None:
        seconds = seconds_between(provider.since, now)
        why = f": {provider.last_failure.reason}" if provider.last_failure is not None else ""
        waiting = provider.waiting + provider.queued
        waits = f" {_counted(waiting, 'message waits', 'messages wait')} for it." if waiting else ""
        yield Notice("bad", name, f"Down for {age(seconds)}{why}.{waits} Probes continue.")
    if provider.refused_settings:
        ids = ", ".join(map(str, provider.refused_settings[:5]))
        more = len(provider.refused_settings) - 5
        text = f"Refuses all messages of settings {ids}{f' and {more} more' if more > 0 else ''}; they wait."
        yield Notice("fair", name, text)
    if provider.in_doubt:
        count = _counted(provider.in_doubt, "message is", "messages are")
        yield Notice("fair", name, f"{count} held in doubt for a decision: see deliveryd in-doubt list.")
    if provider.receipts == "silent":
        yield Notice("fair", name, "Reports no deliveries: its receipt deadlines stand still.")
    if provider.share is not None and provider.share < 1:
        text = f"Has {provider.share:.0%} of its share: its deliveries took longer than slow_after."
        yield Notice("fair", name, text)


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def figure(value: float) -> str:
    """A number with as many digits as a reader needs."""
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def measured_time(seconds: float) -> str:
    """Write a measured length of time."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else age(seconds)


def age(seconds: float) -> str:
    """Write an age, without what a reader doesn't need: seconds beside minutes, minutes beside days."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours == 0:
        return f"{minutes} min"
    if days == 0:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def seconds_between(at: str, now: str) -> float:
    """Return the seconds from one instant to another; 0 if it lies ahead."""
    return max(parse_instant(now) - parse_instant(at), 0) / SECOND


def ago(at: str, now: str) -> str:
    """Write how long ago an instant was."""
    return f"{age(seconds_between(at, now))} ago"


def size(number: int) -> str:
    """Write a number of bytes."""
    value, unit = float(number), _SIZES[0]
    for unit in _SIZES:  # noqa: B007 - the last one is used
        if value < 1024:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"


def time_of_day(at: str, now: str) -> str:
    """Write an instant as its time of day in UTC, with its date if that isn't today."""
    return f"{at[11:19]} UTC" if at[:10] == now[:10] else f"{at[:10]} {at[11:19]} UTC"
