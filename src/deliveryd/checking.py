"""Checks that all a configuration names can be used and reached; sends nothing, leaves nothing behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import anyio
from pydantic import BaseModel

from deliveryd.admin.listening import bind, parse_listen
from deliveryd.assembly import open_channels, open_directory
from deliveryd.channels.base import Channel
from deliveryd.channels.http_options import HttpOptions
from deliveryd.channels.smtp_options import SmtpOptions
from deliveryd.config import Config
from deliveryd.errors import ConfigError, JournalError
from deliveryd.http.client import target_of
from deliveryd.http.reaching import connect_problem
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


def config_problems(error: ConfigError) -> list[Finding]:
    """The problems of a configuration, which stand as `place:key: what to do`."""
    return [
        Finding(key, Result.WRONG, text)
        for key, _, text in (problem.partition(": ") for problem in error.problems)
    ]


async def check_all(config: Config) -> list[Finding]:
    """Files first, then what has to be reached. Must be called within an asyncio loop."""
    findings = await check_files(config)
    try:
        return [*findings, *await _connections(config)]
    except ConfigError:  # a channel that can't be opened is among the findings already
        return findings


async def check_files(config: Config) -> list[Finding]:
    """What can be told without any connection. Must be called within an asyncio loop."""
    return [
        *await _channels(config),
        await _directory(config),
        _journal(config.journal.path),
        _folder("settings.cache_dir", config.settings.cache_dir),
    ]


async def _channels(config: Config) -> list[Finding]:
    try:
        channels = open_channels(config)
    except ConfigError as error:
        return config_problems(error)
    for channel in channels.values():
        await channel.aclose()
    order = [name for name in config.channels.order if name in channels]
    return [Finding("channels.order", Result.OK, f"{', '.join(order)} (those that are configured)")]


async def _connections(config: Config) -> list[Finding]:
    """Whether service and providers can be reached, and our own addresses are free. Raises ConfigError."""
    channels = open_channels(config)
    found: dict[str, Finding] = {}

    async def probe(name: str, channel: Channel) -> None:
        options = config.channels.configured[name].options
        found[name] = _reached(f"channels.{name}", _place(options), await channel.probe())

    try:
        async with anyio.create_task_group() as probes:
            for name, channel in channels.items():
                probes.start_soon(probe, name, channel)
            service = await _service(config)
    finally:
        for channel in channels.values():
            await channel.aclose()
    return [service, *(found[name] for name in channels), *_listening(config)]


async def _directory(config: Config) -> Finding:
    key = "customers.path" if config.customers.path else "customers.source"
    try:
        directory = await open_directory(config)
    except ConfigError as error:
        return Finding(key, Result.WRONG, "; ".join(error.problems))
    await directory.aclose()
    read = f"{config.customers.path} was read" if config.customers.path else "no directory: names are unknown"
    return Finding(key, Result.OK, read)


def _journal(path: Path) -> Finding:
    try:
        check_readable(path)
    except JournalAbsent:
        return _folder("journal.url", path.parent, f"{path} will be made")
    except JournalError as error:
        return Finding("journal.url", Result.WRONG, str(error))
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        return Finding("journal.url", Result.WRONG, f"{path} or its folder can't be written by this user")
    holder = holder_of(path)
    used = f", in use by process {holder}" if holder is not None else ""
    return Finding("journal.url", Result.OK, f"{path} is a journal{used}")


def _folder(key: str, folder: Path, good: str | None = None) -> Finding:
    """Whether a folder can be written, or could be made."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        return Finding(key, Result.WRONG, f"{nearest} is no folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Finding(key, Result.WRONG, f"{nearest} can't be written by this user")
    return Finding(
        key, Result.OK, good or f"{folder} {'can be used' if nearest == folder else 'will be made'}"
    )


async def _service(config: Config) -> Finding:
    target = target_of(config.service.base_url)
    tls = config.service.tls.files() if target.scheme == "https" else None
    problem = await connect_problem(target.host, target.port, tls)
    return _reached("service.base_url", f"{target.scheme}://{target.authority}", problem)


def _reached(key: str, place: str, problem: str | None) -> Finding:
    if problem is not None:
        return Finding(key, Result.UNREACHABLE, problem)
    return Finding(key, Result.OK, f"{place} can be reached")


def _place(options: BaseModel) -> str:
    """Where a provider is, without the parts of its address that may be secret."""
    match options:
        case HttpOptions(proxy=None):
            scheme, _, rest = options.url.partition("://")
            return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}"
        case HttpOptions():
            return f"the proxy {options.proxy}"
        case SmtpOptions():
            return f"{options.host}:{options.actual_port}"
        case _:
            return "its provider"


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


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """The good news first, the problems last, where they are seen."""
    return sorted(findings, key=lambda finding: finding.result)


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
