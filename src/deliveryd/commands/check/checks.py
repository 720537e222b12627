"""Checks that everything a configuration names can be used and reached. Sends and leaves nothing."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import anyio
import anyio.to_thread
import orjson
from pydantic import BaseModel

from deliveryd.channels.devices import at_one_device
from deliveryd.channels.http.adapter import HttpChannel
from deliveryd.channels.http.asking import ProbeResult
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.options import ProviderConfig
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.channels.webpush.options import WebPushOptions
from deliveryd.commands.check.cautions import CAUTIONS, fields_without_values, unreadable_addresses
from deliveryd.commands.check.check_journal import (
    check_database,
    check_folder,
    check_journal_files,
    running_worker,
)
from deliveryd.commands.check.findings import Finding, Level, of_problems
from deliveryd.config import Config, Examined
from deliveryd.directory.file import fields_in
from deliveryd.directory.http_options import HttpDirectoryOptions
from deliveryd.directory.registry import FileOptions as CustomerFileOptions
from deliveryd.directory.registry import NoOptions, open_source
from deliveryd.directory.sql_options import SqlOptions
from deliveryd.errors import (
    AddressInUse,
    ConfigError,
    DirectoryUnavailable,
    WireError,
)
from deliveryd.http.addresses import bind, parse_listen
from deliveryd.http.reachability import connect_problem, endpoint_of
from deliveryd.http.target import target_of
from deliveryd.http.wire import WireResponse
from deliveryd.options.connections import ENVIRONMENT, ProxyOptions
from deliveryd.worker.outside import open_directory
from deliveryd.worker.wiring import open_inlets, open_provider, open_service

Probe = Callable[[Config], Awaitable[list[Finding]]]
"""Contacts others, and returns what it found of them."""


async def check_examined(examined: Examined, probes: Sequence[Probe]) -> list[Finding]:
    """Return all findings about a configuration file, the good ones first; `probes` may be none.

    For a file with mistakes, return every problem that can be found, as `file:key`. The service isn't
    contacted then: the mistake may be the very setting that protects its secret. Must be called within an
    asyncio loop.
    """
    config, problems, place_of, _ = examined
    of_tables = of_problems(problems)
    if config is None:
        return of_tables
    found = [*await _channels(config), *await _directory(config)]
    found += [each for check in FILE_CHECKS for each in check(config)]
    if probes:
        found += await _together(probe(config) for probe in probes if not (problems and probe is _service))
        found += _listening(config)
    found.sort(key=lambda finding: finding.level)
    if not problems:
        return found
    journal = {place_of("journal.url"), place_of("journal.password_file")}
    if any(finding.key in journal for finding in of_tables):  # the database has the same in other words
        found = [each for each in found if each.key != "journal.url"]
    further = [each._replace(key=place_of(each.key)) for each in found if each.level]
    return of_tables + [each for each in further if not _is_known(each, of_tables)]


def _is_known(finding: Finding, of_tables: Iterable[Finding]) -> bool:
    """Whether a problem was found with the tables; there, what a preset made is named before it."""
    return any(each.key == finding.key and each.text.endswith(finding.text) for each in of_tables)


async def _together(probes: Iterable[Awaitable[list[Finding]]]) -> list[Finding]:
    """Run probes at the same time; return what they found in their order."""
    found: dict[int, list[Finding]] = {}

    async def run(place: int, probe: Awaitable[list[Finding]]) -> None:
        found[place] = await probe

    async with anyio.create_task_group() as group:
        for place, probe in enumerate(probes):
            group.start_soon(run, place, probe)
    return [finding for place in sorted(found) for finding in found[place]]


def _unused_proxy(config: Config) -> Iterator[Finding]:
    """Warn of a proxy in the environment, which isn't used, if the configuration names none."""
    tables = [config.service, config.entities, config.customers.options]
    tables += [provider.options for provider in config.channels.providers.values()]
    if any(isinstance(table, ProxyOptions) and table.proxy for table in tables):
        return
    for name in ENVIRONMENT:
        if os.environ.get(name):
            text = (
                f"the environment variable {name} is ignored; set proxy here if requests must go through one"
            )
            yield Finding("service.proxy", Level.HINT, text)
            return


async def _channels(config: Config) -> list[Finding]:
    found = []
    for provider in config.channels.providers.values():
        if config.receipts.public_url is None and getattr(provider.options, "names_receipt_url", False):
            continue  # reported with the configuration
        try:
            channel = open_provider(config, provider)
        except ConfigError as error:
            found += of_problems(error.problems)
        except (ValueError, OSError) as error:  # of a plug-in; its own check may have named it already
            found.append(Finding(provider.place, Level.ERROR, f"the channel can't be opened: {error}"))
        else:
            await channel.aclose()
    if config.channels.reporting and not found:
        try:
            open_inlets(config)
        except ConfigError as error:
            found += of_problems(error.problems)
    order = [name for name in config.channels.order if name in config.channels.configured]
    return found or [Finding("channels.order", Level.OK, f"{', '.join(order)} (the configured channels)")]


async def _directory(config: Config) -> list[Finding]:
    options = config.customers.options
    try:
        directory = await open_directory(config)
    except ConfigError as error:
        if isinstance(options, CustomerFileOptions):  # its problems are written as `file:line: what`
            return [Finding("customers.path", Level.ERROR, "; ".join(error.problems))]
        return of_problems(error.problems)
    await directory.aclose()
    match options:
        case NoOptions():
            good = Finding("customers.source", Level.OK, "no directory: customers' names are unknown")
            return [good, *fields_without_values(config, (), 'customers.source is "none"')]
        case CustomerFileOptions(path=path):
            good = Finding("customers.path", Level.OK, f"{path} was read")
            known = await anyio.to_thread.run_sync(fields_in, path)
            without = fields_without_values(config, known, f"{path.name} has {_listed(known)}")
            return [good, *without, *await anyio.to_thread.run_sync(unreadable_addresses, config, path)]
        case HttpDirectoryOptions(fields=fields):
            return fields_without_values(config, fields, f"customers.fields has {_listed(fields)}")
        case _:
            return []


def _listed(fields: Collection[str]) -> str:
    return ", ".join(sorted({"id", *fields}))


async def _service(config: Config) -> list[Finding]:
    """Request settings that are unlikely to exist, with the real credentials. Leaves the queue alone."""
    try:
        service = open_service(config)
    except ConfigError as error:
        return [Finding("service", Level.FAILED, problem) for problem in error.problems]
    async with service:
        try:
            answer = await service.look("/settings/0")
            elsewhere = await service.look(f"/deliveryd-check-{secrets.token_hex(4)}")
        except WireError as error:
            return [Finding("service.base_url", Level.FAILED, str(error))]
    return [_judge_service(config, answer, elsewhere)]


def _judge_service(config: Config, answer: WireResponse, elsewhere: WireResponse) -> Finding:
    """Judge the service by its answer to `GET /settings/0` and by its answer to an unknown path."""
    target = target_of(config.service.base_url)
    asked = f"{target}".rstrip("/") + "/settings/0"
    if answer.status in (401, 403):
        shown = (
            "the secret of service.auth isn't accepted"
            if config.service.auth.is_given
            else "it requires credentials"
        )
        return Finding("service.auth", Level.FAILED, f"the service answered {answer.status}: {shown}")
    if answer.status == 407:
        text = f"the proxy {config.service.proxy or 'before the service'} answered 407: it rejected the login"
        return Finding("service.proxy", Level.FAILED, text)
    if 300 <= answer.status < 400:
        text = (
            f"{asked} is answered with {answer.status}, a redirect, which isn't followed: is base_url right?"
        )
        return Finding("service.base_url", Level.FAILED, text)
    if answer.status >= 500 or answer.status in (408, 425, 429):
        return Finding("service.base_url", Level.FAILED, f"{asked} is answered with {answer.status}")
    if not _is_json(answer.body):
        text = f"{asked} is answered with {answer.status} and no JSON: base_url may be wrong"
        return Finding("service.base_url", Level.WARNING, text)
    if answer.status >= 400 and (answer.status, answer.body) == (elsewhere.status, elsewhere.body):
        text = f"{asked} is answered with {answer.status} like any address there: base_url may be wrong"
        return Finding("service.base_url", Level.WARNING, text)
    return Finding(
        "service.base_url", Level.OK, f"{target.scheme}://{target.authority} can be reached, and answers"
    )


def _is_json(body: bytes) -> bool:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True


async def _providers(config: Config) -> list[Finding]:
    return await _together(_provider(config, each) for each in config.channels.providers.values())


async def _provider(config: Config, provider: ProviderConfig) -> list[Finding]:
    try:
        channel = at_one_device(open_provider(config, provider))
    except ConfigError:
        return []
    problem = await channel.probe()
    asked = await channel.ask_account() if problem is None and isinstance(channel, HttpChannel) else None
    await channel.aclose()
    reached = _reached(provider.place, _place(provider.options), problem)
    return [reached if asked is None else _account(reached, asked)]


def _account(reached: Finding, asked: ProbeResult) -> Finding:
    """Judge a provider by what it reports about the account."""
    match asked.verdict:
        case "good":
            return reached._replace(text=f"{reached.text}, and accepts the account")
        case "rejected":
            return Finding(reached.key, Level.FAILED, f"the provider {asked.text}")
        case _:
            return Finding(
                reached.key, Level.WARNING, f"{reached.text}; asked about the account: {asked.text}"
            )


async def _remote_directory(config: Config) -> list[Finding]:
    try:
        directory = await open_directory(config)
    except ConfigError:
        return []
    problem = await directory.probe()
    await directory.aclose()
    match config.customers.options:
        case NoOptions() | CustomerFileOptions():
            return []
        case HttpDirectoryOptions(proxy=str(proxy)):
            return [_reached("customers.url", f"the proxy {proxy}", problem)]
        case HttpDirectoryOptions(url=url):
            return [_reached("customers.url", _origin(url), problem)]
        case SqlOptions(url=url):
            reached = _reached("customers.url", url.partition("?")[0], problem)
            return [reached, *([] if problem is not None else await _columns(config))]
        case _:
            return [_reached("customers.source", f"the source {config.customers.source}", problem)]


async def _collector(config: Config) -> list[Finding]:
    """Connect to the collector, if there is one. Delivery doesn't depend on it."""
    options = config.otlp
    if options.endpoint is None:
        return []
    tls = options.tls.files("otlp.tls.ca_file")
    problem = await connect_problem(*endpoint_of(options.endpoint, tls, options.proxy))
    if problem is None:
        return [_reached("otlp.endpoint", _origin(options.endpoint), None)]
    return [Finding("otlp.endpoint", Level.WARNING, problem)]


async def _columns(config: Config) -> list[Finding]:
    """Return a warning for each field that channels send and the query doesn't select."""
    from deliveryd.directory.sql import SqlSource  # noqa: PLC0415  # loads optional packages

    customers = config.customers
    source = open_source(customers.source, customers.options, customers.terms)
    try:
        known = await source.columns() if isinstance(source, SqlSource) else frozenset[str]()
    except DirectoryUnavailable:
        return []
    finally:
        await source.aclose()
    return fields_without_values(config, known, f"the query selects {_listed(known)}")


def _cache(config: Config) -> Iterator[Finding]:
    """Check the cache folder. A cache that can't be used is only a warning: the worker runs without it."""
    found = check_folder("settings.cache_dir", config.settings.cache_dir)
    if found.level is not Level.OK:
        text = f"{found.text}, so settings won't be cached on disk"
        found = found._replace(level=Level.WARNING, text=text)
    yield found


def _reached(key: str, place: str, problem: str | None) -> Finding:
    if problem is not None:
        return Finding(key, Level.FAILED, problem)
    return Finding(key, Level.OK, f"{place} can be reached")


def _place(options: BaseModel) -> str:
    """Return a provider's address without the parts that may be secret."""
    match options:
        case HttpChannelOptions(proxy=None):
            return _origin(options.url)
        case HttpChannelOptions():
            return f"the proxy {options.proxy}"
        case SmtpOptions():
            return f"{options.host}:{options.actual_port}"
        case WebPushOptions():
            return "the push services"
        case _:
            return "its provider"


def _origin(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}"


def _listening(config: Config) -> Iterator[Finding]:
    holder = running_worker(config)
    with ExitStack() as bound:  # together, so that two servers on one address are detected
        for key, listen in _addresses(config).items():
            if not listen:
                yield Finding(key, Level.OK, "turned off")
            elif parse_listen(listen)[1] == 0:
                yield Finding(key, Level.OK, f"{listen}: any free port")
            else:
                yield _free(key, listen, holder, bound)


def _addresses(config: Config) -> Mapping[str, str]:
    receives = bool(config.channels.reporting)
    return {"admin.listen": config.admin.listen} | (
        {"receipts.listen": config.receipts.listen} if receives else {}
    )


def _free(key: str, listen: str, holder: int | None, bound: ExitStack) -> Finding:
    try:
        bound.enter_context(bind(key, listen))
    except AddressInUse as error:
        occupied = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        if occupied and holder is not None:
            return Finding(key, Level.OK, f"{listen} is in use while deliveryd runs as process {holder}")
        return Finding(key, Level.FAILED, str(error).removeprefix(f"{key}: "))
    except ConfigError as error:
        return Finding(key, Level.ERROR, "; ".join(error.problems).removeprefix(f"{key}: "))
    return Finding(key, Level.OK, f"{listen} is free")


FILE_CHECKS: Sequence[Callable[[Config], Iterable[Finding]]] = (
    check_journal_files,
    _cache,
    _unused_proxy,
    *CAUTIONS,
)
"""Checks that need no connection, beside those of the channels and the directory."""

CONNECTION_CHECKS: Sequence[Probe] = (_service, _providers, _remote_directory, check_database, _collector)
"""Checks that contact what the configuration names. Our own addresses are looked at after them."""
