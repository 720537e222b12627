"""`deliveryd status`, `top` and `tail` on terminals and through pipes, beside a worker that runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deliveryd.sandbox.faults import FaultAnswer
from deliveryd.sandbox.state import SandboxState
from support.messages import message
from support.patience import PATIENCE
from support.ports import free_port
from support.pty_screen import on_terminal
from support.world import World, open_world

SETTINGS = {
    "content": {"en": {"sms": {"text": "dear {name}"}, "email": {"subject": "s", "body": "b {name}"}}}
}
CHANNELS = """
[channels.sms.providers.north]
adapter = "http"
url = "BASE_URL/sms"
json = { to = "+4915112345678", text = "{content.text}", reference = "{message.id}" }
[channels.sms.providers.south]
adapter = "http"
url = "http://127.0.0.1:9/sms"
json = { to = "+4915112345678", text = "{content.text}", reference = "{message.id}" }
breaker = { failures = 1 }
[channels.email]
adapter = "http"
url = "BASE_URL/email"
json = { text = "{content.body}" }
"""
ESCAPE = "\x1b"


class Busy:
    """A worker that runs, with two providers of sms, of which one is down."""

    def __init__(self, world: World, url: str) -> None:
        self.world = world
        self.url = url
        self.config = str(world.config)

    def enqueue(self, *ids: int) -> None:
        """Have messages taken and sent."""
        self.world.state.enqueue(*({**message(id_), "variables": {"name": "Ann"}} for id_ in ids))
        for id_ in ids:
            self.world.state.wait_for(partial(_has_sent, id_), 20)

    def by(self, way: str) -> list[str]:
        """The options that name the worker."""
        return ["--config", self.config] if way == "socket" else ["--url", self.url]


def _has_sent(id_: int, state: SandboxState) -> bool:
    return "sent" in state.statuses(id_)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    """A worker, ready, with some messages sent."""
    for world in open_world(tmp_path_factory.mktemp("busy")):
        port = free_port()
        text = world.config.read_text(encoding="utf-8").partition("[channels.sms]")[0]
        world.write_config(text.replace('[admin]\nlisten = ""', f'[admin]\nlisten = "127.0.0.1:{port}"'))
        world.add(CHANNELS)
        world.state.settings[1] = SETTINGS
        world.start(log="info")
        found = Busy(world, f"http://127.0.0.1:{port}")
        try:
            found.enqueue(*range(1, 41))
            yield found
        finally:
            world.close()


pytestmark = pytest.mark.slow

# status


@pytest.mark.parametrize("way", ["socket", "url"])
def test_status_is_one_screen(busy: Busy, way: str) -> None:
    """Through a pipe: no escape codes; the worker takes messages, so that the exit status is 0."""
    done = busy.world.command("status", *busy.by(way))
    assert done.returncode == 0, done.stderr
    assert ESCAPE not in done.stdout
    assert "taking messages" in done.stdout
    assert re.search(r"^sms/north +up +0", done.stdout, re.MULTILINE)
    assert len(done.stdout.splitlines()) < 45
    assert "Ann" not in done.stdout


def test_status_as_json_is_that_of_the_page(busy: Busy) -> None:
    """With all that the overview has."""
    data = json.loads(busy.world.command("status", "--json", *busy.by("socket")).stdout)
    assert data["ready"] is True
    assert {each["identity"] for each in data["providers"]} == {"sms/north", "sms/south", "email"}
    assert data["rates_10s"].keys() == {"taken", "sent", "delivered", "failed"}


def test_status_in_colours_at_40_columns(busy: Busy) -> None:
    """No line is broken, and what matters stays."""
    with on_terminal("status", *busy.by("socket"), columns=40, lines=60) as screen:
        assert screen.wait_for_end() == 0
        shown = screen.text()
    assert ESCAPE.encode() in screen.raw
    assert "taken" in shown
    assert re.search(r"^sms/north +up +\d+ ", shown, re.MULTILINE)


def test_no_color_means_no_colours(busy: Busy) -> None:
    """Bold text may stay, as https://no-color.org says."""
    with on_terminal("status", *busy.by("socket"), NO_COLOR="1") as screen:
        assert screen.wait_for_end() == 0
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]", screen.raw)


def test_without_a_worker_the_error_says_so(tmp_path: Path) -> None:
    """Each command names the place where nobody listens, and exits with 1."""
    for world in open_world(tmp_path):
        for name in ("status", "top", "tail"):
            done = world.command(name, "--config", str(world.config))
            assert (done.returncode, done.stdout) == (1, "")
            assert "no worker is running" in done.stderr
            done = world.command(name, "--url", f"http://127.0.0.1:{free_port()}")
            assert done.returncode == 1
            assert done.stderr.startswith("deliveryd: no answer from http://127.0.0.1:")


def test_another_server_is_no_worker(busy: Busy) -> None:
    """The sandbox answers, but not as a worker does."""
    for name in ("status", "tail"):
        done = busy.world.command(name, "--url", busy.world.sandbox.base_url)
        assert done.returncode == 1
        assert "isn't a worker's admin server" in done.stderr


def test_a_worker_that_is_not_ready_is_shown_with_status_1(tmp_path: Path) -> None:
    """The queue fails: the state is shown with its reason, and the exit status is 1."""
    for world in open_world(tmp_path):
        world.state.fail_until_healed("queue", FaultAnswer(500))
        world.start(log="warning")
        world_status = ["status", "--config", str(world.config)]
        deadline = time.monotonic() + PATIENCE
        done = world.command(*world_status)
        while "queue gives no usable answer" not in done.stdout and time.monotonic() < deadline:
            done = world.command(*world_status)
        assert done.returncode == 1
        assert done.stdout.startswith("NOT READY")


# top


def test_top_has_a_view_for_each_key(busy: Busy) -> None:
    """Channels, a channel opened for its providers, all providers, warnings, help, and q."""
    with on_terminal("top", *busy.by("socket"), "--interval", "300ms") as screen:
        shown = screen.wait_for("channels, by name", "email", "1 of 2 up")
        assert "sms/north" not in shown
        screen.press("\x1b[B\r")
        screen.wait_for("providers of sms, by name", "sms/north", "sms/south", "down")
        screen.press("s")
        screen.wait_for("providers of sms, by waiting")
        screen.press("p")
        screen.wait_for("providers, by waiting", "email", "sms/south")
        screen.press("w")
        screen.wait_for("last warnings", "channel.unavailable")
        screen.press("a")
        screen.wait_for("needs attention", "sms/south: Down for")
        screen.press("?")
        screen.wait_for("keys", "what is paused")
        screen.press("\x1b")
        screen.wait_for("channels, by waiting")
        screen.press("q")
        assert screen.wait_for_end() == 0
        assert screen.is_restored


def test_top_is_live(busy: Busy) -> None:
    """A message that is sent meanwhile shows in the rates."""
    with on_terminal("top", *busy.by("url"), "--interval", "300ms") as screen:
        screen.wait_for("channels, by name")
        busy.enqueue(*range(100, 130))
        screen.wait_until(lambda shown: re.search(r"^sent +[1-9]", shown, re.MULTILINE) is not None, "a rate")
        screen.press("q")
        assert screen.wait_for_end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_top_restores_the_terminal_when_it_is_ended(busy: Busy, number: int) -> None:
    """The screen, the cursor and the settings are as they were, and the status is 0."""
    with on_terminal("top", *busy.by("socket")) as screen:
        screen.wait_for("channels, by name")
        assert screen.after != screen.before
        screen.process.send_signal(number)
        assert screen.wait_for_end() == 0
        assert screen.is_restored


def test_top_ends_with_ctrl_c(busy: Busy) -> None:
    """As a key, which the terminal turns into a signal."""
    with on_terminal("top", *busy.by("socket")) as screen:
        screen.wait_for("channels, by name")
        screen.press("\x03")
        assert screen.wait_for_end() == 0
        assert screen.is_restored


def test_top_restores_the_terminal_after_an_exception(busy: Busy) -> None:
    """Also when drawing fails: then the error is shown on the screen that was there before."""
    program = (
        "import sys\nfrom deliveryd.commands.watch import top\n"
        "def fail(*_): raise RuntimeError('broken')\n"
        "top.draw = fail\nfrom deliveryd.commands.app import run_program\nrun_program()\n"
    )
    with on_terminal("top", *busy.by("socket"), code=program) as screen:
        assert screen.wait_for_end() == 1
        assert screen.is_restored
        assert "unexpected error: RuntimeError" in screen.text()


def test_top_survives_a_suspension(busy: Busy) -> None:
    """Ctrl-Z gives the terminal back; fg draws again."""
    with on_terminal("top", *busy.by("socket"), "--interval", "300ms") as screen:
        screen.wait_for("channels, by name")
        screen.process.send_signal(signal.SIGTSTP)
        os.waitpid(screen.process.pid, os.WUNTRACED)
        screen.drain()
        assert screen.is_restored
        screen.process.send_signal(signal.SIGCONT)
        screen.wait_until(lambda _shown: screen.raw.count(b"\x1b[?1049h") == 2, "a screen of its own again")
        screen.press("q")
        assert screen.wait_for_end() == 0


def test_top_follows_the_size_of_the_terminal(busy: Busy) -> None:
    """From 110 to 40 columns and 12 lines: less important columns give way, and no line is broken."""
    with on_terminal("top", *busy.by("socket"), columns=110, lines=30) as screen:
        assert "under way" in screen.wait_for("channels, by name", "last failure")
        screen.resize(40, 12)
        shown = screen.wait_until(lambda shown: "c p a x w views" in shown, "the foot of a narrow screen")
        assert len(shown.splitlines()) == 12
        assert re.search(r"^sms +1 of 2 up +\d", shown, re.MULTILINE)
        screen.resize(20, 4)
        screen.wait_until(lambda shown: len(shown.splitlines()) <= 4, "four lines")
        screen.press("q")
        assert screen.wait_for_end() == 0


def test_top_through_a_pipe_is_a_block_for_each_picture(busy: Busy) -> None:
    """No escape codes, a blank line between two blocks; `| head` ends it quietly."""
    done = busy.world.command("top", *busy.by("socket"), "--count", "2", "--interval", "200ms")
    assert done.returncode == 0
    assert ESCAPE not in done.stdout
    assert done.stdout.count("  deliveryd ") == 2
    with subprocess.Popen(
        [sys.executable, "-m", "deliveryd", "top", *busy.by("socket"), "--interval", "200ms"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as piped:  # fmt: skip
        assert piped.stdout is not None
        assert piped.stderr is not None
        assert piped.stdout.readline()
        piped.stdout.close()
        assert piped.stderr.read() == b""
    assert piped.returncode == 0


def test_top_shows_that_the_worker_is_gone(tmp_path: Path) -> None:
    """It keeps the last picture, says for how long there was no answer, and goes on when it is back."""
    for world in open_world(tmp_path):
        worker = world.start(log="info")
        world.state.enqueue(message(1))
        world.state.wait_for(lambda state: state.statuses(1), 20)
        with on_terminal("top", "--config", str(world.config), "--interval", "200ms") as screen:
            screen.wait_for("channels, by name")
            worker.kill()
            worker.wait()
            screen.wait_for("no answer for", "no worker is running", "channels, by name")
            world.start(log="info")
            screen.wait_until(lambda shown: "no answer" not in shown and "sms" in shown, "the worker again")
            screen.press("q")
            assert screen.wait_for_end() == 0


# tail


class Follower:
    """`deliveryd tail` through a pipe, while one message after the other is sent."""

    def __init__(self, busy: Busy, first: int, *arguments: str) -> None:
        self._busy = busy
        self._first = first
        self._stop = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deliveryd", "tail", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._enqueue)
        self._thread.start()

    def _enqueue(self) -> None:
        for id_ in range(self._first, self._first + 100):
            if self._stop.is_set():
                return
            self._busy.enqueue(id_)

    def lines(self, last: str) -> list[str]:
        """The lines up to one that contains this."""
        assert self.process.stdout is not None
        found: list[str] = []
        while not found or last not in found[-1]:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read() if self.process.stderr else ""
            found.append(line.rstrip("\n"))
        return found

    def end(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit status and what was said."""
        self._stop.set()
        self._thread.join()
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


@pytest.mark.parametrize("way", ["socket", "url"])
def test_tail_shows_events_as_they_happen(busy: Busy, way: str) -> None:
    """Aligned lines without escape codes, and JSON Lines; Ctrl-C ends it with status 0."""
    first = 1000 if way == "socket" else 1200
    plain = Follower(busy, first, *busy.by(way))
    lines = [*plain.lines("sent           sms/north"), *plain.lines("reported                         sent")]
    assert plain.end() == (0, "")
    assert any(
        re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}      1\d{3}  sent           sms/north", line) for line in lines
    )
    assert not any(ESCAPE in line or "Ann" in line for line in lines)
    data = Follower(busy, first + 100, "--json", *busy.by(way))
    events = [json.loads(line) for line in data.lines('"event": "sent"')]
    assert data.end() == (0, "")
    (first_sent, *_) = [each for each in events if each["event"] == "sent"]
    assert first_sent.keys() == {"at", "message", "event", "channel", "provider", "settings"}


def test_tail_shows_what_was_asked_for(busy: Busy) -> None:
    """One message, one channel; a channel that doesn't exist is an error with a suggestion."""
    with on_terminal("tail", "--message", "1410", *busy.by("socket"), columns=100) as screen:
        screen.wait_for("Ctrl-C")
        busy.enqueue(1409, 1410, 1411)
        shown = screen.wait_for("1410  reported                         sent")
        assert not re.search("1409|1411", shown)
    wrong = busy.world.command("tail", "--channel", "smss", *busy.by("socket"))
    assert wrong.returncode == 2
    assert "there is no channel 'smss'" in wrong.stderr


def test_tail_on_a_narrow_terminal_cuts_lines_off(busy: Busy) -> None:
    """At 40 columns each event stays one line; failures have a colour."""
    with on_terminal("tail", *busy.by("socket"), columns=40, lines=40) as screen:
        screen.wait_for("Ctrl-C")
        busy.enqueue(1600, 1601)
        shown = screen.wait_for("1601  sent", "reported")
        whole = shown.splitlines()[:-1]  # the last one may still be written
        assert [line for line in whole if line and not re.match(r"\d\d:|deliveryd:", line)] == []
        screen.press("\x03")
        assert screen.wait_for_end() == 0


def test_tail_ends_with_its_worker(tmp_path: Path) -> None:
    """It says so, with exit status 1."""
    for world in open_world(tmp_path):
        worker = world.start(log="info")
        world.state.enqueue(message(1))
        world.state.wait_for(lambda state: state.statuses(1), 20)
        with on_terminal("tail", "--config", str(world.config)) as screen:
            screen.wait_for("Ctrl-C")
            worker.kill()
            worker.wait()
            assert screen.wait_for_end() == 1
            assert "the worker has ended" in screen.text()
