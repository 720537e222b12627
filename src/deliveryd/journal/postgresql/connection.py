"""Connections to the journal's database: verified TLS off this machine, the password from a file.

Workers go by its clock, where their own might differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8Dumper

from deliveryd.errors import JournalUnreachable, JournalUnusable
from deliveryd.journal.place import JournalDatabase
from deliveryd.model import SECOND, Clock
from deliveryd.network.address import is_loopback
from deliveryd.runtime.secret_file import SecretFile

Connected = Connection[tuple[Any, ...]]
"""A connection whose rows are tuples."""

OLDEST_SERVER = 16
"""The oldest PostgreSQL whose updates stay in their page beside a BRIN index."""

_CONNECT_TIMEOUT = 10
"""Seconds until an attempt to connect to one host is given up."""

_DEAD_AFTER = 10
"""Seconds after which a peer that acknowledges nothing counts as gone."""

_MOST_PREPARED = 1000
"""Statements that stay prepared: a few hundred, and a dozen of each day, of which the oldest go."""

_REACHING = "check journal.url, and whether the server runs and takes connections from here"
_FOR_NOW = frozenset(
    {
        "25P03",  # the server ended a session that stood still within a transaction
        "25P04",  # or a transaction that took too long
        "25006",  # it takes no writes: another one may, or its disk is nearly full
        "55P03",  # a lock wasn't had in the time that an administrator allows
    }
)
"""What another attempt may get past."""
STANDBY = "it is a standby, or default_transaction_read_only is on"
"""What a database is that takes no writes."""

_REFUSALS = {
    "authentication method requirement": "have pg_hba.conf ask for scram-sha-256 (set a password again that"
    " was set under password_encryption = md5), or connect with sslmode=verify-full",
    "password authentication failed": "check the user in journal.url, and journal.password_file",
    "no password supplied": "the server asks for a password: set journal.password_file",
    "does not exist": "check journal.url",
    "does not match host name": "connect by a name that its certificate has",
    "certificate verify failed": "check the server's certificate, and sslrootcert in journal.url",
    "does not support SSL": "turn TLS on at the server (ssl = on)",
    "invalid integer value": "check journal.url",
    "session is read-only": STANDBY,
    "too many connections": "raise max_connections, or the role's CONNECTION LIMIT",
    "too many clients": "raise max_connections",
    "remaining connection slots are reserved": "raise max_connections",
    "no pg_hba.conf entry": "add a hostssl line for this user, database and machine to pg_hba.conf",
}
"""What to do about a reason, by words in it."""
_NO_SECRETS = "!password,!md5"
"""Any method but those that reveal a password of the environment, such as one in libpq's password file."""

_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir")

_SETTINGS = {
    "client_encoding": "UTF8",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    "search_path": "main",
    "deliveryd.log": "0",
}
_PINNED = {  # one shape of plan for any size of table, whatever the statistics are
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_material": "off",
    "join_collapse_limit": "1",
    "random_page_cost": "0",
    "seq_page_cost": "0",
}


def conninfo(source: JournalDatabase) -> str:
    """Return what libpq needs to connect. Raises JournalUnusable, with what to change."""
    try:
        given = conninfo_to_dict(source.url)
    except psycopg.Error as error:
        said = str(error).partition('"')[0].strip(": \n")  # what it quotes may be a password
        raise JournalUnusable(f"journal.url can't be read: {said}") from None
    if "password" in given:
        raise JournalUnusable("journal.url holds a password: put it into a file, journal.password_file")
    if "sslpassword" in given:
        raise JournalUnusable("journal.url holds a password, sslpassword: name a key that has none in sslkey")
    if _stays_here(given):
        given.setdefault("hostaddr", "")  # PGHOSTADDR and a service's would lead to another host, unencrypted
    else:
        given.setdefault("gssencmode", "disable")  # what Kerberos encrypts doesn't heed sslmode
        if given.setdefault("sslmode", "verify-full") != "verify-full":
            raise JournalUnusable(
                f"journal.url has sslmode={given['sslmode']}: off this machine it has to be verify-full"
            )
        given.setdefault("sslrootcert", "system")
    for name in _FILES:
        if (file := given.get(name)) not in (None, "", "system") and not Path(str(file)).is_absolute():
            raise JournalUnusable(f"journal.url has {name}={file}: give the file's whole path")
    if source.password_file is not None:
        given["password"] = _password(source.password_file)
    if not _proves_by_tls(given):  # who listens there first is asked, and has to prove who it is
        given.setdefault("require_auth", "scram-sha-256" if "password" in given else _NO_SECRETS)
    given.setdefault("target_session_attrs", "read-write")
    given.setdefault("connect_timeout", _CONNECT_TIMEOUT)
    given.setdefault("tcp_user_timeout", _DEAD_AFTER * 1000)
    given.setdefault("keepalives_idle", _DEAD_AFTER // 2)
    given.setdefault("keepalives_interval", 1)
    given.setdefault("keepalives_count", _DEAD_AFTER // 2)
    given.setdefault("application_name", "deliveryd")
    return make_conninfo("", **given)


def files_of(url: str) -> list[Path]:
    """Return the certificates and keys that a URL names; none if it can't be read."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        return []
    named = (str(given.get(name) or "") for name in _FILES)
    return [Path(file) for file in named if file not in {"", "system"}]


def _stays_here(given: Mapping[str, Any]) -> bool:
    """Whether all hosts and addresses that the URL names are this machine; False where it names none."""
    hosts, addresses = (str(given.get(name) or "").split(",") for name in ("host", "hostaddr"))
    named = [host for host in hosts if host]
    return (
        bool(named)
        and all(host.startswith("/") or is_loopback(host) for host in named)
        and all(is_loopback(address) for address in addresses if address)
    )


def _proves_by_tls(given: Mapping[str, Any]) -> bool:
    """Whether each server is verified by TLS: libpq has none over sockets, which it also uses for no host."""
    hosts = str(given.get("host") or "").split(",")
    return given.get("sslmode") == "verify-full" and all(host and host[0] not in "/@" for host in hosts)


def _password(file: Path) -> str:
    try:
        return SecretFile(file).read()
    except ValueError as error:
        raise JournalUnusable(f"journal.password_file can't be used: {error}") from None


def longest_idle(lease: float) -> float:
    """Seconds after which the server ends a transaction of a worker whose process or machine stands still.

    What it has locked keeps others from committing meanwhile, and their leases mustn't end by that.
    """
    return lease / 2


def connect_to_write(source: JournalDatabase, idle_limit: float) -> Connected:
    """Connect for the journal's thread. `idle_limit`: seconds after which an idle transaction is ended.

    Raises JournalUnusable, or JournalUnreachable if another attempt may succeed.
    """
    settings = _SETTINGS | _PINNED | {"idle_in_transaction_session_timeout": f"{idle_limit * 1000:.0f}ms"}
    return _connect(source, settings)


def connect_to_read(source: JournalDatabase) -> Connected:
    """Connect for reads beside the journal's thread. Raises like `connect_to_write`."""
    return _connect(source, _SETTINGS | {"default_transaction_read_only": "on"})


def connect_to_copy(source: JournalDatabase) -> Connected:
    """Connect for one long transaction that reads or fills all tables. Raises like `connect_to_write`."""
    return _connect(source, _SETTINGS | {"idle_in_transaction_session_timeout": "0"})


def _connect(source: JournalDatabase, settings: dict[str, str]) -> Connected:
    try:
        db: Connected = psycopg.connect(conninfo(source), autocommit=True, prepare_threshold=0)
    except psycopg.OperationalError as error:
        reason = first_line(error).removeprefix("connection failed: ")
        remedy = next((todo for said, todo in _REFUSALS.items() if said in reason), _REACHING)
        raise JournalUnreachable(f"the journal's database can't be reached: {reason}; {remedy}") from None
    try:
        _check_server(db)
        _configure(db, settings)
    except psycopg.Error as error:
        db.close()
        kind = JournalUnreachable if is_lost(error) else JournalUnusable
        raise kind(f"the journal's database can't be used: {first_line(error)}") from error
    except BaseException:
        db.close()
        raise
    db.prepared_max = _MOST_PREPARED
    db.adapters.register_dumper(int, Int8Dumper)  # one type, and so one plan, whatever the number
    return db


def _configure(db: Connected, settings: dict[str, str]) -> None:
    pairs = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
    (level, *_) = db.execute(f"SELECT current_setting('synchronous_commit'), {pairs}").fetchone() or ("",)
    if level in ("off", "local"):  # an acknowledged commit has to survive
        db.execute("SET synchronous_commit = on")


def _check_server(db: Connected) -> None:
    if db.info.server_version < OLDEST_SERVER * 10_000:
        raise JournalUnusable(
            f"the journal's database is PostgreSQL {db.info.server_version // 10_000},"
            f" and {OLDEST_SERVER} is the oldest that is supported: upgrade it"
        )
    if db.info.parameter_status("server_encoding") != "UTF8":
        raise JournalUnusable("the journal's database isn't encoded in UTF8: create it with ENCODING 'UTF8'")


def first_line(error: Exception) -> str:
    """What an error says, without what may follow: that may quote a row, and so a message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def is_lost(error: psycopg.Error) -> bool:
    """Whether an error means that the connection, or the server, is gone, or not to be had for now."""
    state = error.sqlstate or ""
    if not state:
        return isinstance(error, psycopg.OperationalError)
    return state[:2] in {"08", "57"} or state in _FOR_NOW


INSTANT = "coalesce({}::int8, (extract(epoch FROM clock_timestamp()) * 1000000)::int8)"
"""SQL for the present instant; `{}` is the parameter."""


class DatabaseClock:
    """`stand_in` None: the server's clock."""

    def __init__(self, stand_in: Clock | None = None) -> None:
        self._stand_in = stand_in

    @property
    def given(self) -> int | None:
        """The parameter."""
        return None if self._stand_in is None else self._stand_in.now()

    def now(self, db: Connected) -> int:
        """The present instant."""
        if (given := self.given) is not None:
            return given
        (instant,) = db.execute(f"SELECT {INSTANT.format('NULL')}").fetchone() or (0,)
        return int(instant)


class FollowedClock:
    """The database's clock as a worker knows it without asking: no step of its machine's clock moves it.

    `clock`: seconds of a clock that nobody can set.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ahead: int | None = None

    def note(self, instant: int, asked_at: float) -> None:
        """The database answered with its present instant, sometime between `asked_at` and now.

        Anything between is possible, so only what isn't is corrected.
        """
        least, most = instant - self.elapsed(), instant - int(asked_at * SECOND)
        self._ahead = least if self._ahead is None else min(max(self._ahead, least), most)

    def now(self) -> int:
        """The present instant; 0 before the first answer."""
        return 0 if self._ahead is None else self.elapsed() + self._ahead

    def elapsed(self) -> int:
        """Microseconds of the clock that nobody can set."""
        return int(self._clock() * SECOND)
