"""`deliveryd demo` and `deliveryd sandbox` as somebody starts them: without and with a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from deliveryd.sandbox.scenario import demo_scenario
from support import terminal
from support.patience import PATIENCE

pytestmark = pytest.mark.slow

EXHIBITS = demo_scenario().exhibits

REFUSED_EVENTS = {
    "Two values are missing: one error names both": "missing placeholders: order.id, day",
    "Expired: never sent": "expired at 2024-01-31T23:00:00.000000Z",
    "Expired in every language": "expired at 2024-01-31T23:00:00.000000Z",
    "The mailbox does not exist, and there is no other way": "email: 550 at RCPT TO",
    "Only an e-mail text, and no e-mail address": "email: no address of the customer",
    "No address at all for this customer": (
        "messenger: no address of the customer; sms: no address of the customer"
    ),
    "A device but no phone, and only a text for SMS": "sms: no address of the customer",
    "No name and no general greeting: an error": "missing placeholders: greeting",
    "A customer who isn't known": (
        "inApp: no address of the customer; messenger: no address of the customer;"
        " sms: no address of the customer; email: no address of the customer"
    ),
    "Settings that do not exist": "settings 599: the service answered 404",
}
"""The details of the error that a message ends with which is never sent, by what it shows."""

WORDS = {
    "A personal greeting by SMS": ("sms", "Hello Ann Whitfield, 120 points"),
    "No name known: the general greeting": ("sms", "Hello, 40 points"),
    "German, on the messenger": ("messenger", "Guten Tag Jonas Brandt, 310 Punkte"),
    "Portuguese, as a push message in the app": ("inApp", "Olá, Inês Carvalho! 75 pontos"),
    "Ukrainian, on the messenger": ("messenger", "Вітаємо, Олена Шевчук! 200 балів"),
    "pt-BR falls back to pt": ("sms", "Olá, Rafael Souza!"),
    "No French text: the first language configured": ("sms", "Hello Claire Martin,"),
    "Points by e-mail as plain text": ("email", "Guten Tag Felix Krüger, 500 Punkte"),
    "Image and button; a dotted name": ("messenger", "Ihre Bestellung L-20417"),
    "No messenger, so by SMS": ("sms", "your order L-20419"),
    "10.50 stays 10.50": ("sms", "10.50 GBP paid"),
    "No HTML here: & stays &": ("sms", "bei Rad & Tour"),
    "1e3 stays 1e3, as it was written": ("sms", "1e3 UAH"),
    "HTML: the value is escaped, the braces of the CSS stay": ("email", "Tom & Jerry <3"),
    "Messenger refuses for good: the SMS takes over": ("sms", "Guten Tag Lea Hofmann,"),
    "Messenger is busy twice: tried again": ("messenger", "Olá, Tiago Lopes!"),
    "The SMS gateway is busy twice: tried again": ("sms", "Hello Noor Haddad,"),
    "Braces in a value are text like any other": ("inApp", "33 points from {customer.name}"),
}
"""The channel that a message takes and words that it says, by what it shows."""


class Row(NamedTuple):
    """A row of the demo's table."""

    note: str
    channel: str
    text: str
    statuses: str


def rows_of(output: str) -> Mapping[int, Row]:
    """The rows by message id; a cell that goes over several lines is one text again."""
    rows: dict[int, list[str]] = {}
    current = 0
    for line in output.splitlines():
        if not line.startswith("│"):
            continue
        id_, *cells = (cell.strip() for cell in line.strip("│").split("│"))
        current = int(id_) if id_ else current
        before = rows.setdefault(current, [""] * 4)
        rows[current] = [f"{old} {new}".strip() for old, new in zip(before, cells, strict=True)]
    return {id_: Row(*cells) for id_, cells in rows.items()}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What a demo without a terminal printed, and the folder that it had for temporary files."""
    folder = tmp_path_factory.mktemp("temporary")
    done = subprocess.run(
        [sys.executable, "-m", "deliveryd", "demo"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, folder


def test_every_message_of_the_story_has_its_row_and_came_to_its_end(played: tuple[str, Path]) -> None:
    """One row for each, in the order of the queue, beside the sentence that says what it shows."""
    rows = rows_of(played[0])
    assert {id_: row.note for id_, row in rows.items()} == {each.id: each.note for each in EXHIBITS}
    for row in rows.values():
        last = row.statuses.split(":")[0].split(" → ")[-1]
        assert last == "error" if row.channel == "-" else last in ("sent", "delivered", "error")
        assert last != "sent" or row.channel == "email"


def test_the_sums_are_those_of_the_rows(played: tuple[str, Path]) -> None:
    """The last line counts what the table shows."""
    statuses = [row.statuses.split(":")[0].split(" → ") for row in rows_of(played[0]).values()]
    last = [path[-1] for path in statuses]
    found = re.search(
        r"(\d+) messages: (\d+) delivered, (\d+) sent, (\d+) error\. (\d+) events in (\d+) requests\.\s*\Z",
        played[0],
    )
    assert found is not None
    total, delivered, sent, failed, events, requests = map(int, found.groups())
    assert total == len(EXHIBITS)
    assert (delivered, sent, failed) == tuple(last.count(end) for end in ("delivered", "sent", "error"))
    assert events == sum(map(len, statuses))
    assert 1 < requests < events


@pytest.mark.parametrize("note", REFUSED_EVENTS)
def test_what_cannot_be_sent_ends_in_the_error_that_its_sentence_promises(
    played: tuple[str, Path], note: str
) -> None:
    """Nothing was sent, and the one error says why."""
    matching = [row for row in rows_of(played[0]).values() if row.note == note]
    assert matching == [Row(note, "-", "-", f"dequeued → error: {REFUSED_EVENTS[note]}")]


@pytest.mark.parametrize("note", WORDS)
def test_what_is_sent_says_what_its_sentence_promises(played: tuple[str, Path], note: str) -> None:
    """The channel is the one named, and the words are the customer's."""
    (row,) = [row for row in rows_of(played[0]).values() if row.note == note]
    channel, words = WORDS[note]
    assert row.channel == channel
    assert words in row.text


def test_the_element_that_is_no_message_and_the_receipt_of_a_failure_are_told(
    played: tuple[str, Path],
) -> None:
    """The two messages whose end isn't an ordinary one."""
    statuses = {row.note: row.statuses for row in rows_of(played[0]).values()}
    malformed = statuses["Not readable: set aside, the rest of its batch goes on"]
    assert malformed.startswith("dequeued → error: malformed message: settingsId:")
    failed = statuses["Sent, then reported as failed by the provider"]
    assert failed == "dequeued → sent → error: sms: the provider reported failed"


def test_nothing_is_left_behind(played: tuple[str, Path]) -> None:
    """No journal, no customer file, no secret."""
    assert list(played[1].iterdir()) == []


def test_a_reader_who_leaves_early_is_no_error() -> None:
    """`deliveryd demo | head -1` ends quietly."""
    with subprocess.Popen(
        [sys.executable, "-m", "deliveryd", "demo"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 0


# On a terminal


class Terminal:
    """A demo in a pseudo terminal; `seen` is all that it wrote so far."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.seen = ""
        self._master = master

    def read_until(self, words: str) -> None:
        while words not in self.seen:
            self.seen += os.read(self._master, 65536).decode("utf-8", "replace")

    def end(self) -> int:
        """Read to the end; the exit status."""
        with suppress(OSError):  # what a terminal answers when nobody writes to it any more
            while data := os.read(self._master, 65536):
                self.seen += data.decode("utf-8", "replace")
        return self.process.wait(PATIENCE)


@contextmanager
def demo_in_a_terminal(term: str = "xterm") -> Iterator[Terminal]:
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "deliveryd", "demo"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": term, "COLUMNS": "200", "LINES": "60"},
    )
    os.close(slave)
    try:
        yield Terminal(master, process)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_on_a_terminal_it_shows_its_progress_stays_up_with_its_inbox_and_ends_with_ctrl_c() -> None:
    """The inbox is served for as long as somebody looks at it; Ctrl-C is a good end."""
    with demo_in_a_terminal() as terminal:
        terminal.read_until("Ctrl-C ends the demo")
        assert f"of {len(EXHIBITS)} messages at their end" in terminal.seen
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.seen)
        found = re.search(r"The inbox is at (http://127\.0\.0\.1:\d+/)", plain)
        assert found is not None
        page = httpx.get(found[1], trust_env=False, timeout=PATIENCE)
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
        assert terminal.process.poll() is None
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert "Traceback" not in terminal.seen
        assert "deliveryd: stopping; no more messages are taken. " in terminal.seen
        assert "This takes 20s at most." in terminal.seen
        assert "press Ctrl-C again to exit at once" in terminal.seen


def test_a_dumb_terminal_gets_plain_text() -> None:
    """No colours, no cursor that moves."""
    with demo_in_a_terminal("dumb") as terminal:
        terminal.read_until("Ctrl-C ends the demo")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert "\x1b" not in terminal.seen


def test_ctrl_c_in_the_middle_ends_the_demo_soon() -> None:
    """Status 1, since the story wasn't told to its end, unless it just was."""
    with demo_in_a_terminal() as terminal:
        terminal.read_until("messages at their end")
        terminal.process.send_signal(signal.SIGINT)
        status = terminal.end()
        assert status == (0 if "The inbox is at" in terminal.seen else 1)
        assert "Traceback" not in terminal.seen


# The sandbox alone


@pytest.mark.parametrize(
    ("options", "number", "offered"),
    [((), signal.SIGTERM, len(EXHIBITS)), (("--empty",), signal.SIGINT, 0)],
    ids=["with the story", "empty"],
)
def test_the_sandbox_says_where_it_listens_and_serves_until_it_is_stopped(
    options: tuple[str, ...], number: int, offered: int
) -> None:
    """Free ports, told; the queue holds the story or nothing; either signal is a good end."""
    command = [sys.executable, "-m", "deliveryd", "sandbox", "--port", "0", "--smtp-port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            told = dict(process.stdout.readline().split(maxsplit=1) for _ in range(4))
            assert list(told) == ["service", "providers", "mail", "inbox"]
            with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
                assert client.get(told["inbox"].strip()).status_code == 200
                queue = client.get(f"{told['service'].strip()}/queue", params={"take": 100})
            assert len(queue.json()) == offered
            port = re.search(r"port (\d+)", told["mail"])
            assert port is not None
            assert int(port[1]) > 0
            process.send_signal(number)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("option", ["--port", "--smtp-port"])
def test_a_port_that_there_cannot_be_is_a_mistake_in_use(option: str) -> None:
    answered = terminal.command("sandbox", option, 65536)
    assert (answered.status, answered.out) == (2, "")
    assert f"Invalid value for '{option}': " in answered.err
    assert answered.err.endswith(" 65535\n")


def test_the_story_has_an_id_for_each_message() -> None:
    """Ids that follow one another: the table is in the order of the queue."""
    assert all(later.id == earlier.id + 1 for earlier, later in pairwise(EXHIBITS))
