"""The options of the source "sql", and their validation.

SQLAlchemy is loaded only if this source is configured.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self
from urllib.parse import quote

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationInfo,
    model_validator,
)

from deliveryd.errors import how_to_install
from deliveryd.options.connections import TlsOptions, tls_problems
from deliveryd.options.units import SecretPath, resolve_path

if TYPE_CHECKING:
    from sqlalchemy import URL, TextClause

ID_PARAMETER = "customer_id"
IDS_PARAMETER = "customer_ids"

_SQLITE = re.compile(r"(sqlite(?:\+aiosqlite)?:///)([^?]+)")
_SECRET_KEYS = frozenset({"password", "passwd", "pwd", "sslpassword"})
_OTHER_KEYS = re.compile(r"ssl.*|direct_tls|dsn|service|servicefile|passfile|read_default_.*|local_infile")
"""URL parameters that would override host, TLS or password of the other options."""

DRIVERS: Mapping[str, str] = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
    "mysql": "mysql+aiomysql",
    "mariadb": "mariadb+aiomysql",
}
"""The default driver of each database."""

EXTRAS: Mapping[str, str] = {
    "aiosqlite": "sql",
    "asyncpg": "postgresql",
    "aiomysql": "mysql",
}
"""The extras of drivers."""

TLS_REFUSED = "the server offers no TLS, and customers.allow_plain_text isn't set"
PLAIN_REFUSED = (
    "the server asks for the password in a form that gives it away without TLS: have it ask by scram-sha-256"
    " (PostgreSQL) or mysql_native_password, or connect over TCP with customers.tls.ca_file"
)


def _url(url: str, info: ValidationInfo) -> str:
    if problem := missing_package("sqlalchemy", "sql") or _url_problem(url):
        raise ValueError(problem)
    match = _SQLITE.fullmatch(url)
    return f"{match[1]}{resolve_path(match[2], info)}" if match is not None else url


def _query(query: str) -> str:
    if missing_package("sqlalchemy", "") is None and (problem := _query_problem(query)):
        raise ValueError(problem)
    return query


class SqlOptions(BaseModel):
    """A database, which is only read."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    url: Annotated[str, AfterValidator(_url)] = Field(
        description="address of the database, without the password"
    )
    password_file: SecretPath | None = Field(None, description="password of the database")
    query: Annotated[str, AfterValidator(_query)] = Field(
        description="query for the fields, where id = :customer_id, or id in :customer_ids"
    )
    batch_size: StrictInt = Field(100, ge=1, le=1000, description="most customers per query")
    tls: TlsOptions = Field(TlsOptions.model_construct(), description="certificates")
    allow_plain_text: StrictBool = Field(
        False, description="whether a database on another computer may be used without TLS"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        has_tls = self.tls != TlsOptions()
        if has_tls and self.allow_plain_text:
            raise ValueError("tls and allow_plain_text can't be combined: the files wouldn't be used")
        if (has_tls or self.allow_plain_text) and _SQLITE.fullmatch(self.url):
            raise ValueError("tls and allow_plain_text need a database on the network")
        return self

    def problems(self) -> list[str]:
        """Return the problems of the files that are named, as `key: what`."""
        problem = self.password_file.problem() if self.password_file is not None else None
        found = [f"password_file: {problem}"] if problem is not None else []
        return found + tls_problems("tls", self.tls.files())

    @property
    def for_many(self) -> bool:
        """Whether the query selects many customers at once."""
        return IDS_PARAMETER in _parameters(self.query)


def missing_package(package: str, extra: str) -> str | None:
    """Return an error if a package isn't installed, with the extra that installs it."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"needs the package {package}, which isn't installed{how_to_install(extra)}"


def database_address(options: SqlOptions) -> URL:
    """Return the address with driver and password; a SQLite file is opened read-only.

    Raises ValueError if the password can't be read.
    """
    url = _with_driver(options.url)
    if options.password_file is not None:
        url = url.set(password=options.password_file.read())
    if (file := sqlite_file(options)) is not None:
        url = url.set(database=f"file:{quote(str(file))}", query={**url.query, "mode": "ro", "uri": "true"})
    return url


def sqlite_file(options: SqlOptions) -> Path | None:
    """Return the file of a SQLite database; None for any other."""
    url = _with_driver(options.url)
    is_file = url.get_backend_name() == "sqlite" and url.database is not None
    return Path(url.database or "").absolute() if is_file else None


def statement(options: SqlOptions) -> TextClause:
    """Return the query with its parameter declared."""
    from sqlalchemy import BigInteger, bindparam, text  # noqa: PLC0415 - an optional package

    name = IDS_PARAMETER if options.for_many else ID_PARAMETER
    return text(options.query).bindparams(bindparam(name, type_=BigInteger, expanding=options.for_many))


def _with_driver(text: str) -> URL:
    from sqlalchemy import make_url  # noqa: PLC0415 - an optional package

    url = make_url(text)
    return url.set(drivername=DRIVERS.get(url.drivername, url.drivername))


def _url_problem(text: str) -> str | None:
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError  # noqa: PLC0415 - an optional package

    try:
        url = _with_driver(text)
        if url.password is not None or _SECRET_KEYS & {key.lower() for key in url.query}:
            return "must not contain a password: put it into a file, and set password_file"
        if url.port is not None and not 0 < url.port < 65536:
            return "the port must be between 1 and 65535"
        if others := [key for key in url.query if _OTHER_KEYS.fullmatch(key.lower())]:
            return f"has the parameter {others[0]}: use tls, password_file and allow_plain_text instead"
        driver = url.get_driver_name()
        if driver not in EXTRAS:
            url.get_dialect()
            known = ", ".join(sorted(set(DRIVERS.values())))
            return f"unknown driver {driver}; use one of {known}"
        if problem := missing_package(driver, EXTRAS[driver]):
            return problem
    except (NoSuchModuleError, ImportError):
        return f"unknown database or driver {text.partition(':')[0]!r}"
    except ArgumentError:
        return 'must look like "postgresql://user@host/database"'
    if url.get_backend_name() == "sqlite" and (url.database or ":memory:").startswith((":memory:", "file:")):
        return 'must name a file, such as "sqlite:////var/lib/customers.db"'
    return None


def _query_problem(query: str) -> str | None:
    parameters = _parameters(query)
    if parameters in ({ID_PARAMETER}, {IDS_PARAMETER}):
        return None
    if unknown := parameters - {ID_PARAMETER, IDS_PARAMETER}:
        return f"unknown parameter :{min(unknown)}; use :{ID_PARAMETER} or :{IDS_PARAMETER}"
    return f"must contain :{ID_PARAMETER} or :{IDS_PARAMETER}"


def _parameters(query: str) -> set[str]:
    from sqlalchemy import text  # noqa: PLC0415 - an optional package

    return set(text(query).compile().params)
