"""A PostgreSQL with a standby, for tests of fail-overs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from support.directories import NOBODY, Postgres, open_postgres
from support.memory import folder_of_files


class Standby(Postgres):
    """A copy of a primary, which streams what is committed there until it is cut off or takes over."""

    def __init__(self, folder: Path, primary: Postgres) -> None:
        super().__init__(folder)
        self._primary = primary

    def install(self) -> None:
        """Copy the primary."""
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        self._run(
            "pg_basebackup", "--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync",
            f"--dbname={self._primary.url}&application_name=standby",
        )  # fmt: skip

    def cut_off(self) -> None:
        """Receive nothing more from the primary."""
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET primary_conninfo = ''")
            db.execute("SELECT pg_reload_conf()")
            while db.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone() is not None:
                db.execute("SELECT pg_sleep(0.01)")

    def promote(self) -> None:
        """Take over."""
        self._run("pg_ctl", "promote", "--wait")

    def _programs(self) -> Path:
        return self._primary._programs()


class PostgresCluster:
    """A primary and its standby. `url` names both: a client finds the one that takes writes."""

    def __init__(self, primary: Postgres, standby: Standby) -> None:
        self.primary = primary
        self.standby = standby
        folders = f"{primary.folder},{standby.folder}"
        self.url = f"postgresql://postgres@/postgres?host={folders}"

    def require_standby(self) -> None:
        """Acknowledge commits only when the standby has them."""
        with psycopg.connect(self.primary.url, autocommit=True) as db:
            db.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            db.execute("SELECT pg_reload_conf()")
            is_there = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
            while db.execute(is_there).fetchone() is None:
                db.execute("SELECT pg_sleep(0.01)")

    def await_standby(self) -> None:
        """Wait until the standby has all that is committed now."""
        with psycopg.connect(self.primary.url, autocommit=True) as db:
            (now,) = db.execute("SELECT pg_current_wal_lsn()").fetchone() or ("",)
            has_it = "SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= %s::pg_lsn"
            while db.execute(has_it, (now,)).fetchone() is None:
                db.execute("SELECT pg_sleep(0.01)")

    def fail_over(self) -> None:
        """Pull the primary out, and have the standby take over."""
        self.primary.stop()
        self.standby.promote()


@contextmanager
def open_cluster() -> Iterator[PostgresCluster]:
    """A primary and a standby that streams. Raises NoPostgres."""
    with open_postgres() as primary, TemporaryDirectory(prefix="pg-", dir=folder_of_files()) as folder:
        standby = Standby(Path(folder), primary)
        standby.install()
        standby.start()
        try:
            yield PostgresCluster(primary, standby)
        finally:
            if standby.is_up:
                standby.stop()
