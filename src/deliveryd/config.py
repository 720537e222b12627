"""The configuration: its tables as models, and `load`, which reports all mistakes of a file at once.

Defaults are defined here and in the adapters' options only; `config.example.toml` shows all of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from deliveryd.channels.options import ChannelsOptions, ProviderConfig, read_channels
from deliveryd.directory.registry import CustomersOptions, read_customers
from deliveryd.errors import ConfigError, JournalUnusable, LanguageUnreadable, how_to_install
from deliveryd.http.addresses import collide, parse_listen
from deliveryd.http.target import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.journal.place import NOT_INSTALLED, JournalDatabase, JournalFile, JournalPlace
from deliveryd.journal.sqlite.files import shared_folder_problem
from deliveryd.model import BLOCKS, format_duration
from deliveryd.network.address import SECURE_ADDRESS, goes_out_plain, plain_text_problem
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.connections import ProxyOptions, TlsOptions, tls_problems
from deliveryd.options.file import PREFIX, ConfigFile, Opened
from deliveryd.options.safety import SafetyOptions
from deliveryd.options.suggestion import suggestion
from deliveryd.options.tables import OnUse, leaves
from deliveryd.options.units import Duration, FilePath, Positive, SecretPath, Size, resolve_path
from deliveryd.rendering.escaping import EmailFormat
from deliveryd.rendering.language import standard_tag
from deliveryd.rules.budgets import Budget, Budgets
from deliveryd.rules.caps import Caps
from deliveryd.rules.options import RuleOptions
from deliveryd.rules.priorities import Priorities
from deliveryd.rules.windows import Windows, known_zone, zone_named
from deliveryd.runtime.privileges import owner_of
from deliveryd.runtime.rights import tampering
from deliveryd.runtime.secret_file import SecretFile
from deliveryd.service.configuration_access import parse_host, parse_network
from deliveryd.telemetry.log_events import Layout

SQLITE = "sqlite:///"
POSTGRESQL = ("postgresql://", "postgres://")
"""How the URL of a shared journal begins; libpq takes both."""

LEAST_BEYOND_TIMEOUT = 5.0
"""Seconds by which a worker's lease covers any attempt: no worker takes over while one may be under way."""

LEAST_TOKEN = 16
"""Characters of the token for actions on the status page."""

_RECEIPT_KEYS = ("receipt_deadline", "receipt_failed_then", "receipt_overdue", "slow_after")
_OF_FILES = ("reserve",)
_OF_DATABASES = ("password_file", "lease")
"""Keys of [journal] that concern one kind of journal only; allow_shared_folder isn't among them.

The container image sets that one, whatever the journal is.
"""

_CERTIFICATES = frozenset({"ca_file", "cert_file", "key_file"})
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63}){0,126}")


def _address(url: str) -> str:
    target_of(url)
    if "?" in url or "#" in url:
        raise ValueError("must have no query and no fragment, since paths are appended")
    return url


def _public(url: str) -> str:
    return _address(url).rstrip("/")


def _listen(listen: str) -> str:
    if listen:
        parse_listen(listen)
    return listen


def _tag(tag: str) -> str:
    try:
        standard_tag(tag)
    except LanguageUnreadable as error:
        raise ValueError(str(error)) from None
    return tag


def _name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise ValueError('expected a name such as "deliveryd.example.com", without scheme and port')
    return text


def _proxies(text: str) -> str:
    network = parse_network(text)
    least = 8 if network.version == 4 else 7  # as large as the largest private networks
    if network.prefixlen < least:
        raise ValueError(f"must have at least {least} bits: whoever is trusted may name any peer")
    return text


def _as_written(parse: Callable[[str], object]) -> AfterValidator:
    """Check that a text can be parsed, and keep it as it is written."""

    def check(text: str) -> str:
        parse(text)
        return text

    return AfterValidator(check)


def _journal_url(url: object, info: ValidationInfo) -> str:
    if isinstance(url, str) and url.startswith(POSTGRESQL):
        return url
    if not isinstance(url, str) or not url.startswith(SQLITE) or "?" in url or url.endswith("/"):
        raise ValueError(
            f'must look like "{SQLITE}/var/lib/deliveryd/journal.db"'
            f' or "{POSTGRESQL[0]}deliveryd@db.example.com/deliveryd"'
        )
    return f"{SQLITE}{resolve_path(url.removeprefix(SQLITE), info)}"


Url = Annotated[str, AfterValidator(_address)]
PublicUrl = Annotated[str, AfterValidator(_public)]
Listen = Annotated[str, AfterValidator(_listen)]
Tag = Annotated[str, AfterValidator(_tag)]
HostName = Annotated[str, _as_written(parse_host)]
OwnName = Annotated[str, AfterValidator(_name)]
ProxyNetwork = Annotated[str, AfterValidator(_proxies)]
NetworkText = Annotated[str, _as_written(parse_network)]
JournalUrl = Annotated[str, BeforeValidator(_journal_url)]


class Section(BaseModel):
    """A table of the file; unknown keys are errors.

    Models are built when they are first used, most of them as parts of others. The default of an omitted
    table is therefore constructed without validation, which would build its model a second time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, defer_build=True)


class ServiceOptions(ProxyOptions, Section):
    """The remote service, and how to reach it."""

    base_url: Url = Field(description="address of the service")
    timeout: Positive = Field(10.0, description="for one whole request, from connecting to the last byte")
    accept_gzip: StrictBool = Field(False, description="request compressed answers, which are always read")
    auth: OnUse[AuthOptions] = Field(AuthOptions.model_construct(), description="how requests authenticate")
    tls: OnUse[TlsOptions] = Field(TlsOptions.model_construct(), description="certificates")

    @property
    def address(self) -> str:
        """Return `base_url` in the one spelling by which services are distinguished."""
        return str(target_of(self.base_url)).rstrip("/")


class QueueOptions(Section):
    """How messages are taken from the queue."""

    batch_size: StrictInt = Field(100, ge=1, le=100_000, description="most messages taken with one request")
    poll_interval: Positive = Field(1.0, description="pause after a batch that wasn't full")
    max_poll_interval: Positive = Field(30.0, description="longest pause while the queue is empty")
    max_in_flight: StrictInt = Field(
        1000,
        ge=1,
        le=1_000_000,
        description="most messages under way",
    )
    take_ahead: StrictInt = Field(
        0, ge=0, description="messages that may wait in the journal while more than max_in_flight are taken"
    )
    max_waiting: StrictInt = Field(2_000_000, ge=1, description="waiting messages at which taking stops")
    max_paused: StrictInt = Field(2_000_000, ge=1, description="paused messages at which taking stops")

    @model_validator(mode="after")
    def _fits(self) -> QueueOptions:
        if self.max_poll_interval < self.poll_interval:
            raise ValueError("max_poll_interval must not be shorter than poll_interval")
        if self.take_ahead > self.max_waiting:
            raise ValueError("take_ahead must not be greater than max_waiting, at which taking stops")
        return self


class EventsOptions(Section):
    """How status events are reported."""

    batch_size: StrictInt = Field(500, ge=1, le=100_000, description="most events reported with one request")
    flush_interval: Duration = Field(0.25, le=30.0, description="longest time an event waits for a batch")
    details_field: str = Field("details", min_length=1, description="field that holds an error's details")
    intermediate: tuple[Literal["sending", "accepted"], ...] = Field(
        (), description="intermediate statuses to report"
    )

    @field_validator("details_field")
    @classmethod
    def _own_name(cls, name: str) -> str:
        if name in {"timestamp", "messageId", "status", "channel", "reportedAt"}:
            raise ValueError("is already the name of another field of an event")
        return name


class SettingsOptions(Section):
    """The cache of message settings."""

    cache_dir: FilePath = Field(Path("/var/cache/deliveryd/settings"), description="folder of the disk cache")
    size_limit: Size = Field(256 << 20, ge=1 << 20, description="size of the disk cache")
    ttl: Positive | None = Field(None, description="age at which settings are fetched again; left out: never")
    stale_while_down: Duration = Field(
        86400.0, description="how long beyond that they are used while the service can't be asked"
    )


class EntitiesOptions(ProxyOptions, Section):
    """Configurations of merchants, offers and the like, for `deliveryd customers`; the worker needs none."""

    auth: OnUse[AuthOptions] = Field(
        AuthOptions.model_construct(), description="how requests to other hosts authenticate"
    )
    hosts: tuple[HostName, ...] | None = Field(None, min_length=1, description="left out: the service's own")
    networks: tuple[NetworkText, ...] = Field((), description="private networks that hosts may resolve to")
    allow_http: StrictBool = Field(False, description="allow hosts other than the service's own without TLS")
    ca_file: FilePath | None = Field(None, description="authorities to trust on other hosts, PEM")
    max_size: Size = Field(1 << 20, ge=1 << 10, le=4 << 20, description="largest configuration that is read")
    ttl: Positive = Field(3600.0, description="how long to keep one if its host doesn't state it")
    cache_dir: FilePath | None = Field(None, description="left out: entities in settings.cache_dir")
    size_limit: Size = Field(64 << 20, ge=1 << 20, description="size of the disk cache")


class ContentOptions(Section):
    """Rendering of messages."""

    languages: tuple[Tag, ...] = Field(("en",), min_length=1, description="tried after the customer's own")
    greeting_fallback: StrictBool = Field(
        False, description="use the general greeting if there is no personal one"
    )
    email_format: EmailFormat = Field("auto", description='of bodies; "auto": HTML if they hold tags')
    zone: Annotated[str, AfterValidator(known_zone)] | None = Field(
        None, description="time zone of customers whose field zone names none, for windows"
    )
    default_lifetime: Positive | None = Field(
        None, description="from the take to the expiry where settings name none; left out: no end"
    )


class JournalOptions(Section):
    """Where the journal is, and how long it keeps what."""

    url: JournalUrl = Field(
        "sqlite:////var/lib/deliveryd/journal.db",
        description="a SQLite file, four slashes: absolute path; or a PostgreSQL database, without password",
    )
    password_file: SecretPath | None = Field(None, description="password of the PostgreSQL database")
    lease: Positive = Field(
        20.0, ge=6.0, le=300.0, description="PostgreSQL: silence after which others take a worker's work over"
    )
    reserve: Size = Field(64 << 20, description="SQLite: free space on the disk below which no more is taken")
    retention: Positive = Field(7 * 86400.0, description="how long ended messages are kept")
    keep_variables: bool = Field(False, description="keep the variables of sent messages for explain")
    allow_shared_folder: StrictBool = Field(
        False, description="SQLite: allow other users to write to its folder; without effect for PostgreSQL"
    )

    @property
    def is_shared(self) -> bool:
        """Whether it is a database, in which several workers may keep their journal."""
        return self.url.startswith(POSTGRESQL)

    @property
    def named(self) -> Path:
        """Return the file that the URL names, which may be a link. Raises JournalUnusable for a database."""
        if self.is_shared:
            raise JournalUnusable("this needs a journal in a file, and journal.url names a database")
        return Path(self.url.removeprefix(SQLITE))

    @cached_property
    def path(self) -> Path:
        """Return the file with links resolved, once: all files of the journal are beside it.

        Raises JournalUnusable for a database.
        """
        return Path(os.path.realpath(self.named))

    @property
    def place(self) -> JournalPlace:
        """Return where the journal is."""
        if not self.is_shared:
            return JournalFile(self.path)
        password = self.password_file
        return JournalDatabase(self.url, None if password is None else password.path)


class ControlOptions(Section):
    """Where operators' commands find a worker whose journal is a database."""

    socket: FilePath = Field(
        Path("/run/deliveryd/control.sock"), description="with SQLite the socket is beside the journal"
    )


class AdminOptions(Section):
    """Health, readiness, metrics and status, and the status page."""

    listen: Listen = Field("127.0.0.1:9470", description="address; port 0: any free one; empty: off")
    allowed_hosts: tuple[OwnName, ...] = Field((), description="names it answers by, besides addresses")
    token_file: SecretPath | None = Field(
        None, description="token for actions on the status page; left out: the page only reads"
    )


class ReceiptsOptions(Section):
    """The server for providers' delivery reports."""

    listen: Listen = Field("127.0.0.1:9471", description="address; port 0: any free one; empty: off")
    max_body: Size = Field(
        64 << 10, ge=1, description="largest request accepted, unless a provider's table allows more"
    )
    public_url: PublicUrl | None = Field(
        None, description="address that providers call, in front of /receipts/…"
    )
    trusted_proxies: tuple[ProxyNetwork, ...] = Field(
        ("127.0.0.0/8", "::1"), description="proxies whose X-Forwarded-For names the peer"
    )


class LogOptions(Section):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="lowest level written")
    format: Layout = Field("auto", description='layout of lines; "auto": by where they go')


class OtlpOptions(ProxyOptions, Section):
    """Spans and metrics for an OpenTelemetry collector, over OTLP/HTTP; needs the extra `otlp`."""

    endpoint: PublicUrl | None = Field(
        None, description="address of the collector, before /v1/…; left out: off"
    )
    traces: StrictBool = Field(True, description="export a trace of each message")
    sample: float = Field(1.0, ge=0.0, le=1.0, description="share of messages that are traced")
    metrics: StrictBool = Field(True, description="export what /metrics shows")
    interval: Positive = Field(30.0, ge=1.0, description="time between two exports of the metrics")
    timeout: Positive = Field(10.0, description="for one whole request")
    auth: AuthOptions = Field(AuthOptions.model_construct(), description="how requests authenticate")
    tls: TlsOptions = Field(TlsOptions.model_construct(), description="certificates")


class RunOptions(Section):
    """How the process ends."""

    drain_timeout: Duration = Field(20.0, description="time to finish work in progress after SIGTERM")


def _rule_tables(value: object) -> object:
    if isinstance(value, Mapping):
        text = "write [[rules]], with two brackets on each side: there may be several"
        raise ValueError(text)  # noqa: TRY004  # pydantic reports only these
    return value


class Config(Section):
    """The whole configuration."""

    service: ServiceOptions
    queue: QueueOptions = QueueOptions.model_construct()
    events: OnUse[EventsOptions] = EventsOptions.model_construct()
    settings: SettingsOptions = SettingsOptions.model_construct()
    entities: OnUse[EntitiesOptions] = EntitiesOptions.model_construct()
    content: OnUse[ContentOptions] = ContentOptions.model_construct()
    customers: OnUse[CustomersOptions] = CustomersOptions.model_construct()
    channels: OnUse[ChannelsOptions]
    safety: OnUse[SafetyOptions] = SafetyOptions.model_construct()
    journal: JournalOptions = JournalOptions.model_construct()
    control: ControlOptions = ControlOptions.model_construct()
    admin: AdminOptions = AdminOptions.model_construct()
    receipts: ReceiptsOptions = ReceiptsOptions.model_construct()
    log: LogOptions = LogOptions.model_construct()
    otlp: OnUse[OtlpOptions] = OtlpOptions.model_construct()
    run: OnUse[RunOptions] = RunOptions.model_construct()
    rules: Annotated[tuple[OnUse[RuleOptions], ...], BeforeValidator(_rule_tables)] = ()

    @property
    def windows(self) -> Windows:
        """When messages may be sent."""
        zone = None if self.content.zone is None else zone_named(self.content.zone)
        found = [rule.window_rule(place) for place, rule in enumerate(self.rules)]
        return Windows([rule for rule in found if rule is not None], zone)

    @property
    def budgets(self) -> Budgets:
        """How much may be sent in each period: of rules, then of channels and providers."""
        zone = (None if self.content.zone is None else zone_named(self.content.zone)) or UTC
        found = [rule.budget_rule(place, zone) for place, rule in enumerate(self.rules)]
        for channel in self.channels.configured.values():
            own, place = channel.common, f"channels.{channel.name}"
            if own.budget is not None:
                scope, at = f"channel {channel.name}", (channel.name,)
                found.append(Budget(scope, own.budget, own.spent, zone, channels=at, place=place))
            for each in channel.providers.values():
                if (quota := each.common.budget) is not None:
                    spent, scope = each.common.spent, f"provider {each.identity}"
                    found.append(Budget(scope, quota, spent, zone, provider=each.identity, place=each.place))
        return Budgets([budget for budget in found if budget is not None])

    @property
    def caps(self) -> Caps:
        """How many messages a customer gets."""
        found = [rule.cap_rule(place) for place, rule in enumerate(self.rules)]
        return Caps([cap for cap in found if cap is not None])

    @property
    def priorities(self) -> Priorities:
        """Which settings ids go before others, or after them."""
        ranked = [rule.ranked for rule in self.rules if rule.ranked is not None]
        high, low = (
            frozenset(id_ for name, ids in ranked if name == priority for id_ in ids)
            for priority in ("high", "low")
        )
        return Priorities(high, low)


def receipt_url(config: Config, provider: ProviderConfig) -> str | None:
    """Return the public address that a provider reports to, if the configuration names one.

    It names the provider also where that is the channel's only one, so that it stays valid beside another.
    """
    base = config.receipts.public_url
    return None if base is None else f"{base}/receipts/{provider.channel}/{provider.name}"


class Examined(NamedTuple):
    """A configuration file's problems, and the configuration without the faulty parts, if there is one.

    `place_of` names where a key was set: `file:key`, or an environment variable. `opened` are the files that
    the configuration was read from.
    """

    config: Config | None
    problems: list[str]
    place_of: Callable[[str], str] = str
    opened: Sequence[Opened] = ()

    def usable(self) -> Config:
        """Return the configuration without the faulty parts. Raises ConfigError if there is none."""
        if self.config is None:
            raise ConfigError(self.problems)
        return self.config

    def faultless(self) -> Config:
        """Return the whole configuration. Raises ConfigError with all problems."""
        if self.problems:
            raise ConfigError(self.problems)
        return self.usable()


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read a configuration file. Raises ConfigError with all problems, each as `file:key: what to do`."""
    return examine(path, environ).faultless()


_ANY_SERVICE = {f"{PREFIX}SERVICE__BASE_URL": "http://service.invalid"}
"""The one key without which there is no configuration, for what doesn't use it."""


class ConfigPart(NamedTuple):
    """The tables that a command needs, as a configuration, and the problems with the others."""

    config: Config
    ignored: list[str]


OF_WORKERS = ("journal.reserve", "journal.retention", "journal.allow_shared_folder")
"""Keys of the journal that only a worker uses."""


def load_part(path: Path, tables: Collection[str], environ: Mapping[str, str] = os.environ) -> ConfigPart:
    """Read a configuration for what needs only some of its tables, or single keys such as `service.base_url`.

    Raises ConfigError with the problems of these tables, without those of `OF_WORKERS`, or if the file can't
    be read at all.
    """
    examined = examine(path, environ)
    needed, others = _beginnings(path, tables), _beginnings(path, OF_WORKERS)
    own = [each for each in examined.problems if each.startswith(needed) and not each.startswith(others)]
    config = examined.config or examine(path, {**environ, **_ANY_SERVICE}).config
    if own or config is None:
        raise ConfigError(own or examined.problems)
    return ConfigPart(config, examined.problems)


def _beginnings(path: Path, tables: Collection[str]) -> tuple[str, ...]:
    """Return how the problems of these tables or keys begin."""
    return tuple(
        start
        for table in tables
        for name in (f"{PREFIX}{table.upper().replace('.', '__')}",)
        for start in (f"{path}:{table}.", f"{path}:{table}:", f"{name}__", f"{name}:")
    )


def examine_to_run(path: Path, environ: Mapping[str, str] = os.environ) -> Examined:
    """Examine a configuration for a worker: only root and the worker's user may be able to change its files.

    The worker's user is this process's, or for root the owner of the journal's folder (see
    `place_of_worker`); before that is there the user isn't known, and may be any owner of a file.
    """
    examined = examine(path, environ)
    user: int | None = os.geteuid()
    if user == 0 and examined.config is not None:
        user = owner_of(place_of_worker(examined.config))
    problems = [problem for each in examined.opened for problem in tampering(each.path, each.status, user)]
    return examined._replace(problems=[*examined.problems, *dict.fromkeys(problems)])


def place_of_worker(config: Config) -> Path:
    """Return what belongs to the worker's user: the journal's file, or with a database only the socket."""
    return config.control.socket if config.journal.is_shared else config.journal.named


def examine(path: Path, environ: Mapping[str, str] = os.environ) -> Examined:
    """Read as much of a configuration file as possible."""
    try:
        file = ConfigFile(path, environ, BLOCKS)
    except ConfigError as error:
        return Examined(None, error.problems)
    tables = dict(file.tables)
    channels = read_channels(file, tables.pop("channels", {}))
    customers = read_customers(file, tables.pop("customers", {}))
    whole = {"service": {}, **tables, "channels": channels, "customers": customers}
    config = file.validate(Config, whole) or file.remainder(Config, whole)
    if config is not None:
        _check(file, config)
    return Examined(config, file.problems, file.place_of, [*file.opened, *_believed(config)])


def _believed(config: Config | None) -> Iterator[Opened]:
    """Yield the files that define who is trusted and what customers have.

    They are secrets, certificates, also those of the journal's address, and a SQLite database.
    """
    if config is None:
        return
    tables = [provider.options for provider in config.channels.providers.values()]
    values = [each for table in (config, config.customers.options, *tables) for each in leaves(table)]
    paths = [value.path for _key, value in values if isinstance(value, SecretFile)]
    paths += [
        value for key, value in values if key.rpartition(".")[2] in _CERTIFICATES and isinstance(value, Path)
    ]  # what a plug-in calls so may be anything else
    if config.journal.is_shared:
        paths += _database_files(config.journal.url)
    if config.customers.source == "sql":
        from deliveryd.directory.sql_options import SqlOptions, sqlite_file  # noqa: PLC0415  # an extra

        options = config.customers.options
        database = sqlite_file(options) if isinstance(options, SqlOptions) else None
        paths += [database] if database is not None else []
    yield from (Opened(path, path.stat()) for path in paths if path.exists())


def _check(file: ConfigFile, config: Config) -> None:
    """Check the files that a configuration names, and its tables against each other."""
    for key, secret in leaves(config):
        if isinstance(secret, SecretFile) and (problem := secret.problem()) is not None:
            file.complain(key, problem)
    if (problem := _unusable_token(config)) is not None and not file.complained_of("admin.token_file"):
        file.complain("admin.token_file", problem)
    for table, tls in (("service", config.service.tls), ("otlp", config.otlp.tls)):
        for problem in tls_problems(f"{table}.tls", tls.files(f"{table}.tls.ca_file")):
            file.complain(*_taken_apart(problem))
    for problem in tls_problems("entities", TlsFiles(config.entities.ca_file)):
        file.complain(*_taken_apart(problem))
    public_url_is_invalid = file.complained_of("receipts.public_url")
    for key, problem in (
        *_plain_text(config),
        *_tokens(config),
        *_unserved_addresses(config),
        *_lost_receipts(config),
        *_shared_address(config),
        *_receipt_keys(config),
        *_traces(config),
        *_rule_problems(config),
        *_journal_problems(config),
    ):
        if not (public_url_is_invalid and key == "receipts.public_url"):  # it isn't missing
            file.complain(key, problem)


def _journal_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Yield what keeps the journal from being used where it is, and keys that concern another kind."""
    journal = config.journal
    if not journal.is_shared:
        shared = None if journal.allow_shared_folder else shared_folder_problem(journal.path.parent)
        if shared is not None:
            yield "journal.url", shared
        for key in _of_another_kind(journal, _OF_DATABASES):
            yield f"journal.{key}", "is for PostgreSQL, and journal.url names a SQLite file: leave it out"
        if _of_another_kind(config.control, ("socket",)):
            yield (
                "control.socket",
                "is for PostgreSQL: with SQLite the socket is beside the journal; leave it out",
            )
        return
    if (problem := _database_problem(journal.url)) is not None:
        yield "journal.url", problem
    for key in _of_another_kind(journal, _OF_FILES):
        yield f"journal.{key}", "is for SQLite, and journal.url names a PostgreSQL database: leave it out"
    for provider in config.channels.providers.values():
        if provider.common.timeout > journal.lease - LEAST_BEYOND_TIMEOUT:
            yield f"{provider.place}.timeout", _outlasting_problem(provider.common.timeout, journal.lease)


def _of_another_kind(table: Section, keys: Iterable[str]) -> list[str]:
    """Return which of these keys were set to something else than what they are anyway."""
    fields = type(table).model_fields
    return [key for key in keys if getattr(table, key) != fields[key].default]


def _database_problem(url: str) -> str | None:
    """Return why a database can't be connected to by its URL alone, and what to do."""
    try:
        from deliveryd.journal.postgresql.connection import conninfo  # noqa: PLC0415  # an extra
    except ImportError:
        return NOT_INSTALLED
    try:
        conninfo(JournalDatabase(url))
    except JournalUnusable as error:
        return str(error).removeprefix("journal.url ")
    return None


def _database_files(url: str) -> Sequence[Path]:
    """Return the certificates that a database's URL names; none if it can't be read."""
    try:
        from deliveryd.journal.postgresql.connection import files_of  # noqa: PLC0415  # an extra
    except ImportError:
        return ()
    return files_of(url)


def _outlasting_problem(timeout: float, lease: float) -> str:
    longest = format_duration(lease - LEAST_BEYOND_TIMEOUT)
    return (
        f'{format_duration(timeout)} is too long for journal.lease = "{format_duration(lease)}": an attempt'
        f" has to end {format_duration(LEAST_BEYOND_TIMEOUT)} before other workers may take over;"
        f" give at most {longest} here, or raise journal.lease"
    )


def _lost_receipts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the receipts that can't arrive, or whose signature can't be verified, by key."""
    for provider in config.channels.providers.values():
        receipt, place = provider.receipt, f"{provider.place}.receipt"
        if receipt is None:
            continue
        if not config.receipts.listen:
            yield place, "receipts.listen is empty, so no receipt could arrive"
        if (
            receipt.signature is not None
            and receipt.signature.covers_url
            and config.receipts.public_url is None
            and not getattr(provider.options, "names_receipt_url", False)  # reported with the request
        ):
            text = f"is missing; {place}.signature covers the address that the provider calls"
            yield "receipts.public_url", text


def _shared_address(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the address of receipts, if the admin server has it and there are receipts."""
    admin, receipts = config.admin.listen, config.receipts.listen
    if config.channels.reporting and admin and receipts and collide(admin, receipts):
        yield "receipts.listen", f"is the same address as admin.listen, {admin}: give it another port"


def _unserved_addresses(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the requests that name an address for receipts which isn't known or isn't served, by key."""
    for provider in config.channels.providers.values():
        if not getattr(provider.options, "names_receipt_url", False):
            continue
        if config.receipts.public_url is None:
            yield "receipts.public_url", f"is missing; {provider.place} sends {{receipt.url}}"
        if provider.receipt is None:
            yield f"{provider.place}.receipt", "is missing; {receipt.url} is sent, and would answer 404"


def _receipt_keys(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the keys of channels that wait for receipts in vain, with the reason."""
    for name, channel in config.channels.configured.items():
        receipts = [each.receipt for each in channel.providers.values() if each.receipt is not None]
        confirms = any(receipt.confirms for receipt in receipts)
        for key in _RECEIPT_KEYS:
            place, length = f"channels.{name}.{key}", getattr(channel.common, key)
            if length == type(channel.common).model_fields[key].default:
                continue
            if not receipts:
                yield place, "no provider of the channel reports receipts: add a receipt table to one of them"
            elif isinstance(length, float) and not confirms:
                yield place, "no provider of the channel reports deliveries: no receipt table has delivered"
            elif not config.receipts.listen:
                yield place, "receipts.listen is empty, so no receipt could arrive"
            elif isinstance(length, float) and length >= config.journal.retention:
                yield place, "must be shorter than journal.retention, which deletes messages before"
            elif key == "slow_after" and sum(receipt.confirms for receipt in receipts) < 2:
                yield place, "needs two providers of the channel whose receipt tables have delivered"


def _is_installed(package: str, part: str) -> bool:
    """Whether a part of a package is there that several distributions share."""
    return find_spec(package) is not None and find_spec(f"{package}.{part}") is not None


def _rule_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Yield rules that name an unknown channel, need a zone, or name an id's priority again, by key."""
    known = list(config.channels.configured)
    first: dict[int, int] = {}
    for number, rule in enumerate(config.rules):
        for name in sorted(set(rule.channels or ()) - set(known)):
            there_are = suggestion(name, known) or f"; there are {', '.join(known)}"
            yield f"rules.{number}.channels", f"no channel {name!r} is configured{there_are}"
        window = rule.window_rule(number)
        if window is not None and window.needs_customer and config.content.zone is None:
            yield (
                f"rules.{number}.window.zone",
                "customers whose field zone names none need a time zone: set content.zone",
            )
        _, ids = rule.ranked or ("", ())
        twice = [id_ for id_ in dict.fromkeys(ids) if first.setdefault(id_, number) != number]
        if twice:
            yield (
                f"rules.{number}.settings",
                f"{', '.join(map(str, twice))}: rules.{first[twice[0]]} sets a priority too; remove one",
            )


def _traces(config: Config) -> Iterator[tuple[str, str]]:
    """Yield what tracing lacks, by key."""
    otlp = config.otlp
    if otlp.endpoint is not None and not _is_installed("opentelemetry", "proto"):
        yield "otlp.endpoint", "needs a package that isn't installed" + how_to_install("otlp")
    for provider in config.channels.providers.values():
        if getattr(provider.options, "traceparent", False) and not (otlp.endpoint and otlp.traces):
            yield f"{provider.place}.traceparent", "needs otlp.endpoint, and otlp.traces"


def _plain_text(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the secrets of the service and the entities that would be sent in plain text, by key."""
    service = config.service
    is_plain = goes_out_plain(service.base_url, service.proxy)
    if service.auth.is_given and not service.allow_plain_text and is_plain:
        host = target_of(service.base_url).host
        yield "service.base_url", plain_text_problem("the secret of service.auth", host, SECURE_ADDRESS)
    otlp = config.otlp
    has_secret = otlp.auth.is_given and not otlp.allow_plain_text
    if otlp.endpoint and has_secret and goes_out_plain(otlp.endpoint, otlp.proxy):
        host = target_of(otlp.endpoint).host
        yield "otlp.endpoint", plain_text_problem("the secret of otlp.auth", host, SECURE_ADDRESS)
    entities = config.entities
    if entities.auth.is_given and entities.hosts is None:
        yield "entities.auth", "is for other hosts than the service's own: name them in entities.hosts"
    if entities.auth.is_given and entities.allow_http and not entities.allow_plain_text:
        remedy = "remove entities.allow_http"
        yield "entities.auth", plain_text_problem("the secret", "hosts without TLS", remedy)
    for table, options in (("service", service), ("entities", entities), ("otlp", otlp)):
        if problem := options.plain_text_problem():
            yield f"{table}.proxy", problem


def _tokens(config: Config) -> Iterator[tuple[str, str]]:
    """Yield what keeps tokens from being requested, by key."""
    for table in ("service", "entities", "otlp"):
        for problem in getattr(config, table).auth.other_problems():
            yield _taken_apart(f"{table}.auth.{problem}")


def _unusable_token(config: Config) -> str | None:
    """Return why the token of the status page's actions can't be used."""
    if config.admin.token_file is None:
        return None
    try:
        page_token(config.admin.token_file)
    except ValueError as error:
        return str(error)
    return None


def page_token(file: SecretFile) -> str:
    """Read the token of the status page's actions. Raises ValueError if it can't be used or be guessed."""
    token = file.read()
    if len(token) < LEAST_TOKEN:
        problem = f"at least {LEAST_TOKEN} characters"
    elif not token.isascii():
        problem = "ASCII characters only"
    else:
        return token
    raise ValueError(f"must have {problem}: openssl rand -hex 32 >{file.path}")


def _taken_apart(problem: str) -> tuple[str, str]:
    key, _, text = problem.partition(": ")
    return key, text
