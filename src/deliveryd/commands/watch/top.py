"""`deliveryd top`: the state of a running worker, live."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated, Self

import typer
from rich.text import Text

from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import ConfigOption
from deliveryd.commands.common.text_output import print_texts, width_of
from deliveryd.commands.watch.screen import Screen
from deliveryd.commands.watch.screens import status_lines
from deliveryd.commands.watch.top_view import TopState, draw, press
from deliveryd.commands.watch.watched import Watched, read_overview
from deliveryd.commands.watch.watching import UrlOption, watched
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
