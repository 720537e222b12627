"""What `top` shows for which keys: pure functions from a state and a key to the next state, and to lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from rich.text import Text

from deliveryd.commands.watch.columns import fitted, fitted_table
from deliveryd.commands.watch.screens import (
    SORTS,
    StatusRow,
    channel_rows,
    head,
    notice_lines,
    numbers,
    paused_lines,
    provider_columns,
    provider_rows,
    reload_lines,
    warning_lines,
)
from deliveryd.telemetry.overview import Overview


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
    rows = _sorted(channel_rows(overview), state)
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
        top = [Text(fitted(trouble, width), "bold red", no_wrap=True, end=""), *top[:1]]
    body = _body(state, overview, width)
    foot = _FOOT if len(_FOOT) <= width else _NARROW_FOOT
    room = max(height - 1, 0)
    measured = [*numbers(overview, width), Text("")]
    if len(top) + len(measured) + _BODY <= room:
        top += measured
    lines = [*top, Text(fitted(body.title, width), "bold", no_wrap=True, end=""), *body.heads]
    lines += _window(state, body.lines, max(room - len(lines), 0))
    if state.view in (View.CHANNELS, View.PROVIDERS) and room - len(lines) > _BESIDE:
        notices = notice_lines(overview, width)
        lines += [Text(""), Text(fitted("needs attention", width), "bold"), *notices] if notices else []
    lines = lines[:room]
    lines += [Text("")] * (room - len(lines))
    return [*lines, Text(fitted(foot, width), "reverse dim", no_wrap=True, end="")][:height]


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
        return _ViewBody(
            "keys", [], [Text(fitted(line, width)) for line in (_HELP if wide else _NARROW_HELP)]
        )
    if state.view in _LISTS:
        title, draw_list = _LISTS[state.view]
        return _ViewBody(title, [], draw_list(overview, width) or [Text(fitted("nothing", width), "dim")])
    if state.view is View.PROVIDERS or state.channel is not None:
        providers = [each for each in overview.providers if state.channel in (None, each.channel)]
        of = "" if state.channel is None else f" of {state.channel}"
        rows = _sorted(provider_rows(providers, overview), state)
        heads, *lines = fitted_table(provider_columns(rows), width)
        return _ViewBody(f"providers{of}, by {state.sort}", [heads], lines)
    rows = _sorted(channel_rows(overview), state)
    heads, *lines = fitted_table(provider_columns(rows, "channel"), width)
    if lines:
        lines[min(state.selected, len(lines) - 1)].stylize("reverse")
    return _ViewBody(f"channels, by {state.sort}", [heads], lines)


def _paused(overview: Overview, width: int) -> list[Text]:
    reload = reload_lines(overview, width)
    nothing = [Text(fitted("nothing", width), "dim")]
    return [
        *(paused_lines(overview, width) or nothing),
        *([Text(""), Text(fitted("last reload", width), "bold"), *reload] if reload else []),
    ]


_LISTS: Mapping[View, tuple[str, Callable[[Overview, int], list[Text]]]] = {
    View.ATTENTION: ("needs attention", notice_lines),
    View.PAUSED: ("paused", _paused),
    View.WARNINGS: ("last warnings", warning_lines),
}


def _sorted(rows: Sequence[StatusRow], state: TopState) -> list[StatusRow]:
    return sorted(rows, key=SORTS[state.sort])
