"""Checks that all a configuration names can be used and reached; sends nothing, leaves nothing behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import anyio
from pydantic import BaseModel

from deliveryd.admin.listening import bind, parse_listen
from deliveryd.assembly import open_channel, open_directory
from deliveryd.channels.http_options import HttpOptions, tls_problems
from deliveryd.channels.smtp_options import SmtpOptions
from deliveryd.config import Config, Examined
from deliveryd.customers.file import FileOptions as CustomerFileOptions
from deliveryd.customers.http_options import HttpOptions as CustomerHttpOptions
from deliveryd.customers.none import NoOptions
from deliveryd.customers.sql_options import SqlOptions
from deliveryd.errors import ConfigError, JournalError
from deliveryd.http.client import target_of
from deliveryd.http.proxy_options import ENVIRONMENT, ProxyOptions
from deliveryd.http.reaching import connect_problem, endpoint_of
from deliveryd.journal.history import JournalAbsent, check_readable
from deliveryd.journal.holder import holder_of


class Result(IntEnum):
    """How a check came out, the better ones first."""

    OK = 0
    UNREACHABLE = 1  # may become good by itself
    WRONG = 2  # the configuration, or what it names, has to be changed


class Finding(NamedTuple):
    """One thing that was checked: its configuration key, how it came out, and a sentence."""

    key: str
    result: Result
    text: str


Check = Callable[[Config], Awaitable[list[Finding]]]
"""`check_all` or `check_files`."""


async def check_examined(path: Path, examined: Examined, check: Check) -> list[Finding]:
    """Everything that there is to say of a configuration file, the good news first.

    Of a file with mistakes all that is wrong is told, under `file:key`, as far as it can be checked.
    """
    config, problems = examined
    told = config_problems(problems)
    if config is None:
        return told
    found = sorted(await check(config), key=lambda finding: finding.result)
    if not problems:
        return found
    known = {f"{finding.key} {finding.text}" for finding in told}
    further = [each._replace(key=f"{path}:{each.key}") for each in found if each.result]
    return told + [each for each in further if f"{each.key} {each.text}" not in known]


def config_problems(problems: Sequence[str]) -> list[Finding]:
    """The problems of a configuration, which stand as `place:key: what to do`."""
    return [
        Finding(key, Result.WRONG, text) for key, _, text in (problem.partition(": ") for problem in problems)
    ]


async def check_all(config: Config) -> list[Finding]:
    """Files first, then what has to be reached. Must be called within an asyncio loop."""
    return [*await check_files(config), *await _connections(config)]


async def check_files(config: Config) -> list[Finding]:
    """What can be told without any connection. Must be called within an asyncio loop."""
    return [
        *await _channels(config),
        *await _directory(config),
        _journal(config.journal.path),
        _folder("settings.cache_dir", config.settings.cache_dir),
        *_unused_proxy(config, os.environ),
    ]


def _unused_proxy(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    """That a proxy of the environment isn't used, where the configuration names none at all."""
    tables = [config.service, config.entities, config.customers.options]
    tables += [channel.options for channel in config.channels.configured.values()]
    if any(isinstance(table, ProxyOptions) and table.proxy for table in tables):
        return
    for name in ENVIRONMENT:
        if environ.get(name):
            text = (
                f"{name} of the environment isn't used; name a proxy here, if requests are to go through one"
            )
            yield Finding("service.proxy", Result.OK, text)
            return


async def _channels(config: Config) -> list[Finding]:
    found = []
    for name in config.channels.configured:
        try:
            channel = open_channel(config, name)
        except ConfigError as error:
            found += config_problems(error.problems)
        else:
            await channel.aclose()
    order = [name for name in config.channels.order if name in config.channels.configured]
    return found or [Finding("channels.order", Result.OK, f"{', '.join(order)} (those that are configured)")]


async def _directory(config: Config) -> list[Finding]:
    options = config.customers.options
    try:
        directory = await open_directory(config)
    except ConfigError as error:
        if isinstance(options, CustomerFileOptions):  # its problems stand as `file:line: what`
            return [Finding("customers.path", Result.WRONG, "; ".join(error.problems))]
        return config_problems(error.problems)
    await directory.aclose()
    match options:
        case NoOptions():
            return [Finding("customers.source", Result.OK, "no directory: names are unknown")]
        case CustomerFileOptions(path=path):
            return [Finding("customers.path", Result.OK, f"{path} was read")]
        case _:
            return []


async def _connections(config: Config) -> list[Finding]:
    """Whether all others can be reached, and our own addresses are free; what can't be opened is left out."""
    found: list[Finding] = []
    async with anyio.create_task_group() as probes:
        probes.start_soon(_service, config, found)
        probes.start_soon(_remote_directory, config, found)
        for name in config.channels.configured:
            probes.start_soon(_provider, config, name, found)
    order = ("service", *(f"channels.{name}" for name in config.channels.configured), "customers")
    found.sort(key=lambda each: next(place for place, key in enumerate(order) if each.key.startswith(key)))
    return [*found, *_listening(config)]


async def _service(config: Config, found: list[Finding]) -> None:
    service = config.service
    target, endpoint = (
        target_of(service.base_url),
        endpoint_of(service.base_url, service.tls.files(), service.proxy),
    )
    if not tls_problems("service.tls", endpoint.tls):
        problem = await connect_problem(*endpoint)
        place = f"the proxy {service.proxy}" if service.proxy else f"{target.scheme}://{target.authority}"
        found.append(_reached("service.base_url", place, problem))


async def _provider(config: Config, name: str, found: list[Finding]) -> None:
    try:
        channel = open_channel(config, name)
    except ConfigError:
        return
    problem = await channel.probe()
    await channel.aclose()
    place = _place(config.channels.configured[name].options)
    found.append(_reached(f"channels.{name}", place, problem))


async def _remote_directory(config: Config, found: list[Finding]) -> None:
    try:
        directory = await open_directory(config)
    except ConfigError:
        return
    problem = await directory.probe()
    await directory.aclose()
    match config.customers.options:
        case NoOptions() | CustomerFileOptions():
            return
        case CustomerHttpOptions(proxy=str(proxy)):
            found.append(_reached("customers.url", f"the proxy {proxy}", problem))
        case CustomerHttpOptions(url=url):
            found.append(_reached("customers.url", _origin(url), problem))
        case SqlOptions(url=url):
            found.append(_reached("customers.url", url.partition("?")[0], problem))
        case _:
            found.append(_reached("customers.source", f"the source {config.customers.source}", problem))


def _journal(path: Path) -> Finding:
    try:
        check_readable(path)
    except JournalAbsent:
        return _folder("journal.url", path.parent, f"{path} will be made")
    except JournalError as error:
        return Finding("journal.url", Result.WRONG, str(error))
    if not os.access(path, os.W_OK, effective_ids=True) or not os.access(
        path.parent, os.W_OK, effective_ids=True
    ):
        return Finding("journal.url", Result.WRONG, f"{path} or its folder can't be written by this user")
    holder = holder_of(path)
    used = f", in use by process {holder}" if holder is not None else ""
    return Finding("journal.url", Result.OK, f"{path} is a journal{used}")


def _folder(key: str, folder: Path, good: str | None = None) -> Finding:
    """Whether a folder can be written, or could be made."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        return Finding(key, Result.WRONG, f"{nearest} is no folder")
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=True):
        return Finding(key, Result.WRONG, f"{nearest} can't be written by this user")
    return Finding(
        key, Result.OK, good or f"{folder} {'can be used' if nearest == folder else 'will be made'}"
    )


def _reached(key: str, place: str, problem: str | None) -> Finding:
    if problem is not None:
        return Finding(key, Result.UNREACHABLE, problem)
    return Finding(key, Result.OK, f"{place} can be reached")


def _place(options: BaseModel) -> str:
    """Where a provider is, without the parts of its address that may be secret."""
    match options:
        case HttpOptions(proxy=None):
            return _origin(options.url)
        case HttpOptions():
            return f"the proxy {options.proxy}"
        case SmtpOptions():
            return f"{options.host}:{options.actual_port}"
        case _:
            return "its provider"


def _origin(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}"


def _listening(config: Config) -> Iterator[Finding]:
    holder = holder_of(config.journal.path)
    with ExitStack() as bound:  # together, so that one address can't be given to two servers
        for key, listen in _addresses(config).items():
            if not listen:
                yield Finding(key, Result.OK, "turned off")
            elif parse_listen(listen)[1] == 0:
                yield Finding(key, Result.OK, f"{listen}: any free port")
            else:
                yield _free(key, listen, holder, bound)


def _addresses(config: Config) -> Mapping[str, str]:
    receives = any(getattr(each.options, "receipt", None) for each in config.channels.configured.values())
    return {"admin.listen": config.admin.listen} | (
        {"receipts.listen": config.receipts.listen} if receives else {}
    )


def _free(key: str, listen: str, holder: int | None, bound: ExitStack) -> Finding:
    try:
        bound.enter_context(bind(key, listen))
    except ConfigError as error:
        occupied = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        if occupied and holder is not None:
            return Finding(key, Result.OK, f"{listen} is in use while deliveryd runs as process {holder}")
        result = Result.UNREACHABLE if occupied else Result.WRONG
        return Finding(key, result, "; ".join(error.problems).removeprefix(f"{key}: "))
    return Finding(key, Result.OK, f"{listen} is free")


def as_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """A line for each finding."""
    width = max((len(finding.key) for finding in findings), default=0)
    for finding in findings:
        yield f"{MARKS[finding.result]:12} {finding.key:{width}}  {finding.text}"


def as_json(findings: Sequence[Finding]) -> Mapping[str, object]:
    """The same for a program."""
    worst = max((finding.result for finding in findings), default=Result.OK)
    return {
        "result": MARKS[worst],
        "checks": [{"key": f.key, "result": MARKS[f.result], "text": f.text} for f in findings],
    }


MARKS: Mapping[Result, str] = {Result.OK: "ok", Result.UNREACHABLE: "unreachable", Result.WRONG: "wrong"}
