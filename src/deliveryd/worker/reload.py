"""Reload: a changed configuration takes the place of the running one, as a whole or not at all.

Everything is read, checked and opened beside what runs. Then all parts are replaced at one point of the event
loop, without an await between. What is unchanged is kept, above all adapters and what is known of providers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio
from anyio.abc import TaskGroup
from pydantic import BaseModel

from deliveryd.channels.options import ChannelConfig, ProviderConfig
from deliveryd.config import Config, Examined
from deliveryd.directory.registry import FileOptions
from deliveryd.errors import AddressInUse, ConfigError, describe
from deliveryd.journal.base import Orphans
from deliveryd.journal.sql.own_values import difference
from deliveryd.runtime.threads import Blocking, in_thread
from deliveryd.telemetry import log_writing
from deliveryd.telemetry.log_events import Event, log
from deliveryd.worker.handover import Handover
from deliveryd.worker.outside import Holdings, Openers, Sources, open_parts, sources
from deliveryd.worker.wiring import Parts, open_inlets, open_receipts

if TYPE_CHECKING:
    from deliveryd.receipts.app import Receipts
    from deliveryd.receipts.inlet import Inlets

IN_PLACE = frozenset(
    {
        "channels", "content", "customers", "entities", "log", "rules", "run", "safety", "service",
        "events.batch_size", "events.flush_interval", "events.intermediate",
        "journal.allow_shared_folder", "journal.reserve", "journal.retention",
        "queue.batch_size", "queue.max_in_flight", "queue.max_paused", "queue.max_poll_interval",
        "queue.max_waiting", "queue.poll_interval", "queue.take_ahead",
        "receipts.max_body", "receipts.public_url",
        "settings.stale_while_down", "settings.ttl",
    }
)  # fmt: skip
"""The tables and keys that a reload applies. Any other key needs a restart."""


class Change(NamedTuple):
    """A key or a table that differs, and how."""

    key: str
    what: str = "changed"

    def __str__(self) -> str:
        """Return it as text for operators."""
        return self.key if self.what == "changed" else f"{self.key} ({self.what})"


ADDED, REMOVED, NEW_FILES = "added", "removed", "new secrets or certificates"


def changes(before: Config, after: Config, old: Sources, new: Sources) -> list[Change]:
    """Return what differs, in the order of the file's tables."""
    found: list[Change] = []
    for table in Config.model_fields:
        if table not in ("channels", "customers", "rules"):
            found += _fields(table, getattr(before, table), getattr(after, table))
    found += [Change("rules")] if before.rules != after.rules else []
    found += _fields("customers", before.customers, after.customers)
    found += _fields("customers", before.customers.options, after.customers.options)
    found += _fields("channels", before.channels, after.channels)
    found += _channels(before.channels.configured, after.channels.configured)
    found += [
        Change(part, NEW_FILES)
        for part, source in new.items()
        if part in old and old[part].files != source.files
    ]
    return list(dict.fromkeys(found))


def needs_restart(change: Change) -> bool:
    """Whether a change can't be applied to a running worker."""
    return not ({change.key, change.key.partition(".")[0]} & IN_PLACE)


def _fields(place: str, before: BaseModel, after: BaseModel) -> Iterator[Change]:
    if type(before) is not type(after):
        yield Change(f"{place}.source" if place == "customers" else place)
        return
    for name, field in type(after).model_fields.items():
        if not field.exclude and getattr(before, name) != getattr(after, name):
            yield Change(f"{place}.{field.alias or name}")


def _channels(before: Mapping[str, ChannelConfig], after: Mapping[str, ChannelConfig]) -> Iterator[Change]:
    for name, channel in after.items():
        if name not in before:
            yield Change(f"channels.{name}", ADDED)
        else:
            yield from _fields(f"channels.{name}", before[name].common, channel.common)
            yield from _providers(before[name].providers, channel.providers)
    yield from (Change(f"channels.{name}", REMOVED) for name in before if name not in after)


def _providers(before: Mapping[str, ProviderConfig], after: Mapping[str, ProviderConfig]) -> Iterator[Change]:
    for name, provider in after.items():
        if name not in before:
            yield Change(provider.place, ADDED)
        else:
            yield from _fields(provider.place, before[name].common, provider.common)
            yield from _fields(provider.place, before[name].options, provider.options)
    yield from (Change(each.place, REMOVED) for name, each in before.items() if name not in after)


APPLIED, UNCHANGED, NOT_APPLIED = "applied", "unchanged", "refused"

STOPPING = "the worker is stopping: the next start reads the configuration"


class LastReload(NamedTuple):
    """The latest reload: when it ended, its outcome, what it changed, and what kept it from that."""

    at: int
    outcome: str
    changes: Sequence[str] = ()
    problems: Sequence[str] = ()


class Around(NamedTuple):
    """What a reload needs of the process around the line.

    `examine` reads the configuration again. `serve_receipts` begins to serve where nothing reported before;
    raises ConfigError, AddressInUse. `adopted` is called at the moment of the exchange.
    """

    examine: Callable[[], Examined]
    openers: Openers
    serve_receipts: Callable[[Config, Receipts], object]
    adopted: Callable[[Config], None]
    is_stopping: Callable[[], bool]
    blocking: Blocking = in_thread


class Reloader:
    """Replaces the configuration of a running worker, one reload after the other."""

    def __init__(self, config: Config, parts: Parts, around: Around, tasks: TaskGroup) -> None:
        self._config = config
        self._parts = parts
        self._around = around
        self._clock = parts.common.clock
        self._turn = anyio.Lock()
        self._handover = Handover(config, parts, tasks)
        self.sweep = self._handover.sweep
        self.last: LastReload | None = None

    async def reload(self, *, accept_orphans: bool, accept_customers: bool = False) -> LastReload:
        """Apply the configuration as it is in the file now. Raises ConfigError; then nothing has changed.

        `accept_customers`: the customer file is used though more than half of its customers are gone.
        """
        async with self._turn:
            try:
                accept = await self._customers_to_accept() if accept_customers else None
                found = list(await self._reload(accept_orphans))
                if accept is not None:
                    found.append(Change("customers.path", f"accepted with {accept():,} customers"))
            except ConfigError as error:
                self.last = LastReload(self._clock.now(), NOT_APPLIED, problems=tuple(error.problems))
                for problem in error.problems:
                    log(Event.CONFIG_REFUSED, reason=problem)
                raise
            self.last = LastReload(self._clock.now(), APPLIED if found else UNCHANGED, tuple(map(str, found)))
            log(Event.CONFIG_RELOADED, count=len(found), reason=", ".join(self.last.changes) or "no change")
            return self.last

    async def _reload(self, accept_orphans: bool) -> Sequence[Change]:
        """Return what was changed."""
        with _as_problem("the configuration can't be read"):
            examined, read = await self._around.blocking(self._read)
        config = examined.config
        if examined.problems or config is None:
            raise ConfigError(list(examined.problems))
        found = changes(self._config, config, self._handover.outside.sources, read)
        if kept := [each.key for each in found if needs_restart(each)]:
            text = "needs a restart: a reload can't change it, and has changed nothing"
            raise ConfigError([f"{examined.place_of(key)}: {text}" for key in kept])
        if (problem := difference(self._config.service.address, config.service.address)) is not None:
            raise ConfigError([f"{examined.place_of('service.base_url')}: {problem}"])
        if not accept_orphans and (problems := await self._orphaned(config, examined)):
            raise ConfigError(problems)
        if found:
            await self._exchange(config, read)
        return found

    def _read(self) -> tuple[Examined, Sources]:
        examined = self._around.examine()
        return examined, {} if examined.config is None else sources(examined.config)

    async def _customers_to_accept(self) -> Callable[[], int] | None:
        if not isinstance(self._config.customers.options, FileOptions):
            return None
        from deliveryd.directory.file import FileDirectory  # noqa: PLC0415  # loaded where it is configured

        directory = self._handover.outside.directory
        return await directory.read_to_accept() if isinstance(directory, FileDirectory) else None

    # what a removal would leave

    async def _orphaned(self, config: Config, examined: Examined) -> list[str]:
        """Return what keeps providers from being removed."""
        problems = []
        before = self._config.channels
        for name in before.providers.keys() - config.channels.providers.keys():
            overdue = before.overdue.get(name)
            since = self._parts.memory.passed.before(overdue or 0.0)
            with _as_problem("journal.url"):
                found = await self._parts.journal.orphans(name, since)
            if overdue is None:
                found = found._replace(unconfirmed=0)
            if any(found):
                place = examined.place_of(before.providers[name].place)
                problems.append(f"{place}: {_why_kept(found)}")
        return sorted(problems)

    # the exchange

    async def _exchange(self, config: Config, read: Sources) -> None:
        """Open what is new, then replace all parts at once. Raises ConfigError; then nothing has changed."""
        in_use, opened = self._handover.outside, Holdings()
        try:
            outside = await open_parts(
                config, read, self._around.openers, opened, in_use=in_use, named=_as_problem
            )
            inlets = await self._open_inlets(config)
            receipts = self._receipts(config)
        except BaseException:
            await opened.close_all()
            raise
        in_use.holdings.hold_all(opened)
        before, self._config = self._config, config
        self._handover.take_over(before, config, outside._replace(holdings=in_use.holdings), receipts, inlets)
        if before.log != config.log:
            log_writing.configure(config.log.level, config.log.format)
        self._around.adopted(config)

    async def _open_inlets(self, config: Config) -> Inlets | None:
        """What verifies and reads the reports; the last await before the exchange.

        None: nothing reports, and nothing has so far.
        """
        if not config.channels.reporting and self._handover.receipts is None:
            return None
        with _as_problem("receipts"):
            return await self._around.blocking(partial(open_inlets, config))

    def _receipts(self, config: Config) -> Receipts | None:
        """What takes receipts in; it begins to listen when the first provider reports."""
        if self._around.is_stopping():
            raise ConfigError([STOPPING])
        if self._handover.receipts is not None:
            return self._handover.receipts
        receipts = open_receipts(config, self._parts.common)
        if receipts is not None:
            try:
                self._around.serve_receipts(config, receipts)
            except AddressInUse as error:
                raise ConfigError([f"receipts.listen: {error}"]) from None
        return receipts


@contextmanager
def _as_problem(place: str) -> Iterator[None]:
    """Raise any error as ConfigError: neither a plug-in nor a file may take the running worker with it."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError([f"{place}: {describe(error)}"]) from error


def _why_kept(found: Orphans) -> str:
    """Why a provider isn't removed, and what to do."""
    parts = (
        (found.in_doubt, "in doubt"),
        (found.waiting, "waiting"),
        (found.unconfirmed, "sent and not yet confirmed"),
        (found.deadlines, "with a receipt deadline"),
    )
    counts = ", ".join(f"{count} {words}" for count, words in parts if count)
    return (
        f"removing it would orphan messages: {counts}. Set enabled = false and remove it when none are left,"
        " or reload with --accept-orphans"
    )
