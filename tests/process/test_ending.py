"""Ctrl-C at a terminal: what is said about what is under way, and what a second one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.sandbox.faults import Hang
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447000000001"}])
        world.state.settings[1] = sms_settings()
        yield world


def said(master: int, words: str) -> str:
    """All that the terminal shows until these words."""
    seen = ""
    while words not in seen:
        seen += os.read(master, 65536).decode()
    return seen


def test_ctrl_c_says_what_is_under_way_for_how_long_and_that_a_second_one_ends_at_once(world: World) -> None:
    """One message is with its provider, who doesn't answer; the second Ctrl-C doesn't wait for it."""
    world.add('[run]\ndrain_timeout = "45s"\n')
    world.state.fail_until_healed("provider.sms", Hang())
    world.state.enqueue(message(1))
    master, slave = os.openpty()
    command = [sys.executable, "-m", "deliveryd", "run", "--config", str(world.config)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, env={**os.environ, "TERM": "dumb"}
    ) as worker:
        os.close(slave)
        world.state.wait_for(lambda state: state.requests["provider.sms"], PATIENCE)
        worker.send_signal(signal.SIGINT)
        seen = said(master, "unfinished work.")
        worker.send_signal(signal.SIGINT)
        assert worker.wait(PATIENCE) == 1
        os.close(master)
    assert "stopping; no more messages are taken. 1 message is being sent" in seen
    assert "This takes 45s at most." in seen
    assert "press Ctrl-C again to exit at once" in seen
    assert "\x1b" not in seen


def test_ctrl_c_in_another_command_says_that_it_was_interrupted(world: World) -> None:
    """One line, status 1, no traceback."""
    world.state.fail_until_healed("customers", Hang())
    command = [sys.executable, "-m", "deliveryd", "customers", "all", "7", "--config", str(world.config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        world.state.wait_for(lambda state: state.requests["customers"], PATIENCE)
        asking.send_signal(signal.SIGINT)
        out, told = asking.communicate(timeout=PATIENCE)
    assert (asking.returncode, out) == (1, "")
    assert told == "deliveryd: interrupted: nothing was read\n"


INTERRUPTED = """
import atexit, os, signal, sys
from deliveryd.__main__ import main

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(name, *_):
        if name == where:
            interrupt()

where, *sys.argv[1:] = sys.argv[1:]
sys.meta_path.insert(0, Finder)
if where == "end":
    atexit.register(interrupt)
main()
"""


@pytest.mark.parametrize(
    ("where", "words", "status", "text"),
    [
        ("deliveryd.commands.app", ["find"], 1, "deliveryd: interrupted\n"),
        ("deliveryd.commands.messages.find", ["find"], 1, "deliveryd: interrupted\n"),
        ("end", ["--version"], 0, ""),
        ("end", ["channels", "list"], 0, ""),
        ("end", ["config", "show", "--config", "absent"], 78, "absent: can't be read"),
    ],
)
def test_ctrl_c_while_a_command_loads_or_ends_shows_no_traceback(
    where: str, words: list[str], status: int, text: str
) -> None:
    """It comes in the middle of an import, or when all is done: the status is that of the command then."""
    program = [sys.executable, "-c", INTERRUPTED, where, *words]
    ended = subprocess.run(program, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ended.returncode == status
    assert ended.stderr.startswith(text)
    assert "Traceback" not in ended.stderr
    assert "ignored" not in ended.stderr


def test_without_a_terminal_the_log_says_what_is_under_way(world: World) -> None:
    """The same facts as fields; standard error holds nothing that is no JSON."""
    world.add('[run]\ndrain_timeout = "300ms"\n')
    world.state.fail("provider.sms", Hang())
    world.state.enqueue(message(1))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["provider.sms"], PATIENCE)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(PATIENCE) == 0
    (line,) = (line for line in world.log().splitlines() if '"worker.draining"' in line)
    assert '"signal": "SIGINT", "in_flight": 1, "seconds": ' in line
    assert all(line.startswith("{") for line in world.log().splitlines())
