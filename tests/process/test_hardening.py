"""What a process has in its memory stays out of files: core dumps, and the key log of TLS."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.patience import PATIENCE
from support.systemd_units import UNITS, unit_settings
from support.world import PROGRAM, World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


IS_DUMPABLE = """
import ctypes, sys
from deliveryd.commands.app import run_program
sys.argv = ["deliveryd", "--version"]
try:
    run_program()
except SystemExit:
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


def test_no_process_of_ours_can_be_dumped_whatever_the_limits_are() -> None:
    """A core would hold the token and the variables of messages, and a handler heeds no limit."""
    told = subprocess.run([sys.executable, "-c", IS_DUMPABLE], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "0"


def test_a_worker_that_crashes_leaves_no_core(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever limit it was started with."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    monkeypatch.chdir(world.folder)  # where the kernel would leave it
    worker = world.start(program=PROGRAM)  # a child: it inherits the limit, and its status is read
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    assert resource.prlimit(worker.pid, resource.RLIMIT_CORE) == (0, 0)
    worker.send_signal(signal.SIGABRT)
    _, status = os.waitpid(worker.pid, 0)
    worker.returncode = -os.WTERMSIG(status)
    assert os.WTERMSIG(status) == signal.SIGABRT
    assert not os.WCOREDUMP(status)
    assert list(world.folder.glob("core*")) == []


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_allows_no_core(name: str) -> None:
    assert unit_settings(name)["LimitCORE"] == ["0"]


def test_the_keys_of_tls_are_logged_nowhere(world: World) -> None:
    """`SSLKEYLOGFILE` in the environment would have each connection's keys written to a file."""
    world.change(world.sandbox.base_url, world.sandbox.base_url.replace("http:", "https:"))
    key_log = world.folder / "keys.log"
    checked = world.command("check", "--config", str(world.config), SSLKEYLOGFILE=str(key_log))
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "service.base_url" in checked.stdout
    assert not key_log.exists()
