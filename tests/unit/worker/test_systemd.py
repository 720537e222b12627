"""What systemd hears, on real datagram sockets."""

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.worker.systemd import Notifier
from support.patience import PATIENCE


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A listening stand-in for systemd, and the address it would put into the environment."""
    by_path = request.param == "path"
    name = str(tmp_path / "notify") if by_path else f"@deliveryd-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name if by_path else f"\0{name[1:]}")
        listener.settimeout(PATIENCE)
        yield listener, name


def test_a_service_tells_its_whole_life(manager: tuple[socket.socket, str]) -> None:
    """Each call is one datagram of its own, in order, on both kinds of address."""
    listener, name = manager
    notifier = Notifier.from_environment({"NOTIFY_SOCKET": name})

    notifier.ready()
    notifier.status("waiting for work")
    notifier.watchdog()
    notifier.stopping(70.5)

    heard = [listener.recv(1000) for _ in range(4)]
    assert heard == [
        b"READY=1", b"STATUS=waiting for work", b"WATCHDOG=1",
        b"STOPPING=1\nEXTEND_TIMEOUT_USEC=70500000",
    ]  # fmt: skip


def test_a_sentence_cannot_smuggle_in_a_second_assignment(manager: tuple[socket.socket, str]) -> None:
    """Line breaks inside a status become spaces, so that nothing after them is taken for a command."""
    listener, name = manager

    Notifier.from_environment({"NOTIFY_SOCKET": name}).status("one\nSTOPPING=1\r\n\ttwo")

    assert listener.recv(1000) == b"STATUS=one STOPPING=1 two"


@pytest.mark.parametrize(
    "environ",
    [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}, {"NOTIFY_SOCKET": "/nowhere/at/all"}],
    ids=["outside systemd", "empty", "another kind of socket", "nobody there"],
)
def test_without_a_listener_nothing_happens(environ: dict[str, str]) -> None:
    """Outside systemd, or when systemd is gone, telling is silent and never raises."""
    notifier = Notifier.from_environment(environ)

    notifier.ready()
    notifier.status("hello \ud800")
    notifier.watchdog()
    notifier.stopping(30.0)


def test_a_full_queue_does_not_block(tmp_path: Path) -> None:
    """A manager that no longer reads costs the beat, never the worker's time."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        notifier = Notifier.from_environment({"NOTIFY_SOCKET": address})
        for _ in range(5000):
            notifier.watchdog()
        assert listener.recv(1000) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
    ids=["for anyone", "for us", "for another process", "off", "unreadable", "unset"],
)
def test_the_beat_is_half_of_systemds_patience(environ: dict[str, str], interval: float | None) -> None:
    """The interval is in seconds, and there is none unless the watchdog watches this very process."""
    assert Notifier.from_environment(environ).watchdog_interval == interval
