"""`deliveryd forget`: have an id taken as new when the queue gives it again."""

from __future__ import annotations

from typing import Annotated

import typer

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, DryRun, WhyOption, message_number
from deliveryd.commands.common.output import print_errors
from deliveryd.commands.messages.selecting import AcceptDuplicates
from deliveryd.commands.orders.bulk_orders import order_all, preview_order, report_result
from deliveryd.journal.orders import Action

_DOUBLES = "deliveryd: warning: if the queue gives one of these messages again, it may be received twice"


def forget(
    *,
    config: ConfigOption = USUAL_CONFIG,
    ids: Annotated[
        list[int], typer.Argument(metavar="MESSAGE_ID", parser=message_number, help="IDs of messages.")
    ],
    accept_duplicates: AcceptDuplicates = False,
    why: WhyOption = None,
    dry_run: DryRun = False,
    as_data: AsData = False,
) -> None:
    """Have messages taken as new if the queue gives them again.

    They are deleted from the journal. Only the number of times that they began stays, so that no idempotency
    key is used twice. Messages that haven't ended are refused, and so are messages that were sent or may have
    arrived. Exit status 1: some were refused.
    """
    loaded = load_journal_as_owner(config)
    chosen = list(dict.fromkeys(ids))
    if accept_duplicates:
        print_errors(_DOUBLES)
    verb = Action.FORGET_ANYWAY if accept_duplicates else Action.FORGET
    if dry_run:
        report_result("would forget", preview_order(loaded, verb, chosen), as_data=as_data)
    else:
        report_result("forgotten", order_all(loaded, verb, chosen, why, None), as_data=as_data)
