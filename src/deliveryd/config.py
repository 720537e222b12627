"""The configuration: a TOML file, overridden by the environment, read into models; every mistake is told at once.

Defaults stand here and nowhere else; `config.example.toml` shows all of them.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from deliveryd.admin.listening import parse_listen
from deliveryd.channels.registry import check_channel, find_kind
from deliveryd.errors import ConfigError, LanguageUnreadable
from deliveryd.http.client import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.model import BLOCKS
from deliveryd.rendering.escaping import EmailFormat
from deliveryd.rendering.language import standard_tag
from deliveryd.service.auth import AuthOptions
from deliveryd.telemetry import Layout
from deliveryd.units import Duration, FilePath, RateLimit, SecretFile, Size

PREFIX = "DELIVERYD_"

Model = TypeVar("Model", bound=BaseModel)


def _address(url: str) -> str:
    target_of(url)
    return url


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


def _more_than_nothing(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be longer than nothing")
    return seconds


Positive = Annotated[Duration, AfterValidator(_more_than_nothing)]
Url = Annotated[str, AfterValidator(_address)]
Listen = Annotated[str, AfterValidator(_listen)]
Tag = Annotated[str, AfterValidator(_tag)]


class Section(BaseModel):
    """A table of the file: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, validate_default=True)


class TlsOptions(Section):
    """Certificates for the service."""

    ca_file: FilePath | None = Field(None, description="authorities to trust instead of the system's, PEM")
    cert_file: FilePath | None = Field(None, description="certificate to show, PEM")
    key_file: FilePath | None = Field(None, description="its key, PEM, if it isn't in cert_file")

    def files(self) -> TlsFiles:
        """The same, as the HTTP client takes it."""
        return TlsFiles(self.ca_file, self.cert_file, self.key_file)


class ServiceOptions(Section):
    """The remote service."""

    base_url: Url = Field(description="where the service is")
    timeout: Positive = Field(10.0, description="for one request, from connecting to the last byte")
    auth: AuthOptions = Field(AuthOptions(), description="how requests prove who sends them")
    tls: TlsOptions = Field(TlsOptions(), description="certificates")


class QueueOptions(Section):
    """What is taken from the queue, and when."""

    batch_size: int = Field(100, ge=1, le=100_000, description="messages taken with one request")
    poll_interval: Positive = Field(1.0, description="pause after a batch that wasn't full")
    max_poll_interval: Positive = Field(30.0, description="longest pause while the queue is empty")
    max_in_flight: int = Field(1000, ge=1, le=1_000_000, description="messages that the line holds at a time")
    max_waiting: int = Field(100_000, ge=1, description="waiting messages in the journal that stop the taking")

    @model_validator(mode="after")
    def _fits(self) -> QueueOptions:
        if self.max_poll_interval < self.poll_interval:
            raise ValueError("max_poll_interval is shorter than poll_interval")
        return self


class EventsOptions(Section):
    """How statuses are reported."""

    batch_size: int = Field(500, ge=1, le=100_000, description="events reported with one request")
    flush_interval: Duration = Field(0.25, description="longest wait of an event for company")
    details_field: str = Field("details", min_length=1, description="name of the field with an error's details")
    intermediate: tuple[Literal["sending", "accepted"], ...] = Field(
        (), description='intermediate statuses to report: "sending", "accepted"'
    )

    @field_validator("details_field")
    @classmethod
    def _own_name(cls, name: str) -> str:
        if name in {"timestamp", "messageId", "status", "channel", "reportedAt"}:
            raise ValueError("is the name of another field of an event")
        return name


class SettingsOptions(Section):
    """The cache of message settings."""

    cache_dir: FilePath = Field(Path("/var/cache/deliveryd/settings"), description="folder of the disk cache")
    size_limit: Size = Field(256 << 20, ge=1 << 20, description="size of the disk cache")
    ttl: Positive | None = Field(None, description="age at which settings are asked for again; none: never")


class ContentOptions(Section):
    """How messages are rendered."""

    languages: tuple[Tag, ...] = Field(("en",), min_length=1, description="languages after the customer's own")
    greeting_fallback: bool = Field(False, description="the general greeting stands in for a personal one")
    email_format: EmailFormat = Field("auto", description='e-mail bodies: "html", "text", or "auto" by their tags')


class CustomersOptions(Section):
    """The issuer's own customer directory."""

    source: Literal["none", "file"] = Field("none", description='where customers are looked up: "none" or "file"')
    path: FilePath | None = Field(None, description='of the source "file": JSON Lines or CSV')
    cache_ttl: Positive = Field(300.0, description="how long an answer of a remote directory is kept")

    @model_validator(mode="after")
    def _complete(self) -> CustomersOptions:
        if (self.source == "file") is not (self.path is not None):
            raise ValueError('the source "file" needs a path, and no other source takes one')
        return self


class RetryOptions(Section):
    """How often a channel is tried for one message."""

    attempts: int = Field(8, ge=1, le=1000, description="tries for one message on this channel")
    base: Positive = Field(2.0, description="pause after the first failed try, doubled after each")
    max: Positive = Field(600.0, description="longest pause between tries")


class ChannelTable(BaseModel):
    """What every channel has; what else stands in its table belongs to its adapter."""

    model_config = ConfigDict(extra="allow", frozen=True, coerce_numbers_to_str=True)

    adapter: str = Field(description='kind of the channel: "http", "smtp", or one that a package brings')
    block: str | None = Field(None, description="block of the settings that it sends; none: the channel's name")
    concurrency: int = Field(100, ge=1, le=10_000, description="attempts under way at a time")
    rate: RateLimit | None = Field(None, description='attempts that may begin in a time, such as "50/s"')
    timeout: Positive = Field(10.0, description="for one attempt")
    on_in_doubt: Literal["resend", "hold"] = Field("resend", description="when nobody knows what became of it")
    retry: RetryOptions = Field(RetryOptions(), description="when the provider can't take it now")


class ChannelConfig(BaseModel):
    """One channel: its name, what every channel has, and what its adapter needs."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    name: str
    block: str
    common: ChannelTable
    options: BaseModel


class ChannelsOptions(Section):
    """The channels, in the order in which they are tried."""

    order: tuple[str, ...] = Field(BLOCKS, min_length=1, description="the first one that can takes the message")
    configured: Mapping[str, ChannelConfig] = Field(default_factory=dict, exclude=True)


class JournalOptions(Section):
    """The journal."""

    url: str = Field("sqlite:////var/lib/deliveryd/journal.db", description="where the journal is")
    retention: Positive = Field(7 * 86400.0, description="how long ended messages can be explained")
    path: FilePath = Field(Path(), exclude=True, validate_default=False)

    @model_validator(mode="before")
    @classmethod
    def _path_of_url(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "path" in data:
            return data
        url = data.get("url", "sqlite:////var/lib/deliveryd/journal.db")
        if not isinstance(url, str) or not url.startswith("sqlite:///") or len(url) <= len("sqlite:///"):
            raise ValueError('url must look like "sqlite:////var/lib/deliveryd/journal.db"')
        return {**data, "path": url.removeprefix("sqlite:///")}


class AdminOptions(Section):
    """Health, readiness, metrics and status."""

    listen: Listen = Field("127.0.0.1:9470", description="address; port 0: any free one; empty: turned off")


class ReceiptsOptions(Section):
    """Where providers report deliveries."""

    listen: Listen = Field("127.0.0.1:9471", description="address; port 0: any free one; empty: turned off")
    max_body: Size = Field(64 << 10, description="largest report that is read")


class LogOptions(Section):
    """The log."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="the least that is written")
    format: Layout = Field("auto", description='"console", "json", "journal", or "auto" by where it goes')


class RunOptions(Section):
    """The process."""

    drain_timeout: Duration = Field(20.0, description="time to finish what is under way after SIGTERM")


class Config(Section):
    """The whole configuration."""

    service: ServiceOptions
    queue: QueueOptions = QueueOptions()
    events: EventsOptions = EventsOptions()
    settings: SettingsOptions = SettingsOptions()
    content: ContentOptions = ContentOptions()
    customers: CustomersOptions = CustomersOptions()
    channels: ChannelsOptions
    journal: JournalOptions = JournalOptions()
    admin: AdminOptions = AdminOptions()
    receipts: ReceiptsOptions = ReceiptsOptions()
    log: LogOptions = LogOptions()
    run: RunOptions = RunOptions()


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Read a configuration file. Raises ConfigError with every problem, each as `file:key: what to do`."""
    reader = _Reader(path, environ)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: can't be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: isn't UTF-8 text"]) from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: isn't TOML: {error}"]) from None
    return reader.read(data)


class _Reader:
    """Reads tables into models, and gathers what is wrong."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self._path = path
        self._environ = environ
        self._context = {"base_dir": path.resolve().parent}
        self._from_environment: dict[str, str] = {}
        self._problems: list[str] = []

    def read(self, data: dict[str, Any]) -> Config:
        """The configuration, or ConfigError with all problems."""
        self._overlay(data)
        tables = data.pop("channels", {})
        channels = self._channels(tables) if isinstance(tables, dict) else None
        if channels is None:
            self._complain("channels", "expected tables such as [channels.sms]")
        config = self._validate(Config, {**data, "channels": channels or ChannelsOptions()}, "")
        if config is not None:
            for key, secret in _secrets(config):
                if (problem := secret.problem()) is not None:
                    self._complain(key, problem)
            if not config.receipts.listen:
                for name, channel in config.channels.configured.items():
                    if getattr(channel.options, "receipt", None) is not None:
                        self._complain(f"channels.{name}.receipt", "receipts.listen is empty: nothing would come in")
        if self._problems or config is None:
            raise ConfigError(self._problems)
        return config

    def _overlay(self, data: dict[str, Any]) -> None:
        """Put what the environment says over what the file says."""
        for variable, text in sorted(self._environ.items()):
            name = variable.removeprefix(PREFIX)
            if name == variable or "__" not in name:
                continue
            *tables, key = name.lower().split("__")
            place = data
            path = []
            for table in tables:
                spelled = _spelling(table, place)
                path.append(spelled)
                below = place.setdefault(spelled, {})
                place = below if isinstance(below, dict) else {}
            key = _spelling(key, place)
            place[key] = _toml_value(text)
            self._from_environment[".".join([*path, key])] = variable

    def _channels(self, tables: dict[str, Any]) -> ChannelsOptions:
        configured: dict[str, ChannelConfig] = {}
        for name, table in tables.items():
            if name == "order":
                continue
            if not isinstance(table, dict):
                self._complain(f"channels.{name}", "unknown key; a channel is a table such as [channels.sms]")
            elif (channel := self._channel(name, table)) is not None:
                configured[name] = channel
        given = {"order": tables["order"]} if "order" in tables else {}
        options = self._validate(ChannelsOptions, given, "channels.") or ChannelsOptions()
        names = [name for name in tables if name != "order"]
        for name in options.order:
            if name not in names and name not in BLOCKS:
                self._complain("channels.order", f"there is no [channels.{name}]{_hint(name, [*names, *BLOCKS])}")
        for name in names:
            if name not in options.order:
                self._complain("channels.order", f"{name} is configured, but isn't in the order: nothing would take it")
        if not names:
            self._complain("channels", "no channel is configured; add a table such as [channels.sms]")
        return options.model_copy(update={"configured": configured})

    def _channel(self, name: str, table: dict[str, Any]) -> ChannelConfig | None:
        prefix = f"channels.{name}."
        common = self._validate(ChannelTable, table, prefix)
        if common is None:
            return None
        try:
            kind = find_kind(common.adapter)
        except ValueError as error:
            self._complain(f"{prefix}adapter", str(error))
            return None
        block = common.block or name
        if block not in BLOCKS:
            self._complain(f"{prefix}block", f"{block!r} is no block of the settings: give one of {', '.join(BLOCKS)}")
        own = {key: value for key, value in table.items() if key not in ChannelTable.model_fields}
        options = self._validate(kind.options, own, prefix, also=tuple(ChannelTable.model_fields))
        if options is None or block not in BLOCKS:
            return None
        for problem in check_channel(name, block, common.adapter, options):
            key, _, text = problem.partition(": ")
            self._complain(key, text)
        return ChannelConfig(name=name, block=block, common=common, options=options)

    def _validate(
        self, model: type[Model], data: Mapping[str, Any], prefix: str, also: tuple[str, ...] = ()
    ) -> Model | None:
        try:
            return model.model_validate(data, context=self._context)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_input=False):
                path = [str(part) for part in problem["loc"]]
                text = problem["msg"].removeprefix("Value error, ")
                if problem["type"] == "extra_forbidden":
                    text = "unknown key" + _hint(path[-1], [*_fields_at(model, path[:-1]), *also])
                elif problem["type"] == "missing":
                    text = "is missing"
                self._complain(prefix + ".".join(path), text[:1].lower() + text[1:])
            return None

    def _complain(self, key: str, text: str) -> None:
        where = self._from_environment.get(key) or f"{self._path}:{key}"
        self._problems.append(f"{where.rstrip('.')}: {text}")


def _secrets(value: object, key: str = "") -> Iterator[tuple[str, SecretFile]]:
    """The secrets' files below a model, with their keys; those of channels are their adapters' to check."""
    if isinstance(value, SecretFile):
        yield key, value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _secrets(getattr(value, name), f"{key}.{name}".lstrip("."))


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """The keys that the table at this path may have."""
    for part in path:
        field = model.model_fields.get(part)
        found = next(_models_in(field.annotation), None) if field is not None else None
        if found is None:
            return []
        model = found
    return [field.alias or name for name, field in model.model_fields.items() if not field.exclude]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _hint(word: str, known: list[str] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word.lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    spelled = next((name for name in known if near and name.lower() == near[0]), None)
    return f"; did you mean {spelled}?" if spelled else ""


def _spelling(key: str, place: Mapping[str, Any]) -> str:
    """A key of the environment, which knows no case, in the spelling of the file or of the settings' blocks."""
    return next((known for known in [*place, *BLOCKS] if known.lower() == key), key)


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
