"""Kannel itself, from Debian's packages: its preset sends and reads receipts without a line of code."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import pytest

from support.configurations import FILES
from support.patience import PATIENCE
from support.world import World, open_world

FAKESMSC = Path("/usr/lib/kannel/test/fakesmsc")
COUNT = 200

KANNEL = """\
group = core
admin-port = {admin}
admin-password = secret
admin-allow-ip = 127.0.0.1
smsbox-port = {boxes}
box-allow-ip = 127.0.0.1
dlr-storage = internal

group = smsc
smsc = fake
smsc-id = fake
port = {smsc}
connect-allow-ip = 127.0.0.1

group = smsbox
bearerbox-host = 127.0.0.1
sendsms-port = {sendsms}

group = sendsms-user
username = tester
password = hunter2
max-messages = 5
concatenation = true
"""

CONFIG = """\
[service]
base_url = "{base_url}"

[queue]
poll_interval = "50ms"
max_poll_interval = "200ms"

[events]
flush_interval = "20ms"

{files}
[content]
languages = ["en"]

[admin]
listen = ""

[receipts]
listen = "127.0.0.1:{receipts}"
public_url = "http://127.0.0.1:{receipts}"

[channels]
order = ["sms"]

[channels.sms]
adapter = "kannel"
base_url = "http://127.0.0.1:{sendsms}"
username = "tester"
from = "Acme"
secrets = {{ password = "password", receipt_token = "receipt-token" }}
"""

TEXTS = {
    0: "Your code is {code}, dear customer",  # GSM-7
    1: "Größe {code} für José, à Münster",  # Latin-1: Kannel's centre gets it so, though GSM-7 has it
    2: "Ваш код {code}",  # UCS-2, whose bytes are ASCII
    3: "您的验证码 {code} 😀",  # UCS-2, whose bytes are no UTF-8
}

CODINGS = ("text", "text", "ucs-2", "ucs-2")
"""How the centre gets each."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("bearerbox") is None or not FAKESMSC.exists(),
        reason="needs Debian's kannel and kannel-extras (apt-get install kannel kannel-extras)",
    ),
]


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def process(log: Path, ready: str, *command: str | Path) -> Iterator[None]:
    """A process of Kannel's, from when it logs that it is ready."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as running:
        try:
            with log.open(encoding="utf-8", errors="replace") as lines:
                while ready not in lines.readline():
                    assert running.poll() is None, log.read_text(errors="replace")
            yield
        finally:
            running.kill()


@contextmanager
def kannel(folder: Path) -> Iterator[int]:
    """Bearerbox, smsbox and fakesmsc; the port of smsbox for senders of messages."""
    admin, boxes, smsc, sendsms = free_ports(4)
    configuration = folder / "kannel.conf"
    configuration.write_text(KANNEL.format(admin=admin, boxes=boxes, smsc=smsc, sendsms=sendsms))
    fakesmsc = (FAKESMSC, "-i", "100000", "-H", "127.0.0.1", "-r", str(smsc), "1 2 text hello")
    with (
        process(folder / "bearerbox.log", "Start-up done", "bearerbox", "-v", "1", configuration),
        process(folder / "smsbox.log", "Connected to bearerbox", "smsbox", "-v", "1", configuration),
        process(folder / "fakesmsc.log", "sent message 1", *fakesmsc),
    ):
        yield sendsms


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A service with two templates, and a worker's configuration that names Kannel by its preset."""
    for world in open_world(tmp_path):
        for name, secret in (("password", "hunter2"), ("receipt-token", "tok3n-of-the-reports")):
            (tmp_path / name).write_text(secret)
            (tmp_path / name).chmod(0o600)
        for settings_id, text in TEXTS.items():
            world.state.settings[settings_id] = {
                "id": settings_id,
                "content": {"en": {"sms": {"text": text}}},
            }
        yield world


class Text(NamedTuple):
    """A message as the centre got it."""

    to: str
    coding: str
    text: str


def received(folder: Path) -> list[Text]:
    """What fakesmsc printed: sender, receiver, coding, text; the bytes of UCS-2 are escaped as in a query."""
    log = (folder / "fakesmsc.log").read_text(encoding="utf-8")
    found = [Text(*match) for match in re.findall(r"Got message \d+: <Acme (\S+) (\S+) (.*)>", log)]
    return [
        each
        if each.coding == "text"
        else each._replace(text=unquote_to_bytes(each.text.replace("+", "%20")).decode("utf-16-be"))
        for each in found
    ]


def test_kannel_sends_messages_in_all_codings_and_reports_all_of_them(world: World, tmp_path: Path) -> None:
    """Two hundred messages in GSM-7, Latin-1 and UCS-2: each arrives once, and each is told as delivered."""
    world.customers([{"id": number, "phone": f"+447700900{number:03}"} for number in range(1, COUNT + 1)])
    world.state.enqueue(
        *(
            {
                "id": number,
                "settingsId": number % len(TEXTS),
                "customerId": number,
                "variables": {"code": f"{number:04}"},
            }
            for number in range(1, COUNT + 1)
        )
    )
    with kannel(tmp_path) as sendsms:
        (receipts,) = free_ports(1)
        world.write_config(
            CONFIG.format(base_url=world.sandbox.base_url, files=FILES, receipts=receipts, sendsms=sendsms)
        )
        world.start()
        world.state.wait_for(
            lambda state: all(state.statuses(number)[-1:] == ["delivered"] for number in range(1, COUNT + 1)),
            PATIENCE,
        )
    assert all(world.state.statuses(n) == ["dequeued", "sent", "delivered"] for n in range(1, COUNT + 1))
    assert sorted(received(tmp_path)) == [
        Text(f"+447700900{n:03}", CODINGS[n % len(TEXTS)], TEXTS[n % len(TEXTS)].format(code=f"{n:04}"))
        for n in range(1, COUNT + 1)
    ]
