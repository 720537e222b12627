"""What lies outside of the worker: the service, the providers, the directory; opened, replaced, closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import anyio

from deliveryd.channels.base import Channel
from deliveryd.channels.options import ProviderConfig
from deliveryd.config import Config, OtlpOptions
from deliveryd.directory.base import Answered, Directory
from deliveryd.directory.file_options import FileOptions
from deliveryd.directory.none import NoDirectory, NoOptions
from deliveryd.directory.registry import open_source
from deliveryd.model import Customer, Settings
from deliveryd.runtime.threads import in_thread
from deliveryd.service.batch import Batch
from deliveryd.service.caller import Ready
from deliveryd.service.client import ServiceClient
from deliveryd.telemetry.log_events import Event, log

if TYPE_CHECKING:
    from deliveryd.otlp.spans import Tracer

T = TypeVar("T")


class _InUse(Generic[T]):
    """A value with the number of its uses; `unused` is set when there are none, once it was replaced."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.uses = 0
        self.unused: anyio.Event | None = None


class Succession(Generic[T]):
    """A value and its successors: each use ends with the value that it began with."""

    def __init__(self, first: T) -> None:
        self._held = _InUse(first)

    @property
    def current(self) -> T:
        """The value for a use that begins and ends now."""
        return self._held.value

    @contextmanager
    def use(self) -> Iterator[T]:
        """Use the current value; it counts as used until the end."""
        held = self._held
        held.uses += 1
        try:
            yield held.value
        finally:
            held.uses -= 1
            if held.unused is not None and not held.uses:
                held.unused.set()

    def replace(self, successor: T) -> anyio.Event:
        """Let new uses have the successor; the event is set when no use of the old value is left."""
        before, self._held = self._held, _InUse(successor)
        before.unused = anyio.Event()
        if not before.uses:
            before.unused.set()
        return before.unused


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


async def open_directory(config: Config) -> Directory:
    """The customer directory. Must be called within an event loop; raises ConfigError."""
    customers = config.customers
    match customers.options:
        case NoOptions():
            return NoDirectory()
        case FileOptions(path=path):
            from deliveryd.directory.file import FileDirectory  # noqa: PLC0415  # loaded only where it is configured

            return await in_thread(
                lambda: FileDirectory.load(
                    path, lambda problem: log(Event.CUSTOMERS_FILE_PROBLEM, reason=problem)
                )
            )
        case options:
            from deliveryd.directory.remote import RemoteDirectory  # noqa: PLC0415  # loaded only where it is configured

            source = open_source(customers.source, options, customers.terms)
            return RemoteDirectory(source, customers.terms)


def open_tracer(options: OtlpOptions) -> Tracer | None:
    """Return what makes spans; None: no traces are exported."""
    if options.endpoint is None or not options.traces:
        return None
    from deliveryd.otlp.spans import SpanQueue, Tracer  # noqa: PLC0415  # only with a collector

    return Tracer(SpanQueue(), options.sample)


def traced(openers: Openers, tracer: Tracer | None) -> Openers:
    """Return openers of adapters whose requests become spans."""
    if tracer is None:
        return openers
    from deliveryd.otlp.spans import TracedChannel  # noqa: PLC0415  # only with a collector

    def provider(config: Config, options: ProviderConfig) -> Channel:
        return TracedChannel(openers.provider(config, options), tracer)

    return openers._replace(provider=provider)
