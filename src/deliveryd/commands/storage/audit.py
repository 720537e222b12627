"""`deliveryd audit`: check the journal's consistency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.journal.attention import Audit, AuditFinding, LostBatches
from deliveryd.journal.opening import open_reader
from deliveryd.model import format_instant
from deliveryd.states import State

IN_HAND = (State.TAKEN, State.READY, State.SENDING)
END_STATES = (State.SENT, State.DELIVERED, State.FAILED)


def audit(*, config: ConfigOption = USUAL_CONFIG, as_data: AsData = False) -> None:
    """Check that the journal accounts for every message.

    Also counts the messages by outcome. Read-only; works with or without a running worker. Exit status: 0
    balanced, 1 not.
    """
    result = open_reader(load_journal_as_owner(config).journal.place).audit()
    if as_data:
        print_json(_as_json(result))
    else:
        print_lines(*_as_lines(result))
    if not result.is_balanced:
        raise typer.Exit(FAILED)


_TEXTS = {"in_the_line_hands": "in progress", "pruned": "pruned, ids kept"}


def _sums(result: Audit) -> Mapping[str, int]:
    states = result.states
    return {
        "ended": sum(states.get(state, 0) for state in END_STATES),
        "waiting": states.get(State.WAITING, 0),
        "in_the_line_hands": sum(states.get(state, 0) for state in IN_HAND),
        "in_doubt": states.get(State.IN_DOUBT, 0),
        "set_aside": states.get(State.SET_ASIDE, 0),
        "pruned": result.ids_kept,
        "forgotten": result.account.forgotten,
    }


def _as_lines(result: Audit) -> Iterator[str]:
    yield _line("taken", result.account.taken)
    for sign, (name, number) in zip("=++++++", _sums(result).items(), strict=True):
        yield _line(f"  {sign} {_TEXTS.get(name) or name.replace('_', ' ')}", number)
    yield _line("missing", result.gap)
    yield ""
    yield f"events: {result.events_waiting} wait for the service, {result.events_refused} were refused"
    yield _lost_line(result.lost)
    yield f"checks: {result.checks - len(result.findings)} of {result.checks} hold"
    for finding in result.findings:
        yield f"  broken: {finding.check}: {_named(finding)}"
    if result.account.gap != result.gap:
        yield f"  broken: the running counters are off by {result.account.gap - result.gap}"
    lost = f", but {_batches(result.lost)} of the queue may be lost" if result.lost.batches else ""
    yield f"the journal is {f'balanced{lost}' if result.is_balanced else 'NOT balanced'}"


def _line(name: str, number: int) -> str:
    return f"{name:24}{number:>14,}"


def _lost_line(lost: LostBatches) -> str:
    if lost.last_at is None:
        return "queue: all batches were received completely"
    return (
        f"queue: {_batches(lost)} may be lost, partly or entirely, most recently at"
        f" {format_instant(lost.last_at)}"
    )


def _batches(lost: LostBatches) -> str:
    return "1 batch" if lost.batches == 1 else f"{lost.batches} batches"


def _named(finding: AuditFinding) -> str:
    more = finding.messages - len(finding.ids)
    return f"messages {', '.join(map(str, finding.ids))}{f' and {more} more' if more else ''}"


def _as_json(result: Audit) -> Mapping[str, object]:
    return {
        "balanced": result.is_balanced,
        "taken": result.account.taken,
        "gap": result.gap,
        "sums": _sums(result),
        "states": {state.name.lower(): number for state, number in result.states.items()},
        "events": {"waiting": result.events_waiting, "refused": result.events_refused},
        "batches_lost": {
            "count": result.lost.batches,
            "last_at": None if result.lost.last_at is None else format_instant(result.lost.last_at),
        },
        "broken": [finding._asdict() for finding in result.findings],
    }
