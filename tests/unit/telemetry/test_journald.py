"""Lines with fields in systemd's journal, received by a socket that stands in for journald's."""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from deliveryd.telemetry import log_writing
from deliveryd.telemetry.log_events import Event, log
from deliveryd.telemetry.log_writing import JournalSocket
from support.patience import PATIENCE

KEPT = (Path("/var/log/journal"), Path("/run/log/journal"))
JOURNALD = Path("/lib/systemd/systemd-journald")


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    """Each test ends with a log that nobody has configured."""
    handlers, level = logging.getLogger().handlers[:], logging.getLogger("deliveryd").level
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger("deliveryd").setLevel(level)
    structlog.reset_defaults()


class Journal:
    """A socket such as journald's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(PATIENCE)
        self._socket.bind(str(path))

    def raw(self) -> bytes:
        """The next line's datagram, or the file that came instead of it."""
        data, files, _flags, _address = socket.recv_fds(self._socket, 1 << 22, 1)
        if not files:
            return data
        with open(files[0], "rb") as file:  # noqa: PTH123  # a descriptor
            file.seek(0)
            return file.read()

    def line(self) -> dict[str, str]:
        """The next line's fields."""
        return parsed(self.raw())

    def close(self) -> None:
        """Be gone, as during a restart."""
        self._socket.close()
        self.path.unlink()


def parsed(data: bytes) -> dict[str, str]:
    """Read the native protocol: `NAME=value`, or a name and then a length and the value."""
    fields: dict[str, str] = {}
    while data:
        head, _, data = data.partition(b"\n")
        name, is_plain, value = head.partition(b"=")
        if not is_plain:
            length = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + length], data[9 + length :]
        fields[name.decode()] = value.decode()
    return fields


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A socket that lines are sent to."""
    found = Journal(tmp_path / "socket")
    yield found
    if found.path.exists():
        found.close()


@contextmanager
def logging_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Log as under systemd; give the descriptor at which lines arrive that the journal didn't take."""
    reading, writing = os.pipe()
    status = os.fstat(writing)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    with open(writing, "w") as stream:  # noqa: PTH123  # a descriptor
        log_writing.configure("debug", "auto", stream, path)
        yield reading
    os.close(reading)


def test_a_line_has_its_fields(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """`journalctl DELIVERYD_MESSAGE=1001` finds all lines of a message."""
    with logging_to(journal.path, monkeypatch):
        log(Event.MESSAGE_IN_DOUBT, message_id=1001, channel="sms", provider="sms/b", reason="no answer")
        assert journal.line() == {
            "MESSAGE": 'message.in_doubt message_id=1001 channel=sms provider=sms/b reason="no answer"',
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "deliveryd",
            "DELIVERYD_EVENT": "message.in_doubt",
            "DELIVERYD_MESSAGE": "1001",
            "DELIVERYD_CHANNEL": "sms",
            "DELIVERYD_PROVIDER": "sms/b",
            "DELIVERYD_REASON": "no answer",
        }
        log(Event.SETTINGS_UNUSABLE, settings_id=6)
        assert journal.line()["DELIVERYD_SETTINGS"] == "6"


def test_a_trace_is_a_field_of_several_lines(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value with line breaks goes with its length; it can't forge a field."""
    with logging_to(journal.path, monkeypatch):
        log(Event.WORKER_DIED, error=RuntimeError("PRIORITY=0"))
        line = journal.line()
    assert line["DELIVERYD_EXCEPTION"].startswith("RuntimeError")
    assert line["PRIORITY"] == "3"
    assert JournalSocket(journal.path).send({"MESSAGE": "one\nPRIORITY=0"})
    assert journal.line() == {"MESSAGE": "one\nPRIORITY=0"}


def test_a_line_larger_than_a_datagram_goes_as_a_sealed_file(journal: Journal) -> None:
    """A file in memory carries it, and nobody can change it any more."""
    sender = JournalSocket(journal.path)
    large = "x" * (20 << 20)
    assert sender.send({"MESSAGE": large, "PRIORITY": "6"})
    data, files, _flags, _address = socket.recv_fds(journal._socket, 16, 1)
    assert data == b""
    with open(files[0], "r+b") as file:  # noqa: PTH123  # a descriptor
        file.seek(0)
        assert parsed(file.read()) == {"MESSAGE": large, "PRIORITY": "6"}
        with pytest.raises(OSError, match="not permitted"):
            os.pwrite(file.fileno(), b"y", 0)


def test_lines_survive_a_restart_of_the_journal(
    journal: Journal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """While it is gone, lines go to the stream with their priority; afterwards they have fields again."""
    with logging_to(journal.path, monkeypatch) as stream:
        journal.close()
        log(Event.QUEUE_TAKEN, count=7)
        assert os.read(stream, 1000) == b"<6>queue.taken count=7\n"
        again = Journal(tmp_path / "socket")
        log(Event.QUEUE_TAKEN, count=8)
        assert again.line()["DELIVERYD_COUNT"] == "8"
        again.close()


def test_a_journal_that_reads_nothing_holds_nothing_up(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When its socket is full, lines go to the stream."""
    with logging_to(journal.path, monkeypatch) as stream:
        for number in range(2000):
            log(Event.QUEUE_TAKEN, count=number)
            if number % 100 == 0 and select_readable(stream):
                break
        assert re.fullmatch(r"(<6>queue\.taken count=\d+\n)+", os.read(stream, 1 << 20).decode())


def select_readable(descriptor: int) -> bool:
    """Whether something can be read now."""
    return bool(select.select([descriptor], [], [], 0)[0])


@pytest.mark.slow
@pytest.mark.skipif(not JOURNALD.exists() or os.geteuid() != 0, reason="needs root and systemd-journald")
def test_journalctl_finds_a_message_by_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """With systemd's own journald and journalctl; a line of 10 MB is among the lines."""
    name = f"deliveryd-test-{os.getpid()}"
    folder = Path(f"/run/systemd/journal.{name}")
    with subprocess.Popen([JOURNALD, name], stderr=subprocess.DEVNULL) as daemon:
        try:
            with logging_to(folder / "socket", monkeypatch):
                wait_for_socket(folder / "socket")
                log(Event.MESSAGE_SENT, message_id=1001, channel="sms", provider="sms/b")
                log(Event.MESSAGE_SENT, message_id=1002, channel="sms", provider="sms")
            large = {"MESSAGE": "x" * (10 << 20), "DELIVERYD_MESSAGE": "7"}
            assert JournalSocket(folder / "socket").send(large)
            found = journalctl(name, "DELIVERYD_MESSAGE=1001")
            assert len(journalctl(name, "DELIVERYD_MESSAGE=7")) == (10 << 20) + 1
        finally:
            daemon.terminate()
            daemon.wait()
            for place in (folder, *(each for kept in KEPT for each in kept.glob(f"*.{name}"))):
                shutil.rmtree(place)
    assert found == "message.sent message_id=1001 channel=sms provider=sms/b\n"


def journalctl(namespace: str, match: str) -> str:
    """The lines that match, all those sent before among them."""
    command = ("journalctl", f"--namespace={namespace}", "--output=cat")
    subprocess.run([*command, "--sync"], check=True)
    return subprocess.run([*command, match], capture_output=True, text=True, check=True).stdout


def wait_for_socket(path: Path) -> None:
    """Wait until somebody receives at the socket."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and probe.connect_ex(str(path)) != 0:
        os.sched_yield()
    probe.close()
