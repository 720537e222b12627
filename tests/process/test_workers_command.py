"""`deliveryd workers` and `deliveryd accept-loss`, as an operator runs them."""

from __future__ import annotations

import getpass
import json
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import psycopg
import pytest

from deliveryd.journal.journal import Journal
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.postgresql.reading import database_reader
from deliveryd.journal.postgresql.workers import WorkerRecord, Workers
from deliveryd.journal.reader import DecisionSelection
from journal.samples import (
    NOW,
    attempt_on,
    begin_attempts,
    decide_on,
    make_ready,
    sample_message,
)
from support import terminal
from support.forked import run_deliveryd
from support.postgres import new_database
from support.virtual import CONFIG

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url() -> str:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return url


def configured(folder: Path, journal: str) -> Path:
    config = folder / "config.toml"
    config.write_text(CONFIG.replace("sqlite:///journal.db", journal), encoding="utf-8")
    return config


def run(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_deliveryd(*words, "--config", str(config))


async def test_workers_are_listed_and_one_is_ended_by_its_name(url: str, tmp_path: Path) -> None:
    config = configured(tmp_path, url)
    async with open_shared_journal(JournalDatabase(url)) as journal:
        await make_ready(journal, 1, 2)
        await begin_attempts(journal, attempt_on(1))
        await journal.follow(NOW, ["sms/a", "sms/b"])
        listed = run(config, "workers")
        assert listed.returncode == 0, listed.stderr
        heading, row, count = listed.stdout.splitlines()
        assert heading.split()[:4] == ["NO", "NAME", "SINCE", "STATE"]
        assert row.endswith("sms/a, sms/b")
        assert " live " in row
        assert count == "1 worker"
        (worker,) = json.loads(run(config, "workers", "list", "--json").stdout)["workers"]
        assert (worker["ready"], worker["sending"], worker["providers"]) == (1, 1, ["sms/a", "sms/b"])

        unknown = run(config, "workers", "fence", worker["name"] + "0")
        assert unknown.returncode == 2
        assert f"did you mean {worker['name']}" in unknown.stderr
        fenced = run(config, "workers", "fence", worker["name"], "--reason", "it hangs")
        assert fenced.returncode == 0, fenced.stderr
        assert fenced.stdout.startswith(f"fenced: {worker['name']} (1), which renewed its lease")
        assert "1 attempt is in doubt" in fenced.stdout
        again = run(config, "workers", "fence", worker["name"])
        assert again.returncode == 1
        assert f"{worker['name']} has ended already: an operator ordered it" in again.stderr
    (decision,) = database_reader(JournalDatabase(url)).decisions(DecisionSelection(verb="fence"), 0, 9)
    me = f"{getpass.getuser()}@{socket.gethostname()}"
    assert (decision.key, decision.user, decision.reason) == (worker["name"], me, "it hangs")


async def test_it_is_known_who_goes_by_the_latest_pauses(url: str) -> None:
    """A worker says so with the look after the one that found them: it has applied them by then."""
    source = JournalDatabase(url)
    workers = Workers(source)
    async with open_shared_journal(source) as one, open_shared_journal(source) as other:
        for each in (one, other):
            await each.follow(NOW, ["sms"])
        assert workers.behind() == []
        assert (await decide_on(one, Action.PAUSE, ItemKind.CHANNEL, "sms")).done
        assert len(workers.behind()) == 2
        for each, left in ((one, 2), (one, 1), (other, 1), (other, 0)):
            await each.follow(NOW, ["sms"])
            assert len(workers.behind()) == left
        assert (await decide_on(one, Action.PAUSE, ItemKind.SETTINGS, 40)).done
        with psycopg.connect(url) as db:  # both stand still, and begin nothing any more
            db.execute("UPDATE main.worker SET renewed_at = renewed_at - make_interval(secs => 600)")
        assert workers.behind() == []


async def beside(journal: Journal, config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command while a worker follows what others do."""

    async def follow() -> None:
        while True:
            await journal.follow(NOW, ["email/far"])
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        done = await anyio.to_thread.run_sync(run, config, *words)
        tasks.cancel_scope.cancel()
    return done


async def test_a_pause_names_the_worker_that_does_not_follow_within_a_lease(url: str, tmp_path: Path) -> None:
    config = configured(tmp_path, url)
    config.write_text(config.read_text("utf-8").replace("[journal]", '[journal]\nlease = "6s"'), "utf-8")
    async with open_shared_journal(JournalDatabase(url)) as journal:
        await journal.follow(NOW, ["sms"])
        done = await anyio.to_thread.run_sync(run, config, "pause", "channel", "sms")
        (worker,) = Workers(JournalDatabase(url)).list()
        assert (done.returncode, done.stdout) == (0, "paused: 1\n  channel:sms\n")
        assert f"{worker.name} may begin attempts still" in done.stderr


async def test_what_only_another_worker_has_can_be_paused_and_resumed(url: str, tmp_path: Path) -> None:
    config = configured(tmp_path, url)
    async with open_shared_journal(JournalDatabase(url)) as journal:
        await journal.follow(NOW, ["email/far"])
        for what in (("provider", "email/far"), ("channel", "email")):
            for verb in ("pause", "resume"):
                done = await beside(journal, config, verb, *what)
                assert (done.returncode, done.stderr) == (0, ""), done
        nobodys = run(config, "pause", "provider", "email/near")
        assert nobodys.returncode == 2
        assert "did you mean email/far?" in nobodys.stderr
        assert run(config, "find", "--provider", "email/far").returncode == 0
        assert "there are email, sms" in run(config, "find", "--channel", "voice").stderr
        assert run(config, "stopped", "list", "--channel", "email").returncode == 0


@pytest.mark.parametrize(
    ("workers", "states", "count"),
    [
        ([(1.0, None), (2.0, None)], ["live", "live"], "2 workers"),
        ([(1.0, None), (60.0, None)], ["live", "stands still"], "1 live, 1 stands still"),
        (
            [(60.0, None), (60.0, None), (1.0, "ordered")],
            ["stands still", "stands still", "ordered"],
            "0 live, 2 stand still, 1 ended",
        ),
    ],
)
def test_the_footer_counts_what_the_rows_say(
    workers: list[tuple[float, str | None]],
    states: list[str],
    count: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dead worker isn't counted as a live one."""
    found = [
        WorkerRecord(number, f"host/{number}", NOW, 20.0, 1, still, ended, 0, 1, 0, 0, ())
        for number, (still, ended) in enumerate(workers, 1)
    ]
    monkeypatch.setattr(Workers, "list", lambda _self: found)
    monkeypatch.setattr(Workers, "losses", lambda _self: [])
    config = configured(tmp_path, "postgresql://deliveryd@127.0.0.1/deliveryd")
    listed = terminal.command("workers", "--config", str(config))
    assert listed.status == 0, listed.err
    _heading, *rows, last = listed.out.splitlines()
    assert last == count
    assert len(rows) == len(states)
    for row, state in zip(rows, states, strict=True):
        assert f" {state} " in row


@pytest.mark.parametrize(
    ("providers", "told"),
    [
        ((["sms"], ["sms"]), []),
        ((["sms"], []), []),  # the second one has just begun
        (
            (["email", "sms"], ["sms"], ["email", "fax"]),
            [
                (
                    "their configurations differ: host/1 (1) lacks fax; host/2 (2) lacks email, fax;"
                    " host/3 (3) lacks sms"
                )
            ],
        ),
    ],
)
def test_it_is_told_where_configurations_differ(
    providers: Sequence[Sequence[str]], told: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only of live workers: one that stands still or has ended says nothing about what is configured."""
    rows = [(1.0, None, each) for each in providers] + [(60.0, None, ["old"]), (1.0, "ordered", ["older"])]
    found = [
        WorkerRecord(number, f"host/{number}", NOW, 20.0, 1, still, ended, 0, 1, 0, 0, each)
        for number, (still, ended, each) in enumerate(rows, 1)
    ]
    monkeypatch.setattr(Workers, "list", lambda _self: found)
    monkeypatch.setattr(Workers, "losses", lambda _self: [])
    config = configured(tmp_path, "postgresql://deliveryd@127.0.0.1/deliveryd")
    listed = terminal.command("workers", "--config", str(config))
    assert listed.status == 0, listed.err
    assert [line for line in listed.out.splitlines() if "differ" in line] == told


async def test_a_loss_is_shown_and_accepted_only_with_yes(url: str, tmp_path: Path) -> None:
    """Here the counter is put back, as a standby without the last commits has it."""
    config = configured(tmp_path, url)
    async with open_shared_journal(JournalDatabase(url)) as journal:
        await make_ready(journal, 1)
        nothing = run(config, "accept-loss", "--yes")
        assert (nothing.returncode, nothing.stdout) == (0, "no worker noticed a loss\n")
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("UPDATE main.worker SET commits = commits - 2")
        with pytest.raises(Exception, match="lost commits"):
            await journal.take([sample_message(2)], [], NOW)
    worker = run(config, "run", "--until-idle")
    assert worker.returncode == 1
    assert "run deliveryd accept-loss" in worker.stderr
    assert "run deliveryd accept-loss" in run(config, "workers").stdout
    shown = run(config, "accept-loss")
    assert shown.returncode == 1
    assert "2 of its" in shown.stdout
    assert "give --yes" in shown.stderr
    accepted = run(config, "accept-loss", "--yes", "--json")
    assert accepted.returncode == 0, accepted.stderr
    assert json.loads(accepted.stdout)["accepted"] is True
    async with open_shared_journal(JournalDatabase(url)):
        pass


def test_a_journal_in_a_file_has_one_worker_and_the_commands_say_so(tmp_path: Path) -> None:
    config = configured(tmp_path, f"sqlite:///{tmp_path}/journal.db")
    for words in (("workers",), ("workers", "list"), ("workers", "fence", "a"), ("accept-loss",)):
        refused = run(config, *words)
        assert refused.returncode == 2
        assert "which one worker uses: deliveryd status shows it" in refused.stderr
