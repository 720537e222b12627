"""A hostile world: each input by itself costs a worker little, is told in a line, and leaves it at work."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import Iterator
from os import chown, geteuid
from pathlib import Path

import anyio
import pytest

from deliveryd.http.asyncio_wire import _Connection
from deliveryd.http.client import build_client
from deliveryd.telemetry.log_events import Event
from hostile.cachefiles import PLANTED
from hostile.cases import all_cases
from hostile.host import Host
from hostile.mail import MailHost
from hostile.slowness import SEEDS, WORKS, grown
from hostile.stage import Case, Stage, measure, open_stage, write_world
from hostile.worker import Worker
from support.forked import run_deliveryd

pytestmark = pytest.mark.slow

MOST_MEGABYTES = 176.0
"""What a case may cost over a calm worker, after all cases before it. 32 of them are the settings' memory; a
largest answer of the queue is there twice, with 64 each: as it comes in, and as it is read."""

SUMMARIES = {Event.MESSAGE_FAILED}
"""Lines that the worker writes once a minute about all cases since the last one."""

CASES = {case.name: case for case in all_cases(settings_ids=2000)}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory.mktemp("hostile")) as stage:
        yield stage


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_costs_little_memory_is_told_and_the_line_goes_on(stage: Stage, case: Case) -> None:
    """The case itself checks what others saw; afterwards an ordinary message is delivered as ever."""
    figure = measure(stage, case)
    assert figure.megabytes < MOST_MEGABYTES
    assert stage.worker.alive
    told = [event for event in figure.lines if event == case.event]
    if case.event:
        assert 1 <= len(told) <= case.most
    own = [event for event in figure.lines if event not in SUMMARIES]
    assert len(own) <= case.most, own
    assert len(figure.said) < 1000


def test_after_all_that_the_worker_ends_well_and_its_account_is_balanced(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A run that met malformed and refused things knows where every message is."""
    folder = tmp_path_factory.mktemp("account")
    with open_stage(folder) as stage:
        for name in ("queue: JSON 1,000 deep", "settings: JSON 1,000 deep", "provider: a gigabyte in chunks"):
            measure(stage, CASES[name])
        assert stage.worker.stop() == 0
    assert run_deliveryd("audit", "--config", str(folder / "config.toml")).returncode == 0


@pytest.mark.parametrize("work", WORKS)
def test_time_grows_with_length_and_not_with_its_square(work: str) -> None:
    """Eight times the text takes about eight times as long, whatever piece it repeats."""
    slow = [seed for seed in SEEDS if grown(work, seed).ratio >= 20]
    assert [
        seed for seed in slow if grown(work, seed).ratio >= 20
    ] == []  # once more: a machine may have hiccups


@pytest.mark.parametrize("planted", PLANTED)
def test_nothing_in_a_planted_cache_is_executed_followed_or_kept(planted: str, tmp_path: Path) -> None:
    """The settings come from the service, and what the cache pointed at is as it was."""
    trace, target = tmp_path / "trace", tmp_path / "target"
    target.write_text("precious", encoding="utf-8")
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "foreign").write_text("mine", encoding="utf-8")
    before: list[bytes] = []

    def plant(service: str) -> None:
        PLANTED[planted](tmp_path / "cache", trace, f"{service}/settings/1")
        before.append(target.read_bytes())

    with open_stage(tmp_path, plant) as stage:
        assert stage.calm < 250
        assert stage.worker.stop() == 0
        broken = [line for line in stage.worker.lines() if line["event"] == "cache.broken"]
        assert len(broken) == 1
        assert stage.host.requests["settings"] == 1
    assert not trace.exists()
    assert [target.read_bytes()] == before
    assert (tmp_path / "cache" / "foreign").read_text(encoding="utf-8") == "mine"
    assert sqlite3.connect(tmp_path / "cache" / "cache.db").execute("SELECT 1").fetchone() == (1,)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": True}), ("asyncio", {})], ids=["uvloop", "asyncio"]
)
async def test_a_connection_given_up_as_it_is_made_keeps_nobody_from_closing(
    anyio_backend: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop closes such a connection without telling it; a worker that waited for that would never end."""
    with Host() as host, anyio.CancelScope() as given_up:
        made = _Connection.connection_made

        def make(connection: _Connection, transport: asyncio.BaseTransport) -> None:
            made(connection, transport)
            given_up.cancel()

        monkeypatch.setattr(_Connection, "connection_made", make)
        client = build_client(timeout=5.0)
        try:
            await client.send("GET", host.url)
        finally:
            with anyio.fail_after(5.0, shield=True):
                await client.aclose()
    assert given_up.cancelled_caught


@pytest.mark.skipif(geteuid() != 0, reason="giving a folder to somebody else takes root")
def test_a_cache_folder_of_somebody_else_is_bypassed(tmp_path: Path) -> None:
    """Whoever owns the folder could replace what we put there; nothing is written into it."""
    (tmp_path / "cache").mkdir(mode=0o777)
    chown(tmp_path / "cache", 65534, 65534)
    with open_stage(tmp_path) as stage:
        assert stage.worker.stop() == 0
        [line] = [line for line in stage.worker.lines() if line["event"] == "cache.broken"][:1]
        assert "belongs to the user nobody" in line["reason"]
    assert list((tmp_path / "cache").iterdir()) == []


def test_journal_and_cache_are_for_their_owner_only(tmp_path: Path) -> None:
    """Files 0600, the cache's folder 0700, whatever the umask says."""
    with open_stage(tmp_path) as stage:
        files = [*tmp_path.glob("journal.db*"), *(tmp_path / "cache").glob("*")]
        assert stage.worker.alive
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
        assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert {name: mode for name, mode in modes.items() if name.startswith("journal") and mode & 0o077} == {}


def test_a_secret_that_others_may_read_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The worker doesn't start, and says which file and which command."""
    with Host() as host, MailHost() as mail:
        write_world(tmp_path, host, mail)
        (tmp_path / "secret").chmod(0o644)
        worker = Worker(tmp_path)
        assert worker.ended() == 78
        assert "chmod o-rwx" in worker.text
        assert not host.requests


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"id":' * 100_000,
        '{"id": ' + "9" * 5000 + "}",
        '{"id": NaN}',
        '{"id": 1e999}',
        '{"id": 1, "id": 2}',
    ],
    ids=["deep arrays", "deep objects", "digits", "NaN", "1e999", "the same key twice"],
)
def test_a_customer_file_that_cannot_be_used_is_refused_by_line(line: str, tmp_path: Path) -> None:
    """The worker doesn't start with it, and quotes nothing of it."""
    with Host() as host, MailHost() as mail:
        write_world(tmp_path, host, mail)
        (tmp_path / "customers.jsonl").write_text('{"id": 1}\n' + line + "\n", encoding="utf-8")
        worker = Worker(tmp_path)
        assert worker.ended() == 78
        assert "customers.jsonl:2: " in worker.text
        assert len(worker.text) < 1000
