"""What of an overview needs attention: the answers to "is it well" and "why does it wait"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from deliveryd.admin.words import age, ago, seconds_between, size
from deliveryd.telemetry.overview import Disk, Overview, ProviderView

NoticeLevel = Literal["good", "fair", "bad"]

EVENT_PATIENCE = 60.0
"""Seconds that a status event may wait before the page points at it."""

DISK_MARGIN = 2
"""The disk is pointed at when less than this many times its reserve is free."""


class Notice(NamedTuple):
    """One thing to look at: what it is about, and a sentence."""

    level: NoticeLevel
    about: str
    text: str


def level_of(overview: Overview, notices: list[Notice]) -> NoticeLevel:
    """Return how the worker is, in a word."""
    if not (overview.alive and overview.ready):
        return "bad"
    return "fair" if any(notice.level != "good" for notice in notices) else "good"


def notices_of(overview: Overview) -> list[Notice]:
    """Return what needs attention, the most urgent first."""
    found = [*_of_worker(overview), *_of_events(overview)]
    for provider in overview.providers:
        found += _of_provider(provider, overview.at)
    return sorted(found, key=lambda notice: ("bad", "fair", "good").index(notice.level))


def _of_worker(overview: Overview) -> Iterator[Notice]:
    if not overview.alive and overview.loops:
        loop, seconds = max(overview.loops.items(), key=lambda item: item[1])
        yield Notice("bad", "Worker", f"The loop {loop} has stood still for {age(seconds)}.")
    if overview.disk is not None:
        yield from _of_disk(overview.disk)
    if overview.malformed:
        count = _counted(overview.malformed, "element of the queue was", "elements of the queue were")
        yield Notice("fair", "Queue", f"{count} malformed and set aside: see deliveryd dead list.")
    if (reload := overview.last_reload) is not None and reload.problems:
        count = _counted(len(reload.problems), "problem", "problems")
        text = f"The last reload, {ago(reload.at, overview.at)}, was refused with {count}."
        yield Notice("fair", "Configuration", text)


def _of_disk(disk: Disk) -> Iterator[Notice]:
    if disk.free < disk.reserve:
        text = f"{size(disk.free)} are free, less than the reserve of {size(disk.reserve)}: nothing is taken."
        yield Notice("bad", "Disk", text)
    elif disk.free < DISK_MARGIN * disk.reserve:
        text = f"{size(disk.free)} are free. Below {size(disk.reserve)} nothing more is taken."
        yield Notice("fair", "Disk", text)


def _of_events(overview: Overview) -> Iterator[Notice]:
    oldest = overview.oldest.event
    if overview.events.waiting and oldest is not None and oldest >= EVENT_PATIENCE:
        count = _counted(overview.events.waiting, "status event waits", "status events wait")
        yield Notice("fair", "Service", f"{count} to be accepted, the oldest for {age(oldest)}.")
    if overview.events.failing:
        count = _counted(overview.events.failing, "message has", "messages have")
        text = f"{count} an event that the service fails at: see events.failing in the log."
        yield Notice("fair", "Service", text)
    if overview.events.refused:
        count = _counted(overview.events.refused, "status event was", "status events were")
        yield Notice("fair", "Service", f"{count} refused and set aside: see deliveryd dead list.")


def _of_provider(provider: ProviderView, now: str) -> Iterator[Notice]:
    name = provider.identity
    if provider.breaker != "closed" and provider.since is not None:
        seconds = seconds_between(provider.since, now)
        why = f": {provider.last_failure.reason}" if provider.last_failure is not None else ""
        waiting = provider.waiting + provider.queued
        waits = f" {_counted(waiting, 'message waits', 'messages wait')} for it." if waiting else ""
        yield Notice("bad", name, f"Down for {age(seconds)}{why}.{waits} Probes continue.")
    if provider.refused_settings:
        ids = ", ".join(map(str, provider.refused_settings[:5]))
        more = len(provider.refused_settings) - 5
        text = f"Refuses all messages of settings {ids}{f' and {more} more' if more > 0 else ''}; they wait."
        yield Notice("fair", name, text)
    if provider.in_doubt:
        count = _counted(provider.in_doubt, "message is", "messages are")
        yield Notice("fair", name, f"{count} held in doubt for a decision: see deliveryd in-doubt list.")
    if provider.receipts == "silent":
        yield Notice("fair", name, "Reports no deliveries: its receipt deadlines stand still.")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
