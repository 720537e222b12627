"""Values as the tables hold them, and sets of them as parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from deliveryd.journal.rows import to_name, to_text
from deliveryd.model import ProgressReport, Receipt

LOCATED = "JOIN seen ON seen.id = {id} JOIN message m ON m.day = seen.day AND m.id = seen.id"
"""SQL that finds the rows of messages in their partitions, by the SQL of their ids."""

VISIBLE = "(m.day, m.id) > (SELECT r.day, r.id FROM retired r)"
"""SQL for whether a message isn't pruned; the partition that it stands in is dropped some time later."""

_FIRST = "FROM unaccepted u WHERE u.message_id = m.id AND u.day = m.day AND u.key = m.key AND u.number = 1"
ENTRY = f"""
m.id, m.settings_id, m.customer_id, m.variables, m.provider, m.tries, m.key, m.number, m.spent, m.doubt,
m.content, m.digest,
CASE WHEN m.number > 1 THEN (SELECT u.started_at {_FIRST}) WHEN m.number = 1 THEN m.started_at ELSE 0 END,
CASE WHEN m.provider = '' AND m.number > 0 THEN (SELECT u.provider {_FIRST}) END,
m.taken_at, m.beginning, m.sent_by
"""
"""The columns of an entry, in the order of `rows.EntryRow`."""


def arrays(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Turn rows into one array for each column; there has to be a row."""
    return [list(column) for column in zip(*rows, strict=True)]


def plain(text: str | None) -> str | None:
    """Text that a column can hold: an unpaired surrogate and a NUL are spelled out."""
    text = to_text(text)
    return text.replace("\0", "\\x00") if text is not None and "\0" in text else text


def indexable(text: str | None) -> str | None:
    """A provider's id or reference as an index can hold it."""
    return to_name(plain(text))


def as_kept(report: Receipt | ProgressReport) -> Receipt | ProgressReport:
    """The report, with text that a column can hold."""
    provider_id, reference = indexable(report.provider_id), indexable(report.reference)
    status = plain(report.status)
    if (provider_id, status, reference) == (report.provider_id, report.status, report.reference):
        return report
    return report._replace(provider_id=provider_id or "", status=status or "", reference=reference)


def named_ids(reports: Iterable[Receipt | ProgressReport]) -> set[tuple[str, str]]:
    """Return the providers' ids that reports name, with the providers."""
    return {(each.provider_id, each.provider) for each in reports}
