"""Four weeks with a retention of seven days, and the sizes of the tables after each day."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import anyio

from deliveryd.journal.place import JournalDatabase
from retention.sizes import Sizes
from retention.weeks import Weeks, live_through
from support.output import say
from support.postgres import new_database, vacuum_often

GROWTH = 1.3
"""Where the load is small, autovacuum's thresholds are reached late."""


def main() -> int:
    """Exit status 1 when tables or indexes grew after the first weeks, or nothing could be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=28, help="to live through")
    parser.add_argument("--batches", type=int, default=50, help="of 50 messages, of each worker on each day")
    parser.add_argument("--workers", type=int, default=2, help="that share the database")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    weeks = Weeks(options.days, options.batches, 7, options.workers)
    if options.days <= weeks.steady + 1:
        parser.error(f"the tables grow for {weeks.steady} days; name more than {weeks.steady + 1}")
    url = new_database()
    if url is None:
        say("There is no PostgreSQL here.")
        return 1
    with vacuum_often(url):
        sizes, tallies = anyio.run(live_through, JournalDatabase(url), weeks)
    Sizes.heading()
    for each in sizes:
        each.line()
    early, late = sizes[weeks.steady], sizes[-1]
    growth = (late.rows + late.indexes) / (early.rows + early.indexes)
    steps, receipts = sum(each.steps for each in tallies), sum(each.receipts for each in tallies)
    say(f"{weeks.messages} taken, {steps} steps, {receipts} receipts; tables grew by {growth:.3f}")
    say(f"between day {early.day} and day {late.day}")
    figures = {"days": weeks.days, "messages": weeks.messages, "growth": growth}
    if options.json is not None:
        options.json.write_text(json.dumps(figures), encoding="utf-8")
    return 1 if growth > GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
