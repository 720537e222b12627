"""The table of all cases that one worker lives through, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hostile import answers, receipts, texts
from hostile.stage import Case

SETTINGS_IDS = 10_000


def all_cases(settings_ids: int = SETTINGS_IDS) -> Iterator[Case]:
    """Every case; the last one with so many settings ids, which is what takes most of the time."""
    yield from answers.hurtful_answers()
    yield from answers.hurtful_json()
    yield from answers.wrong_values()
    yield from answers.redirects()
    yield from answers.impossible_pauses()
    yield from texts.large_messages()
    yield from texts.strange_values()
    yield from texts.injections()
    yield from receipts.reports()
    yield Case(f"{settings_ids:,} settings ids", partial(texts.many_settings, settings_ids))
