"""`deliveryd top`: the state of a running worker, live."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple, Self

import typer
from rich.text import Text

from deliveryd.admin.sections import ProviderRow, channel_rows
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import ConfigOption
from deliveryd.commands.common.text_output import print_texts, width_of
from deliveryd.commands.watch.screen import Screen
from deliveryd.commands.watch.status import (
    fitted_table,
    head,
    notice_lines,
    numbers,
    paused_lines,
    provider_columns,
    reload_lines,
    status_lines,
    text_line,
    warning_lines,
)
from deliveryd.commands.watch.watched import UrlOption, Watched, read_overview, watched
from deliveryd.errors import DeliverydError
from deliveryd.options.units import parse_duration
from deliveryd.telemetry.overview import Overview

LONGEST_SLEEP = 3600.0


def _interval(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not 0.2 <= seconds <= LONGEST_SLEEP:
        raise typer.BadParameter("must be between 200ms and 1h")
    return seconds


def top(
    *,
    config: ConfigOption = USUAL_CONFIG,
    url: UrlOption = None,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="DURATION", parser=_interval, help="Time between two updates."),
    ] = "1s",  # type: ignore[assignment]  # typer parses it
    count: Annotated[
        int | None, typer.Option("--count", metavar="NUMBER", min=1, help="End after this number of updates.")
    ] = None,
) -> None:
    """Watch the running worker live.

    Press ? for the keys, q to quit. Through a pipe, or with TERM=dumb, it prints a block of lines each time.
    """
    worker = watched(config, url)
    first = read_overview(worker.status())
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _watch(worker, first, interval, count)
    else:
        _print_blocks(worker, first, interval, count)


def _print_blocks(worker: Watched, first: Overview, interval: float, count: int | None) -> None:
    overview, shown = first, 0
    try:
        while True:
            print_texts([*status_lines(overview, width_of()), Text("")])
            shown += 1
            if shown == count:
                return
            time.sleep(interval)
            overview = read_overview(worker.status())
    except KeyboardInterrupt:
        return


def _watch(worker: Watched, first: Overview, interval: float, count: int | None) -> None:
    state, shown = TopState(), 0
    with Screen() as screen:
        poller = Poller(worker, first, interval, screen.wake)
        with poller:
            while count is None or shown <= count:
                width, height = screen.size
                screen.draw(draw(state, poller.overview, width, height, poller.trouble()))
                key = screen.key(interval)
                if key == "quit":
                    return
                if key in (None, "wake"):
                    shown = poller.count
                elif key != "resize":
                    state = press(state, key, poller.overview)


class Poller:
    """Asks a worker at intervals, in a thread, so that a worker that doesn't answer holds up no key."""

    def __init__(
        self, worker: Watched, first: Overview, interval: float, on_answer: Callable[[], None]
    ) -> None:
        self._worker = worker
        self.overview = first
        self.count = 1
        self._interval = interval
        self._on_answer = on_answer
        self._problem: str | None = None
        self._answered = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()

    def trouble(self) -> str | None:
        """Return why the overview is old, if it is."""
        if self._problem is None:
            return None
        return f"no answer for {time.monotonic() - self._answered:.0f} s: {self._problem}"

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.overview = read_overview(self._worker.status())
            except DeliverydError as error:
                self._problem = str(error)
            else:
                self._problem, self._answered = None, time.monotonic()
            self.count += 1
            if not self._stop.is_set():
                self._on_answer()


# what is shown for which keys: pure functions from a state and a key to the next state, and to lines


SORTS: Mapping[str, Callable[[ProviderRow], tuple[float | str, str]]] = {
    "name": lambda row: (row.name, ""),
    "waiting": lambda row: (-row.total("waiting", "queued"), row.name),
    "rate": lambda row: (-row.total("rate"), row.name),
    "in doubt": lambda row: (-row.total("in_doubt"), row.name),
    "failed": lambda row: (-row.total("failed"), row.name),
}
"""The orders of the table, by the column that leads."""


class View(StrEnum):
    """What fills the lower part of the screen."""

    CHANNELS = "channels"
    PROVIDERS = "providers"
    ATTENTION = "attention"
    PAUSED = "paused"
    WARNINGS = "warnings"
    HELP = "help"


KEYS: Mapping[str, View] = {
    "c": View.CHANNELS,
    "p": View.PROVIDERS,
    "a": View.ATTENTION,
    "x": View.PAUSED,
    "w": View.WARNINGS,
    "?": View.HELP,
    "h": View.HELP,
}
"""The key of each view."""

_HELP = (
    "c  channels              p  providers of all channels",
    "a  what needs attention  x  what is paused, and the last reload",
    "w  last warnings         ?  this list",
    "s  sort by the next column: " + ", ".join(SORTS),
    "Up and Down select a channel, Enter opens it for its providers",
    "Esc goes back            q or Ctrl-C quits",
)
_NARROW_HELP = (
    "c channels   p providers",
    "a attention  x paused",
    "w warnings   ? this list",
    "s sort",
    "Up Down Enter: a channel",
    "Esc back     q quit",
)
_FOOT = "c channels  p providers  a attention  x paused  w log  s sort  ? help  q quit"
_NARROW_FOOT = "c p a x w views  s sort  ? help  q quit"
_BODY = 7
"""Lines that a view has at least; if there are fewer, the numbers above it are left out."""

_MEASURED = 80
"""Cells at which the length of a list is measured that a key scrolls."""

_BESIDE = 2
"""Lines below a table from which on what needs attention is shown there too."""


class TopState(NamedTuple):
    """What a user chose.

    `channel` is the open one, `selected` a place in the sorted channels, `first` the first line shown of any
    other list.
    """

    view: View = View.CHANNELS
    channel: str | None = None
    selected: int = 0
    first: int = 0
    sort: str = "name"


class _ViewBody(NamedTuple):
    """A view: its title and the heads of its columns, which stay, and its lines."""

    title: str
    heads: list[Text]
    lines: list[Text]


def press(state: TopState, key: str, overview: Overview) -> TopState:
    """Return the state after a key."""
    if key in KEYS:
        return state._replace(view=KEYS[key], channel=None, first=0)
    if key == "s":
        names = list(SORTS)
        return state._replace(sort=names[(names.index(state.sort) + 1) % len(names)])
    if key == "esc":
        return state._replace(view=View.CHANNELS, channel=None, first=0)
    step = {"up": -1, "down": 1}.get(key, 0)
    if state.view is not View.CHANNELS or state.channel is not None:
        last = max(len(_body(state, overview, _MEASURED).lines) - 1, 0)
        return state._replace(first=min(max(state.first + step, 0), last))
    rows = _channels(overview, state)
    place = min(state.selected, max(len(rows) - 1, 0))
    if key == "enter" and rows:
        return state._replace(channel=rows[place].name, selected=place, first=0)
    return state._replace(selected=min(max(place + step, 0), max(len(rows) - 1, 0)))


def draw(
    state: TopState, overview: Overview, width: int, height: int, trouble: str | None = None
) -> list[Text]:
    """Return exactly `height` lines of at most `width` cells. `trouble`: why the overview is old."""
    top = head(overview, width)
    if trouble is not None:
        top = [text_line(trouble, width, "bold red"), *top[:1]]
    body = _body(state, overview, width)
    foot = _FOOT if len(_FOOT) <= width else _NARROW_FOOT
    room = max(height - 1, 0)
    measured = [*numbers(overview, width), Text("")]
    if len(top) + len(measured) + _BODY <= room:
        top += measured
    lines = [*top, text_line(body.title, width, "bold"), *body.heads]
    lines += _window(state, body.lines, max(room - len(lines), 0))
    if state.view in (View.CHANNELS, View.PROVIDERS) and room - len(lines) > _BESIDE:
        notices = notice_lines(overview, width)
        lines += [Text(""), text_line("needs attention", width, "bold"), *notices] if notices else []
    lines = lines[:room]
    lines += [Text("")] * (room - len(lines))
    return [*lines, text_line(foot, width, "reverse dim")][:height]


def _window(state: TopState, lines: list[Text], room: int) -> list[Text]:
    """The lines of a view that have room: with the selected channel among them, or from the first one on."""
    if state.view is View.CHANNELS and state.channel is None:
        first = max(min(state.selected, len(lines) - 1) - room + 1, 0)
    else:
        first = min(state.first, max(len(lines) - room, 0))
    return lines[first : first + room]


def _body(state: TopState, overview: Overview, width: int) -> _ViewBody:
    if state.view is View.HELP:
        wide = max(map(len, _HELP)) <= width
        return _ViewBody("keys", [], [text_line(line, width) for line in (_HELP if wide else _NARROW_HELP)])
    if state.view in _LISTS:
        title, draw_list = _LISTS[state.view]
        return _ViewBody(title, [], draw_list(overview, width) or [text_line("nothing", width, "dim")])
    if state.view is View.PROVIDERS or state.channel is not None:
        of = "" if state.channel is None else f" of {state.channel}"
        channels = [rows for channel, rows in channel_rows(overview) if state.channel in (None, channel.name)]
        rows = sorted((row for each in channels for row in each), key=SORTS[state.sort])
        heads, *lines = fitted_table(provider_columns(rows, "provider"), width)
        return _ViewBody(f"providers{of}, by {state.sort}", [heads], lines)
    rows = _channels(overview, state)
    heads, *lines = fitted_table(provider_columns(rows, "channel"), width)
    if lines:
        lines[min(state.selected, len(lines) - 1)].stylize("reverse")
    return _ViewBody(f"channels, by {state.sort}", [heads], lines)


def _paused(overview: Overview, width: int) -> list[Text]:
    paused = paused_lines(overview, width) or [text_line("nothing", width, "dim")]
    return [*paused, Text(""), text_line("configuration", width, "bold"), *reload_lines(overview, width)]


_LISTS: Mapping[View, tuple[str, Callable[[Overview, int], list[Text]]]] = {
    View.ATTENTION: ("needs attention", notice_lines),
    View.PAUSED: ("paused", _paused),
    View.WARNINGS: ("last warnings", warning_lines),
}


def _channels(overview: Overview, state: TopState) -> list[ProviderRow]:
    return sorted((channel for channel, _rows in channel_rows(overview)), key=SORTS[state.sort])
