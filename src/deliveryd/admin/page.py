"""The status page: one document, and its regions, which the page's script replaces as they change.

Everything is drawn here, so that the page shows the same with a script and without one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from deliveryd.admin.dialogs import DIALOGS, SESSION, button
from deliveryd.admin.notices import NoticeLevel, level_of, notices_of
from deliveryd.admin.plots import figure, plot
from deliveryd.admin.words import age, ago, clock, measured_time, size
from deliveryd.telemetry.overview import Overview, Paused, Points, ProviderView

_PausedItems = Collection[tuple[str, str]]
"""The kinds and keys of what is paused."""

Regions = Mapping[str, str]
"""The content of each region of the page, by the id of its element."""

_RATES = (("taken", "Taken"), ("sent", "Sent"), ("delivered", "Delivered"), ("failed", "Failed"))
_COLUMNS = (
    "Provider", "State", "Waiting", "Under way", "Rate", "In doubt", "Receipts", "Last failure"
)  # fmt: skip
_WORKING = '<span class="tag good">working</span>'
_WARNINGS_SHOWN = 12
_ITEMS_SHOWN = 8
_LONGEST_LINE = 300
_RELOADS = {
    "applied": "applied; this has changed:",
    "unchanged": "nothing had changed.",
    "refused": "refused; the configuration before stays in force.",
}
_STATES: Mapping[NoticeLevel, str] = {"good": "Well", "fair": "Needs attention", "bad": "Not ready"}


def live_regions(overview: Overview) -> Regions:
    """The regions that may change every second."""
    notices = notices_of(overview)
    level = level_of(overview, notices)
    return {
        "state": _state(overview, level),
        "notices": "".join(
            f'<li class="{each.level}"><b>{escape(each.about)}</b> <span>{escape(each.text)}</span></li>'
            for each in notices
        ),
        **{f"now-{name}": _rate(overview, name) for name, _ in _RATES},
        "now-delay": _delay(overview),
        "places": _meter(
            overview.in_flight,
            overview.in_flight_limit,
            f"of {overview.in_flight_limit:,} places",
            "In flight",
        ),
        "waits": _waits(overview),
        "events": _events(overview),
        "disk": _disk(overview),
        "providers": _providers(overview),
        "paused": _paused(overview),
        "reload": _reload(overview),
        "warnings": _warnings(overview),
        "foot": _foot(overview),
    }


def plots(hour: Points) -> Regions:
    """The regions that change when the history grows."""
    return {
        **{
            f"plot-{name}": plot(f"{title} per second", "/s", (name, getattr(hour, name)))
            for name, title in _RATES
        },
        "plot-delay": plot("Delay", " s", ("p99", hour.p99), ("p50", hour.p50)),
    }


class Extras(NamedTuple):
    """What a page has that can order something."""

    scripts: str = ""
    session: str = ""
    dialogs: str = ""
    pause: str = ""
    retry: str = ""
    reload: str = ""


READS = Extras()
ORDERS = Extras(
    '\n<script src="/page/actions.js" defer></script>',
    SESSION,
    DIALOGS,
    button("pause", "Pause …"),
    button("retry", "Send again …"),
    button("reload", "Reload"),
)


def document(regions: Regions, extras: Extras = READS) -> str:
    """The page with its regions filled."""
    tiles = "".join(
        _tile(name, f"{title} {extras.retry}" if name == "failed" else title, regions)
        for name, title in _RATES
    )
    delay = _tile("delay", "Delay, take to send", regions)
    facts = "".join(
        f'<section class="fact"><h2>{title}</h2><div id="{name}">{regions[name]}</div></section>'
        for name, title in (
            ("places", "In flight"), ("waits", "Waiting"), ("events", "Events"), ("disk", "Journal")
        )
    )  # fmt: skip
    heads = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in _COLUMNS)
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>deliveryd</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/page.css">
<script src="/page/page.js" defer></script>{extras.scripts}
</head>
<body>
<header>
<h1>deliveryd</h1>
<div class="session"><p id="link" role="status">as of the time it was loaded</p>{extras.session}</div>
</header>
<p id="outcome" role="status"></p>
<main>
<section id="state" class="state" aria-live="polite" aria-atomic="true">{regions["state"]}</section>
<ul id="notices" class="notices" aria-live="polite" aria-label="Attention">{regions["notices"]}</ul>
<div class="tiles">{tiles}{delay}</div>
<div class="facts">{facts}</div>
<section class="wide"><h2 id="providers-title">Providers</h2>
<table role="table" aria-labelledby="providers-title">
<thead role="rowgroup"><tr role="row">{heads}</tr></thead>
<tbody role="rowgroup" id="providers">{regions["providers"]}</tbody>
</table></section>
<div class="pair">
<section><h2>Paused {extras.pause}</h2><ul id="paused" class="list">{regions["paused"]}</ul></section>
<section><h2>Configuration {extras.reload}</h2>
<div id="reload" class="text">{regions["reload"]}</div></section>
</div>
<section><h2>Last warnings of the log</h2><ol id="warnings" class="log">{regions["warnings"]}</ol></section>
</main>
{extras.dialogs}
<footer><p id="foot">{regions["foot"]}</p>
<p><a href="/status">Status as JSON</a> <a href="/metrics">Metrics</a> <a href="/readyz">Readiness</a>
<a href="/livez">Liveness</a></p></footer>
</body>
</html>
"""


def _tile(name: str, title: str, regions: Regions) -> str:
    return (
        f'<section class="tile {name}"><h2>{title}</h2><p class="number" id="now-{name}">'
        f'{regions[f"now-{name}"]}</p><div id="plot-{name}">{regions[f"plot-{name}"]}</div></section>'
    )


def _state(overview: Overview, level: NoticeLevel) -> str:
    word = "Stuck" if not overview.alive else _STATES[level]
    reason = overview.reason
    return (
        f'<p class="word {level}"><span class="dot" aria-hidden="true"></span>{word}</p>'
        f'<p class="reason">{escape(reason[:1].upper() + reason[1:])}.</p>'
    )


def _rate(overview: Overview, name: str) -> str:
    now, minute = getattr(overview.rates_10s, name), getattr(overview.rates_60s, name)
    return f'{figure(now)}<small> /s</small> <span class="aside">{figure(minute)} /s last minute</span>'


def _delay(overview: Overview) -> str:
    delay = overview.delay
    if delay.p50 is None or delay.p99 is None:
        return '-<span class="aside">nothing sent in the last minute</span>'
    return (
        f'{measured_time(delay.p50)}<small> p50</small> <span class="aside">{measured_time(delay.p99)} p99,'
        " last minute</span>"
    )


def _meter(value: int, most: int, words: str, label: str) -> str:
    return (
        f'<p class="number">{value:,}<small> {words}</small></p>'
        f'<meter min="0" max="{most}" value="{min(value, most)}" aria-label="{label}"></meter>'
    )


def _waits(overview: Overview) -> str:
    waiting, in_doubt = (overview.messages.get(state, 0) for state in ("waiting", "in_doubt"))
    oldest = overview.oldest.message
    lines = [f"oldest {age(oldest)}" if oldest is not None else "no message is open"]
    if overview.waiting_unbound:
        lines.append(f"{overview.waiting_unbound:,} for settings, a customer or a free provider")
    if in_doubt:
        lines.append(f"{in_doubt:,} in doubt")
    noun = "message" if waiting == 1 else "messages"
    return f'<p class="number">{waiting:,}<small> {noun}</small></p>{_lines(lines)}'


def _events(overview: Overview) -> str:
    oldest, refused = overview.oldest.event, overview.events.refused
    lines = [f"oldest {age(oldest)}" if oldest is not None else "all accepted by the service"]
    if refused:
        lines.append(f"{refused:,} refused")
    return f'<p class="number">{overview.events.waiting:,}<small> to report</small></p>{_lines(lines)}'


def _disk(overview: Overview) -> str:
    disk = overview.disk
    if disk is None:
        return _lines(["in a database that other workers may share"])
    return (
        f'<p class="number">{size(disk.free)}<small> free on its disk</small></p>'
        f"{_lines([f'nothing is taken below {size(disk.reserve)}'])}"
    )


def _lines(lines: Iterable[str]) -> str:
    return "".join(f'<p class="aside">{escape(line)}</p>' for line in lines)


def _providers(overview: Overview) -> str:
    paused = frozenset((each.kind, each.key) for each in overview.paused)
    rows = []
    for channel, group in groupby(overview.providers, key=lambda each: each.channel):
        members = list(group)
        is_split = len(members) > 1 or members[0].identity != channel
        if is_split:
            rows.append(_channel_row(channel, members, paused))
        rows += [_provider_row(each, overview.at, paused, is_inner=is_split) for each in members]
    return "".join(rows)


def _channel_row(channel: str, members: Sequence[ProviderView], paused: _PausedItems) -> str:
    waiting, under_way, in_doubt = (
        sum(getattr(each, name) for each in members) for name in ("waiting", "under_way", "in_doubt")
    )
    rate = sum(each.rate for each in members)
    down = sum(each.breaker != "closed" for each in members)
    state = "1 provider" if len(members) == 1 else f"{len(members)} providers"
    if down:
        state = f"{down} of {len(members)} down"
    if ("channel", channel) in paused:
        state = '<span class="tag held">paused</span>'
    else:
        state += button("pause", "Pause", "channel", channel)
    return _row(
        "channel",
        channel,
        [state, f"{waiting:,}", f"{under_way:,}", f"{figure(rate)} /s", f"{in_doubt:,}", "", ""],
    )


def _provider_row(each: ProviderView, now: str, paused: _PausedItems, *, is_inner: bool) -> str:
    name = each.identity.partition("/")[2] or each.identity
    waiting = f"{each.waiting:,}" + (f" <small>+ {each.queued:,} queued</small>" if each.queued else "")
    limit = f" <small>of {escape(each.rate_limit)}</small>" if each.rate_limit else ""
    failure = each.last_failure
    cells = [
        _provider_state(each, now, paused, is_inner=is_inner),
        waiting,
        f"{each.under_way:,} <small>of {each.concurrency:,}</small>",
        f"{figure(each.rate)} /s{limit}",
        f'<b class="fair">{each.in_doubt:,}</b>' if each.in_doubt else "0",
        _receipts(each),
        f"{escape(failure.reason)} <small>{escape(ago(failure.at, now))}</small>" if failure else "",
    ]
    return _row("inner" if is_inner else "single", name, cells, key=each.identity)


def _row(kind: str, name: str, cells: Sequence[str], key: str = "") -> str:
    labelled = zip(_COLUMNS[1:], cells, strict=True)
    inner = "".join(f'<td role="cell" data-label="{label}">{cell}</td>' for label, cell in labelled)
    attribute = f' data-key="{escape(key)}"' if key else ""
    head = f'<th scope="row" role="rowheader">{escape(name)}</th>'
    return f'<tr role="row" class="{kind}"{attribute}>{head}{inner}</tr>'


def _provider_state(each: ProviderView, now: str, paused: _PausedItems, *, is_inner: bool) -> str:
    """Its state, and whether it is paused, else the button; a channel's only one is paused as the channel."""
    what = ("provider", each.identity) if is_inner else ("channel", each.channel)
    is_paused = what in paused or ("provider", each.identity) in paused
    held = '<span class="tag held">paused</span>' if is_paused else button("pause", "Pause", *what)
    trouble = _trouble(each, now)
    if is_paused and trouble is None:
        return held
    return f"{trouble or _WORKING} {held}"


def _trouble(each: ProviderView, now: str) -> str | None:
    if not each.enabled:
        return '<span class="tag off">disabled</span>'
    if each.breaker != "closed":
        word = "probing" if each.breaker == "probing" else "down"
        since = f" <small>{escape(ago(each.since, now))}</small>" if each.since else ""
        return f'<span class="tag bad">{word}</span>{since}'
    if each.refused_settings:
        return f'<span class="tag fair">refuses {len(each.refused_settings)} settings</span>'
    return None


def _receipts(each: ProviderView) -> str:
    if each.receipts == "none":
        return '<span class="aside">none</span>'
    if each.receipts == "silent":
        return '<span class="tag fair">silent</span>'
    late = each.unconfirmed + each.overdue
    return f"{each.delivered:,} delivered" + (f" <small>{late:,} late</small>" if late else "")


def _paused(overview: Overview) -> str:
    if not overview.paused:
        return '<li class="calm">Nothing is paused.</li>'
    listed = "".join(_pause(each, overview.at) for each in overview.paused)
    left_out = overview.paused_left_out
    return listed + (f"<li>and {left_out:,} more: see deliveryd paused</li>" if left_out else "")


def _pause(pause: Paused, now: str) -> str:
    what = pause.kind if pause.kind == "intake" else f"{pause.kind} {pause.key}"
    until = f", until {clock(pause.until, now)}" if pause.until else ""
    by = f" by {escape(pause.caller or pause.user or '')}" if pause.caller or pause.user else ""
    wait = "1 message waits" if pause.messages == 1 else f"{pause.messages:,} messages wait"
    held = f" <small>{wait}</small>" if pause.messages else ""
    why = f": {escape(pause.reason)}" if pause.reason else ""
    resume = button("resume", "Resume", pause.kind, pause.key)
    return f"<li><b>{escape(what)}</b> {escape(ago(pause.since, now))}{by}{why}{until}{held}{resume}</li>"


def _reload(overview: Overview) -> str:
    reload = overview.last_reload
    if reload is None:
        return f"<p>As read at the start, {escape(age(overview.uptime_seconds))} ago.</p>"
    items = [*reload.problems, *reload.changes]
    listed = "".join(f"<li>{escape(item)}</li>" for item in items[:_ITEMS_SHOWN])
    more = f"<li>and {len(items) - _ITEMS_SHOWN} more</li>" if len(items) > _ITEMS_SHOWN else ""
    words = _RELOADS.get(reload.outcome, reload.outcome)
    when = escape(ago(reload.at, overview.at))
    return f'<p>Reload {when}: {escape(words)}</p><ul class="problems">{listed}{more}</ul>'


def _warnings(overview: Overview) -> str:
    lines = list(overview.warnings)[: -_WARNINGS_SHOWN - 1 : -1]
    return (
        "".join(_warning(line, overview.at) for line in lines)
        or '<li class="calm">None since the start.</li>'
    )


def _warning(line: Mapping[str, object], now: str) -> str:
    shown = {name: value for name, value in line.items() if name not in ("at", "level", "event")}
    fields = " ".join(f"{name}={value}" for name, value in shown.items())[:_LONGEST_LINE]
    kind = "fair" if line.get("level") == "warning" else "bad"
    return (
        f'<li class="{kind}">{clock(str(line["at"]), now)} <b>{escape(str(line["event"]))}</b>'
        f" <span>{escape(fields)}</span></li>"
    )


def _foot(overview: Overview) -> str:
    return f"deliveryd {overview.version}, process {overview.pid}, running for {age(overview.uptime_seconds)}"
