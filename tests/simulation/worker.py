"""A real worker on the simulation's stage, with crashes between and within its commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import anyio
from anyio.abc import TaskGroup, TaskStatus

from deliveryd.channels.base import Channel
from deliveryd.channels.devices import DevicesChannel
from deliveryd.channels.filling import MappingContext
from deliveryd.channels.http.adapter import HttpChannel, PreparedRequests
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.http.request import PartsWriter, RequestWriter
from deliveryd.channels.options import ProviderConfig
from deliveryd.config import Config, JournalOptions, load
from deliveryd.directory.base import Directory
from deliveryd.directory.remote import RemoteDirectory
from deliveryd.errors import JournalFull, JournalUnreachable
from deliveryd.http.client import HttpClient
from deliveryd.http.tls import TlsFiles
from deliveryd.journal.base import Account
from deliveryd.journal.orders import Action
from deliveryd.options.safety import SafetyOptions
from deliveryd.options.units import parse_rate
from deliveryd.rules.options import RuleOptions
from deliveryd.runtime.secret_file import RenewedValue
from deliveryd.service.client import ServiceClient
from deliveryd.worker.health import WorkerHealth
from deliveryd.worker.outside import Openers
from deliveryd.worker.supervisor import Addresses, Supervisor
from deliveryd.worker.systemd import Notifier
from deliveryd.worker.wiring import Parts
from simulation.expectation import providers_of
from simulation.issuing import tokens_for
from simulation.kept_in_file import JOURNAL
from simulation.ledger import channel_served_by, read_event
from simulation.operators import Operators
from simulation.opting_out import ADDRESSED
from simulation.pausing import Pausers
from simulation.plan import CHANNELS, PROVIDERS, SMS, Life, Plan, Step, Trouble
from simulation.providers import Providers, host_of
from simulation.reloading import Reloads
from simulation.reports import Reports
from simulation.service import Service
from simulation.wire import TIMEOUT, TroubledWire
from simulation.world import World

T = TypeVar("T")

CACHE = "cache"
"""Its name in the folder of a run."""

COMMITS = frozenset({"_transact", "_attempt"})
"""What journals do in one call to commit."""

IDLE_PAUSE = 0.5
LOOK_EVERY = 8
"""Commits between looks into the journal for how much is in the line."""

_RECEIPT = (
    'receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"],'
    ' reported_at = "/at", reference = "/reference", stopped = ["stopped"], resumed = ["resumed"],'
    ' recipient = "/recipient" }'
)
_LOOKUP = (
    '{{ url = "http://{host}/lookup?key={{message.key}}", provider_id = "/id", answers = ['
    '{{ status = [200], where = [{{ at = "/found", is = ["yes"] }}], verdict = "taken" }},'
    ' {{ status = [200], where = [{{ at = "/found", is = ["no"] }}], verdict = "not_taken" }},'
    ' {{ status = [200], verdict = "unknown" }}] }}'
)
_BODIES = {
    "sms": '{ to = "{customer.phone}", text = "{content.text}", reference = "{message.id}" }',
    "email": (
        '{ to = "{customer.email}", subject = "{content.subject}", body = "{content.body}",'
        ' reference = "{message.id}" }'
    ),
    "messenger": (
        '{ text = "{content.text}", label = "{content.button.text}", link = "{content.button.url}",'
        ' reference = "{message.id}" }'
    ),
}
_DEVICE = {"to": "{customer.tokens}"}
"""What is in the body as well where a channel sends to devices."""

_MORE = {"sms": "{customer.email}", "email": "{customer.phone}", "messenger": "{customer.phone}"}
"""What is in the body as well where a life's mappings need more."""

_ANSWERS = dict.fromkeys(ADDRESSED, '[{ status = [410], verdict = "stopped" }]')
_PROVIDER = """
[channels.{channel}.providers.{name}]
adapter = "http"
url = "http://{host}/"
json = {body}
provider_id = "/id"
{receipt}
lookup = {lookup}
answers = {answers}
retry = {{ base = "500ms", max = "4s" }}
breaker = {{ pause = "500ms", max_pause = "4s" }}
"""
_CONFIG = """
[service]
base_url = "http://service"
[queue]
poll_interval = "500ms"
max_poll_interval = "2s"
[channels]
order = [{order}]
"""


@lru_cache(maxsize=1)
def whole_config() -> Config:
    """A configuration with all providers of all channels, read from a file like any other."""
    text = _CONFIG.format(order=", ".join(f'"{name}"' for name in CHANNELS)) + "".join(
        _PROVIDER.format(
            channel=channel, name=each.rpartition("/")[2], host=host_of(each),
            body=_BODIES[channel], receipt=_RECEIPT, answers=_ANSWERS.get(channel, "[]"),
            lookup=_LOOKUP.format(host=host_of(each)),
        )
        for channel in CHANNELS
        for each in PROVIDERS[channel]
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(text, encoding="utf-8")
        return load(path, environ={})


def configure(life: Life, plan: Plan, folder: Path, base_url: str = "http://service") -> Config:
    """The configuration of one life, with the service at an address."""
    whole, tuning = whole_config(), plan.tuning
    channels = {}
    for name in life.channels:
        own = [each for each in providers_of(plan, life) if channel_served_by(each) == name]
        if own:
            providers = {each.rpartition("/")[2]: _provider(life, plan, each) for each in own}
            channel = whole.channels.configured[name]
            keys = channel.common.model_copy(
                update={
                    "unavailable_after": tuning.unavailable_after,
                    "receipt_deadline": tuning.receipt_deadline,
                    "slow_after": tuning.slow_after,
                    "cost_guard": tuning.cost_guard if name == "sms" else None,
                    "receipt_failed_then": "next" if tuning.failed_next else "error",
                    **(_served(life, None) | {"allow_premium": life.allows_premium} if name == SMS else {}),
                }
            )
            channels[name] = channel.model_copy(update={"common": keys, "providers": providers})
    queue = {"batch_size": tuning.take, "max_in_flight": tuning.in_flight}
    queue["take_ahead"] = tuning.take_ahead
    events = {"batch_size": tuning.post, "intermediate": tuning.intermediate}
    return whole.model_copy(
        update={
            "service": whole.service.model_copy(
                update={"timeout": tuning.service_timeout, "base_url": base_url}
            ),
            "customers": whole.customers.model_copy(update={"cache_ttl": tuning.cache_ttl}),
            "queue": whole.queue.model_copy(update=queue),
            "events": whole.events.model_copy(update=events),
            "settings": whole.settings.model_copy(update={"cache_dir": folder / CACHE}),
            "channels": whole.channels.model_copy(update={"configured": channels}),
            "safety": SafetyOptions.model_validate({"only_to": life.only_to, "share": life.share}),
            "rules": tuple(map(RuleOptions.model_validate, (*life.windows, *life.limits, *life.priorities))),
            "content": whole.content.model_copy(update={"zone": "UTC", "default_lifetime": life.lifetime}),
            "journal": JournalOptions(url=f"sqlite:///{folder / JOURNAL}"),
        }
    )


def _provider(life: Life, plan: Plan, identity: str) -> ProviderConfig:
    provider, tuning = whole_config().channels.providers[identity], plan.tuning
    common = provider.common.model_copy(
        update={
            "weight": plan.weights[identity],
            "enabled": identity not in life.disabled,
            "concurrency": tuning.concurrency,
            "rate": None if tuning.rate is None else parse_rate(tuning.rate),
            "timeout": TIMEOUT,
            "on_in_doubt": "hold" if provider.channel in life.hold else "resend",
            "retry": provider.common.retry.model_copy(update={"attempts": tuning.attempts}),
            "breaker": provider.common.breaker.model_copy(update={"failures": tuning.breaker}),
            **_served(life, identity),
        }
    )
    assert isinstance(provider.options, HttpChannelOptions)
    assert provider.options.lookup is not None
    lookup = None
    if tuning.lookup_after is not None:
        lookup = provider.options.lookup.model_copy(update={"after": tuning.lookup_after})
    has_devices = plan.sends_to_devices(provider.channel)
    update: dict[str, object] = {"lookup": lookup, "json_body": _body(identity, life.needs_more, has_devices)}
    if has_devices:
        update |= {"lookup": None, "receipt": None, "answers": _answers_that_stop()}
        update |= {"devices": True, "recipient": _DEVICE["to"]}
    options = provider.options.model_copy(update=update)
    return provider.model_copy(update={"common": common, "options": options})


def _served(life: Life, provider: str | None) -> dict[str, object]:
    """The keys of a provider's table, or the channel's, that name phone numbers."""
    own = (each for each in life.served if each.provider == provider)
    return next(({"countries": each.countries, "prefixes": each.prefixes} for each in own), {})


def _answers_that_stop() -> object:
    """The table of answers of a channel with addresses."""
    options = whole_config().channels.providers[ADDRESSED[0]].options
    assert isinstance(options, HttpChannelOptions)
    return options.answers


def _body(identity: str, needs_more: bool, has_devices: bool) -> dict[str, object]:
    """What a provider's mapping says."""
    options = whole_config().channels.providers[identity].options
    assert isinstance(options, HttpChannelOptions)
    assert isinstance(options.json_body, dict)
    more = {"more": _MORE[channel_served_by(identity)]} if needs_more else {}
    return options.json_body | more | (_DEVICE if has_devices else {})


class StandIns(NamedTuple):
    """All others in a run."""

    service: Service
    providers: Providers
    reports: Reports
    operators: Operators
    pausers: Pausers


class Worker(Supervisor):
    """A supervisor without signals and servers: reports of providers come in by a direct way."""

    def __init__(self, world: World, life: Life, others: StandIns) -> None:
        self._world = world
        self._service, self._providers, self._reports, self._operators, self._pausers = others
        self._commits = 0
        self.stopped_at: float | None = None
        self._watched = self._configured(life)
        self._reloads = Reloads(world, self._watched)
        super().__init__(
            self._watched,
            clock=world.clock,
            notifier=Notifier(),
            examine=self._reloads.examine,
            openers=Openers(self._open_service, self._open_provider, self._open_directory),
            blocking=self._watched_commit,
        )
        world.stop = self.stop

    def _configured(self, life: Life) -> Config:
        return configure(life, self._world.plan, self._world.folder, self._world.base_url)

    def stop(self) -> None:
        """Begin to end, as SIGTERM does."""
        self.stopped_at = anyio.current_time()
        super().stop()

    async def _watched_commit(self, work: Callable[[], T], /) -> T:
        """Do what blocks; when it is a commit, the life may end before or after it."""
        if getattr(getattr(work, "func", None), "__name__", "") not in COMMITS:
            if self._world.kept.is_shared and self._world.life in self._world.ledger.crashed:
                raise JournalUnreachable("the process is gone")  # else it would count what it lost
            result = await self._world.blocking(work)
            self._note_account(result)
            return result
        await self._world.step(Step.COMMIT_BEFORE)
        result = await self._world.blocking(work)
        self._commits += 1
        self._look_at(getattr(work, "args", ((),))[0])
        if self._commits % LOOK_EVERY == 0:
            self._check_bounds()
        await self._world.step(Step.COMMIT_AFTER)
        return result

    def _look_at(self, requests: Sequence[Any]) -> None:
        """What came of the operations that shared a commit."""
        self._world.ledger.commits += 1
        for request in requests:
            self._world.ledger.without_room += isinstance(request.error, JournalFull)
            self._note_account(getattr(request, "result", None))

    def _note_account(self, result: object) -> None:
        if isinstance(result, Account):
            self._world.ledger.accounts += 1
            if result.gap:
                self._complain(f"the account has a gap of {result.gap}")

    def _check_bounds(self) -> None:
        in_line = self._world.kept.in_line()
        tuning = self._world.plan.tuning
        if self._world.plan.reloads:  # the bounds change
            return
        # A take that is under way may meet what came due meanwhile, and what operators have begin anew.
        most = tuning.in_flight + min(tuning.take, tuning.in_flight)
        if tuning.take_ahead:  # until the service accepts their `dequeued`, they don't wait yet
            most += tuning.in_flight
        # Past elements without an id so many more are asked for, and messages may come in their place.
        nameless = Counter(handed.request for handed in self._world.ledger.handed if handed.id is None)
        most += max(nameless.values(), default=0)
        # An event that the service fails at, while it accepts others, leaves its message without a place.
        most += len({read_event(body).message_id for body in self._world.ledger.failed_events})
        ordered = self._world.ledger.ordered
        most += len({id_ for order in ordered if order.verb is Action.RETRY for id_ in order.message_ids})
        if self._world.kept.is_shared:  # what the dead had is counted as well, and comes on top when adopted
            most *= 1 + len(self._world.ledger.crashed)
        if in_line > most:
            self._complain(f"more messages in the line than {most}")

    def _complain(self, text: str) -> None:
        if text not in self._world.ledger.complaints:
            self._world.ledger.complaints.append(text)

    def _open_service(self, config: Config) -> ServiceClient:
        wire = TroubledWire(self._world, self._service)
        client = HttpClient(
            wire, timeout=config.service.timeout, authentication=tokens_for(self._world, "service")
        )
        return ServiceClient(client, config.service.base_url)

    def _open_provider(self, _config: Config, provider: ProviderConfig) -> Channel:
        wire = TroubledWire(self._world, self._providers)
        tokens = tokens_for(self._world, provider.identity)
        client = HttpClient(wire, timeout=TIMEOUT, authentication=tokens)
        return _channel(self._world, provider.identity, client, provider.options)

    async def _open_directory(self, config: Config) -> Directory:
        return RemoteDirectory(self._world, config.customers.terms)

    def _open_servers(
        self, parts: Parts, health: WorkerHealth, servers: TaskGroup, stop: anyio.Event
    ) -> Addresses:
        self._world.kept.disk.attach(parts.journal)
        return Addresses(None, None)

    async def _listen_to_signals(self, parts: Parts, *, task_status: TaskStatus[None]) -> None:
        task_status.started()

    async def _stop_when_idle(self, parts: Parts) -> None:
        assert parts.receipts is not None
        async with anyio.create_task_group() as tasks:
            self._reports.begin(parts.receipts, tasks)
            self._operators.begin(tasks)
            self._pausers.begin(tasks)
            assert self.reloader is not None
            self._reloads.begin(self.reloader, tasks)
            try:
                await self._go_on(parts)
            finally:
                self._reports.end()
                self._operators.end()

    async def _go_on(self, parts: Parts) -> None:
        await parts.pipeline.until_idle()
        while (
            self._reports.waiting
            or self._operators.waiting
            or self._pausers.waiting
            or self._has_deadlines()
            or self._world.kept.has_mail()
            or self._world.kept.has_logs_of_others()
        ):
            await anyio.sleep(IDLE_PAUSE)
            await parts.pipeline.until_idle()
        self._check_idle(parts)
        self.was_idle = True
        self.stop()

    def _has_deadlines(self) -> bool:
        """Whether a message waits for its receipt deadline, which the worker doesn't end for."""
        if self._world.plan.tuning.receipt_deadline is None:
            return False
        return self._world.kept.has_deadlines()

    def _check_idle(self, parts: Parts) -> None:
        """Nothing is left in memory when there is nothing to do."""
        recorder, stations = parts.recorder, parts.stations
        dispatchers = stations.dispatchers.values()
        left: Mapping[str, int] = {
            "places": parts.memory.in_flight.held,
            "awaiting": len(recorder._awaiting),
            "ready": len(parts.memory.ready),
            "settled": stations.outcomes.pending,
            "queued": sum(len(dispatcher.terms.provider.queue) for dispatcher in dispatchers),
            "begun": sum(len(dispatcher._begun) for dispatcher in dispatchers),
            "under way": sum(dispatcher.admission.under_way for dispatcher in dispatchers),
        }
        for name, number in left.items():
            if number:
                self._complain(f"idle with {number} left: {name}")


class _Gateway(HttpChannel):
    """An adapter whose bare connections are made on the simulation's stage, too."""

    world: World
    identity: str

    async def probe(self) -> str | None:
        """Connect, unless the plan says that nobody can."""
        silent = self.world.hangs_for(f"host {host_of(self.identity)}")
        await anyio.sleep(min(max(silent, 0.0), TIMEOUT))
        is_cut_off = self.world.outage(self.identity) is Trouble.NO_CONNECTION
        return "no connection" if is_cut_off or silent > TIMEOUT else None


@lru_cache(maxsize=32)
def _writers(name: str, needs_more: bool, has_devices: bool) -> tuple[RequestWriter, PartsWriter]:
    options = whole_config().channels.providers[name].options
    assert isinstance(options, HttpChannelOptions)
    assert options.lookup is not None
    written = options.model_copy(update={"json_body": _body(name, needs_more, has_devices)})
    lookup = PartsWriter(options.lookup.parts(), None, MappingContext())
    return RequestWriter(written, MappingContext()), lookup


def _channel(world: World, name: str, client: HttpClient, options: object) -> Channel:
    assert isinstance(options, HttpChannelOptions)
    assert isinstance(options.json_body, dict)
    writer, lookup = _writers(name, "more" in options.json_body, options.devices)
    prepared = RenewedValue((), lambda: PreparedRequests({}, writer, lookup))
    gateway = _Gateway(options, TlsFiles(), client=client, prepared=prepared, masked=writer)
    gateway.world, gateway.identity = world, name
    field = options.devices_field
    return gateway if field is None else DevicesChannel(gateway, field)
