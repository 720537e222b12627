"""Rules about providers whose deliveries take long: a part of their share moves, slowly, and never all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulation.ledger import Asked
from simulation.plan import CHANNELS
from simulation.run import History
from simulation.start import SPAN

FEWEST = 60
"""First attempts from which shares are judged: of so many, chance alone moves less than the rules allow."""

MOVED_AFTER = 5 * SPAN
"""Seconds of slowness after which half of the share has moved, unless too few deliveries show it."""

LONGEST_WITHOUT = 200
"""First attempts in a row of which a slow provider has one, with a tenth of its share."""


def broken_shares(history: History) -> Iterator[str]:
    """The shares of first attempts follow the slowness, and nothing else."""
    slowness = history.plan.slowness
    if slowness is None:
        return
    weights = {name: weight for name, weight in history.plan.weights.items() if name.startswith(CHANNELS[0])}
    first = [each for each in _first_attempts(history) if each.life == len(history.lives) - 1]
    if not first:
        return
    since = max(first[0].at, slowness.at)
    if len(slowness.providers) != 1:
        late = [asked for asked in first if asked.at > since + MOVED_AFTER]
        for name, weight in weights.items() if len(late) > FEWEST else ():
            share = _share(late, name)
            if not 0.6 < share / (weight / sum(weights.values())) < 1.4:
                yield f"{name} has {share:.2f} of the messages, though none is slower than another"
        return
    (slow,) = slowness.providers
    own = weights[slow] / sum(weights.values())
    early = [asked for asked in first if since <= asked.at <= since + slowness.seconds + SPAN / 2]
    if len(early) > FEWEST and _share(early, slow) < 0.6 * own:
        yield f"{slow} lost more than a tenth of its share at a time: it has {_share(early, slow):.2f}"
    late = [asked for asked in first if asked.at > since + slowness.seconds + MOVED_AFTER]
    if len(late) > 2 * FEWEST and _share(late, slow) > 0.8 * own:
        yield f"{slow} is slow, and has {_share(late, slow):.2f} of the messages all the same"
    sent = [place for place, asked in enumerate(first) if asked.provider == slow]
    for one, other in zip([-1, *sent], [*sent, len(first)], strict=True):
        if other - one > LONGEST_WITHOUT:
            yield f"{slow} had none of {other - one} messages: its deliveries can't show whether it is well"


def _share(asked: Sequence[Asked], provider: str) -> float:
    return sum(each.provider == provider for each in asked) / max(len(asked), 1)


def _first_attempts(history: History) -> Iterator[Asked]:
    seen: set[int] = set()
    for asked in history.ledger.asked:
        if asked.message_id not in seen:
            seen.add(asked.message_id)
            yield asked
