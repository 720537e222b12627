"""`deliveryd workers` and `accept-loss`: list the workers of a shared journal, and decide about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, WhyOption
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.common.shared_journal import decided_by, present, workers_of
from deliveryd.commands.common.tables import moment, print_table, with_instants
from deliveryd.errors import DeliverydError, UsageError
from deliveryd.options.suggestion import suggestion

if TYPE_CHECKING:
    from deliveryd.journal.postgresql.lease import Loss
    from deliveryd.journal.postgresql.workers import WorkerRecord, Workers

workers = CommandGroup(
    invoke_without_command=True,
    help="List the workers of a shared journal, and end one that hangs.\n\n"
    "Without a command: list them. A journal in a file has one worker, which deliveryd status shows.",
)

_HEADING = (
    "NO", "NAME", "SINCE", "STATE", "LEASE", "RENEWED", "TAKEN", "READY", "SENDING", "EVENTS", "PROVIDERS",
)  # fmt: skip
HOW_ENDED = {
    "released": "it ended its lease itself",
    "fenced": "another worker ended it, after a whole lease without a commit",
    "ordered": "an operator ordered it",
    "halted": "the database lost commits",
}
_NUMBERS = (0, 4, 5, 6, 7, 8, 9)


@workers.callback()
def _without_a_command(
    context: typer.Context, *, config: ConfigOption = USUAL_CONFIG, as_data: AsData = False
) -> None:
    if context.invoked_subcommand is None:
        _print_workers(config, as_data=as_data)


@workers.command("list")
def list_workers(*, config: ConfigOption = USUAL_CONFIG, as_data: AsData = False) -> None:
    """List the workers, with what each has.

    Messages that are taken, ready and being sent, and events that the service hasn't accepted. RENEWED is
    how long ago a worker last committed, by the database's clock: a live one does so four times in its lease.
    Of workers that ended, those are listed whose log no worker has taken over yet.

    STATE is live; stands still: it committed nothing for a whole lease, so others may take over; or how its
    lease ended. released: the worker ended it itself. fenced: another worker ended it, after a whole lease
    without a commit. ordered: an operator did, by workers fence. halted: the database lost commits, see
    accept-loss.

    If live workers have different providers, a line below the table lists which worker lacks which: to a
    worker that takes over, a provider that it doesn't have is a removed one.
    """
    _print_workers(config, as_data=as_data)


@workers.command("fence")
def fence_worker(
    *,
    config: ConfigOption = USUAL_CONFIG,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The worker's name, or its number.")],
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """End a worker that hangs, even one that renews its lease.

    It commits nothing more: its process ends at its next commit. Other workers take over what it has when
    its lease would have been over. Its attempts under way are in doubt, and are repeated under their keys or
    held.
    """
    there = workers_of(load_journal_as_owner(config))
    worker = _named(name, there)
    is_done = there.fence(worker, present(), decided_by(why))
    if as_data:
        print_json({"what": "fence", "worker": _as_data(worker), "fenced": is_done})
    elif is_done:
        doubts = f"; {_attempts(worker.sending)} in doubt" if worker.sending else ""
        state = "stood still" if worker.is_over else f"renewed its lease {worker.still:.1f} s ago"
        print_lines(
            f"fenced: {worker.name} ({worker.id}), which {state}",
            f"what it has goes to other workers when its lease of {worker.lease:g} s would have been over,"
            f" or to the next one that starts{doubts}",
        )
    if not is_done:
        print_errors(f"deliveryd: {worker.name} has ended meanwhile")
        raise typer.Exit(FAILED)


def _print_workers(config: ConfigOption, *, as_data: bool) -> None:
    there = workers_of(load_journal_as_owner(config))
    found, lost = there.list(), there.losses()
    if as_data:
        print_json(
            {"workers": [_as_data(each) for each in found], "lost": [loss_data(each) for each in lost]}
        )
        return
    print_table(_HEADING, map(_row, found), _NUMBERS)
    print_lines(_count(found))
    if lacking := _lacking(found):
        print_lines(f"their configurations differ: {lacking}")
    if lost:
        print_lines("the database lost commits, and no worker starts: run deliveryd accept-loss")


def _named(name: str, there: Workers) -> WorkerRecord:
    """Return the live worker that is meant. Raises UsageError, or DeliverydError for one that has ended."""
    live = [each for each in there.list() if each.ended is None]
    found = [each for each in live if name in (each.name, str(each.id))]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = ", ".join(str(each.id) for each in found)
        raise UsageError(f"several workers are called {name!a}: name one by its number, {numbers}")
    ended = there.how_ended(name)
    if ended is not None:
        raise DeliverydError(f"{name} has ended already: {HOW_ENDED[ended]}")
    known = [each.name for each in live]
    raise UsageError(
        f"there is no worker {name!a}{suggestion(name, known)}; there are {', '.join(known) or 'none'}"
    )


def _attempts(count: int) -> str:
    return "1 attempt is" if count == 1 else f"{count:,} attempts are"


def _count(found: Sequence[WorkerRecord]) -> str:
    ended = sum(each.ended is not None for each in found)
    still = sum(each.is_over for each in found)
    if not ended and not still:
        return "1 worker" if len(found) == 1 else f"{len(found)} workers"
    counts = [f"{len(found) - ended - still} live"]
    if still:
        counts.append(f"{still} {'stands' if still == 1 else 'stand'} still")
    if ended:
        counts.append(f"{ended} ended")
    return ", ".join(counts)


def _lacking(found: Sequence[WorkerRecord]) -> str:
    """Print the providers that a live worker lacks and others have; one that has just begun has none yet."""
    live = [each for each in found if each.ended is None and not each.is_over and each.providers]
    known = {name for each in live for name in each.providers}
    lacks = [(each, sorted(known.difference(each.providers))) for each in live]
    return "; ".join(f"{each.name} ({each.id}) lacks {', '.join(names)}" for each, names in lacks if names)


def _row(each: WorkerRecord) -> Sequence[str]:
    state = each.ended or ("stands still" if each.is_over else "live")
    counts = (each.taken, each.ready, each.sending, each.events)
    return (
        str(each.id), each.name, moment(each.began_at), state, f"{each.lease:g} s", f"{each.still:.1f} s ago",
        *(f"{count:,}" for count in counts), ", ".join(each.providers),
    )  # fmt: skip


def _as_data(each: WorkerRecord) -> Mapping[str, object]:
    return with_instants(each._asdict()) | {"is_over": each.is_over}


def loss_data(each: Loss) -> Mapping[str, object]:
    """Return what a worker noticed as data."""
    return with_instants(each._asdict()) | {"lost": each.lost}


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
        print_lines(*_loss_lines(found, accepted=yes))
    if found and not yes:
        print_errors("deliveryd: nothing was changed: give --yes to accept the loss")
        raise typer.Exit(FAILED)


def _loss_lines(found: Sequence[Loss], *, accepted: bool) -> Iterator[str]:
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
