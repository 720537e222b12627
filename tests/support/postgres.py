"""A PostgreSQL for the tests of journals, one server for a test run's process, a database for each test."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count

import psycopg

from support.directories import NoPostgres, open_postgres

_numbers = count(1)


@cache
def server_url() -> str | None:
    """Start the server; None: there is none here."""
    stack = ExitStack()
    try:
        server = stack.enter_context(open_postgres())
    except NoPostgres:
        return None
    atexit.register(stack.close)
    return server.url


def new_database() -> str | None:
    """Make an empty database; return its URL, or None without a server."""
    url = server_url()
    if url is None:
        return None
    name = f"journal{next(_numbers)}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name} ENCODING 'UTF8' TEMPLATE template0")
    return url.replace("/postgres?", f"/{name}?")


@contextmanager
def vacuum_often(url: str) -> Iterator[None]:
    """Have the server look each second for what has to be vacuumed, since days take seconds here."""
    with psycopg.connect(url, autocommit=True) as db:
        try:
            db.execute("ALTER SYSTEM SET autovacuum_naptime = '1s'")
            db.execute("SELECT pg_reload_conf()")
            yield
        finally:
            db.execute("ALTER SYSTEM RESET autovacuum_naptime")
            db.execute("SELECT pg_reload_conf()")
