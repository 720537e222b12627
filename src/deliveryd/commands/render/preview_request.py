"""Reads the parts of a previewed message as given on the command line: settings, variables, customer."""

from __future__ import annotations

import os
import re
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple

from deliveryd.config import Config
from deliveryd.directory.base import find
from deliveryd.errors import DeliverydError, DirectoryUnavailable, ServiceUnreadable
from deliveryd.model import Customer, Entry, Settings
from deliveryd.service import number_text
from deliveryd.service.client import ServiceClient
from deliveryd.worker.caches import open_cache
from deliveryd.worker.outside import open_directory
from deliveryd.worker.wiring import open_service

_NUMBER = re.compile(r"-?[0-9]+")
_MOST_DIGITS = 19
_IDS = range(-(2**63), 2**63)


class PreviewRequest(NamedTuple):
    """The parts to preview: `settings` is a file or an ID, `variables` a file or JSON; None: not given."""

    settings: str
    variables: str | None
    customer_id: int | None
    message_id: int


class PreviewMessage(NamedTuple):
    """A message that isn't in the queue. `source` is where the settings are from.

    `customer` is None if none was given, or the directory doesn't have them.
    """

    source: str
    settings: Settings
    entry: Entry
    customer: Customer | None
    has_customer: bool


async def gather(config: Config, request: PreviewRequest) -> PreviewMessage:
    """Read all parts. Raises DeliverydError with a text for the operator."""
    variables = {} if request.variables is None else read_variables(request.variables)
    if _NUMBER.fullmatch(request.settings):
        source, settings = await _settings_by_id(config, _id_in(request.settings))
    else:
        source, settings = request.settings, _settings_in(Path(request.settings))
    customer = None if request.customer_id is None else await _customer(config, request.customer_id)
    entry = Entry(request.message_id, settings.id, request.customer_id or 0, variables)
    return PreviewMessage(source, settings, entry, customer, request.customer_id is not None)


def _id_in(number: str) -> int:
    if len(number.lstrip("-")) > _MOST_DIGITS or int(number) not in _IDS:
        raise DeliverydError(
            "--settings: IDs are 64-bit integers; to name a file of digits, write ./ before it"
        )
    return int(number)


def read_variables(given: str) -> dict[str, str]:
    """Read variables, given as JSON or as a file. Raises DeliverydError."""
    if given.lstrip().startswith(("{", "[", '"')):
        name, text = "--variables", given
    else:
        name, text = given, _read(Path(given)).decode("utf-8", "replace")
    variables = _json(name, text)
    if not isinstance(variables, dict):
        raise DeliverydError(f"{name}: expected a JSON object whose values are strings or numbers")
    wrong = [key for key, value in variables.items() if not isinstance(value, str)]
    if wrong:
        raise DeliverydError(f"{name}: expected a string or a number: {', '.join(wrong)}")
    return variables


def _settings_in(path: Path) -> Settings:
    body = _read(path)
    _json(str(path), body.decode("utf-8-sig", "replace"))
    try:
        return ServiceClient.parse_settings(0, body)
    except ServiceUnreadable as error:
        raise DeliverydError(f"{path}: {str(error).removeprefix('settings 0: ')}") from None


def read_json(path: Path) -> Any:
    """Parse a JSON file; numbers become texts, as they are written. Raises DeliverydError."""
    return _json(str(path), _read(path).decode("utf-8-sig", "replace"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DeliverydError(f"{path} can't be read: {error.strerror}") from None


def _json(name: str, text: str) -> Any:
    try:
        return number_text.loads_exact(text)
    except JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DeliverydError(f"{name}: invalid JSON: {error.msg} at {place}") from None
    except ValueError as error:
        raise DeliverydError(f"{name}: invalid JSON: {error}") from None


async def _settings_by_id(config: Config, settings_id: int) -> tuple[str, Settings]:
    cached = await _cached_settings(config, settings_id)
    if cached is not None:
        return "the cache", cached
    service = open_service(config)
    try:
        body = await service.fetch_settings(settings_id)
        return "the service", service.parse_settings(settings_id, body)
    except ServiceUnreadable as error:
        raise DeliverydError(f"from the service: {error}") from None
    except DeliverydError as error:
        raise DeliverydError(f"settings {settings_id}: {error}") from None
    finally:
        await service.aclose()


async def _cached_settings(config: Config, settings_id: int) -> Settings | None:
    # A cache opened without write permission would count as broken and be discarded.
    if not os.access(config.settings.cache_dir / "cache.db", os.R_OK | os.W_OK, effective_ids=True):
        return None
    cache = open_cache(config)
    try:
        cached = await cache.get(f"settings/{settings_id}")
        return None if cached is None else ServiceClient.parse_settings(settings_id, cached.value)
    except ServiceUnreadable:
        return None
    finally:
        await cache.aclose()


async def _customer(config: Config, customer_id: int) -> Customer | None:
    directory = await open_directory(config)
    try:
        return await find(directory, customer_id)
    except DirectoryUnavailable as error:
        raise DeliverydError(f"the customer directory: {error}") from None
    finally:
        await directory.aclose()
