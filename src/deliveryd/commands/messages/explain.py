"""`deliveryd explain`: show the history of one message."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import typer

from deliveryd.channels.destination_rules import rules_of
from deliveryd.commands.common.configuration import load_journal_part
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, integer
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.messages.due_times import due_of
from deliveryd.commands.messages.explanation import life_data, life_lines
from deliveryd.config import Config
from deliveryd.errors import DeliverydError, ServiceUnreadable
from deliveryd.journal.opening import open_reader
from deliveryd.journal.sql.history import without_values
from deliveryd.model import Settings, number_of
from deliveryd.options.safety import limits_text
from deliveryd.options.units import format_rate
from deliveryd.rules.priorities import NORMAL, PRIORITY_NAMES


def explain(
    *,
    config: ConfigOption = USUAL_CONFIG,
    message_id: Annotated[
        int,
        typer.Argument(metavar="MESSAGE_ID", parser=integer, help="The message's ID from the queue."),
    ],
    show_variables: Annotated[
        bool, typer.Option("--show-variables", help="Show the values of variables, not only their names.")
    ] = False,
    as_data: AsData = False,
) -> None:
    """Show the history of one message.

    It covers the time from the queue to the last event. If [safety] limits whom this installation sends to,
    or a channel or provider the phone numbers, that is shown first, unless the file has problems: then other
    limits are in force. The reference of its settings is that of the copy in the disk cache, if there is one.
    Read-only; works with or without a running worker. Exit status 1: the message isn't in the journal.
    """
    part = load_journal_part(config)
    loaded, is_whole = part.config, not part.ignored
    place = loaded.journal.place
    [life] = open_reader(place).lives([number_of(message_id)])
    if not life.is_known:
        raise DeliverydError(
            f"message {message_id} isn't in the journal {place.name}: it was never taken,"
            " or by another instance, or it was forgotten or erased; see deliveryd decisions"
        )
    shown = life if show_variables else without_values(life)
    safety = loaded.safety
    settings_id = None if life.message is None else life.message.settings_id
    cached = None if settings_id is None else _settings(loaded, settings_id)
    reference = None if cached is None else cached.reference
    rank = NORMAL if settings_id is None else loaded.priorities.rank(settings_id)
    rate = _rate(loaded, None if life.message is None else life.message.lane)
    if as_data:
        only_to, share = safety.figures
        limits = {"only_to": only_to, "share": share} if safety.limits else None
        given = {"settings_reference": reference, "priority": PRIORITY_NAMES[rank], "rate": rate}
        allowed = {"safety": limits, "destinations": _destinations(loaded)} if is_whole else {}
        print_json({**life_data(shown), **given, **allowed})
    else:
        if safety.limits and is_whole:
            print_lines(f"this installation {limits_text(*safety.figures)}", "")
        if (named := _destinations(loaded)) and is_whole:
            print_lines(*(f"{place} sends only to {text}" for place, text in named.items()), "")
        ruled = None if rank == NORMAL else PRIORITY_NAMES[rank]
        due = due_of(loaded, life.message, cached) if life.message is not None and is_whole else None
        print_lines(*life_lines(shown, loaded.channels.reporting, reference, ruled, rate, due=due))


def _rate(config: Config, provider: str | None) -> str | None:
    """Return the rate of the provider that a message waits for, as it is configured; None: it has none."""
    known = config.channels.providers.get(provider or "")
    return None if known is None or known.common.rate is None else format_rate(known.common.rate)


def _destinations(config: Config) -> Mapping[str, str]:
    """Return the numbers that channels and providers send to, by their tables, of those that name any."""
    return {
        rule.place: rule.text
        for channel in config.channels.configured.values()
        for provider in channel.providers.values()
        for rule in rules_of(channel, provider)
    }


def _settings(config: Config, settings_id: int) -> Settings | None:
    """Return settings of the disk cache; None: they aren't there, or can't be read."""
    # A cache opened without write permission would count as broken and be discarded.
    if not os.access(config.settings.cache_dir / "cache.db", os.R_OK | os.W_OK, effective_ids=True):
        return None
    import anyio  # noqa: PLC0415  # a cache needs an event loop

    from deliveryd.service.wire import read_settings  # noqa: PLC0415  # only this reads settings

    kept = anyio.run(_kept, config, f"settings/{settings_id}")
    try:
        return None if kept is None else read_settings(settings_id, kept)
    except ServiceUnreadable:
        return None


async def _kept(config: Config, key: str) -> bytes | None:
    from deliveryd.worker.caches import open_cache  # noqa: PLC0415  # as above

    cache = open_cache(config, on_problem=lambda _problem: None)
    try:
        found = await cache.get(key)
    finally:
        await cache.aclose()
    return None if found is None else found.value
