"""Warnings of `check`: settings that work, but are unsafe or probably a mistake. Makes no connections.

Secrets are recognised by the names of their keys, or by their looks; `config show` masks the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from pydantic import BaseModel

from deliveryd.channels.http.ask_options import AskOptions
from deliveryd.channels.http.options import SECRET_HEADERS, HttpChannelOptions
from deliveryd.channels.http.request_options import VariantOptions
from deliveryd.channels.mail.mail_headers import parse_mailbox
from deliveryd.channels.mapping import customer_fields, names_in, uses
from deliveryd.channels.phone_numbers import PhoneReader
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.commands.check.findings import Finding, Level
from deliveryd.commands.check.rule_cautions import RULE_CAUTIONS
from deliveryd.commands.common.shared_journal import known_providers
from deliveryd.config import Config
from deliveryd.directory.file import records_of
from deliveryd.directory.http_options import HttpDirectoryOptions
from deliveryd.directory.registry import FileOptions
from deliveryd.directory.sql_options import SqlOptions, sqlite_file
from deliveryd.errors import JournalError
from deliveryd.field_lists import members_of
from deliveryd.http.addresses import parse_listen
from deliveryd.journal.attention import LeftBehind
from deliveryd.journal.opening import open_reader
from deliveryd.model import Customer
from deliveryd.network.address import is_loopback
from deliveryd.options.safety import limits_text
from deliveryd.options.suggestion import closest
from deliveryd.options.units import format_size
from deliveryd.runtime.rights import READ, WRITE, exposure
from deliveryd.worker.open_files import open_files

_NAME = re.compile(
    r"(?:.*[_.-])?(?:api-?key|access-?key|key|token|secret|password|passphrase|passwd|pass|pwd|pin|auth|authorization|signature|sig"
    r"|credentials?)",
    re.IGNORECASE,
)
_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Between the words of a name such as accessToken or SMSPassword."""

_CREDENTIAL = re.compile(r"(?:bearer|basic|token|digest|(?:api-?)?key) +\S+", re.IGNORECASE)
_RANDOM = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[A-Za-z0-9+/=_.~-]{20,}")
_OPERATION = re.compile(r"[A-Za-z]+(?:_?[Vv]?[0-9]+)?\.[A-Za-z]+")
"""The name of an interface, which may end in a version, and of an operation: `PinpointSMSVoiceV2.Send`."""

_PLACEHOLDER = re.compile(r"\{secret\.[^{}]*\}")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,31}")


def is_secret_name(name: str) -> bool:
    """Whether a key, a parameter or a header of this name has a secret."""
    spellings = (name, _BORDER.sub("_", name))
    return any(_NAME.fullmatch(each) for each in spellings) or name.lower() in SECRET_HEADERS


def is_literal_secret(name: str, value: str) -> bool:
    """Whether the value of a key is a secret by the key's name.

    It isn't if it refers to one, or is a name or a scheme where those are usual.
    """
    if not is_secret_name(name) or _PLACEHOLDER.search(value):
        return False
    return name not in ("secret", "signature") or _WORD.fullmatch(value) is None


def is_credential(value: str) -> bool:
    """Whether a value is a credential by its looks: a scheme with a word behind it."""
    return "{" not in value and _CREDENTIAL.fullmatch(value) is not None


def is_random(value: str) -> bool:
    """Whether a value may be a credential by its looks: one long word of letters and digits.

    The name of an operation isn't, as in `X-Amz-Target`.
    """
    return "{" not in value and _RANDOM.fullmatch(value) is not None and not _OPERATION.fullmatch(value)


_LOGGED = "servers and proxies write addresses to their logs"


def _is_outside(listen: str) -> bool:
    return bool(listen) and not is_loopback(parse_listen(listen)[0])


def _open_pages(config: Config) -> Iterator[Finding]:
    listen = config.admin.listen
    if _is_outside(listen):
        text = (
            f"{listen} can be reached from other machines: anyone can read status and metrics;"
            ' listen on "127.0.0.1:9470", or restrict access with a firewall'
        )
        yield Finding("admin.listen", Level.WARNING, text)
        if config.admin.token_file is not None:
            text = (
                f"the token crosses the network in plain text to {listen}:"
                " listen on a loopback address, and put a proxy with TLS in front"
            )
            yield Finding("admin.token_file", Level.WARNING, text)


def _unverified_receipts(config: Config) -> Iterator[Finding]:
    listen = config.receipts.listen
    for provider in config.channels.providers.values():
        receipt = provider.receipt
        if receipt is not None and listen and receipt.signature is None:
            text = (
                f"anyone who can connect to {listen}, also through a proxy, can forge delivery reports:"
                f" add [{provider.place}.receipt.signature]"
            )
            yield Finding(f"{provider.place}.receipt", Level.WARNING, text)


def _stand_ins(config: Config) -> Iterator[Finding]:
    """Warn of receipts that a stand-in signs, and not the provider."""
    for provider in config.channels.providers.values():
        signature = provider.receipt.signature if provider.receipt is not None else None
        if getattr(signature, "scheme", "") == "sns" and signature is not None and signature.secret_file:
            text = (
                f"only events that the certificate in {signature.secret_file[0].path} signs are taken in, and"
                " Amazon's own are refused; remove it but for a trial"
            )
            yield Finding(f"{provider.place}.receipt.signature", Level.WARNING, text)


def _idle_sizes(config: Config) -> Iterator[Finding]:
    """Yield batch sizes that can't be reached."""
    taken, slots = config.queue.batch_size, config.queue.max_in_flight
    if taken > slots:
        text = f"{taken:,} are never taken at once, since queue.max_in_flight leaves room for {slots:,}"
        yield Finding("queue.batch_size", Level.HINT, text)


def _small_limit(config: Config) -> Iterator[Finding]:
    """Yield a limit that was set and doesn't count, since requests of providers are larger."""
    limit = config.receipts.max_body
    larger = {
        name: options.largest_request
        for name, options in config.channels.reporting.items()
        if options.largest_request is not None and options.largest_request > limit
    }
    if larger and "max_body" in config.receipts.model_fields_set:
        sizes = ", ".join(f"{format_size(size)} for {name}" for name, size in larger.items())
        text = f"{format_size(limit)} is less than what is accepted of providers that send more: {sizes}"
        yield Finding("receipts.max_body", Level.WARNING, text)


def _requests(config: Config) -> Iterator[tuple[str, HttpChannelOptions | VariantOptions | AskOptions]]:
    """Yield what is sent over HTTP, each with its table: messages, variants, questions."""
    for provider in config.channels.providers.values():
        options = provider.options
        if isinstance(options, HttpChannelOptions):
            yield provider.place, options
            for index, variant in enumerate(options.variants):
                yield f"{provider.place}.variants.{index}", variant
            for name, asked in (("lookup", options.lookup), ("probe", options.probe)):
                if asked is not None:
                    yield f"{provider.place}.{name}", asked


def _secrets_in_addresses(config: Config) -> Iterator[Finding]:
    for table, options in _requests(config):
        yield from _secret_in_url(f"{table}.url", options.url or "")
        for key, value in (options.query or {}).items():
            yield from _secret_in_pair(f"{table}.query.{key}", key, value)
    customers = config.customers.options
    if isinstance(customers, HttpDirectoryOptions):
        yield from _secret_in_url("customers.url", customers.url)
        yield from _secret_in_url("customers.batch_url", customers.batch_url or "")


def _literal_secrets(config: Config) -> Iterator[Finding]:
    """Yield the secrets that stand in the configuration itself, which everybody may read."""
    text = "looks like a secret: write it into a file, name that in secrets, and write {secret.NAME} here"
    for table, options in _requests(config):
        for part in ("headers", "json", "form"):
            for key, name, value in _leaves(f"{table}.{part}", part, options.mapped().get(part)):
                if is_literal_secret(name, value) or is_credential(value):
                    yield Finding(key, Level.WARNING, text)
                elif part == "headers" and is_random(value):
                    yield Finding(key, Level.HINT, text)
    text = "looks like a secret: mail headers have no file of their own, so restrict who may read this one"
    for provider in config.channels.providers.values():
        headers = provider.options.headers if isinstance(provider.options, SmtpOptions) else {}
        for name, value in headers.items():
            if is_literal_secret(name, value) or is_credential(value):
                yield Finding(f"{provider.place}.headers.{name}", Level.WARNING, text)


def _leaves(key: str, name: str, value: object) -> Iterator[tuple[str, str, str]]:
    """Yield the texts without placeholders below a value: the key, its last name, the text."""
    if isinstance(value, Mapping):
        for each, below in value.items():
            yield from _leaves(f"{key}.{each}", str(each), below)
    elif isinstance(value, list | tuple):
        for index, below in enumerate(value):
            yield from _leaves(f"{key}.{index}", name, below)
    elif isinstance(value, str) and value and not any(True for _ in names_in(value)):
        yield key, name, value


def _changing_repeats(config: Config) -> Iterator[Finding]:
    """Yield mappings whose repeats differ although the provider compares what it gets under one key."""
    for provider in config.channels.providers.values():
        options = provider.options
        if not isinstance(options, HttpChannelOptions) or not options.heeds_keys:
            continue
        if uses(options.mapped(), "message", "validity"):
            text = (
                "a repeat must be the same, but {message.validity} is computed again for each try:"
                " use {message.expiresAt}, or leave the validity out"
            )
            yield Finding(f"{provider.place}.heeds_keys", Level.WARNING, text)


def _secret_in_url(key: str, url: str) -> Iterator[Finding]:
    path, _, query = url.partition("?")
    if any(name.root == "secret" for _, name in names_in(path)):
        yield Finding(key, Level.WARNING, f"its path contains a secret, and {_LOGGED}")
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        yield from _secret_in_pair(key, name, value)


def _secret_in_pair(key: str, name: str, value: object) -> Iterator[Finding]:
    filled = {placeholder.root for _, placeholder in names_in(value)}
    if "secret" in filled:
        text = f"the query parameter {name!a} is a secret, and {_LOGGED}: use a header if possible"
        yield Finding(key, Level.WARNING, text)
    elif not filled and value and is_secret_name(name):
        text = (
            f"the query parameter {name!a} looks like a secret; put it into a secret file, since {_LOGGED}:"
            " use a header if possible"
        )
        yield Finding(key, Level.WARNING, text)


def _exposed_files(config: Config) -> Iterator[Finding]:
    for key, (path, rights) in _private_files(config).items():
        if path is not None and (problem := exposure(path, rights)) is not None:
            yield Finding(key, Level.WARNING, problem)


def _private_files(config: Config) -> Mapping[str, tuple[Path | None, int]]:
    """Return the files with keys, personal data or trusted authorities, with the rights that expose them."""
    tables: dict[str, object] = {"service.tls": config.service.tls}
    for provider in config.channels.providers.values():
        match provider.options:  # what a plug-in calls by these names may be anything
            case HttpChannelOptions(tls=tls):
                tables[f"{provider.place}.tls"] = tls
            case SmtpOptions() as smtp:
                tables[provider.place] = smtp
    customers = config.customers.options
    if isinstance(customers, HttpDirectoryOptions | SqlOptions):
        tables["customers.tls"] = customers.tls
    files: dict[str, tuple[Path | None, int]] = {"entities.ca_file": (config.entities.ca_file, WRITE)}
    if isinstance(customers, SqlOptions):
        files["customers.url"] = sqlite_file(customers), READ | WRITE
    for table, options in tables.items():
        for name, rights in (("ca_file", WRITE), ("cert_file", WRITE), ("key_file", READ | WRITE)):
            files[f"{table}.{name}"] = getattr(options, name, None), rights
        if getattr(options, "key_file", None) is None:  # the certificate's file also holds the key
            files[f"{table}.cert_file"] = getattr(options, "cert_file", None), READ | WRITE
    if isinstance(customers, FileOptions):
        files["customers.path"] = customers.path, READ
    return files


def _unusual_ports(config: Config) -> Iterator[Finding]:
    for provider in config.channels.providers.values():
        if isinstance(provider.options, SmtpOptions) and provider.options.tls_hint:
            yield Finding(f"{provider.place}.tls", Level.HINT, provider.options.tls_hint.lstrip("; "))


def _many_files(config: Config) -> Iterator[Finding]:
    """Yield a warning if not everything may be open at once, by the limit that this command has."""
    files = open_files(config)
    if not files.is_enough:
        least = files.lowered(min(each.common.concurrency for each in config.channels.providers.values()))
        text = (
            f"{files}: the worker would lower the concurrency of all providers, to {least} at the least;"
            " set LimitNOFILE= of its unit (ulimit -n, nofile), or lower concurrency yourself"
        )
        yield Finding("channels", Level.WARNING, text)


def _last_deadlines(config: Config) -> Iterator[Finding]:
    for name, channel in config.channels.configured.items():
        if channel.common.receipt_deadline is not None and not config.channels.has_later(name):
            text = "has no effect, since no channel comes after it in channels.order"
            yield Finding(f"channels.{name}.receipt_deadline", Level.HINT, text)


def _no_weights(config: Config) -> Iterator[Finding]:
    for name, channel in config.channels.configured.items():
        enabled = [provider for provider in channel.providers.values() if provider.common.enabled]
        if not enabled:
            text = "none of its providers is enabled, so nothing is sent on it"
            yield Finding(f"channels.{name}", Level.HINT, text)
        elif len(enabled) > 1 and not any(provider.common.weight for provider in enabled):
            text = "all weights are 0, which has the effect of equal weights"
            yield Finding(f"channels.{name}.providers", Level.HINT, text)


def _left_behind(config: Config) -> Iterator[Finding]:
    """Warn of what the journal holds for providers that are not configured; the journal is only read."""
    try:
        providers = {*config.channels.providers, *known_providers(config)}
        found = open_reader(config.journal.place).left_behind(providers)
    except JournalError:  # reported with the journal, or there is none yet
        return
    for each in found:
        yield Finding("channels", Level.WARNING, _told(each))


def _told(left: LeftBehind) -> str:
    counted = (
        (left.waiting, "waiting, which another provider takes"),
        (left.in_doubt, "in doubt, which are held"),
        (left.unconfirmed, "with a receipt deadline, which is dropped"),
    )
    parts = ", ".join(f"{count:,} {words}" for count, words in counted if count)
    return (
        f"the journal has messages of {left.provider}, which isn't configured: {parts};"
        " to finish them, configure it again with enabled = false"
    )


def _limits(config: Config) -> Iterator[Finding]:
    if config.safety.limits:
        yield Finding("safety", Level.HINT, limits_text(*config.safety.figures))


def _first_too_late(config: Config) -> Iterator[Finding]:
    """With a single provider its backlog has all places: what goes first is taken too late."""
    if config.priorities.high and not config.queue.take_ahead and len(config.channels.providers) == 1:
        yield Finding(
            "queue.take_ahead", Level.HINT,
            "is 0, so messages of high priority wait in the service's queue behind a backlog; set how many"
            " messages may wait here",
        )  # fmt: skip


CAUTIONS: Sequence[Callable[[Config], Iterator[Finding]]] = (
    _limits,
    _first_too_late,
    *RULE_CAUTIONS,
    _open_pages,
    _unverified_receipts,
    _stand_ins,
    _idle_sizes,
    _small_limit,
    _secrets_in_addresses,
    _literal_secrets,
    _changing_repeats,
    _exposed_files,
    _unusual_ports,
    _many_files,
    _last_deadlines,
    _no_weights,
    _left_behind,
)
"""All cautions, in the order in which they are printed."""


_MOST_READ = 200_000
"""Customers that are looked at: some seconds."""

_SHOWN = 3

_Reader = Callable[[str], bool]


def fields_without_values(config: Config, known: Collection[str], directory: str) -> list[Finding]:
    """Return a warning for each field that a provider is sent and no customer has.

    `known` are the fields that customers have; `directory` is a clause that names their source.
    """
    found = []
    for provider in config.channels.providers.values():
        for field in sorted(_fields_sent(provider.options) - {"id", *known}):
            text = f"{{customer.{field}}} has no value for any customer, so no one is reached: {directory}"
            if (name := closest(field, known)) is not None:
                text += f"; did you mean {{customer.{name}}}?"
            found.append(Finding(provider.place, Level.WARNING, text))
    return found


def _fields_sent(options: BaseModel) -> frozenset[str]:
    """Return the customer fields that a built-in adapter sends."""
    match options:
        case HttpChannelOptions():
            return customer_fields(options.mapped())
        case SmtpOptions():
            return frozenset({options.address_field})
        case _:
            return frozenset()


def unreadable_addresses(config: Config, path: Path) -> list[Finding]:
    """Return a warning for each provider and field with addresses that can't be read. Raises OSError."""
    readers = {provider.place: _readers(provider.options) for provider in config.channels.providers.values()}
    found: dict[tuple[str, str], list[str]] = {}
    count = 0
    for record in islice(records_of(path), _MOST_READ):
        count += 1
        fields = Customer(0, record.fields).fields
        for place, by_field in readers.items():
            for field, is_readable in by_field.items():
                if field in fields and not is_readable(fields[field]):
                    found.setdefault((place, field), []).append(fields.get("id", "?"))
    return [
        Finding(place, Level.WARNING, _unread(field, ids, count)) for (place, field), ids in found.items()
    ]


def _unread(field: str, ids: list[str], number: int) -> str:
    more = f" and {len(ids) - _SHOWN:,} more" if len(ids) > _SHOWN else ""
    return (
        f"{{customer.{field}}} can't be read for {len(ids):,} of {number:,} customers, who aren't reached:"
        f" {', '.join(ids[:_SHOWN])}{more}"
    )


def _readers(options: BaseModel) -> Mapping[str, _Reader]:
    """Return for each field of an address whether it can be read."""
    match options:
        case HttpChannelOptions():
            reader = PhoneReader(options.country)
            names = sorted(name.field for name in options.phone_fields if name.root == "customer")
            readers: dict[str, _Reader] = dict.fromkeys(names, reader.is_readable)
            if (listed := options.devices_field) in readers:
                readers[listed] = lambda text: any(map(reader.is_readable, members_of(text)))
            return readers
        case SmtpOptions():
            return {options.address_field: _is_mailbox}
        case _:
            return {}


def _is_mailbox(text: str) -> bool:
    try:
        parse_mailbox(text)
    except ValueError:
        return False
    return True
