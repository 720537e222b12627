"""Reads what is linted: files, the service's answers, the disk cache."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from json import JSONDecodeError
from typing import Any, NamedTuple

from deliveryd.commands.lint.source_map import JsonPath, SourceMap, Spot
from deliveryd.config import Config
from deliveryd.errors import DeliverydError, ServiceRefused, ServiceUnreadable
from deliveryd.model import Settings
from deliveryd.service.client import ServiceClient
from deliveryd.worker.caches import open_cache
from deliveryd.worker.wiring import open_service

_ID = re.compile(r"-?[0-9]{1,19}")
_CACHED = "settings/"


class LintedSettings(NamedTuple):
    """Settings to lint, or why they can't be read.

    `label` is the settings ID, or a file and the position in it; `file` is None for the service's answers
    and for the cache. `at` is the place of the settings in the file.
    """

    label: str
    id: int | None
    settings: Settings | None
    raw: Any
    problem: str | None = None
    file: str | None = None
    at: JsonPath = ()
    places: SourceMap | None = None
    problem_at: Spot | None = None


def settings_in(name: str, text: str) -> Iterator[LintedSettings]:
    """Yield the settings of a file: one object, a list of them, or an object of them by their ids."""
    try:
        parsed = json.loads(text)
    except JSONDecodeError as error:
        spot = Spot(error.lineno, error.colno)
        yield LintedSettings(name, None, None, None, f"invalid JSON: {error.msg}", name, problem_at=spot)
        return
    except RecursionError:
        yield LintedSettings(name, None, None, None, "invalid JSON: nested too deeply", name)
        return
    except ValueError:  # Python limits the digits of integers
        yield LintedSettings(name, None, None, None, "invalid JSON: a number with too many digits", name)
        return
    places = SourceMap(text)
    if isinstance(parsed, list):
        for index, each in enumerate(parsed):
            id_ = _id_of(each)
            label = f"{name}[{index}]" if id_ is None else str(id_)
            yield _parsed(label, id_, each)._replace(file=name, at=(index,), places=places)
    elif isinstance(parsed, dict) and parsed and all(map(_ID.fullmatch, parsed)):
        for key, each in parsed.items():
            yield _parsed(key, int(key), each)._replace(file=name, at=(key,), places=places)
    else:
        id_ = _id_of(parsed)
        label = name if id_ is None else str(id_)
        yield _parsed(label, id_, parsed)._replace(file=name, places=places)


def _id_of(parsed: object) -> int | None:
    found = parsed.get("id") if isinstance(parsed, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _parsed(label: str, id_: int | None, raw: object) -> LintedSettings:
    if not isinstance(raw, dict):
        return LintedSettings(label, id_, None, raw, "expected an object")
    try:
        settings = ServiceClient.parse_settings(id_ or 0, json.dumps(raw).encode())
    except ServiceUnreadable as error:
        return LintedSettings(label, id_, None, raw, _without_id(error, id_ or 0))
    return LintedSettings(label, id_, settings, raw)


def _answered(settings_id: int, body: bytes) -> LintedSettings:
    label = str(settings_id)
    try:
        settings = ServiceClient.parse_settings(settings_id, body)
        raw = json.loads(body.decode("utf-8-sig"))
    except ServiceUnreadable as error:
        return LintedSettings(label, settings_id, None, None, _without_id(error, settings_id))
    except ValueError as error:
        return LintedSettings(label, settings_id, None, None, f"invalid JSON: {error}")
    return LintedSettings(label, settings_id, settings, raw)


def _without_id(error: ServiceUnreadable, settings_id: int) -> str:
    return str(error).removeprefix(f"settings {settings_id}: ")


async def settings_of_service(config: Config, ids: Sequence[int]) -> list[LintedSettings]:
    """Request settings. Raises DeliverydError if the service can't be asked."""
    found = []
    async with open_service(config) as service:
        for settings_id in ids:
            try:
                body = await service.fetch_settings(settings_id)
            except ServiceRefused as error:
                problem = f"the service doesn't give them: {error}"
                found.append(LintedSettings(str(settings_id), settings_id, None, None, problem))
            except DeliverydError as error:
                raise DeliverydError(f"settings {settings_id}: {error}") from None
            else:
                found.append(_answered(settings_id, body))
    return found


async def settings_of_cache(config: Config) -> list[LintedSettings]:
    """Read all settings of the disk cache, by ID. Raises DeliverydError if there is no cache."""
    file = config.settings.cache_dir / "cache.db"
    if not file.exists():
        raise DeliverydError(f"there is no cache in {config.settings.cache_dir}")
    # A cache opened without write permission would count as broken and be discarded.
    if not os.access(file, os.R_OK | os.W_OK, effective_ids=True):
        raise DeliverydError(f"{file} can't be used by this user; run the command as the user of deliveryd")
    problems: list[str] = []
    cache = open_cache(config, on_problem=problems.append)
    try:
        names = await cache.names()
        bodies = {name: kept.value for name in names if (kept := await cache.get(name)) is not None}
    finally:
        await cache.aclose()
    if problems:
        raise DeliverydError(f"{config.settings.cache_dir}: {problems[0]}")
    by_id = {
        int(name.removeprefix(_CACHED)): body for name, body in bodies.items() if name.startswith(_CACHED)
    }
    return [_answered(settings_id, by_id[settings_id]) for settings_id in sorted(by_id)]
