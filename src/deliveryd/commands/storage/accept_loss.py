"""`deliveryd accept-loss`: let the workers go on after the database lost what it had acknowledged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.moments import moment
from deliveryd.commands.common.options import AsData, ConfigOption, WhyOption
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.common.shared_journal import decided_by, present, workers_of
from deliveryd.commands.storage.workers import loss_data

if TYPE_CHECKING:
    from deliveryd.journal.postgresql.lease import Loss


def accept_loss(
    *,
    config: ConfigOption = USUAL_CONFIG,
    yes: Annotated[bool, typer.Option("--yes", help="Accept it, and let workers start.")] = False,
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Show lost commits; with --yes, let workers continue.

    When a standby takes over that didn't have all acknowledged commits, the workers that notice stop all
    others. Before accepting, look for the lost ones: the former primary may still have them.
    """
    there = workers_of(load_journal_as_owner(config))
    found = there.losses()
    if yes and found:
        there.accept_losses(present(), decided_by(why))
    if as_data:
        print_json({"lost": [loss_data(each) for each in found], "accepted": yes and bool(found)})
    else:
        print_lines(*_lines(found, accepted=yes))
    if found and not yes:
        print_errors("deliveryd: nothing was changed: give --yes to accept the loss")
        raise typer.Exit(FAILED)


def _lines(found: Sequence[Loss], *, accepted: bool) -> Iterator[str]:
    if not found:
        yield "no worker noticed a loss"
        return
    for each in found:
        what = f"{each.lost:,} of its {each.acknowledged:,} commits are lost"
        if each.found is None:
            what += ": the database has no record of it"
        yield f"{each.name} ({each.worker}), at {moment(each.noticed_at)}: {what}"
    yield "what others committed at that time may be lost as well; a commit has up to hundreds of steps"
    yield "messages may be missing that the service counts as dequeued: they are not sent"
    yield "messages whose sending isn't recorded any more are sent again, under the same key"
    if accepted:
        yield "accepted: workers start again"
