"""The journal's keys: a file or a database, and what belongs to which."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deliveryd.config import load
from deliveryd.errors import ConfigError, JournalUnusable
from deliveryd.journal.place import JournalDatabase, JournalFile

SERVICE = '[service]\nbase_url = "http://127.0.0.1:1"\n'
SMS = """
[channels.sms]
adapter = "http"
url = "http://127.0.0.1:1/sms"
json = { text = "{content.text}" }
"""
DATABASE = 'url = "postgresql://deliveryd@127.0.0.1/journal"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The configuration file."""
    return tmp_path / "config.toml"


def problems(path: Path, journal: str, more: str = "", **environ: str) -> list[str]:
    """What the operator is told, without the folder of the file."""
    path.write_text(f"{SERVICE}[journal]\n{journal}\n{SMS}{more}")
    with pytest.raises(ConfigError) as caught:
        load(path, environ)
    return [problem.removeprefix(f"{path}:") for problem in caught.value.problems]


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_journal_may_be_a_database(path: Path, scheme: str) -> None:
    """Both names that PostgreSQL itself takes name one."""
    url = f"{scheme}://deliveryd@127.0.0.1:5433/journal?connect_timeout=3"
    secret = path.with_name("password")
    secret.touch(0o600)
    secret.write_text("hunter2\n")
    path.write_text(f'{SERVICE}[journal]\nurl = "{url}"\npassword_file = "password"\nlease = "30s"\n{SMS}')
    config = load(path, {})
    assert config.journal.place == JournalDatabase(url, secret)
    assert config.journal.lease == 30.0
    assert config.control.socket == Path("/run/deliveryd/control.sock")
    with pytest.raises(JournalUnusable, match=r"journal\.url names a database"):
        _ = config.journal.path


def test_without_its_keys_the_journal_is_a_file(path: Path) -> None:
    path.write_text(SERVICE + SMS)
    assert load(path, {}).journal.place == JournalFile(Path("/var/lib/deliveryd/journal.db"))


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        ('url = "postgresql://me:hunter2@127.0.0.1/x"', "journal.url: holds a password: put it into a file"),
        ('url = "postgresql://127.0.0.1/x?password=hunter2"', "journal.url: holds a password: put it into"),
        ('url = "postgresql://me:hunter2@[::1/x"', "journal.url: can't be read: "),
        ('url = "postgresql://db/x?sslmode=require"', "journal.url: has sslmode=require: off this machine"),
        ('url = "postgresql://db/x?hunter2=on"', "journal.url: can't be read: invalid URI query parameter"),
        (
            'url = "postgresql://db/x?sslrootcert=ca.pem"',
            "journal.url: has sslrootcert=ca.pem: give the file's",
        ),
        (DATABASE + 'reserve = "1GiB"', "journal.reserve: is for SQLite"),
        (DATABASE + 'password_file = "nothing/here"', "journal.password_file: "),
        (DATABASE + 'lease = "5s"', "journal.lease: must be at least 6s"),
        (DATABASE + 'lease = "6m"', "journal.lease: must be at most 5m"),
        ('url = "sqlite:///j.db"\nlease = "30s"', "journal.lease: is for PostgreSQL"),
        (
            'url = "sqlite:///j.db"\n[control]\nsocket = "c.sock"',
            "control.socket: is for PostgreSQL: with SQLite",
        ),
    ],
)
def test_what_a_journal_cannot_be_used_with_is_told_without_secrets(
    path: Path, journal: str, told: str
) -> None:
    """Each with its key and what to do; nothing that may be a password is repeated."""
    (problem,) = problems(path, journal)
    assert problem.startswith(told)
    assert "hunter2" not in problem


def test_a_password_file_is_for_databases(path: Path) -> None:
    path.with_name("password").touch(0o600)
    path.with_name("password").write_text("hunter2")
    (told,) = problems(path, 'url = "sqlite:///j.db"\npassword_file = "password"')
    assert told.startswith("journal.password_file: is for PostgreSQL, and journal.url names a SQLite file")


def test_what_the_image_allows_about_folders_has_no_effect_on_a_database(path: Path) -> None:
    """The image sets it for whoever keeps a file; a URL in the environment is then all that it needs."""
    path.write_text(SERVICE + SMS)
    image = {"DELIVERYD_JOURNAL__ALLOW_SHARED_FOLDER": "true"}
    url = "postgresql://deliveryd@127.0.0.1/journal"
    assert load(path, image | {"DELIVERYD_JOURNAL__URL": url}).journal.place == JournalDatabase(url)


def test_an_attempt_ends_before_others_may_take_over(path: Path) -> None:
    """A time-out that a lease doesn't outlive by five seconds is told with the key of its provider."""
    (told,) = problems(path, DATABASE, 'timeout = "16s"\n')
    assert told == (
        'channels.sms.timeout: 16s is too long for journal.lease = "20s": an attempt has to end 5s before'
        " other workers may take over; give at most 15s here, or raise journal.lease"
    )
    path.write_text(f'{SERVICE}[journal]\n{DATABASE}lease = "21s"\n{SMS}timeout = "16s"\n')
    assert load(path, {}).journal.lease == 21.0


def test_without_the_extra_a_database_is_told_and_a_file_needs_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "deliveryd.journal.postgresql.connection", raising=False)
    (told,) = problems(path, DATABASE)
    assert told == (
        "journal.url: names a PostgreSQL database, which needs a driver; from a checkout:"
        " pip install --no-deps --require-hashes -r locks/postgresql.txt"
    )
    path.write_text(SERVICE + SMS)
    assert isinstance(load(path, {}).journal.place, JournalFile)
