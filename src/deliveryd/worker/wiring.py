"""Puts the worker together from its configuration, and takes it apart again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from deliveryd import __version__
from deliveryd.channels import registry
from deliveryd.channels.base import Channel
from deliveryd.channels.options import ChannelConfig, ProviderConfig
from deliveryd.channels.sms_text import SmsRules
from deliveryd.config import Config, receipt_url
from deliveryd.delivery.availability import Availability
from deliveryd.delivery.choice import Choice, Sender, Standing
from deliveryd.delivery.common import Common
from deliveryd.delivery.deadlines import OverdueReceipts, ReceiptDeadlines
from deliveryd.delivery.dispatcher import Dispatcher, Dispatchers
from deliveryd.delivery.due import DueMessages
from deliveryd.delivery.intake import Intake
from deliveryd.delivery.limits import SendingLimits
from deliveryd.delivery.listening import Awaited, ListeningTime
from deliveryd.delivery.memory import LineMemory
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.pipeline import Pipeline, Stations
from deliveryd.delivery.policy import DispatchPolicy, DoubtPolicy, RetryPolicy
from deliveryd.delivery.posting import Posting
from deliveryd.delivery.preparation import Preparer
from deliveryd.delivery.provider import Provider
from deliveryd.delivery.recorder import Recorder
from deliveryd.delivery.reporting import Reporting
from deliveryd.delivery.routing import ChannelRoute, Router
from deliveryd.delivery.safety import Safety
from deliveryd.delivery.settings import SettingsCache
from deliveryd.delivery.sharing import Sharing
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.delivery.terms import DispatchTerms
from deliveryd.errors import ConfigError
from deliveryd.http.client import build_client
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import IDENTITY
from deliveryd.journal.journal import Journal
from deliveryd.journal.opening import JournalTerms, open_journal
from deliveryd.journal.place import JournalFile
from deliveryd.journal.sqlite.lock import exclusive_worker
from deliveryd.metrics import Metrics
from deliveryd.model import SECOND, Settings, SteadyClock, channel_of
from deliveryd.options.credentials import open_authentication
from deliveryd.rendering.content import CompiledSettings, compile_settings, general_stands_in, strict
from deliveryd.runtime.breaker import BreakerPolicy
from deliveryd.runtime.threads import Blocking, in_thread
from deliveryd.runtime.wakeup import Heartbeats
from deliveryd.service.client import ServiceClient
from deliveryd.service.configuration_access import ConfigurationAccess, HostRules, parse_host, parse_network
from deliveryd.worker.caches import log_cache_problem, open_cache, open_entities_cache
from deliveryd.worker.open_files import within_file_limit
from deliveryd.worker.outside import (
    CurrentDirectory,
    CurrentService,
    Openers,
    Outside,
    open_directory,
)
from deliveryd.worker.phones import destinations_of, phone_providers

if TYPE_CHECKING:
    from deliveryd.otlp.export import Exporter
    from deliveryd.otlp.spans import Tracer
    from deliveryd.receipts.app import Receipts
    from deliveryd.receipts.inlet import Inlets

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
    memory: LineMemory
    journal: Journal
    receipts: Receipts | None
    metrics: Metrics
    heartbeats: Heartbeats
    overdue: OverdueReceipts
    exporter: Exporter | None
    common: Common
    outside: Outside
    service: CurrentService
    directory: CurrentDirectory
    settings: SettingsCache


@asynccontextmanager
async def assemble(
    config: Config,
    clock: SteadyClock,
    outside: Outside,
    blocking: Blocking | None = None,
    tracer: Tracer | None = None,
) -> AsyncIterator[Parts]:
    """Put the line together, and close in the end what it opened.

    `tracer` makes spans; None: no traces are exported.
    Raises JournalError.
    """
    async with AsyncExitStack() as stack:
        metrics = Metrics(config.channels.providers, __version__)
        heartbeats = Heartbeats()
        cache = open_cache(config, blocking or in_thread)
        stack.push_async_callback(cache.aclose)
        place = config.journal.place
        if isinstance(place, JournalFile):
            stack.enter_context(exclusive_worker(place.path))
        journal = await stack.enter_async_context(
            open_journal(
                place,
                JournalTerms(
                    config.events.details_field,
                    config.journal.keep_variables,
                    reserve=config.journal.reserve,
                    lock_timeout=COMMAND_TIMEOUT,
                    lease=config.journal.lease,
                    service=config.service.address,
                ),
                observe=lambda seconds, _operations: metrics.commits.observe(seconds),
                blocking=blocking,
            )
        )
        memory = LineMemory.beside(
            journal,
            journal.common_clock or clock,
            metrics,
            max_in_flight=config.queue.max_in_flight,
            batch_size=config.events.batch_size,
            max_waiting=config.queue.max_waiting,
            max_paused=config.queue.max_paused,
        )
        common = Common.beside(journal, memory, metrics, heartbeats, longest_pause=longest_pause(config))
        service, directory = CurrentService(outside.service), CurrentDirectory(outside.directory)
        settings = SettingsCache(
            service, cache, compiler(config), metrics, memory.backlog,
            ttl=config.settings.ttl,
            stale_while_down=config.settings.stale_while_down,
        )  # fmt: skip
        states = {
            name: Provider(name, policy_of(provider).breaker, memory.backlog, memory.pauses, memory.clock)
            for name, provider in config.channels.providers.items()
        }
        doubts: dict[str, DoubtPolicy] = {}
        if tracer is not None:
            tracer.begin(journal.namespace)
            memory.watchers.append(tracer)
        exporter = None
        if config.otlp.endpoint is not None:
            from deliveryd.otlp.export import open_exporter  # noqa: PLC0415  # loads protobuf

            exporter = open_exporter(
                config.otlp, tracer, metrics, memory.clock, blocking or in_thread, namespace=journal.namespace
            )
        derived = derive(config, outside.providers, states, doubts, common)
        preparer = Preparer(settings, directory, derived.router, common)
        stations = _stations(config, service, derived, doubts, preparer, common)
        yield Parts(
            Pipeline(stations, common), stations, common.recorder, memory, journal,
            open_receipts(config, common), metrics, heartbeats,
            OverdueReceipts(config.channels.overdue, common), exporter,
            common, outside, service, directory, settings,
        )  # fmt: skip


class Derived(NamedTuple):
    """What follows from a configuration, and from what is open."""

    choices: Mapping[str, Choice]
    router: Router
    terms: Mapping[str, DispatchTerms]
    limits: Mapping[str, float]


def derive(
    config: Config,
    providers: Mapping[str, Channel],
    states: Mapping[str, Provider],
    doubts: dict[str, DoubtPolicy],
    common: Common,
) -> Derived:
    """Make what the stations work by. `doubts` are kept, also of removed providers: of attempts under way."""
    safety = common.memory.safety
    safety.follow(config.safety, phone_providers(config))
    common.memory.limits.follow(config.budgets, config.caps)
    choices = build_choices(config, providers, states, safety)
    common.guard.follow(config.channels.cost_guards)
    common.memory.shares.follow(choices, config.channels.slow_after)
    wanted = {name: policy_of(provider) for name, provider in config.channels.providers.items()}
    policies = within_file_limit(config, wanted)
    for name, policy in policies.items():
        doubts.setdefault(name, DoubtPolicy(name, policy)).follow(policy)
    awaited = _awaited(config, common.listening)
    share = max(config.queue.max_in_flight // len(policies), 1)
    intermediate, windows = frozenset(config.events.intermediate), config.windows
    terms = {
        name: DispatchTerms(
            states[name], choices[channel_of(name)], providers[name], policy, doubts[name], share,
            intermediate, awaited.get(name), windows, config.priorities,
        )
        for name, policy in policies.items()
    }  # fmt: skip
    router = build_router(
        config, choices, common.memory.stopped, common.memory.pauses, safety, limits=common.memory.limits
    )
    return Derived(choices, router, terms, _limits(config))


def _stations(  # noqa: PLR0917 - all that the stations are made of
    config: Config,
    service: CurrentService,
    derived: Derived,
    doubts: dict[str, DoubtPolicy],
    preparer: Preparer,
    common: Common,
) -> Stations:
    """The stations of the line: each is handed what was built before it, and nothing afterwards."""
    deadlines = ReceiptDeadlines(tuple(config.channels.reporting), common)
    dispatchers = Dispatchers(
        {name: Dispatcher(terms, common) for name, terms in derived.terms.items()}, common.heartbeats
    )
    intake = Intake(
        service, common,
        batch_size=config.queue.batch_size,
        take_ahead=config.queue.take_ahead,
        poll_interval=config.queue.poll_interval,
        max_poll_interval=config.queue.max_poll_interval,
        answered_within=config.service.timeout,
    )  # fmt: skip
    reporting = Reporting(
        Posting(service, common),
        batch_size=config.events.batch_size,
        flush_interval=config.events.flush_interval,
    )  # fmt: skip
    due = DueMessages(
        common, dispatchers.current, max_waiting=config.queue.max_waiting, priorities=config.priorities
    )
    availability = Availability(common, derived.choices, derived.limits)
    sharing = Sharing(common, dispatchers.current, doubts, availability)
    return Stations(
        intake, reporting, preparer, dispatchers, common.outcomes, due, doubts, availability, deadlines,
        sharing,
    )  # fmt: skip


def _awaited(config: Config, listening: ListeningTime) -> dict[str, Awaited]:
    """What acceptances may still lead to, by provider, where it reports and a later channel follows.

    Without a report of deliveries, a deadline would send what arrived once more.
    """
    found = {}
    for name, receipt in config.channels.reporting.items():
        provider = config.channels.providers[name]
        table = config.channels.configured[provider.channel].common
        failed_next = table.receipt_failed_then == "next"
        within = table.receipt_deadline if receipt.confirms else None
        if (failed_next or within is not None) and config.channels.has_later(provider.channel):
            found[name] = Awaited(listening, within, failed_next=failed_next)
    return found


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
            authentication=open_authentication(config.service.auth, "service.auth", config.service.timeout),
        )
        return ServiceClient(
            http,
            config.service.base_url,
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
        authentication=open_authentication(options.auth, "entities.auth", config.service.timeout),
    )
    rules = HostRules(hosts, networks, options.allow_http)
    return replace(access, rules=rules, elsewhere=elsewhere, proxy_resolves=options.proxy is not None)


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


OPENERS = Openers(open_service, open_provider, open_directory)
"""How a worker opens what lies outside."""


def compiler(config: Config) -> _Compiler:
    """What makes settings ready for rendering."""
    return _Compiler(config)


class _Compiler:
    def __init__(self, config: Config) -> None:
        self._email_format = config.content.email_format
        self._greetings = general_stands_in if config.content.greeting_fallback else strict
        lifetime = config.content.default_lifetime
        self._lifetime = None if lifetime is None else int(lifetime * SECOND)

    def __call__(self, settings: Settings) -> CompiledSettings:
        return compile_settings(settings, self._email_format, self._greetings, self._lifetime)


def build_choices(
    config: Config,
    providers: Mapping[str, Channel],
    standings: Mapping[str, Standing],
    safety: Safety,
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
                    destinations_of(channel, each, providers[each.identity]),
                )
                for each in channel.providers.values()
            },
            safety,
        )
        for name, channel in config.channels.configured.items()
    }


def sms_rules(channel: ChannelConfig) -> SmsRules | None:
    """The rules for the text of an SMS, if the channel has any."""
    common = channel.common
    if common.max_parts is None and not common.transliterate:
        return None
    return SmsRules(common.max_parts, common.transliterate)


def build_router(
    config: Config,
    choices: Mapping[str, Choice],
    stopped: StoppedRecipients,
    pauses: Pauses,
    safety: Safety,
    *,
    limits: SendingLimits | None = None,
) -> Router:
    """What chooses channel, provider and language."""
    routes = {
        name: ChannelRoute(channel.block, choices[name], sms_rules(channel))
        for name, channel in config.channels.configured.items()
    }
    return Router(
        routes, config.channels.order, config.content.languages, stopped, pauses,
        safety=safety,
        windows=config.windows,
        limits=limits,
    )  # fmt: skip


def policy_of(provider: ProviderConfig) -> DispatchPolicy:
    """The limits of a provider's attempts."""
    common = provider.common
    retry, breaker = common.retry, common.breaker
    return DispatchPolicy(
        common.concurrency,
        common.rate,
        RetryPolicy(retry.attempts, retry.base, retry.max),
        BreakerPolicy(breaker.failures, breaker.pause, breaker.max_pause),
        resend_in_doubt=common.on_in_doubt == "resend",
        timeout=common.timeout,
        lookup_after=lookup.after if (lookup := getattr(provider.options, "lookup", None)) else 0.0,
    )


def _limits(config: Config) -> Mapping[str, float]:
    """The seconds after which each channel counts as unavailable, but the last one: none comes after it."""
    configured = config.channels.configured
    names = [name for name in config.channels.order if name in configured]
    return {name: configured[name].common.unavailable_after for name in names[:-1]}


def longest_pause(config: Config) -> float:
    """Seconds after which whatever waits in the journal comes due at the latest."""
    tables = [provider.common for provider in config.channels.providers.values()]
    return max(LONGEST_ASKED, *(max(each.retry.max, each.breaker.max_pause) for each in tables))


def open_receipts(config: Config, common: Common) -> Receipts | None:
    """What takes receipts in, if any provider reports; raises ValueError for an unusable secret."""
    if not config.channels.reporting or not config.receipts.listen:
        return None
    from deliveryd.http.peers import Peers  # noqa: PLC0415  # loaded with it
    from deliveryd.receipts.app import Receipts  # noqa: PLC0415  # loaded only where one reports
    from deliveryd.receipts.pages import fetch_page  # noqa: PLC0415  # loaded with it

    return Receipts(
        open_inlets(config),
        common.recorder,
        common.clock,
        common.metrics,
        fetch=fetch_page,
        peers=Peers(config.receipts.trusted_proxies),
    )


def open_inlets(config: Config) -> Inlets:
    """What verifies and reads the reports of each provider. Raises ConfigError for unusable secrets."""
    from deliveryd.receipts.inlet import Inlet, Inlets  # noqa: PLC0415  # loaded only where one reports

    inlets, problems = {}, []
    for name, options in config.channels.reporting.items():
        try:
            inlets[name] = Inlet(options, config.receipts.max_body)
        except ValueError as error:
            problems.append(f"{config.channels.providers[name].place}.receipt.signature: {error}")
    if problems:
        raise ConfigError(problems)
    return Inlets(
        inlets,
        config.channels.receipt_paths,
        config.receipts.public_url or "",
        config.events.intermediate,
    )
