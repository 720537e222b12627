"""What `status` and `top` show, by the overview, the keys and the width: no terminal is needed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.text import Text

from deliveryd.admin.page import live_regions
from deliveryd.admin.sections import Cell
from deliveryd.commands.common.text_output import safe
from deliveryd.commands.watch.status import Column, fitted, fitted_table, provider_rows, status_lines
from deliveryd.commands.watch.top import KEYS, SORTS, TopState, View, draw, press
from deliveryd.commands.watch.watched import read_overview
from deliveryd.errors import DeliverydError
from deliveryd.telemetry.overview import Overview, Paused, as_json
from support.overviews import BUSY, DOWN, IDLE, provider

OVERVIEWS = {"idle": IDLE, "busy": BUSY, "down": DOWN}
WIDTHS = (10, 20, 40, 60, 80, 120, 200)


def shown(lines: list[Text]) -> str:
    """Lines as text."""
    return "\n".join(line.plain for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", OVERVIEWS)
def test_no_line_of_a_status_is_wider_than_the_terminal(name: str, width: int) -> None:
    """At any width, however much there is to tell."""
    assert all(line.cell_len <= width for line in status_lines(OVERVIEWS[name], width))


def test_what_matters_stays_at_40_columns() -> None:
    """Which provider is down, how much waits for it, and why; concurrency and counts give way."""
    text = shown(status_lines(DOWN, 40))
    assert text.startswith("NEEDS ATTENTION")
    assert "sms              down    183,921" in text
    assert "! sms: Down for 20 min: the connection\n  was refused." in text
    assert "settings 17, 15 min ago by anna: wrong" in text
    assert "under way" not in text


def test_a_wide_terminal_shows_the_last_failure() -> None:
    """With every column."""
    text = shown(status_lines(DOWN, 160))
    for title in ("under way", "in doubt", "accepted", "failed", "receipts", "last failure"):
        assert title in text
    assert "provider answered 503" in text


def test_the_limit_of_a_rate_stands_beside_it_with_its_unit() -> None:
    """In `status` and `top`, and without a column where no provider has one."""
    overview = replace(IDLE, providers=[provider("sms/one", rate=1.9, rate_limit="50 parts/s")])
    for lines in (status_lines(overview, 120), draw(TopState(View.PROVIDERS), overview, 120, 40)):
        heads = next(line.plain for line in lines if " rate  " in line.plain)
        row = next(line.plain for line in lines if line.plain.startswith("sms/one"))
        assert "1.9/s  50 parts/s" in row
        assert row.index("50 parts/s") + len("50 parts/s") == heads.index("limit") + len("limit")
    without = replace(IDLE, providers=[provider("sms/one")])
    assert "limit" not in shown(status_lines(without, 200))


def test_a_pause_that_ends_on_another_day_says_on_which() -> None:
    """Today's end is a time of day."""
    ends = [IDLE.at.replace(IDLE.at[11:], "23:59:59.000000Z"), "2126-11-24T13:55:00.000000Z"]
    pauses = [Paused("channel", "sms", IDLE.at, end, 0, "anna", None, None) for end in ends]
    text = shown(status_lines(replace(IDLE, paused=pauses), 120))
    assert "by anna, until 23:59:59 UTC\n" in text
    assert "by anna, until 2126-11-24 13:55:00 UTC" in text


def test_every_key_is_named_on_eighty_columns() -> None:
    """At 40 the views have only their keys."""
    assert draw(TopState(), IDLE, 80, 24)[-1].plain.startswith("c channels  p providers")
    assert draw(TopState(), IDLE, 40, 24)[-1].plain.startswith("c p a x w views")
    assert "nothing sent for a minute" in draw(TopState(), IDLE, 80, 24)[3].plain


def test_what_is_paused_is_named_and_its_providers_say_so() -> None:
    """Those of a paused channel, and a paused one; the intake has no name of its own."""
    pauses = [
        Paused(kind, key, IDLE.at, None, 0, "anna", None, None)
        for kind, key in (("intake", "intake"), ("channel", "sms"), ("provider", "messenger/south"))
    ]
    overview = replace(BUSY, paused=pauses)
    assert "! intake, " in shown(status_lines(overview, 120))
    rows = provider_rows(overview)
    stopped = {each.identity for each in BUSY.providers if each.channel == "sms"} | {"messenger/south"}
    assert {row.name for row in rows if row.state.text == "paused"} == stopped


def test_pauses_that_are_left_out_are_counted() -> None:
    overview = replace(DOWN, paused_left_out=1900)
    assert "and 1,900 more: see deliveryd paused" in shown(status_lines(overview, 120))
    assert "and 1,900 more: see deliveryd paused" in live_regions(overview)["paused"]


def test_a_worker_that_is_not_ready_is_told_so_first() -> None:
    """The word and the reason."""
    lines = status_lines(replace(BUSY, ready=False, reason="the service accepts no events"), 80)
    assert lines[0].plain.startswith("NOT READY")
    assert lines[1].plain == "the service accepts no events"


def test_a_table_gives_up_its_least_important_columns_first() -> None:
    """Then the first column is cut off, and in the end the line."""
    columns = [
        Column("name", [Cell("a-long-name-of-a-provider")]),
        Column("n", [Cell("12")], 0, True),
        Column("rate", [Cell("1,000/s")], 1, True),
        Column("more", [Cell("x")], 2),
    ]
    assert shown(fitted_table(columns, 60)).splitlines()[1] == "a-long-name-of-a-provider  12  1,000/s  x"
    assert shown(fitted_table(columns, 39)).splitlines()[1] == "a-long-name-of-a-provider  12  1,000/s"
    assert shown(fitted_table(columns, 30)).splitlines()[1] == "a-long-name-of-a-provider  12"
    assert shown(fitted_table(columns, 20)).splitlines()[1] == "a-long-name-of-…  12"
    assert all(line.cell_len <= 6 for line in fitted_table(columns, 6))


def test_a_text_is_cut_by_the_cells_that_it_takes() -> None:
    """Wide characters take two."""
    assert fitted("abcdef", 6) == "abcdef"
    assert fitted("abcdefg", 6) == "abcde…"
    assert fitted("日本語", 4) == "日…"
    assert fitted("abc", 0) == ""


# top


def keys(text: str, overview: Overview = BUSY) -> TopState:
    """The state after keys, by their names."""
    state = TopState()
    for key in text.split():
        state = press(state, key, overview)
    return state


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (20, 4), (40, 12), (40, 40), (80, 24), (200, 60)])
@pytest.mark.parametrize("name", OVERVIEWS)
def test_every_view_fits_the_screen(name: str, size: tuple[int, int]) -> None:
    """Exactly as many lines as there are, none too wide, whatever is pressed."""
    width, height = size
    for key in (*KEYS, "enter", "esc"):
        state = press(TopState(), key, OVERVIEWS[name])
        for trouble in (None, "no answer for 7 s: no worker is running"):
            lines = draw(state, OVERVIEWS[name], width, height, trouble)
            assert len(lines) == height
            assert all(line.cell_len <= width for line in lines)


def test_each_view_has_a_key() -> None:
    """And shows what its name says."""
    assert set(KEYS.values()) == set(View)
    assert "channels, by name" in shown(draw(keys("c"), DOWN, 80, 40))
    assert "messenger/south" in shown(draw(keys("p"), DOWN, 80, 40))
    assert "Down for 20 min" in shown(draw(keys("a"), DOWN, 80, 40))
    assert "wrong price in the text" in shown(draw(keys("x"), DOWN, 80, 40))
    assert "message.in_doubt" in shown(draw(keys("w"), DOWN, 80, 40))
    assert "Enter opens it" in shown(draw(keys("?"), DOWN, 80, 40))
    assert "nothing" in shown(draw(keys("w"), IDLE, 80, 40))


def test_a_channel_is_opened_for_its_providers() -> None:
    """The selected one; Esc goes back; a channel that is gone leaves the selection within the list."""
    state = keys("down down enter")
    assert state.channel == "messenger"
    text = shown(draw(state, BUSY, 100, 40))
    assert "providers of messenger, by name" in text
    assert "messenger/north" in text
    assert "inApp" not in text
    assert press(state, "esc", BUSY).channel is None
    few = replace(BUSY, providers=BUSY.providers[:1])
    assert press(keys("down down down"), "enter", few).channel == "inApp"
    none = replace(BUSY, providers=[])
    assert press(keys("enter", none), "down", none).channel is None


def test_long_lists_scroll() -> None:
    """A selected channel stays on a small screen, and other lists move by a line, down to the last one."""
    many = replace(BUSY, providers=[provider(f"c{number:02}") for number in range(30)])
    state = keys("down " * 25, many)
    assert "c25" in shown(draw(state, many, 60, 12))
    assert "c05" not in shown(draw(state, many, 60, 12))
    state = keys("p " + "down " * 40, many)
    assert state.first == 29
    assert "c29" in shown(draw(state, many, 60, 12))
    assert press(state, "up", many).first == 28
    assert press(state, "c", many).first == 0


def test_s_sorts_by_the_next_column() -> None:
    """The largest number first, and around to names again."""
    state, orders = TopState(), []
    for _ in SORTS:
        rows = shown(draw(state, DOWN, 80, 40)).partition(f"channels, by {state.sort}")[2].splitlines()
        orders.append((state.sort, rows[2].split()[0]))
        state = press(state, "s", DOWN)
    assert orders == [
        ("name", "email"), ("waiting", "sms"), ("rate", "messenger"), ("in doubt", "sms"),
        ("failed", "email"),
    ]  # fmt: skip
    assert state.sort == "name"


def test_a_hostile_worker_cannot_steer_the_terminal() -> None:
    """Escapes in a reason are shown, not obeyed."""
    (shown_line,) = [safe(line) for line in status_lines(replace(IDLE, reason="a\x1b[2Jb"), 80)[1:2]]
    assert shown_line.plain == r"a\x1b[2Jb"


# reading


@pytest.mark.parametrize("name", OVERVIEWS)
def test_an_overview_is_read_as_it_was_written(name: str) -> None:
    """From the JSON of /status and of the control socket."""
    overview = OVERVIEWS[name]
    assert as_json(read_overview(json.loads(json.dumps(as_json(overview))))) == as_json(overview)


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"version": "9.9"},
        {**as_json(BUSY), "providers": 7},  # type: ignore[dict-item]
        {**as_json(BUSY), "delay": []},  # type: ignore[dict-item]
    ],
)
def test_the_state_of_another_version_is_named_as_such(status: dict[str, object]) -> None:
    """One error for whatever is missing."""
    with pytest.raises(DeliverydError, match="the worker is of version"):
        read_overview(status)
