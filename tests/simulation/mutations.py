"""Deliberate breaks of the worker, each a promise that it no longer keeps: what the oracle has to see."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from simulation import (
    breaks_of_ages,
    breaks_of_beginning,
    breaks_of_bounding,
    breaks_of_choice,
    breaks_of_confirming,
    breaks_of_delivery,
    breaks_of_destinations,
    breaks_of_devices,
    breaks_of_guarding,
    breaks_of_keeping,
    breaks_of_leaving,
    breaks_of_limiting,
    breaks_of_naming,
    breaks_of_pacing,
    breaks_of_pages,
    breaks_of_refusals,
    breaks_of_rejecting,
    breaks_of_reloading,
    breaks_of_reporting,
    breaks_of_slowness,
    breaks_of_taking,
    breaks_of_tokens,
    breaks_of_turns,
    breaks_of_windows,
)

Break = Callable[[Any], None]


def breaks_in(module: ModuleType) -> dict[str, Break]:
    """The module's public functions: each breaks the worker with a `pytest.MonkeyPatch`."""
    own = (thing for thing in vars(module).values() if getattr(thing, "__module__", "") == module.__name__)
    return {thing.__name__: thing for thing in own if callable(thing) and not thing.__name__.startswith("_")}


MUTATIONS: Mapping[str, Break] = {
    **breaks_in(breaks_of_delivery),
    **breaks_in(breaks_of_choice),
    **breaks_in(breaks_of_confirming),
    **breaks_in(breaks_of_reporting),
    **breaks_in(breaks_of_naming),
    **breaks_in(breaks_of_beginning),
    **breaks_in(breaks_of_refusals),
    **breaks_in(breaks_of_ages),
    **breaks_in(breaks_of_pages),
    **breaks_in(breaks_of_devices),
    **breaks_in(breaks_of_tokens),
}

RELOADING: Mapping[str, Break] = {**breaks_in(breaks_of_reloading), **breaks_in(breaks_of_keeping)}
"""Those that only plans with reloads show."""

REJECTING: Mapping[str, Break] = breaks_in(breaks_of_rejecting)
"""Those that only plans with rejections show."""

WINDOWING: Mapping[str, Break] = breaks_in(breaks_of_windows)
"""Those that only plans with windows and lifetimes show."""

AHEAD: Mapping[str, Break] = breaks_in(breaks_of_taking)
"""Those that only plans show in which messages are taken ahead."""

GUARDING: Mapping[str, Break] = breaks_in(breaks_of_guarding)
"""Those that only plans show in which texts become longer."""

PACING: Mapping[str, Break] = breaks_in(breaks_of_pacing)
"""Those that only plans with rates show."""

SLOWING: Mapping[str, Break] = breaks_in(breaks_of_slowness)
"""Those that only plans show in which deliveries take long."""

BOUNDING: Mapping[str, Break] = breaks_in(breaks_of_bounding)
"""Those that only plans with budgets and caps show."""

TURNING: Mapping[str, Break] = breaks_in(breaks_of_turns)
"""Those that only plans show in which some settings ids wait beside another one's backlog."""

LIMITING: Mapping[str, Break] = breaks_in(breaks_of_limiting)
"""Those that only plans show in which an installation doesn't send to all customers."""

DESTINING: Mapping[str, Break] = breaks_in(breaks_of_destinations)
"""Those that only plans show in which providers serve some phone numbers."""

LEAVING: Mapping[str, Break] = breaks_in(breaks_of_leaving)
"""Those that only plans show in which providers are removed."""
