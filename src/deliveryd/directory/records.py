"""The two formats of a customer file, record by record: JSON Lines and CSV (design 6)."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import orjson

from deliveryd.cleaning import cleaned
from deliveryd.field_lists import TEXT_FIELDS, compact_json, field_text

_BOM = b"\xef\xbb\xbf"


class RecordError(Exception):
    """A record, or the header, is invalid. The text gives the reason, without values."""


class Span(NamedTuple):
    """The position of a record in the file, in bytes."""

    start: int
    end: int


class Record(NamedTuple):
    """A customer in the file: every non-blank field as text, `id` included."""

    span: Span
    fields: Mapping[str, str]


class Flaw(NamedTuple):
    """An invalid record: its position, the reason, and the position of the record that it repeats."""

    start: int
    reason: str
    earlier: int | None = None


class RecordFormat(Protocol):
    """Reads the records of one file."""

    def records(self) -> Iterator[Record | Flaw]:
        """Yield every record, valid or not. Raises RecordError if the file as a whole is invalid."""

    def read(self, span: Span) -> Mapping[str, str]:
        """Return the fields of a valid record, with or without the ID."""


class JsonLines:
    """One JSON object per line; blank lines are skipped, numbers are kept verbatim."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def records(self) -> Iterator[Record | Flaw]:
        """Yield every line that isn't blank."""
        start = _after_mark(self._data)
        while start < len(self._data):
            span = Span(start, _line_end(self._data, start))
            if self._data[span.start : span.end].strip():
                try:
                    yield Record(span, self._checked(span))
                except RecordError as error:
                    yield Flaw(start, str(error))
            start = span.end

    def read(self, span: Span) -> Mapping[str, str]:
        """Return the fields of a line, with or without the ID."""
        try:
            fields: dict[str, str] = orjson.loads(self._data[span.start : span.end])
        except orjson.JSONDecodeError:
            return self._checked(span)
        del fields["id"]
        if set(map(type, fields.values())) != {str}:  # this parser doesn't keep numbers verbatim
            return self._checked(span)
        return fields

    def _checked(self, span: Span) -> Mapping[str, str]:
        """Return the fields of the line. Raises RecordError if it isn't an object of plain values."""
        record = _parse(self._data[span.start : span.end])
        if not isinstance(record, dict):
            raise RecordError("expected one JSON object per line")
        texts = {name: _text_of(name, value) for name, value in record.items()}
        return {name: text for name, text in texts.items() if text.strip()}


class Csv:
    """Comma-separated values below a row of column names; blank rows are skipped.

    Columns of the same name are one field with a list.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._columns: list[str] = []
        self._repeated: frozenset[str] = frozenset()

    def records(self) -> Iterator[Record | Flaw]:
        """Yield every row that isn't blank, after the header."""
        lines = _Lines(self._data, _after_mark(self._data))
        rows = csv.reader(lines, strict=True)
        self._columns = _columns(_next_row(rows))
        self._repeated = frozenset(name for name in self._columns if self._columns.count(name) > 1)
        while lines.place < len(self._data):
            start = lines.place
            try:
                row = _next_row(rows)
                if row:
                    yield Record(Span(start, lines.place), self._fields(row))
            except RecordError as error:
                yield Flaw(start, str(error))

    def read(self, span: Span) -> Mapping[str, str]:
        """Return the fields of the row."""
        lines = _Lines(self._data[span.start : span.end], 0)
        return self._fields(_next_row(csv.reader(lines, strict=True)))

    def _fields(self, row: list[str]) -> Mapping[str, str]:
        if len(row) != len(self._columns):
            raise RecordError(f"expected {len(self._columns)} columns, found {len(row)}")
        pairs = [pair for pair in zip(self._columns, row, strict=True) if pair[1].strip()]
        fields = dict(pairs)
        for name in self._repeated & fields.keys():
            fields[name] = compact_json([text for column, text in pairs if column == name])
        return fields


_FORMATS: Mapping[str, Callable[[bytes], RecordFormat]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".json": JsonLines,
    ".csv": Csv,
}


def format_of(path: Path) -> Callable[[bytes], RecordFormat]:
    """Return the format for a file's suffix. Raises RecordError for an unknown suffix."""
    try:
        return _FORMATS[path.suffix.lower()]
    except KeyError:
        raise RecordError(f"the file's name must end in one of {', '.join(_FORMATS)}") from None


class _Lines:
    """Lines of UTF-8, and the position after the last one. Continues after a line that can't be decoded."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data = data
        self.place = place

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self.place >= len(self._data):
            raise StopIteration
        start, self.place = self.place, _line_end(self._data, self.place)
        return self._data[start : self.place].decode()


def _after_mark(data: bytes) -> int:
    return len(_BOM) if data.startswith(_BOM) else 0


def _line_end(data: bytes, start: int) -> int:
    return data.find(b"\n", start) + 1 or len(data)


def _next_row(rows: Iterator[list[str]]) -> list[str]:
    try:
        return next(rows, [])
    except UnicodeDecodeError:
        raise RecordError("bytes that are not UTF-8") from None
    except csv.Error as error:
        raise RecordError(str(error)) from None


def _columns(header: list[str]) -> list[str]:
    columns = [cleaned(name) for name in header]
    if "id" not in columns:
        raise RecordError("expected a first row of column names, separated by commas, with id among them")
    once = [name for name in columns if name in ("", "id", *TEXT_FIELDS)]
    if "" in once or len(set(once)) < len(once):
        raise RecordError("columns need names, and id, name, language, phone and email are unique")
    return columns


def _parse(line: bytes) -> object:
    try:
        return _DECODER.decode(line.decode().strip())
    except UnicodeDecodeError:
        raise RecordError("bytes that are not UTF-8") from None
    except json.JSONDecodeError as error:
        raise RecordError(f"not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise RecordError("nested too deeply") from None


def _text_of(name: str, value: object) -> str:
    match value:
        case str():
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case _:
            try:
                return field_text(name, value)
            except TypeError:
                raise RecordError(
                    f"{name[:40]!r}: expected a string or a number, not a list or an object"
                ) from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise RecordError("duplicate key in an object")
    return members


def _no_constant(_name: str) -> NoReturn:
    raise RecordError("not JSON: NaN and Infinity aren't numbers")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=_no_constant
)
