"""What lies outside of the worker: the service, the providers, the directory; opened, replaced, closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

import anyio

from deliveryd.channels.base import Channel
from deliveryd.channels.options import ProviderConfig
from deliveryd.config import Config
from deliveryd.directory.base import Answered, Directory
from deliveryd.model import Customer, Settings
from deliveryd.runtime.succession import Succession
from deliveryd.service.batch import Batch
from deliveryd.service.caller import Ready
from deliveryd.service.client import ServiceClient


class Closable(Protocol):
    """Something that is open."""

    async def aclose(self) -> None:
        """Close it."""


class Openers(NamedTuple):
    """How each part is opened, within the event loop. They raise ConfigError."""

    service: Callable[[Config], ServiceClient]
    provider: Callable[[Config, ProviderConfig], Channel]
    directory: Callable[[Config], Awaitable[Directory]]


class Holdings:
    """What is open: each part is closed once, when it was replaced or in the end."""

    def __init__(self) -> None:
        self._open: dict[int, Closable] = {}

    def hold(self, part: Closable) -> None:
        """Close this in the end, if not before."""
        self._open[id(part)] = part

    async def close(self, part: Closable) -> None:
        """Close this now, unless it is closed already."""
        if self._open.pop(id(part), None) is not None:
            with anyio.CancelScope(shield=True):
                await part.aclose()

    async def close_all(self) -> None:
        """Close all that is open, what was opened last first."""
        for part in reversed(list(self._open.values())):
            await self.close(part)


class Outside(NamedTuple):
    """The parts that are in use."""

    service: ServiceClient
    providers: Mapping[str, Channel]
    directory: Directory
    holdings: Holdings


@asynccontextmanager
async def open_outside(config: Config, openers: Openers) -> AsyncIterator[Outside]:
    """Open what the configuration names, and close it in the end. Raises ConfigError."""
    holdings = Holdings()
    try:
        service = openers.service(config)
        holdings.hold(service)
        providers = {}
        for name, provider in config.channels.providers.items():
            providers[name] = openers.provider(config, provider)
            holdings.hold(providers[name])
        directory = await openers.directory(config)
        holdings.hold(directory)
        yield Outside(service, providers, directory, holdings)
    finally:
        await holdings.close_all()


class CurrentService:
    """The remote service as it is configured now: each call ends with the client that it began with."""

    def __init__(self, client: ServiceClient) -> None:
        self._clients = Succession(client)

    def replace(self, client: ServiceClient) -> anyio.Event:
        """Use another client for new calls; the event is set when the last call of the old one has ended."""
        return self._clients.replace(client)

    async def take(self, count: int, ready: Ready | None = None) -> Batch:
        """Take up to `count` messages."""
        with self._clients.use() as client:
            return await client.take(count, ready)

    async def report(self, bodies: Sequence[str], ready: Ready | None = None) -> None:
        """Report a batch of events."""
        with self._clients.use() as client:
            await client.report(bodies, ready)

    async def fetch_settings(self, settings_id: int) -> bytes:
        """The settings as they were written."""
        with self._clients.use() as client:
            return await client.fetch_settings(settings_id)

    def parse_settings(self, settings_id: int, body: bytes) -> Settings:
        """Read what was fetched."""
        return self._clients.current.parse_settings(settings_id, body)


class CurrentDirectory:
    """The customer directory as it is configured now: each look-up ends with the one that it began with."""

    def __init__(self, directory: Directory) -> None:
        self._directories = Succession(directory)

    def replace(self, directory: Directory) -> anyio.Event:
        """Use another one for new look-ups; the event is set when the last of the old one has ended."""
        return self._directories.replace(directory)

    @property
    def is_down(self) -> bool:
        """Whether the directory counts as down."""
        return self._directories.current.is_down

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        """Answers about those of `ids` that are in memory."""
        return self._directories.current.at_hand(ids)

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """Call `answered` with each of `ids` once."""
        with self._directories.use() as directory:
            await directory.look_up(ids, answered)

    async def probe(self) -> str | None:
        """Why the directory can't be used, or None."""
        with self._directories.use() as directory:
            return await directory.probe()

    async def aclose(self) -> None:
        """Do nothing: whoever opened the directories closes them."""
