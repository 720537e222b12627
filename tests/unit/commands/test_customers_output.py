"""What customers prints: as a process in pipes, at a terminal, and as sheets."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deliveryd.commands.common.tables import QUIET, ProgressLine
from deliveryd.commands.customers.customer_export import LinesSheet, ObjectSheet, Progress, Row
from deliveryd.commands.customers.customer_table import TableSheet
from deliveryd.sandbox.faults import FaultAnswer, Hang, Pass
from deliveryd.sandbox.state import CUSTOMER_GROUPS
from deliveryd.service.customer_area import Entity
from support.patience import PATIENCE
from support.shops import CUSTOMER, fill, lines, shops
from support.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


# as a process


def start(world: World, *options: object, **more: Any) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-m",
        "deliveryd",
        "customers",
        "all",
        CUSTOMER,
        "--config",
        world.config,
        *options,
    ]
    return subprocess.Popen([str(word) for word in words], text=True, **more)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "jsonl", "table"])
def test_into_head(world: World, form: str) -> None:
    """A reader that goes ends the command: soon, quietly, with status 0."""
    fill(world.state, 20_000 if form != "table" else 1200, page_size=100)
    world.state.fail_until_healed("entities", FaultAnswer(404))
    with start(
        world, "--format", form, "--include", "merchants", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline()
        reading.stdout.close()
        assert reading.wait(PATIENCE) == 0
        assert reading.stderr.read() == ""
    assert world.state.requests["customers"] < 30


@pytest.mark.slow
def test_a_full_disk_is_told(world: World) -> None:
    """Output that can't be written is an error in one line."""
    fill(world.state, 6000, page_size=1000)
    with Path("/dev/full").open("w") as full:
        ended = start(world, "--format", "jsonl", stdout=full, stderr=subprocess.PIPE)
        _, told = ended.communicate(timeout=PATIENCE)
    assert (ended.returncode, told) == (
        1, "deliveryd: can't write the output: No space left on device\n"
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_ctrl_c_says_how_far_it_came(world: World, form: str) -> None:
    """What was read is written, and whole; nothing but one line is said."""
    world.change('timeout = "60s"', 'timeout = "1h"')  # the host may stand still for a while
    fill(world.state, 600, page_size=10)
    world.state.fail("customers", *[Pass()] * 5)
    world.state.fail_until_healed("customers", Hang())
    reading = start(
        world, "--include", "merchants", "--format", form, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    world.state.wait_for(lambda state: state.requests["customers"] == 6, PATIENCE)
    reading.send_signal(signal.SIGINT)
    out, told = reading.communicate(timeout=PATIENCE)
    assert reading.returncode == 1
    assert told == "deliveryd: interrupted: 50 entities were read (merchants 50) from 5 pages\n"
    read = json.loads(out)["merchants"] if form == "json" else lines(out)
    assert len(read) == 50


def peak(world: World, count: int) -> int:
    """The largest memory (KiB) of a process that streams so many entities."""
    expected = fill(world.state, count, page_size=100)
    program = (
        "import sys\n"
        "from deliveryd.commands.app import run_program\n"
        "try:\n    run_program()\n"
        "finally:\n    print(open('/proc/self/status').read(), file=sys.stderr)\n"
    )
    words = ["customers", "all", str(CUSTOMER), "--config", str(world.config), "--format", "jsonl"]
    groups = [
        "--include",
        "merchants",
        "--include",
        "offers",
        "--include",
        "privileges",
        "--include",
        "rewards",
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, *words, *groups],
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    )  # fmt: skip
    paged = [each for each in expected if each[0] not in ("regions", "benefits")]
    assert done.stdout.count("\n") == len(paged)
    return next(int(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("VmHWM"))


@pytest.mark.slow
def test_the_memory_of_a_stream_stays_flat(world: World) -> None:
    """Five times as much to read takes no more memory than some for the program's own growth."""
    few, many = peak(world, 10_000), peak(world, 50_000)
    assert many - few < 4096, f"{few} KiB for 10,000, {many} KiB for 50,000"


# at a terminal


def test_progress_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, now and then, and gone at the end; without a terminal, or beside output, nothing."""
    monkeypatch.setenv("TERM", "xterm")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    time = [0.0]
    progress = Progress({"offers": 1200}, {"offers": 24})
    terminal = Terminal()
    line = ProgressLine(terminal, lambda: time[0], beside_output=False)
    line.came_to(progress)
    assert terminal.getvalue() == ""
    time[0] = QUIET
    for _ in range(100):
        line.came_to(progress)
    line.close()
    assert terminal.getvalue() == (
        "\r\x1b[K1,200 entities were read (offers 1,200) from 24 pages ...\r\x1b[K"
    )
    for stream, beside_output, term in (
        (io.StringIO(), False, "xterm"), (Terminal(), True, "xterm"), (Terminal(), False, "dumb")
    ):  # fmt: skip
        monkeypatch.setenv("TERM", term)
        silent = ProgressLine(stream, lambda: time[0], beside_output=beside_output)
        time[0] += 100
        silent.came_to(progress)
        silent.close()
        assert stream.getvalue() == ""


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 140])
def test_the_table_fits_the_terminal(world: World, width: int) -> None:
    """Names come from the configurations; what has none says why; no line is wider than the terminal."""
    shops(world, 1, 2, 3, level="gold", note="a very long remark " * 20)
    long = {"marketName": "Linden Market and Sons, Purveyors of Everything " * 3, "category": "Food"}
    world.state.add_entity("merchants", 2, {"en": long})
    del world.state.entities["merchants", 3]
    master, slave = pty.openpty()
    options = ["--format", "table", "--language", "en", "--include", "merchants", "--include", "offers"]
    environ = {**os.environ, "COLUMNS": str(width)}
    reading = start(world, *options, stdout=subprocess.PIPE, stderr=slave, env=environ)
    out, _ = reading.communicate(timeout=PATIENCE)
    told = os.read(master, 4096).decode()
    os.close(slave)
    os.close(master)
    assert reading.returncode == 1
    assert max(map(len, out.splitlines())) <= width
    assert "merchants  3" in out
    assert "offers  none" in out
    assert "Shop 1" in out
    assert "Linden Market" in out
    assert "not known" in out
    assert "level gold" in out
    # On a busy machine a line of progress comes before.
    assert told.endswith("deliveryd: 1 configuration unavailable:\r\n  1: the service answered 404\r\n")


# the sheets alone


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rows", [0, 1, 2])
def test_an_object_is_whole_wherever_it_is_closed(groups: int, rows: int) -> None:
    """Groups without entities, entities without groups behind them: always one JSON object."""
    out = io.StringIO()
    sheet = ObjectSheet(out)
    for group in CUSTOMER_GROUPS[:groups]:
        sheet.begin(group)
        for number in range(rows):
            sheet.add([Row(Entity(group, number, "u", {}))])
    sheet.close()
    read = json.loads(out.getvalue())
    assert {group: len(listed) for group, listed in read.items()} == dict.fromkeys(
        CUSTOMER_GROUPS[:groups], rows
    )


def test_sheets_without_a_row() -> None:
    """Nothing is nothing, in each format."""
    for kind, empty in ((LinesSheet, ""), (ObjectSheet, ""), (TableSheet, "")):
        out = io.StringIO()
        kind(out).close()
        assert out.getvalue() == empty
