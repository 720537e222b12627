"""Rules about budgets and caps: what providers took is counted at them, by hours and by customers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deliveryd.model import SECOND
from simulation.ledger import Asked
from simulation.plan import HOUR, Message, Trouble
from simulation.run import History

ON_ITS_WAY = 3.5
"""Seconds after its intent within which a request reaches its provider, at most."""


NOT_TAKEN = frozenset(
    {Trouble.NO_CONNECTION, Trouble.TOO_MANY, Trouble.UNAUTHORIZED, Trouble.BAD_REQUEST, Trouble.CUT_REFUSAL}
)
"""Troubles after which a provider surely doesn't have a message."""


class Taken(NamedTuple):
    """A message that a provider took: what it counts, and when it was asked first and took it."""

    message: Message
    channel: str
    parts: int
    first: Asked
    last: Asked


def broken_limits(history: History) -> Iterator[str]:
    """Yield each budget and cap that was exceeded."""
    if not (limits := history.lives[0].limits):
        return
    taken = list(_taken(history))
    for rule in limits:
        mine = [
            each
            for each in taken
            if each.message.settings_id in (rule["settings"] or (each.message.settings_id,))
            and each.channel in (rule.get("channels") or (each.channel,))
        ]
        yield from _exceeded(rule, mine) if "budget" in rule else _over(rule["cap"], mine)


def _taken(history: History) -> Iterator[Taken]:
    messages = {message.id: message for message in history.plan.messages}
    for accepted in history.ledger.accepted:
        asked = [
            each
            for each in history.ledger.asked
            if (each.provider, each.message_id, each.key)
            == (accepted.provider, accepted.message_id, accepted.key)
            and each.order <= accepted.order
        ]
        if asked and accepted.message_id in messages:
            message = messages[accepted.message_id]
            first = next(each for each in asked if each.trouble not in NOT_TAKEN)
            text = first.content.get("text", "") if accepted.channel == "sms" else ""
            parts = 1 if len(text) <= 160 else -(-len(text) // 153)
            yield Taken(message, accepted.channel, parts, first, asked[-1])


def _exceeded(rule: Mapping[str, Any], taken: list[Taken]) -> Iterator[str]:
    """No hour has more, nor two that follow each other: what came early in one may belong to the one before.

    What was in doubt counts in the hour of its first request.
    """
    amount, _, unit = rule["budget"].removesuffix("/hour").partition(" ")
    most, whole, early = int(amount), Counter[int](), Counter[int]()
    for each in taken:
        hour, since = divmod(each.first.now, HOUR * SECOND)
        if each.first.trouble is Trouble.BUSY and each.last.now // (HOUR * SECOND) != hour:
            continue  # it may count in either
        is_early = since < ON_ITS_WAY * SECOND
        (early if is_early else whole)[hour] += each.parts if unit == "parts" else 1
    for hour in {*whole, *early}:
        if whole[hour] > most:
            yield f"the budget {rule['budget']} was exceeded: {whole[hour]} in an hour"
        both = whole[hour - 1] + early[hour] + whole[hour]
        if both > 2 * most:
            yield f"the budget {rule['budget']} was exceeded: {both} in two hours"
        if not whole[hour - 1] and not early[hour - 1] and early[hour] + whole[hour] > most:
            yield f"the budget {rule['budget']} was exceeded: {early[hour] + whole[hour]} in an hour"


def _over(cap: Mapping[str, Any], taken: list[Taken]) -> Iterator[str]:
    """No customer gets more within the time, from the first request to the acceptance of each."""
    seconds = float(cap["per"].rstrip("s")) - ON_ITS_WAY
    got: dict[tuple[int, int], tuple[float, float]] = {}
    for each in taken:
        key = each.message.customer_id, each.message.id
        begin, _ = got.get(key, (each.first.at, 0.0))
        got[key] = min(begin, each.first.at), each.last.at
    for customer in {customer for customer, _ in got}:
        spans = [span for (whose, _), span in got.items() if whose == customer]
        for begin, _ in spans:
            count = sum(begin <= first and last <= begin + seconds for first, last in spans)
            if count > cap["messages"]:
                yield f"customer {customer} got {count} messages within {cap['per']}"
