"""What a person at a terminal is told who pressed Ctrl-C while a worker runs."""

from __future__ import annotations

import sys

from deliveryd.cli.output import complain
from deliveryd.options.units import format_duration
from deliveryd.worker.supervisor import Ending


def tell_of_ending(ending: Ending) -> None:
    """Say what is still under way, for how long at most, and how to end at once.

    Where standard error is no terminal, the log alone says it.
    """
    if not sys.stderr.isatty():
        return
    if ending.under_way:
        messages = "1 message is" if ending.under_way == 1 else f"{ending.under_way:,} messages are"
        what = f"{messages} being sent, and what became of them is reported"
    else:
        what = "What became of the last messages is reported"
    complain(
        "",
        f"deliveryd: ending; no more is taken. {what}. That takes {format_duration(ending.seconds)} at most.",
        "deliveryd: Ctrl-C once more ends at once: the next start takes up what was left.",
    )
