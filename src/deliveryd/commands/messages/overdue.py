"""`deliveryd overdue`: list messages that were sent and never confirmed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.moments import moment
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.journal.attention import OverdueMessage
from deliveryd.journal.opening import open_reader
from deliveryd.model import SECOND, channel_of, format_instant


def overdue(*, config: ConfigOption = USUAL_CONFIG, as_data: AsData = False) -> None:
    """List sent messages that were never confirmed.

    They were sent longer than receipt_overdue ago, by providers with receipts, and are neither delivered
    nor failed by them. Read-only; works with or without a running worker.
    """
    loaded = load_journal_as_owner(config, "channels")
    now = time.time_ns() // 1000
    until = {name: now - int(each * SECOND) for name, each in loaded.channels.overdue.items()}
    found = open_reader(loaded.journal.place).overdue(until)
    if as_data:
        print_json([_as_data(each) for each in found])
    else:
        print_lines(*_lines(found))


def _lines(found: Sequence[OverdueMessage]) -> Iterator[str]:
    for each in found:
        yield f"{each.message_id}  {each.provider}, sent {moment(each.sent_at)}"
        yield f"    id at the provider: {each.provider_id or 'none'}"
    yield f"{len(found)} overdue"


def _as_data(each: OverdueMessage) -> Mapping[str, object]:
    return {
        "message_id": each.message_id,
        "channel": channel_of(each.provider),
        "provider": each.provider,
        "provider_id": each.provider_id,
        "sent_at": format_instant(each.sent_at),
    }
