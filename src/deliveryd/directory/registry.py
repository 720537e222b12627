"""The table `[customers]`, and its sources: built-in ones, and entry points of other packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from deliveryd.directory.base import Source, Terms
from deliveryd.errors import ConfigError
from deliveryd.options import plugins
from deliveryd.options.file import ConfigFile
from deliveryd.options.units import FilePath, Positive

if TYPE_CHECKING:
    from deliveryd.directory.http_options import HttpDirectoryOptions
    from deliveryd.directory.sql_options import SqlOptions


class NoOptions(BaseModel):
    """The source "none" has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class FileOptions(BaseModel):
    """Options of the source "file"."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    path: FilePath = Field(description="JSON Lines or CSV; read again when it changes")


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


class CustomersOptions(BaseModel):
    """The issuer's own customer directory; all other keys belong to its source."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    source: str = Field("none", description='"none", "file", "http", "sql", or the name of a plug-in')
    cache_ttl: Positive = Field(
        300.0, description="how long an answer of a remote directory is kept; unknown customers: 30 s"
    )
    timeout: Positive = Field(5.0, description="for one query to a remote directory")
    concurrency: StrictInt = Field(10, ge=1, le=1000, description="queries at a time")
    options: BaseModel = Field(NoOptions.model_construct(), exclude=True)

    @property
    def terms(self) -> Terms:
        """Return the options common to all remote directories."""
        return Terms(self.cache_ttl, self.timeout, self.concurrency)


def read_customers(file: ConfigFile, table: object) -> CustomersOptions:
    """Read the table; note its mistakes, and return it without the invalid values."""
    if not isinstance(table, dict):
        file.complain("customers", "expected a table")
        return CustomersOptions()
    common = [name for name, field in CustomersOptions.model_fields.items() if not field.exclude]
    given = {key: table[key] for key in common if key in table}
    own = {key: value for key, value in table.items() if key not in common}
    customers = file.validate(CustomersOptions, given, "customers") or file.remainder(CustomersOptions, given)
    if customers is None:
        return CustomersOptions()
    if customers.source == "none" and own:
        text = f'is "none", which has no key {min(own)}: set the source that the key is for'
        file.complain("customers.source", text)
        return customers
    try:
        model = options_of(customers.source)
    except ValueError as error:
        file.complain("customers.source", str(error))
        return CustomersOptions()
    options = file.validate(model, own, "customers", known=common) or file.remainder(model, own)
    if options is None:
        return CustomersOptions()
    for problem in check_source(customers.source, options):
        key, _, text = problem.partition(": ")
        file.complain(f"customers.{key}", text)
    return customers.model_copy(update={"options": options})
