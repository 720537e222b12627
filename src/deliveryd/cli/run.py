"""`deliveryd run`: the daemon."""

from __future__ import annotations

import gc
from typing import Annotated

import anyio
import typer

from deliveryd import telemetry
from deliveryd.cli.options import USUAL_CONFIG, ConfigFile
from deliveryd.cli.output import complain, say
from deliveryd.config import load
from deliveryd.journal.base import Account
from deliveryd.states import State
from deliveryd.supervisor import Supervisor

TOLD = {
    "sent": State.SENT,
    "delivered": State.DELIVERED,
    "failed": State.FAILED,
    "in doubt": State.IN_DOUBT,
    "set aside": State.SET_ASIDE,
}

YOUNG = 50_000
"""Objects made after which Python looks for garbage in circles: messages under way are many, circles few."""


def run(
    *,
    config: ConfigFile = USUAL_CONFIG,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle",
            help="End when the queue is empty, every message is at its end and every event is accepted.",
        ),
    ] = False,
) -> None:
    """Run the worker: take messages, send them, report them.

    SIGTERM or Ctrl-C ends it when what is under way has ended, after run.drain_timeout at the latest;
    a second one ends it at once.
    """
    loaded = load(config)
    telemetry.configure(loaded.log.level, loaded.log.format)

    async def work() -> Supervisor:
        supervisor = Supervisor(loaded)
        await supervisor.run(until_idle=until_idle)
        return supervisor

    _collect_less_often()
    ended = anyio.run(work, backend="asyncio", backend_options={"use_uvloop": True})
    if until_idle and ended.account is not None:
        say(_sums(ended.account))
    if until_idle and ended.held_in_doubt:
        complain(f"deliveryd: messages held in doubt, for a person to settle: {ended.held_in_doubt}")
        raise typer.Exit(1)


def _sums(account: Account) -> str:
    """What became of all messages that the journal has, for a person."""
    numbers = {**account.states, **account.ends}
    sums = ", ".join(f"{numbers.get(state, 0)} {words}" for words, state in TOLD.items())
    open_ = sum(account.states.values()) - account.states.get(State.IN_DOUBT, 0)
    return (
        f"deliveryd: of {account.taken} messages ever taken: {sums}, {open_} not at their end,"
        f" {account.forgotten} forgotten"
    )


def _collect_less_often() -> None:
    """Leave what is loaded out of all collections, and make those of the rest rarer."""
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 20)
