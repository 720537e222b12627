"""Types of configuration values for pydantic: durations, sizes, rates, percentages, paths, secrets, words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, PlainValidator, ValidationInfo

from deliveryd.http.json_pointer import parse_pointer
from deliveryd.model import TIME_UNITS, format_duration
from deliveryd.runtime.secret_file import SecretDocument, SecretFile

_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]+)")
_PERCENTAGE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*%")
_RATE = re.compile(r"([0-9]{1,7})\s*(parts?)?\s*/\s*(ms|s|m|h|d)")
_LONGEST = 100 * 365 * 86400.0
_LARGEST = 1 << 50
_MOST_PERMITS = 1_000_000


def _quantity(value: object, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f'expected a string such as "{example}", with one of the units {", ".join(units)}')
    return float(match[1]) * units[match[2]]


def parse_duration(value: object) -> float:
    """Parse "250ms", "10s", "5m", "2h" or "7d" as seconds. Raises ValueError."""
    seconds = _quantity(value, TIME_UNITS, "10s")
    if seconds > _LONGEST:
        raise ValueError("must be at most 100 years")
    return seconds


def parse_size(value: object) -> int:
    """Parse "256MiB" as bytes. Raises ValueError."""
    size = int(_quantity(value, _BYTES, "256MiB"))
    if size > _LARGEST:
        raise ValueError("must be at most 1024 TiB")
    return size


def format_size(size: int) -> str:
    """Format bytes as in the configuration file."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


class Rate(NamedTuple):
    """A number of permits per a number of seconds: of messages, or of the parts of SMS."""

    permits: int
    per: float
    in_parts: bool = False


def parse_rate(value: object) -> Rate:
    """Parse "50/s", "1000/m" or "50 parts/s". Raises ValueError."""
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not 1 <= int(match[1]) <= _MOST_PERMITS:
        raise ValueError('expected a string such as "50/s", "1000/m", "5000/h" or "50 parts/s"')
    return Rate(int(match[1]), TIME_UNITS[match[3]], match[2] is not None)


def format_rate(rate: Rate) -> str:
    """Format a rate as in the configuration file."""
    unit = "" if not rate.in_parts else " part" if rate.permits == 1 else " parts"
    return f"{rate.permits}{unit}/{format_duration(rate.per).lstrip('1')}"


def parse_percentage(value: object) -> float:
    """Parse "5%" or "0.5%" as a part of 1. Raises ValueError."""
    match = _PERCENTAGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or float(match[1]) > 100:
        raise ValueError('expected a string such as "5%" or "0.5%", from "0%" to "100%"')
    return float(match[1]) / 100


def format_percentage(share: float) -> str:
    """Format a part of 1 as in the configuration file."""
    return f"{round(share * 100, 3):.12g}%"


def resolve_path(value: object, info: ValidationInfo) -> Path:
    """Resolve a path relative to the folder of the configuration file (context key `base_dir`)."""
    if not isinstance(value, str | Path) or not str(value).isprintable() or value == "":
        raise ValueError("expected a path")
    base = (info.context or {}).get("base_dir")
    return Path(base, value) if base is not None else Path(value)


def _secret(value: object, info: ValidationInfo) -> SecretFile:
    return value if isinstance(value, SecretFile) else SecretFile(resolve_path(value, info), str(value))


def _document(value: object, info: ValidationInfo) -> SecretDocument:
    if isinstance(value, SecretDocument):
        return value
    return SecretDocument(resolve_path(value, info), str(value))


def _secrets(value: object, info: ValidationInfo) -> tuple[SecretFile, ...]:
    if not isinstance(value, list | tuple):
        return (_secret(value, info),)
    if not value:
        raise ValueError("expected a path, or a list of paths")
    return tuple(_secret(each, info) for each in value)


def _written_secrets(secrets: tuple[SecretFile, ...]) -> str | list[str]:
    paths = [str(secret.path) for secret in secrets]
    return paths[0] if len(paths) == 1 else paths


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("must be greater than 0")
    return seconds


def _word(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _pointer(pointer: str) -> str:
    parse_pointer(pointer)
    return pointer


def _written(write: Callable[[Any], str]) -> PlainSerializer:
    return PlainSerializer(write, return_type=str)


Duration = Annotated[float, BeforeValidator(parse_duration), _written(format_duration)]
Positive = Annotated[Duration, AfterValidator(_positive)]
Size = Annotated[int, BeforeValidator(parse_size), _written(format_size)]
Percentage = Annotated[float, BeforeValidator(parse_percentage), _written(format_percentage)]
RateLimit = Annotated[Rate, BeforeValidator(parse_rate), _written(format_rate)]
FilePath = Annotated[Path, BeforeValidator(resolve_path), _written(str)]
SecretPath = Annotated[SecretFile, PlainValidator(_secret), _written(lambda secret: str(secret.path))]
SecretDocumentPath = Annotated[
    SecretDocument, PlainValidator(_document), _written(lambda secret: str(secret.path))
]
SecretPaths = Annotated[tuple[SecretFile, ...], PlainValidator(_secrets), PlainSerializer(_written_secrets)]
"""One secret, or several during a rotation."""

Word = Annotated[str, BeforeValidator(_word)]
"""A text that is compared; a number or a boolean may be written without quotes."""

Pointer = Annotated[str, AfterValidator(_pointer)]
"""A JSON Pointer (RFC 6901)."""
