"""Routing: which channel and which language a message takes, and what it says there. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from deliveryd.channels.base import Channel
from deliveryd.errors import LanguageUnreadable
from deliveryd.model import Customer, Entry, Rendered, format_instant
from deliveryd.rendering.content import Broken, CompiledBlock, CompiledSettings, Missing
from deliveryd.rendering.language import candidates


class Road(NamedTuple):
    """A channel that messages may take: its adapter, and the block of the settings that it sends."""

    block: str
    channel: Channel


class Routed(NamedTuple):
    """A message that can be sent: over which lane, to whom, what, and until when."""

    entry: Entry
    lane: str
    customer: Customer | None
    rendered: Rendered
    expires_at: int | None


class Unsendable(NamedTuple):
    """A message that ends here, and the details of its `error` event."""

    entry: Entry
    details: str


def is_expired(expires_at: int | None, now: int) -> bool:
    """Whether nothing may be sent any more (interface 8)."""
    return expires_at is not None and now > expires_at


def expired(expires_at: int) -> str:
    """The details of an `error` event for a message whose time is over (design 5)."""
    return f"expired at {format_instant(expires_at)}"


class Router:
    """Chooses by design 5: the customer's language, then `languages`; in each the first lane of `order`."""

    def __init__(self, roads: Mapping[str, Road], order: Sequence[str], languages: Sequence[str]) -> None:
        self._roads = roads
        self._order = [name for name in order if name in roads]
        self._languages = tuple(languages)

    def route(
        self, entry: Entry, settings: CompiledSettings, customer: Customer | None, now: int
    ) -> Routed | Unsendable:
        """Where a message goes now, and what it says; or why it can't be sent at all."""
        if settings.expires_at is not None and is_expired(settings.expires_at, now):
            return Unsendable(entry, expired(settings.expires_at))
        try:
            tags = candidates(customer.language if customer else None, self._languages)
        except LanguageUnreadable as error:
            return Unsendable(entry, str(error))
        found = self._first_usable(entry, settings, customer, tags)
        if found is None:
            return Unsendable(entry, self._why_none(entry, settings, tags))
        lane, block = found
        rendered = block.render(entry.variables, customer)
        if isinstance(rendered, Missing):
            return Unsendable(entry, f"missing placeholders: {', '.join(rendered.names)}")
        if isinstance(rendered, Broken):
            return Unsendable(entry, rendered.reason)
        return Routed(_bound(entry, lane), lane, customer, rendered, settings.expires_at)

    def _first_usable(
        self, entry: Entry, settings: CompiledSettings, customer: Customer | None, tags: Sequence[str]
    ) -> tuple[str, CompiledBlock] | None:
        # An attempt in doubt is repeated where it was made, or nowhere: another channel would send it twice.
        spent = {name for name, _ in entry.spent}
        order = [name for name in self._order if name not in spent] if entry.doubt is None else [entry.lane]
        for tag in tags:
            language = settings.languages.get(tag)
            if language is None:
                continue
            for name in order:
                road = self._roads.get(name) if name is not None else None
                if name is None or road is None:
                    continue
                block = language.blocks.get(road.block)
                if block is not None and road.channel.reaches(customer):
                    return name, block
        return None

    def _why_none(self, entry: Entry, settings: CompiledSettings, tags: Sequence[str]) -> str:
        reasons = [f"{name}: {reason}" for name, reason in entry.spent]
        if entry.doubt is not None:
            reasons.append(f"{entry.lane}: the outcome is unknown, and the attempt can't be repeated")
            return "; ".join(reasons)
        spent = {name for name, _ in entry.spent}
        offered = {
            name: any(
                self._roads[name].block in settings.languages[tag].blocks
                for tag in tags
                if tag in settings.languages
            )
            for name in self._order
            if name not in spent
        }
        reasons += [f"{name}: no address of the customer" for name, has_block in offered.items() if has_block]
        if not reasons:
            return f"no content for a configured channel in {', '.join(tags)}"
        return "; ".join(reasons)


def _bound(entry: Entry, lane: str) -> Entry:
    """The entry, bound to a lane; on a new one its tries begin anew."""
    return entry if entry.lane == lane else entry._replace(lane=lane, tries=0)
