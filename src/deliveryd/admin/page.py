"""The status page: one document, and its regions, which the page's script replaces as they change.

Everything is drawn here, so that the page shows the same with a script and without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import NamedTuple

from deliveryd.admin.dialogs import DIALOGS, SESSION, button
from deliveryd.admin.plots import plot
from deliveryd.admin.sections import (
    Cell,
    Fact,
    Notice,
    ProviderRow,
    channel_rows,
    facts_of,
    headline,
    left_out_of_paused,
    notices_of,
    pause_notice,
    process_of,
    rates_of,
    reload_of,
    time_of_day,
    warnings_of,
)
from deliveryd.telemetry.overview import Overview, Points

Regions = Mapping[str, str]
"""The content of each region of the page, by the id of its element."""

_RATES = ("taken", "sent", "delivered", "failed")
_FACTS = ("in flight", "waiting", "events", "journal")
_COLUMNS = ("state", "waiting", "under way", "rate", "in doubt", "receipts", "last failure")
_WARNINGS_SHOWN = 12


def live_regions(overview: Overview) -> Regions:
    """The regions that may change every second."""
    now = overview.at
    warnings = [_line(each, now) for each in warnings_of(overview)]
    return {
        "state": _state(headline(overview)),
        "notices": "".join(
            f'<li class="{each.level}"><b>{escape(each.about)}</b> <span>{escape(each.text)}</span></li>'
            for each in notices_of(overview)
        ),
        **{
            f"now-{name}": _measured(each, "", [f"{minute} last minute"])
            for name, each, minute in rates_of(overview)
        },
        **{_id(fact.name): _fact(fact) for fact in facts_of(overview)},
        "providers": "".join(_channels(overview)),
        "paused": _paused(overview),
        "reload": _reload(*reload_of(overview)),
        "warnings": "".join(warnings[:_WARNINGS_SHOWN]) or '<li class="calm">None since the start.</li>',
        "foot": escape(", ".join(process_of(overview))),
    }


def plots(hour: Points) -> Regions:
    """The regions that change when the history grows."""
    rates = {
        f"plot-{name}": plot(f"{_sentence(name)} per second", "/s", (name, getattr(hour, name)))
        for name in _RATES
    }
    return {**rates, "plot-delay": plot("Delay", " s", ("p99", hour.p99), ("p50", hour.p50))}


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
        _tile(name, f"{_sentence(name)} {extras.retry if name == 'failed' else ''}", f"now-{name}", regions)
        for name in _RATES
    )
    delay = _tile("delay", "Delay, take to send", "delay", regions)
    facts = "".join(
        f'<section class="fact"><h2>{_sentence(name)}</h2><div id="{_id(name)}">{regions[_id(name)]}</div>'
        "</section>"
        for name in _FACTS
    )
    titles = ("provider", *_COLUMNS)
    heads = "".join(f'<th scope="col" role="columnheader">{_sentence(title)}</th>' for title in titles)
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


def _tile(name: str, title: str, number: str, regions: Regions) -> str:
    return (
        f'<section class="tile {name}"><h2>{title}</h2><div id="{number}">{regions[number]}</div>'
        f'<div id="plot-{name}">{regions[f"plot-{name}"]}</div></section>'
    )


def _id(name: str) -> str:
    return name.replace(" ", "-")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _state(head: Cell) -> str:
    return (
        f'<p class="word {head.level}"><span class="dot" aria-hidden="true"></span>{head.text}</p>'
        f'<p class="reason">{escape(_sentence(head.aside))}.</p>'
    )


def _fact(fact: Fact) -> str:
    measured = _measured(fact.number, fact.unit, fact.asides)
    if fact.share is None:
        return measured
    value = f"{min(fact.share, 1):.4f}"
    return f'{measured}<meter min="0" max="1" value="{value}" aria-label="{_sentence(fact.name)}"></meter>'


def _measured(number: str, unit: str, asides: Iterable[str]) -> str:
    beside = "".join(f'<p class="aside">{escape(aside)}</p>' for aside in asides)
    return f'<p class="number">{number}<small> {escape(unit)}</small></p>{beside}'


def _channels(overview: Overview) -> Iterator[str]:
    for channel, providers in channel_rows(overview):
        yield _row("single" if channel.is_single else "channel", channel.name, channel)
        if not channel.is_single:
            yield from (_row("inner", each.name.partition("/")[2] or each.name, each) for each in providers)


def _row(kind: str, name: str, row: ProviderRow) -> str:
    all_cells = row.cells()
    cells = {title: _cell(all_cells[title]) for title in _COLUMNS}
    if not row.is_paused:
        cells["state"] += f" {button('pause', 'Pause', row.kind, row.name)}"
    inner = "".join(
        f'<td role="cell" data-label="{_sentence(title)}">{cell}</td>' for title, cell in cells.items()
    )
    return f'<tr role="row" class="{kind}"><th scope="row" role="rowheader">{escape(name)}</th>{inner}</tr>'


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.level is not None:
        text = f'<span class="{"aside" if cell.level == "off" else f"tag {cell.level}"}">{text}</span>'
    return f"{text} <small>{escape(cell.aside)}</small>" if cell.aside else text


def _paused(overview: Overview) -> str:
    listed = []
    for pause in overview.paused:
        notice = pause_notice(pause, overview.at)
        until = f", until {_clock(notice.at, overview.at)}" if notice.at else ""
        resume = button("resume", "Resume", pause.kind, pause.key)
        listed.append(f"<li><b>{escape(notice.about)}</b> {escape(notice.text)}{until}{resume}</li>")
    if left_out := left_out_of_paused(overview):
        listed.append(f"<li>{left_out}</li>")
    return "".join(listed) or '<li class="calm">Nothing is paused.</li>'


def _reload(text: str, items: Iterable[str]) -> str:
    listed = "".join(f"<li>{escape(item)}</li>" for item in items)
    return f'<p>{escape(_sentence(text))}</p><ul class="problems">{listed}</ul>'


def _line(notice: Notice, now: str) -> str:
    """A line of the log."""
    return (
        f'<li class="{notice.level}">{_clock(notice.at or now, now)} <b>{escape(notice.about)}</b>'
        f" <span>{escape(notice.text)}</span></li>"
    )


def _clock(at: str, now: str) -> str:
    """Write an instant in UTC; the page's script puts in the reader's own time."""
    return f'<time datetime="{at}">{time_of_day(at, now)}</time>'
