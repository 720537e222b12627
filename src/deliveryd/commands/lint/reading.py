"""Reads what is linted and its samples: files, the service's answers, the disk cache, the journal."""

from __future__ import annotations

import json
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple

from deliveryd.commands.lint.rules import Sample
from deliveryd.commands.render.preview import read_json, read_variables
from deliveryd.config import Config
from deliveryd.errors import DeliverydError, ServiceRefused, ServiceUnreadable
from deliveryd.journal.opening import open_reader
from deliveryd.journal.place import JournalPlace
from deliveryd.journal.reader import NamesSeen
from deliveryd.model import Settings
from deliveryd.service.client import ServiceClient
from deliveryd.worker.caches import open_cache
from deliveryd.worker.wiring import open_service

JsonPath = tuple[str | int, ...]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL
)


class Spot(NamedTuple):
    """A place in a file; lines and columns begin with 1."""

    line: int
    column: int


class SourceMap:
    """The places of all values of a valid JSON text, by their paths; keys count as their values do."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._starts: dict[JsonPath, int] = {}
        self._scan()

    def spot(self, path: JsonPath, offset: int | None = None) -> Spot | None:
        """Return the place of a value, or of a character of a string; of what holds it if it isn't there."""
        while path and path not in self._starts:
            path, offset = path[:-1], None
        at = self._starts.get(path)
        if at is None:
            return None
        if offset is not None and self._text[at] == '"':
            at = self._character(at, offset)
        line = bisect_right(self._lines, at)
        return Spot(line, at - self._lines[line - 1] + 1)

    def _character(self, start: int, offset: int) -> int:
        at = start + 1
        for _ in range(offset):
            match = _ESCAPE.match(self._text, at)
            if match is None or self._text[at] == '"':
                break
            at = match.end()
        return at

    def _scan(self) -> None:
        path: list[str | int] = []
        expects_key: list[bool] = []  # for each open container: an object that awaits a key
        key_start: int | None = None
        for match in _TOKEN.finditer(self._text):
            symbol, start = match[0], match.start()
            if symbol in "}]":
                if expects_key:
                    expects_key.pop()
                    path.pop()
            elif symbol == ",":
                if path and isinstance(path[-1], int):
                    path[-1] += 1
                elif expects_key:
                    expects_key[-1] = True
            elif symbol == ":":
                continue
            elif expects_key and expects_key[-1] and symbol[0] == '"':
                path[-1], expects_key[-1], key_start = _unquoted(symbol), False, start
            else:
                # An object or an array is found at its key, which says more than a bracket does.
                is_container = symbol in "{["
                self._starts[tuple(path)] = key_start if is_container and key_start is not None else start
                key_start = None
                if is_container:
                    path.append("" if symbol == "{" else 0)
                    expects_key.append(symbol == "{")


def _unquoted(token: str) -> str:
    return str(json.loads(token, strict=False))


_ID = re.compile(r"-?[0-9]{1,19}")
_CACHED = "settings/"


class LintedSettings(NamedTuple):
    """Settings to lint, or why they can't be read.

    `remedy` is what to do then. `label` is the settings ID, or a file and the position in it; `file` is None
    for the service's answers and for the cache. `at` is the place of the settings in the file.
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
    remedy: str = "correct them: nothing of them is sent"


def settings_of_file(name: str) -> Sequence[LintedSettings]:
    """Read a file; "-" is standard input. One that can't be read is a finding too, and hides no other."""
    is_input = name == "-"
    label = "standard input" if is_input else name
    try:
        raw = sys.stdin.buffer.read() if is_input else Path(name).read_bytes()
        found = list(_settings_in(label, raw.decode("utf-8-sig")))
    except OSError as error:
        unread = _unreadable(label, f"can't be read: {error.strerror}")
        found = [unread._replace(remedy="name a file that this user can read")]
    except UnicodeDecodeError as error:
        found = [_unreadable(label, f"isn't UTF-8 at byte {error.start}")]
    return [each._replace(file=None) for each in found] if is_input else found


def _unreadable(name: str, problem: str, spot: Spot | None = None) -> LintedSettings:
    return LintedSettings(name, None, None, None, problem, name, problem_at=spot)


def _settings_in(name: str, text: str) -> Iterator[LintedSettings]:
    """Yield the settings of a file: one object, a list of them, or an object of them by their ids."""
    try:
        parsed = json.loads(text)
    except JSONDecodeError as error:
        yield _unreadable(name, f"invalid JSON: {error.msg}", Spot(error.lineno, error.colno))
        return
    except RecursionError:
        yield _unreadable(name, "invalid JSON: nested too deeply")
        return
    except ValueError:  # Python limits the digits of integers
        yield _unreadable(name, "invalid JSON: a number with too many digits")
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


class GivenMessage(NamedTuple):
    """A message that was given as an example; `settings_id` None: for all settings."""

    settings_id: int | None
    variables: Mapping[str, str]


def messages_in(path: Path) -> list[GivenMessage]:
    """Read a message, or a list of them, as the queue has them (interface 2.1). Raises DeliverydError."""
    given = read_json(path)
    elements = given if isinstance(given, list) else [given]
    if not elements:
        raise DeliverydError(f"{path}: holds no message")
    return [_message(path, element) for element in elements]


def _message(path: Path, element: object) -> GivenMessage:
    if not isinstance(element, dict) or not isinstance(element.get("variables"), dict):
        raise DeliverydError(f"{path}: expected a message with variables, or a list of them")
    settings_id = element.get("settingsId")
    wrong = [key for key, value in element["variables"].items() if not isinstance(value, str)]
    if wrong:
        raise DeliverydError(f"{path}: expected a string or a number: {', '.join(wrong)}")
    is_id = isinstance(settings_id, str) and settings_id.removeprefix("-").isdecimal()
    return GivenMessage(int(str(settings_id)) if is_id else None, element["variables"])


def given_variables(text: str) -> GivenMessage:
    """Read `--variables`: JSON or a file. Raises DeliverydError."""
    return GivenMessage(None, read_variables(text))


def sample_of(messages: Sequence[GivenMessage], settings_id: int | None) -> Sample | None:
    """Return the sample for settings; None: no message is meant for them."""
    meant = [
        each
        for each in messages
        if None in (each.settings_id, settings_id) or each.settings_id == settings_id
    ]
    if not meant:
        return None
    names = [frozenset(each.variables) for each in meant]
    source = "the sample message" if len(meant) == 1 else f"the {len(meant)} sample messages"
    return Sample(source, frozenset.intersection(*names), frozenset().union(*names), meant[0].variables)


def samples_of_journal(place: JournalPlace, settings_ids: Collection[int]) -> Mapping[int, Sample]:
    """Return samples of the journal's messages, by settings ID. Raises JournalError."""
    return {id_: _sample(seen) for id_, seen in open_reader(place).names_seen(settings_ids).items()}


def _sample(seen: NamesSeen) -> Sample:
    source = (
        "the only message in the journal"
        if seen.messages == 1
        else f"{seen.messages:,} messages in the journal"
    )
    return Sample(source, seen.always, seen.ever)
