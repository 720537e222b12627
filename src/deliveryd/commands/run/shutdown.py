"""The notice on a terminal after Ctrl-C while a worker runs."""

from __future__ import annotations

import sys

from deliveryd.commands.common.output import print_errors
from deliveryd.model import format_duration
from deliveryd.worker.supervisor import Ending


def announce_shutdown(ending: Ending) -> None:
    """Print what is still in progress, for how long at most, and how to exit at once.

    Prints nothing if standard error isn't a terminal; the log has the same facts.
    """
    if not sys.stderr.isatty():
        return
    if ending.under_way:
        messages = "1 message is" if ending.under_way == 1 else f"{ending.under_way:,} messages are"
        what = f"{messages} being sent, and the outcomes are reported"
    else:
        what = "The last outcomes are reported"
    print_errors(
        "",
        f"deliveryd: stopping; no more messages are taken. {what}."
        f" This takes {format_duration(ending.seconds)} at most.",
        "deliveryd: press Ctrl-C again to exit at once; the next start resumes unfinished work.",
    )
