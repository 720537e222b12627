"""Values as the journal's columns hold them. Any text can be stored, with unpaired surrogates too."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from deliveryd.model import Content, Entry, Rendered, Spent, Transition
from deliveryd.runtime import waits
from deliveryd.runtime.json_numbers import VariablesText, dumps_exact, loads_variables

_FIRST = "FROM unaccepted u WHERE u.message_id = message.id AND u.stay = message.stay AND u.stay_tries = 1"
ENTRY = f"""
id, settings_id, customer_id, variables, provider, counted_tries, stay, stay_tries, spent, doubt, content,
digest, iif(stay_tries > 1, (SELECT u.started_at {_FIRST}), iif(stay_tries > 0, started_at, 0)),
iif(provider = '' AND stay_tries > 0, (SELECT u.provider {_FIRST}), NULL),
taken_at, generation, sent_by
"""
"""The columns of an entry, in the order of `EntryRow`. The first of several tries under a key has a row."""

SENT_IN_PART = "(ended_at IS NULL AND sent_by IS NOT NULL AND sent_by = provider)"
"""SQL for whether some of a customer's devices have a message, and it is repeated for others."""

IDS = "(SELECT CAST(value AS BIGINT) FROM json_each(?1))"
"""SQL for the ids that the first parameter names, as a JSON array."""

NONE_SPENT = "[]"
"""The column `spent` of an entry without any."""

_escaped = json.JSONEncoder(separators=(",", ":")).encode


class EntryRow(NamedTuple):
    """The columns of `ENTRY`; `settings_id`, `customer_id` and `variables` are those of a real message."""

    id: int
    settings_id: int
    customer_id: int
    variables: str
    provider: str
    counted_tries: int
    stay: int
    stay_tries: int
    spent: str
    doubt: int
    content: str | None
    digest: bytes | None
    begun_at: int
    via: str | None
    taken_at: int
    generation: int
    sent_by: str | None


def entry_of(row: Sequence[Any]) -> Entry:
    """Build an entry from the columns of `ENTRY`."""
    columns = EntryRow(*row)
    return Entry(
        columns.id,
        columns.settings_id,
        columns.customer_id,
        loads_variables(columns.variables),
        columns.provider or None,
        columns.counted_tries,
        columns.stay,
        columns.stay_tries,
        spent_of(columns.spent),
        bool(columns.doubt),
        None if columns.content is None else _content_of(columns.content),
        columns.digest,
        columns.begun_at,
        columns.via,
        columns.taken_at,
        columns.generation,
        columns.sent_by,
    )


def spent_of(text: str) -> tuple[Spent, ...]:
    """Read the column `spent`."""
    return () if text == NONE_SPENT else tuple(Spent(*each) for each in json.loads(text))


def spent_text(entry: Entry) -> str:
    """What the column `spent` holds of an entry."""
    return to_json([tuple(each) for each in entry.spent]) if entry.spent else NONE_SPENT


def progress_of(transition: Transition) -> tuple[object, ...]:
    """What a step writes: the columns of the statements for it, from the state on."""
    entry = transition.entry
    return (
        int(transition.after),
        transition.due_at,
        entry.provider or "",
        entry.counted_tries,
        entry.stay,
        entry.stay_tries,
        spent_text(entry),
        entry.doubt,
        None if entry.content is None else _content_text(entry.content),
        entry.digest,
        entry.generation,
        entry.sent_by,
    )


def by_the_clock(steps: Sequence[Transition], ahead_of: Callable[[int], int]) -> Sequence[Transition]:
    """The steps, with due times as far ahead as the journal's; `ahead_of`: see `LineClock.reading`.

    What is paused is due when it expires, and what is due at once is so by any clock.
    """
    return [
        step._replace(due_at=step.due_at + ahead)
        if step.due_at and not waits.is_paused(step.waits_for) and (ahead := ahead_of(step.at))
        else step
        for step in steps
    ]


def _content_text(content: Content) -> str:
    (block, language, fields), values, expires_at = content
    return to_json([block, language, fields, values, expires_at])


def _content_of(text: str) -> Content:
    block, language, fields, *rest = json.loads(text)
    return Content(Rendered(block, language, fields), *rest)


def digest_of(rendered: Rendered, values: Mapping[str, str]) -> bytes:
    """Eight bytes to compare the content of a message when it is rendered again: see `Content`.

    A checksum: it distinguishes chance from change, and is no protection from intent.
    """
    block, language, fields = rendered
    said = (block, language, fields, values)
    try:
        text = orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # half a surrogate pair
        text = json.dumps(said, sort_keys=True).encode()
    return (zlib.crc32(text) << 32 | len(text)).to_bytes(8, "big")


def to_json(value: object) -> str:
    """JSON that UTF-8 can carry: an unpaired surrogate is escaped, and comes back as it was."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return _escaped(value)


def variables_json(variables: Mapping[str, str]) -> str:
    """A message's variables as JSON; numbers are numbers."""
    if type(variables) is VariablesText:  # it has no subclasses; as a Mapping it is slow to ask for
        return variables.text
    try:
        return dumps_exact(variables).decode()
    except orjson.JSONEncodeError:  # an unpaired surrogate, as above
        return _escaped(variables)


def to_text(text: str | None) -> str | None:
    """Text that UTF-8 can carry: an unpaired surrogate is spelled out."""
    if text is None or text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


_LONGEST_NAME = 1000
"""Bytes of the longest name that is kept as it is: an index of PostgreSQL holds two in a third of a page."""

_SHOWN = 100
"""Characters that are kept of a longer one, before its digest."""


def to_name(text: str | None) -> str | None:
    """A provider's id or reference as it is kept and looked for: of a long one the beginning and a digest."""
    text = to_text(text)
    if text is None or len(text) <= _LONGEST_NAME // 4:
        return text
    whole = text.replace("\0", "\\x00").encode()
    if len(whole) <= _LONGEST_NAME:
        return text
    return f"{whole.decode()[:_SHOWN]}... sha256:{hashlib.sha256(whole).hexdigest()}"
