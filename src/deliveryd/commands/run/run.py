"""`deliveryd run`: run the worker."""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from deliveryd.commands.common.configuration import become_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import ConfigOption
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.config import Config, examine_to_run
from deliveryd.journal.base import Account
from deliveryd.model import format_duration
from deliveryd.runtime.process import raise_file_limit
from deliveryd.states import State
from deliveryd.telemetry import log_writing
from deliveryd.telemetry.output import Output, unblocked
from deliveryd.worker.supervisor import Ending, Supervisor

SUMMARY_STATES = {
    "sent": State.SENT,
    "delivered": State.DELIVERED,
    "failed": State.FAILED,
    "in_doubt": State.IN_DOUBT,
    "set_aside": State.SET_ASIDE,
}

LAST_LINES = 2.0
"""Seconds that the end waits for a reader of standard error that is behind."""

YOUNG = 50_000
"""Allocations between garbage collections: messages in flight are many, reference cycles few."""


def run(
    *,
    config: ConfigOption = USUAL_CONFIG,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle",
            help="Exit when the queue is empty, every message has ended and every event is accepted.",
        ),
    ] = False,
    as_data: Annotated[
        bool, typer.Option("--json", help="With --until-idle: print the journal's totals as JSON.")
    ] = False,
) -> None:
    """Run the worker: take, send and report messages.

    On SIGTERM or Ctrl-C it finishes what is in progress, for run.drain_timeout at most, and exits. A second
    signal exits at once. On SIGHUP it reads the configuration again, as "deliveryd reload" does.
    """
    if as_data and not until_idle:
        raise typer.BadParameter("--json needs --until-idle")
    signal.signal(
        signal.SIGHUP, signal.SIG_IGN
    )  # until the worker handles it; by default it ends the process
    raise_file_limit()
    _unblock_standard_error()
    loaded = _load(config)
    log_writing.configure(loaded.log.level, loaded.log.format)

    async def work() -> Supervisor:
        supervisor = Supervisor(loaded, on_ending=announce_shutdown, examine=partial(examine_to_run, config))
        await supervisor.run(until_idle=until_idle)
        return supervisor

    _collect_less_often()
    ended = anyio.run(work, backend="asyncio", backend_options={"use_uvloop": True})
    if until_idle and ended.account is not None:
        if as_data:
            print_json(_numbers(ended.account))
        else:
            print_lines(_sums(ended.account))
    left = list(_left(ended)) if until_idle else []
    if ended.lost_a_batch:
        left.insert(0, "deliveryd: a batch of the queue may be lost: see queue.batch_lost in the log")
    if left:
        print_errors(*left)
        raise typer.Exit(1)


def _unblock_standard_error() -> None:
    """Never wait for a reader of standard error. Called before the user changes, who may not open it."""
    sys.stderr = unblocked(sys.stderr)
    if isinstance(sys.stderr, Output):
        atexit.register(sys.stderr.finish, LAST_LINES)


def _load(path: Path) -> Config:
    """Read the configuration; as root, switch to the owner of the journal. Raises ConfigError."""
    config = examine_to_run(path).faultless()
    become_owner(config)
    return config


def _left(ended: Supervisor) -> Iterator[str]:
    """What isn't done, and needs an operator or another run."""
    if ended.held_in_doubt:
        yield f"deliveryd: messages held in doubt, to be settled by an operator: {ended.held_in_doubt}"
    if not ended.was_idle:
        yield "deliveryd: stopped before all was done: the queue and the journal may hold messages"
    if ended.account is None:
        yield "deliveryd: the journal's totals couldn't be read"
    if ended.left.messages:
        yield f"deliveryd: messages not at their end, the next run continues them: {ended.left.messages}"
    if ended.left.events:
        yield f"deliveryd: events not accepted yet, the next run reports them: {ended.left.events}"
    if paused := sum(ended.paused.values()):
        yield f"deliveryd: messages paused, to be resumed by an operator (deliveryd paused): {paused}"
    if ended.intake_is_paused:
        yield "deliveryd: the intake is paused (deliveryd paused): the queue may hold messages"


def _sums(account: Account) -> str:
    """Return the journal's totals by outcome as text."""
    taken, *others = _numbers(account).items()
    sums = ", ".join(f"{number} {words.replace('_', ' ')}" for words, number in others)
    return f"deliveryd: of {taken[1]} messages ever taken: {sums}"


def _numbers(account: Account) -> Mapping[str, int]:
    numbers = {**account.states, **account.ends}
    open_ = sum(account.states.values()) - account.states.get(State.IN_DOUBT, 0)
    by_state = {words: numbers.get(state, 0) for words, state in SUMMARY_STATES.items()}
    gone = {"pruned": account.pruned, "forgotten": account.forgotten}
    return {"taken": account.taken, **by_state, "not_at_their_end": open_, **gone}


def _collect_less_often() -> None:
    """Exempt loaded modules from garbage collection, and collect the rest less often."""
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)


def announce_shutdown(ending: Ending) -> None:
    """Print after Ctrl-C what is still in progress, for how long at most, and how to exit at once.

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
