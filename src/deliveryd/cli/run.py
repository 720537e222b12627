"""`deliveryd run`: the daemon."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Annotated

import anyio
import typer

from deliveryd import telemetry
from deliveryd.cli.configuration import load_as_owner
from deliveryd.cli.options import USUAL_CONFIG, ConfigOption
from deliveryd.cli.output import complain, say, say_json
from deliveryd.cli.shutdown import tell_of_ending
from deliveryd.journal.base import Account
from deliveryd.states import State
from deliveryd.worker.supervisor import Supervisor

SUMMARY_STATES = {
    "sent": State.SENT,
    "delivered": State.DELIVERED,
    "failed": State.FAILED,
    "in_doubt": State.IN_DOUBT,
    "set_aside": State.SET_ASIDE,
}

YOUNG = 50_000
"""Objects made after which Python looks for garbage in circles: messages under way are many, circles few."""


def run(
    *,
    config: ConfigOption = USUAL_CONFIG,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle",
            help="End when the queue is empty, every message is at its end and every event is accepted.",
        ),
    ] = False,
    as_data: Annotated[
        bool, typer.Option("--json", help="With --until-idle: tell the sums of the journal as JSON.")
    ] = False,
) -> None:
    """Run the worker: take messages, send them, report them.

    SIGTERM or Ctrl-C ends it when what is under way has ended, after run.drain_timeout at the latest;
    a second one ends it at once.
    """
    if as_data and not until_idle:
        raise typer.BadParameter("--json tells the numbers at the end, with --until-idle")
    loaded = load_as_owner(config)
    telemetry.configure(loaded.log.level, loaded.log.format)

    async def work() -> Supervisor:
        supervisor = Supervisor(loaded, on_ending=tell_of_ending)
        await supervisor.run(until_idle=until_idle)
        return supervisor

    _collect_less_often()
    ended = anyio.run(work, backend="asyncio", backend_options={"use_uvloop": True})
    if until_idle and ended.account is not None:
        if as_data:
            say_json(_numbers(ended.account))
        else:
            say(_sums(ended.account))
    if until_idle and ended.held_in_doubt:
        complain(f"deliveryd: messages held in doubt, for a person to settle: {ended.held_in_doubt}")
        raise typer.Exit(1)


def _sums(account: Account) -> str:
    """What became of all messages that the journal has, for a person."""
    taken, *others = _numbers(account).items()
    sums = ", ".join(f"{number} {words.replace('_', ' ')}" for words, number in others)
    return f"deliveryd: of {taken[1]} messages ever taken: {sums}"


def _numbers(account: Account) -> Mapping[str, int]:
    numbers = {**account.states, **account.ends}
    open_ = sum(account.states.values()) - account.states.get(State.IN_DOUBT, 0)
    told = {words: numbers.get(state, 0) for words, state in SUMMARY_STATES.items()}
    return {"taken": account.taken, **told, "not_at_their_end": open_, "forgotten": account.forgotten}


def _collect_less_often() -> None:
    """Leave what is loaded out of all collections, and make those of the rest rarer."""
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)
