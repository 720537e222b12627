"""Puts the worker together from its configuration, and takes it apart again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread

from deliveryd import __version__
from deliveryd.channels import registry
from deliveryd.channels.base import Channel
from deliveryd.channels.options import ChannelConfig, ProviderConfig
from deliveryd.config import Config, receipt_url
from deliveryd.delivery.availability import Availability
from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.choice import Choice, Sender, Standing
from deliveryd.delivery.deadlines import OverdueReceipts, ReceiptDeadlines
from deliveryd.delivery.dispatcher import Dispatcher
from deliveryd.delivery.doubt import DoubtPolicy
from deliveryd.delivery.due import DueMessages
from deliveryd.delivery.in_flight import InFlightLimit
from deliveryd.delivery.intake import Intake
from deliveryd.delivery.listening import Awaited, ListeningTime
from deliveryd.delivery.outbox_signals import OutboxSignals
from deliveryd.delivery.outcomes import Outcomes
from deliveryd.delivery.pipeline import Pipeline, Stations
from deliveryd.delivery.policy import DispatchPolicy, RetryPolicy
from deliveryd.delivery.preparation import Preparer
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.reporting import Reporting
from deliveryd.delivery.routing import Road, Router
from deliveryd.delivery.settings import SettingsCache
from deliveryd.delivery.sms_rules import SmsRules
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.directory.base import Directory
from deliveryd.directory.file import FileDirectory, FileOptions
from deliveryd.directory.none import NoDirectory, NoOptions
from deliveryd.directory.registry import open_source
from deliveryd.directory.remote import RemoteDirectory
from deliveryd.errors import ConfigError
from deliveryd.http.client import build_client
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import IDENTITY
from deliveryd.journal.base import Journal
from deliveryd.journal.lock import exclusive_worker
from deliveryd.journal.sqlite import open_journal
from deliveryd.metrics import Metrics
from deliveryd.model import Clock, Settings, channel_of
from deliveryd.rendering.content import CompiledSettings, compile_settings
from deliveryd.rendering.greeting import general_stands_in, strict
from deliveryd.runtime.breaker import BreakerPolicy
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.runtime.threads import Blocking, in_thread
from deliveryd.runtime.wakeup import Heartbeats
from deliveryd.service.client import ServiceClient
from deliveryd.service.configuration_access import ConfigurationAccess
from deliveryd.service.hosts import HostRules, parse_host, parse_network
from deliveryd.telemetry import Event, log

if TYPE_CHECKING:
    from deliveryd.otlp.export import Exporter
    from deliveryd.otlp.opening import Tracing
    from deliveryd.receipts.app import Receipts

LONGEST_ASKED = 3600.0
"""Seconds that a provider or the service can have a message wait for, at most."""

COMMAND_TIMEOUT = 30.0
"""Seconds that a start waits for a command that works on the journal."""

LARGEST_SERVICE_ANSWER = 4 << 20
"""Bytes of an answer of the service that are read at most, those of the queue aside."""


class Parts(NamedTuple):
    """The worker's parts, open and ready to run."""

    pipeline: Pipeline
    stations: Stations
    recorder: Recorder
    journal: Journal
    receipts: Receipts | None
    metrics: Metrics
    heartbeats: Heartbeats
    overdue: OverdueReceipts
    exporter: Exporter | None


class Outside(NamedTuple):
    """What lies outside the worker: the remote service, the providers, the customer directory."""

    service: ServiceClient
    providers: Mapping[str, Channel]
    directory: Directory


@asynccontextmanager
async def open_outside(config: Config) -> AsyncIterator[Outside]:
    """Open what the configuration names, and close it in the end. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        service = open_service(config)
        stack.push_async_callback(service.aclose)
        providers = open_providers(config)
        for provider in providers.values():
            stack.push_async_callback(provider.aclose)
        directory = await open_directory(config)
        stack.push_async_callback(directory.aclose)
        yield Outside(service, providers, directory)


@asynccontextmanager
async def assemble(
    config: Config, clock: Clock, outside: Outside, blocking: Blocking | None = None
) -> AsyncIterator[Parts]:
    """Put the line together, and close in the end what it opened.

    Raises JournalError.
    """
    async with AsyncExitStack() as stack:
        metrics = Metrics(config.channels.providers, __version__)
        heartbeats = Heartbeats()
        service, providers, directory = outside
        cache = open_cache(config, blocking or in_thread)
        stack.push_async_callback(cache.aclose)
        stack.enter_context(exclusive_worker(config.journal.path))
        journal = await stack.enter_async_context(
            open_journal(
                config.journal.path,
                details_field=config.events.details_field,
                observe=lambda seconds, _operations: metrics.committed(seconds),
                blocking=blocking,
                reserve=config.journal.reserve,
                lock_timeout=COMMAND_TIMEOUT,
                keep_variables=config.journal.keep_variables,
            )
        )
        in_flight = InFlightLimit(config.queue.max_in_flight)
        recorder = Recorder(
            journal, in_flight, OutboxSignals(config.events.batch_size), Backlog(), clock, metrics,
            max_waiting=config.queue.max_waiting,
            longest_pause=_longest_pause(config),
        )  # fmt: skip
        settings = SettingsCache(
            service, cache, compiler(config), metrics, recorder.backlog, ttl=config.settings.ttl
        )
        states = {
            name: Provider(name, _policy(provider).breaker, recorder.backlog, clock)
            for name, provider in config.channels.providers.items()
        }
        tracing = _tracing(config, metrics, clock, journal.namespace, blocking or in_thread)
        if tracing is not None and tracing.tracer is not None:
            recorder.watch(tracing.tracer)
        choices = build_choices(config, providers, states)
        router = build_router(config, choices, recorder.stopped)
        preparer = Preparer(settings, directory, router, recorder, clock, metrics)
        stations = _stations(
            config,
            service,
            providers if tracing is None else tracing.traced(providers),
            states,
            choices,
            journal,
            recorder,
            preparer,
            clock,
            metrics,
            heartbeats,
        )
        yield Parts(
            Pipeline(stations, journal, recorder, clock, heartbeats), stations, recorder, journal,
            _receipts(config, recorder, clock, metrics), metrics, heartbeats,
            OverdueReceipts(config.channels.overdue, journal, clock, metrics),
            None if tracing is None else tracing.exporter,
        )  # fmt: skip


def _stations(  # noqa: PLR0917 - all that the stations are made of
    config: Config,
    service: ServiceClient,
    providers: Mapping[str, Channel],
    states: Mapping[str, Provider],
    choices: Mapping[str, Choice],
    journal: Journal,
    recorder: Recorder,
    preparer: Preparer,
    clock: Clock,
    metrics: Metrics,
    heartbeats: Heartbeats,
) -> Stations:
    """The stations of the line: each is handed what was built before it, and nothing afterwards."""
    policies = {name: _policy(provider) for name, provider in config.channels.providers.items()}
    doubts = {name: DoubtPolicy(name, policy) for name, policy in policies.items()}
    outcomes = Outcomes(recorder, heartbeats)
    listening = ListeningTime()
    awaited = _awaited(config, listening)
    deadlines = ReceiptDeadlines(tuple(config.channels.reporting), listening, recorder, metrics, heartbeats)
    dispatchers = {
        name: Dispatcher(
            states[name], choices[channel_of(name)], providers[name], recorder, outcomes, clock, metrics,
            heartbeats,
            policy=policies[name],
            doubt=doubts[name],
            namespace=journal.namespace,
            share=max(config.queue.max_in_flight // len(providers), 1),
            intermediate=frozenset(config.events.intermediate),
            awaited=awaited.get(name),
        )
        for name in policies
    }  # fmt: skip
    intake = Intake(
        service, recorder, metrics, heartbeats,
        batch_size=config.queue.batch_size,
        poll_interval=config.queue.poll_interval,
        max_poll_interval=config.queue.max_poll_interval,
    )  # fmt: skip
    reporting = Reporting(
        service, journal, recorder, metrics, heartbeats,
        batch_size=config.events.batch_size,
        flush_interval=config.events.flush_interval,
    )  # fmt: skip
    due = DueMessages(journal, recorder, dispatchers, clock, heartbeats, max_waiting=config.queue.max_waiting)
    availability = Availability(journal, recorder.backlog, choices, _limits(config), clock, heartbeats)
    return Stations(intake, reporting, preparer, dispatchers, outcomes, due, doubts, availability, deadlines)


def _awaited(config: Config, listening: ListeningTime) -> dict[str, Awaited]:
    """What acceptances may still lead to, by provider, where it reports and a later channel follows."""
    found = {}
    for name in config.channels.reporting:
        provider = config.channels.providers[name]
        table = config.channels.configured[provider.channel].common
        failed_next = table.receipt_failed_then == "next"
        if (failed_next or table.receipt_deadline is not None) and config.channels.has_later(
            provider.channel
        ):
            found[name] = Awaited(listening, table.receipt_deadline, failed_next=failed_next)
    return found


def log_cache_problem(problem: str) -> None:
    """Log that a disk cache fails."""
    log(Event.CACHE_BROKEN, reason=problem)


def open_service(
    config: Config, on_cache_problem: Callable[[str], None] = log_cache_problem
) -> ServiceClient:
    """The client of the remote service. Must be called within an event loop; close it with `async with`.

    Raises ConfigError for certificates or secrets that can't be used.
    """
    try:
        http = build_client(
            timeout=config.service.timeout,
            max_body=LARGEST_SERVICE_ANSWER,
            tls=config.service.tls.files("service.tls.ca_file"),
            proxy=config.service.open_proxy(),
            accept_encoding="gzip" if config.service.accept_gzip else IDENTITY,
        )
        return ServiceClient(
            http,
            config.service.base_url,
            config.service.auth,
            configurations=_configuration_access(config, on_cache_problem),
        )
    except (OSError, ValueError) as error:
        raise ConfigError([f"service: {error}"]) from None


def _configuration_access(config: Config, on_problem: Callable[[str], None]) -> ConfigurationAccess:
    options = config.entities
    access = ConfigurationAccess(
        cache=open_entities_cache(config, on_problem), ttl=options.ttl, max_size=options.max_size
    )
    if options.hosts is None:
        return access
    hosts = [parse_host(host) for host in options.hosts]
    networks = [parse_network(network) for network in options.networks]
    elsewhere = build_client(
        timeout=config.service.timeout,
        max_body=options.max_size,
        tls=TlsFiles(options.ca_file, ca_key="entities.ca_file"),
        proxy=options.open_proxy(),
    )
    rules = HostRules(hosts, networks, options.allow_http)
    if options.proxy is not None:
        return replace(access, rules=rules, elsewhere=elsewhere, look_up=None)
    return replace(access, rules=rules, elsewhere=elsewhere)


def open_providers(config: Config) -> dict[str, Channel]:
    """The adapters of all providers, by their identities. Raises ConfigError."""
    return {name: open_provider(config, provider) for name, provider in config.channels.providers.items()}


def open_provider(config: Config, provider: ProviderConfig) -> Channel:
    """The adapter of one provider. Raises ConfigError."""
    common = provider.common
    return registry.open_adapter(
        provider.place,
        provider.block,
        common.adapter,
        provider.options,
        timeout=common.timeout,
        receipt_url=receipt_url(config, provider),
    )


async def open_directory(config: Config) -> Directory:
    """The customer directory. Must be called within an event loop; raises ConfigError."""
    customers = config.customers
    match customers.options:
        case NoOptions():
            return NoDirectory()
        case FileOptions(path=path):
            return await anyio.to_thread.run_sync(
                FileDirectory.load,
                path,
                lambda problem: log(Event.CUSTOMERS_FILE_PROBLEM, reason=problem),
            )
        case options:
            source = open_source(customers.source, options, customers.terms)
            return RemoteDirectory(source, customers.terms)


def open_cache(
    config: Config,
    blocking: Blocking = in_thread,
    on_problem: Callable[[str], None] = log_cache_problem,
) -> DiskCache:
    """The disk cache of settings; it opens its files when it is first used."""
    return DiskCache(
        config.settings.cache_dir,
        config.settings.size_limit,
        on_problem,
        blocking,
    )


def open_entities_cache(config: Config, on_problem: Callable[[str], None] = log_cache_problem) -> DiskCache:
    """The disk cache of entity configurations; it opens its files when it is first used."""
    return DiskCache(
        config.entities.cache_dir or config.settings.cache_dir / "entities",
        config.entities.size_limit,
        on_problem,
    )


def compiler(config: Config) -> _Compiler:
    """What makes settings ready for rendering."""
    return _Compiler(config)


class _Compiler:
    def __init__(self, config: Config) -> None:
        self._email_format = config.content.email_format
        self._greetings = general_stands_in if config.content.greeting_fallback else strict

    def __call__(self, settings: Settings) -> CompiledSettings:
        return compile_settings(settings, self._email_format, self._greetings)


def build_choices(
    config: Config, providers: Mapping[str, Channel], standings: Mapping[str, Standing]
) -> Mapping[str, Choice]:
    """What chooses among the providers of each channel."""
    return {
        name: Choice(
            {
                each.identity: Sender(
                    providers[each.identity],
                    standings[each.identity],
                    each.common.weight,
                    each.common.enabled,
                )
                for each in channel.providers.values()
            }
        )
        for name, channel in config.channels.configured.items()
    }


def sms_rules(channel: ChannelConfig) -> SmsRules | None:
    """The rules for the text of an SMS, if the channel has any."""
    common = channel.common
    if common.max_parts is None and not common.transliterate:
        return None
    return SmsRules(common.max_parts, common.transliterate)


def build_router(config: Config, choices: Mapping[str, Choice], stopped: StoppedRecipients) -> Router:
    """What chooses channel, provider and language."""
    roads = {
        name: Road(channel.block, choices[name], sms_rules(channel))
        for name, channel in config.channels.configured.items()
    }
    return Router(roads, config.channels.order, config.content.languages, stopped)


def _policy(provider: ProviderConfig) -> DispatchPolicy:
    common = provider.common
    retry, breaker = common.retry, common.breaker
    return DispatchPolicy(
        common.concurrency,
        common.rate,
        RetryPolicy(retry.attempts, retry.base, retry.max),
        BreakerPolicy(breaker.failures, breaker.pause, breaker.max_pause),
        resend_in_doubt=common.on_in_doubt == "resend",
        lookup_after=lookup.after if (lookup := getattr(provider.options, "lookup", None)) else 0.0,
    )


def _limits(config: Config) -> Mapping[str, float]:
    """The seconds after which each channel counts as unavailable, but the last one: none comes after it."""
    configured = config.channels.configured
    names = [name for name in config.channels.order if name in configured]
    return {name: configured[name].common.unavailable_after for name in names[:-1]}


def _longest_pause(config: Config) -> float:
    """Seconds after which whatever waits in the journal comes due at the latest."""
    tables = [provider.common for provider in config.channels.providers.values()]
    return max(LONGEST_ASKED, *(max(each.retry.max, each.breaker.max_pause) for each in tables))


def _receipts(config: Config, recorder: Recorder, clock: Clock, metrics: Metrics) -> Receipts | None:
    reporting = config.channels.reporting
    if not reporting or not config.receipts.listen:
        return None
    from deliveryd.receipts.app import Receipts  # noqa: PLC0415  # loads starlette
    from deliveryd.receipts.inlet import open_inlet  # noqa: PLC0415

    return Receipts(
        {name: open_inlet(options) for name, options in reporting.items()},
        config.channels.receipt_paths,
        recorder,
        clock,
        metrics,
        max_body=config.receipts.max_body,
        public_url=config.receipts.public_url or "",
        intermediate=config.events.intermediate,
    )


def _tracing(
    config: Config, metrics: Metrics, clock: Clock, namespace: str, blocking: Blocking
) -> Tracing | None:
    """What exports spans and metrics, if an endpoint is configured. Raises ConfigError."""
    if config.otlp.endpoint is None:
        return None
    from deliveryd.otlp.opening import open_tracing  # noqa: PLC0415  # loads protobuf

    return open_tracing(config.otlp, metrics, clock, namespace, blocking)
