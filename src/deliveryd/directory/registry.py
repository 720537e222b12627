"""The sources of customers: a table of built-in ones, and entry points of other packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from deliveryd.directory.base import Source, Terms
from deliveryd.directory.file_options import FileOptions
from deliveryd.directory.none import NoOptions
from deliveryd.errors import ConfigError
from deliveryd.options import plugins

if TYPE_CHECKING:
    from deliveryd.directory.http_options import HttpDirectoryOptions
    from deliveryd.directory.sql_options import SqlOptions

SOURCE_ENTRY_POINTS = "deliveryd.customers"

LOCAL: Mapping[str, type[BaseModel]] = {"none": NoOptions, "file": FileOptions}
"""The local sources, and their options."""


def _nothing_wrong(_options: Any) -> list[str]:
    return []


class SourceKind(NamedTuple):
    """A source from a package: the value of an entry point in the group `deliveryd.customers`.

    `options` is the model of its keys in `[customers]`, with `extra="forbid"`. `open` takes the options and
    the terms, runs within the event loop and raises ConfigError. `check` takes valid options and returns
    further problems, such as unreadable files, as `key: what`.
    """

    options: type[BaseModel]
    open: Callable[[Any, Terms], Source]
    check: Callable[[Any], list[str]] = _nothing_wrong


def _open_http(options: HttpDirectoryOptions, terms: Terms) -> Source:
    from deliveryd.directory.http import open_http_source  # noqa: PLC0415  # loaded only where it is configured

    return open_http_source(options, terms)


def _open_sql(options: SqlOptions, terms: Terms) -> Source:
    from deliveryd.directory.sql import open_sql  # noqa: PLC0415  # loads optional packages

    return open_sql(options, terms)


def _http() -> SourceKind:
    from deliveryd.directory.http_options import HttpDirectoryOptions  # noqa: PLC0415  # as _open_http

    return SourceKind(HttpDirectoryOptions, _open_http, HttpDirectoryOptions.problems)


def _sql() -> SourceKind:
    from deliveryd.directory.sql_options import SqlOptions  # noqa: PLC0415  # as _open_sql

    return SourceKind(SqlOptions, _open_sql, SqlOptions.problems)


SOURCES: Mapping[str, Callable[[], SourceKind]] = {"http": _http, "sql": _sql}
"""The remote sources. Each is loaded only where it is configured: a start takes as long as its imports."""


def options_of(source: str) -> type[BaseModel]:
    """Return the model of a source's own keys.

    Raises ValueError, with a suggestion, if there is no source of this name or it can't be loaded.
    """
    return LOCAL[source] if source in LOCAL else _find_kind(source).options


def check_source(source: str, options: BaseModel) -> list[str]:
    """Return further problems of valid options, as `key: what`. Makes no connections."""
    return [] if source in LOCAL else _find_kind(source).check(options)


def open_source(source: str, options: BaseModel, terms: Terms) -> Source:
    """Open a remote source. Must be called within the event loop; raises ConfigError."""
    kind = _find_kind(source)
    try:
        return kind.open(options, terms)
    except ConfigError:
        raise
    except Exception as error:
        reason = f"{source!r} can't be opened: {type(error).__name__}"
        raise ConfigError([f"customers.source: {reason}"]) from error


def _find_kind(source: str) -> SourceKind:
    if source in SOURCES:
        return SOURCES[source]()
    return plugins.find_kind(
        source, SourceKind, what="source", group=SOURCE_ENTRY_POINTS, others=[*LOCAL, *SOURCES]
    )
