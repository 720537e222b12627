"""Errors at the command line: lines on standard error, and the exit status."""

from __future__ import annotations

from deliveryd.commands.common.conventions import CONFIGURATION, FAILED, USAGE
from deliveryd.commands.common.output import print_errors
from deliveryd.errors import ConfigError, DeliverydError, JournalUnusable, UsageError, describe
from deliveryd.telemetry.log_events import Event, log


def exit_status(error: BaseException) -> int:
    """Print an error on standard error, and return the exit status (design 6)."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConfigError):
        for problem in error.problems:
            print_errors(problem)
        return CONFIGURATION
    if isinstance(error, DeliverydError):
        print_errors(f"deliveryd: {error}")
        if isinstance(error, UsageError):
            return USAGE
        return CONFIGURATION if isinstance(error, JournalUnusable) else FAILED
    log(Event.WORKER_DIED, error=error)
    print_errors(f"deliveryd: unexpected error: {describe(error)}")
    return FAILED
