"""Rules about what goes first: settings ids take turns, by priority, and each priority has its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from simulation.ledger import Asked
from simulation.plan import Life
from simulation.run import History

ON_THE_WAY = 20
"""Messages that may be sent before one that the worker was only now handed.

After a restart these are as many more as have slots: what waits in the journal is fetched when some are free.
"""

EACH = 10
"""A priority leaves one message of so many to those below it."""


def broken_turns(history: History) -> Iterator[str]:
    """In each life, how many messages of others went before each that waited."""
    if not history.plan.takes_turns:
        return
    for number, life in enumerate(history.lives):
        yield from _in_life(history, number, _ranks(history, life))


def _ranks(history: History, life: Life) -> dict[int, int]:
    named = {id_: each["priority"] for each in life.priorities for id_ in each["settings"]}
    return {id_: {"high": 0, None: 1, "low": 2}[named.get(id_)] for id_ in history.plan.templates}


def _in_life(history: History, life: int, ranks: dict[int, int]) -> Iterator[str]:
    ledger = history.ledger
    ids = {message.id: message.settings_id for message in history.plan.messages}
    asked = [each for each in ledger.asked if each.life == life and each.trouble is None]
    first = {each.message_id: place for place, each in reversed(list(enumerate(asked)))}
    before = {each.message_id for each in ledger.asked if each.life < life}
    handed: dict[int, int] = {}  # the latest, as an answer can be lost
    for each in ledger.handed:
        if each.life <= life and each.id is not None:
            handed[each.id] = each.order
    for message_id, since in handed.items():
        if message_id in before:
            continue  # it is repeated, or was sent
        passed = asked[_place_after(asked, since) : first.get(message_id, len(asked))]
        counted = Counter(ids[each.message_id] for each in passed)
        slack = ON_THE_WAY + (history.plan.tuning.in_flight if life else 0)
        for text in _passed_by_too_many(ids[message_id], counted, ranks, slack):
            yield f"message {message_id}: in life {life} {text}"


def _place_after(asked: Sequence[Asked], order: int) -> int:
    return next((place for place, each in enumerate(asked) if each.order > order), len(asked))


def _passed_by_too_many(own: int, passed: Counter[int], ranks: dict[int, int], slack: int) -> Iterator[str]:
    """By another id of its priority, by all of lower ones, or by all of higher ones."""
    rank = ranks[own]
    of_rank = Counter[int]()
    for id_, count in passed.items():
        of_rank[ranks[id_]] += count
        if id_ != own and ranks[id_] == rank and count > passed[own] + 1 + slack:
            yield f"it was passed by {count} of settings {id_} and {passed[own]} of its own"
    lower = sum(count for each, count in of_rank.items() if each > rank)
    higher = sum(count for each, count in of_rank.items() if each < rank)
    if lower > (of_rank[rank] + 1) / (EACH - 1) + slack:
        yield f"it was passed by {lower} of a lower priority and {of_rank[rank]} of its own"
    # Between the highest and the lowest there may be a third one, which has its share before.
    least = EACH ** len({each for each in ranks.values() if each < rank})
    if higher > (of_rank[rank] + 1) * least + slack:
        yield f"it was passed by {higher} of a higher priority and {of_rank[rank]} of its own"
