"""Orders about many messages: given in portions, and summed up by what was refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import typer

from deliveryd.commands.common.conventions import FAILED
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.orders.orders import carry_out, name_of
from deliveryd.config import Config
from deliveryd.control.protocol import MOST_KEYS
from deliveryd.errors import DeliverydError
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.model import format_instant

_SHOWN_IDS = 5


class Result:
    """What an order did or would do: the ids that it is done for, and why it was refused for the others."""

    def __init__(self, done: Sequence[int], refused: Mapping[int, str]) -> None:
        self.done = done
        self.refused = refused


def preview_order(config: Config, verb: Action, ids: Sequence[int]) -> Result:
    """Return what an order would do now."""
    reader = open_reader(config.journal.place)
    refused: dict[int, str] = {}
    for begin in range(0, len(ids), MOST_KEYS):
        refused |= reader.obstacles(verb, ids[begin : begin + MOST_KEYS])
    return Result([id_ for id_ in ids if id_ not in refused], refused)


def order_all(config: Config, verb: Action, ids: Sequence[int], why: str | None, until: int | None) -> Result:
    """Give an order about messages, in portions of which each is one transaction.

    `until`: when they were selected; None: the ids were given. Raises DeliverydError, with how to go on
    with the rest.
    """
    try:
        reply = carry_out(config, verb, {ItemKind.MESSAGE: list(map(str, ids))}, why)
    except DeliverydError as error:
        if until is None:
            raise DeliverydError(f"{error}; what is done stays done") from None
        raise DeliverydError(
            f"{error}; what is done stays done: repeat the command with --until {format_instant(until)},"
            " which leaves out what fails from now on"
        ) from None
    prefix = name_of(ItemKind.MESSAGE, "")
    done = [int(name.removeprefix(prefix)) for name in reply.done]
    return Result(done, {int(name.removeprefix(prefix)): why for name, why in reply.skipped.items()})


def report_result(heading: str, result: Result, *, as_data: bool) -> None:
    """Print what an order did; exit with status 1 if anything was refused."""
    if as_data:
        refused = {str(id_): why for id_, why in result.refused.items()}
        print_json({"what": heading, "done": list(result.done), "refused": refused})
    else:
        print_lines(*_lines(heading, result))
    if result.refused:
        raise typer.Exit(FAILED)


def _lines(heading: str, result: Result) -> Iterator[str]:
    yield f"{heading}: {_messages(len(result.done))}"
    if not result.refused:
        return
    yield f"refused: {_messages(len(result.refused))}"
    by_reason: dict[str, list[int]] = {}
    for id_, why in result.refused.items():
        by_reason.setdefault(why, []).append(id_)
    for why, ids in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        more = f" and {len(ids) - _SHOWN_IDS:,} more" if len(ids) > _SHOWN_IDS else ""
        yield f"  {len(ids):,}  {why}"
        yield f"      {', '.join(map(str, ids[:_SHOWN_IDS]))}{more}"


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"
