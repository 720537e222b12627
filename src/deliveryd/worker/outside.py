"""What lies outside of the worker: the service, the providers, the directory; opened, replaced, closed.

A reload opens again each part whose source has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import anyio

from deliveryd.channels.base import Channel
from deliveryd.channels.options import ProviderConfig
from deliveryd.config import Config, OtlpOptions, receipt_url
from deliveryd.directory.base import Answered, Directory, NoDirectory
from deliveryd.directory.registry import FileOptions, NoOptions, open_source
from deliveryd.model import Customer, Settings
from deliveryd.options.tables import leaves
from deliveryd.runtime.secret_file import SecretFile
from deliveryd.runtime.threads import in_thread
from deliveryd.runtime.wakeup import Uses
from deliveryd.service.batch import Batch
from deliveryd.service.caller import Ready
from deliveryd.service.client import ServiceClient
from deliveryd.telemetry.log_events import Event, log

if TYPE_CHECKING:
    from deliveryd.otlp.spans import Tracer

LARGEST_FILE = 1 << 20
"""Bytes of a secret or a certificate that are compared at most."""

T = TypeVar("T")
HeldPart = TypeVar("HeldPart", bound="Closable")


class Closable(Protocol):
    """Something that is open."""

    async def aclose(self) -> None:
        """Close it."""


class Openers(NamedTuple):
    """How each part is opened, within the event loop. They raise ConfigError."""

    service: Callable[[Config], ServiceClient]
    provider: Callable[[Config, ProviderConfig], Channel]
    directory: Callable[[Config], Awaitable[Directory]]


class PartSource(NamedTuple):
    """What a part is made from: its tables, and a digest of the secrets and certificates that they name."""

    tables: object
    files: bytes


Sources = Mapping[str, PartSource]
"""The source of each part: `service`, `customers`, or a provider's place."""


def sources(config: Config) -> Sources:
    """Return what each part is made from; reads all secrets and certificates that a worker uses.

    Whether a customer file has changed is looked for by its directory.
    """
    directory = config.customers.options
    found = {
        "service": PartSource(config.service, _digest(config.service)),
        "customers": PartSource(
            config.customers, _digest(None if isinstance(directory, FileOptions) else directory)
        ),
    }
    for provider in config.channels.providers.values():
        common, options = provider.common, provider.options
        tables = (provider.block, common.adapter, common.timeout, options, receipt_url(config, provider))
        found[provider.place] = PartSource(tables, _digest(options))
    return found


def _digest(value: object) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for _key, named in leaves(value):
        if not isinstance(named, SecretFile | Path):
            continue
        path = named.path if isinstance(named, SecretFile) else named
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_FILE)
        except OSError:  # a start would complain of it
            content = b""
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


class Holdings:
    """What is open: each part is closed once, when it was replaced or in the end."""

    def __init__(self) -> None:
        self._open: dict[int, Closable] = {}

    def hold(self, part: HeldPart) -> HeldPart:
        """Close this in the end, if not before; return it."""
        self._open[id(part)] = part
        return part

    def hold_all(self, others: Holdings) -> None:
        """Close in the end what others hold."""
        self._open |= others._open

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
    """The parts that are in use, and what each was made from."""

    service: ServiceClient
    providers: Mapping[str, Channel]
    directory: Directory
    sources: Sources
    holdings: Holdings


@asynccontextmanager
async def open_outside(config: Config, openers: Openers) -> AsyncIterator[Outside]:
    """Open what the configuration names, and close it in the end. Raises ConfigError."""
    holdings = Holdings()
    try:
        yield await open_parts(config, sources(config), openers, holdings)
    finally:
        await holdings.close_all()


async def open_parts(
    config: Config,
    read: Sources,
    openers: Openers,
    holdings: Holdings,
    *,
    in_use: Outside | None = None,
    named: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> Outside:
    """Open what the configuration names, but for the parts in use whose source is the same.

    What is opened is held by `holdings`, also if another part can't be opened. Each is opened within
    `named(place)`. Raises ConfigError.
    """
    kept = set() if in_use is None else {place for place in read if in_use.sources.get(place) == read[place]}
    with named("service"):
        service = in_use.service if in_use and "service" in kept else holdings.hold(openers.service(config))
    providers = {}
    for name, provider in config.channels.providers.items():
        with named(provider.place):
            providers[name] = (
                in_use.providers[name]
                if in_use and provider.place in kept
                else holdings.hold(openers.provider(config, provider))
            )
    with named("customers"):
        directory = (
            in_use.directory
            if in_use and "customers" in kept
            else holdings.hold(await openers.directory(config))
        )
    return Outside(service, providers, directory, read, holdings)


class Succession(Generic[T]):
    """A value and its successors: each use ends with the value that it began with."""

    def __init__(self, first: T) -> None:
        self.current = first
        """The value for a use that begins and ends now."""

        self._uses = Uses()

    @contextmanager
    def use(self) -> Iterator[T]:
        """Use the current value; it counts as used until the end."""
        uses = self._uses
        uses.begin(1)
        try:
            yield self.current
        finally:
            uses.end(1)

    def replace(self, successor: T) -> anyio.Event:
        """Let new uses have the successor; the event is set when the last use of the old value has ended."""
        before, self.current, self._uses = self._uses, successor, Uses()
        return before.retire()


class CurrentService(Succession[ServiceClient]):
    """The remote service as it is configured now: each call ends with the client that it began with."""

    async def take(self, count: int, ready: Ready | None = None) -> Batch:
        """Take up to `count` messages."""
        with self.use() as client:
            return await client.take(count, ready)

    async def report(self, bodies: Sequence[str], ready: Ready | None = None) -> None:
        """Report a batch of events."""
        with self.use() as client:
            await client.report(bodies, ready)

    async def fetch_settings(self, settings_id: int) -> bytes:
        """The settings as they were written."""
        with self.use() as client:
            return await client.fetch_settings(settings_id)

    def parse_settings(self, settings_id: int, body: bytes) -> Settings:
        """Read what was fetched."""
        return self.current.parse_settings(settings_id, body)


class CurrentDirectory(Succession[Directory]):
    """The customer directory as it is configured now: each look-up ends with the one that it began with."""

    @property
    def is_down(self) -> bool:
        """Whether the directory counts as down."""
        return self.current.is_down

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        """Answers about those of `ids` that are in memory."""
        return self.current.at_hand(ids)

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """Call `answered` with each of `ids` once."""
        with self.use() as directory:
            await directory.look_up(ids, answered)

    async def probe(self) -> str | None:
        """Why the directory can't be used, or None."""
        with self.use() as directory:
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
