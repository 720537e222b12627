"""What comes from outside steers no terminal: every command, run on names made to do that."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.commands.common.printable import printable
from deliveryd.errors import DeliverydError
from deliveryd.sandbox.faults import ApplyThenHangUp, FaultAnswer
from deliveryd.telemetry import log_events, log_writing
from deliveryd.telemetry.log_events import Event
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import Answered, command
from support.world import World, open_world

TITLE, CLEAR, C1, BIDI = "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x9b2J\x85", "\u202ecba\u2066"
HOSTILE = f"{TITLE}{CLEAR}{C1}{BIDI}\x7f\u2028line\nforged\r"
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def tame(answered: Answered) -> str:
    """All that a command wrote, when nothing of it can steer a terminal or forge a line."""
    written = answered.out + answered.err
    assert STEERING.search(written) is None, ascii(written)
    assert not re.search(r"^forged", written, re.MULTILINE), ascii(written)
    return written


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Grüße, Ключ 東京 👩‍💻 é\u00a0x \\n", "Grüße, Ключ 東京 👩‍💻 é\u00a0x \\n"),
        (TITLE, r"\x1b]0;owned\x07"),
        (CLEAR, r"\x1b[2J\x1b[H"),
        (C1, r"\x9b2J\x85"),
        (BIDI, r"\u202ecba\u2066"),
        ("a\nb\rc\td\u2028e\u2029f\x7f", r"a\nb\rc\td\u2028e\u2029f\x7f"),
        ("\ud800", r"\ud800"),
    ],
)
def test_signs_that_people_write_stay_and_those_that_steer_are_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A folder, variables, names and elements that all try to steer, and messages with every outcome."""
    folder = tmp_path_factory.mktemp("hostile") / f"{TITLE}{C1}{BIDI}"
    folder.mkdir()
    for world in open_world(folder):
        world.customers([{"id": 1, "name": HOSTILE, "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings("{greeting} {word}")
        world.state.settings[2] = sms_settings(f"{{{TITLE}{BIDI}}}")
        world.add('on_in_doubt = "hold"\n')
        world.change("[journal]\n", "[journal]\nkeep_variables = true\n")
        world.state.enqueue(
            message(1) | {"variables": {"word": HOSTILE, HOSTILE: "x"}},
            message(2, settings_id=2) | {"variables": {TITLE: "x"}},
            message(3) | {"settingsId": HOSTILE, "variables": []},
        )
        world.run_until_idle()
        world.state.fail("provider.sms", ApplyThenHangUp())
        world.state.enqueue(message(4, word=HOSTILE))
        assert world.start("--until-idle").wait(PATIENCE) == 1
        world.state.customers[1] = {"merchants": [{"id": 1, HOSTILE: HOSTILE, "configUrl": "http://a"}]}
        yield world


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "explain 1", "explain 1 --show-variables", "explain 2", "explain 3", "explain 4", "explain 99",
        "in-doubt list", "in-doubt resend 4 --dry-run", "dead list", "dead show malformed:1",
        "erase --customer 1 --dry-run", "dead drop --all --dry-run", "audit", "check --offline", "check",
        "cache info", "cache info --settings 7", "customers entity http://\x1b",
    ],
)  # fmt: skip
def test_no_command_lets_what_came_from_outside_steer_the_terminal(world: World, words: str) -> None:
    """Names of variables, raw elements, reasons, folders: as text and, where there is some, as JSON."""
    arguments = words.split()
    assert tame(command(*arguments, "--config", world.config))
    if arguments[0] not in ("cache", "customers"):
        answered = command(*arguments, "--config", world.config, "--json")
        tame(answered)
        assert not answered.out or json.loads(answered.out) is not None


@pytest.mark.slow
def test_what_explain_shows_is_all_there(world: World) -> None:
    """A name that steers is told, escaped, and JSON has it as it came."""
    told = tame(command("explain", 1, "--config", world.config, "--show-variables"))
    assert r"\x1b]0;owned\x07\x1b[2J" in told
    data = command("explain", 1, "--config", world.config, "--json").data
    assert HOSTILE in data["message"]["variables"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "jsonl", "table"])
def test_customer_data_steers_nothing(world: World, form: str) -> None:
    assert tame(command("customers", "all", 1, "--config", world.config, "--format", form))


@pytest.mark.slow
def test_render_shows_a_hostile_text_name_and_value(world: World, tmp_path: Path) -> None:
    """Line breaks of the text itself stay layout; the rest is shown."""
    draft = tmp_path / "draft.json"
    settings = sms_settings(f"first\nsecond {TITLE}{BIDI} {{word}}\u2028third")
    draft.write_text(json.dumps(settings), encoding="utf-8")
    options = ["--settings", draft, "--customer", 1, "--variables", json.dumps({"word": CLEAR + C1})]
    told = tame(command("render", "--config", world.config, *options))
    assert r"\x1b[2J\x1b[H\x9b2J" in told
    tame(command("render", "--config", world.config, *options, "--json"))
    missing = json.dumps({"other": "x"})
    tame(command("render", "--config", world.config, "--settings", draft, "--variables", missing))


def test_wrong_usage_and_files_that_are_missing_are_told_harmlessly(tmp_path: Path) -> None:
    """What a command repeats of its own arguments is no exception."""
    for arguments in (
        ["check", "--config", tmp_path / f"{TITLE}{BIDI}.toml"],
        ["explain", TITLE],
        [TITLE + C1],
        [f"--{TITLE}"],
        ["dead", "show", CLEAR + BIDI, f"--{C1}"],
        ["customers", "all", 1, "--format", BIDI],
    ):
        answered = command(*arguments)
        assert answered.status in (2, 78)
        assert tame(answered)


@pytest.mark.slow
def test_a_mistake_in_a_configuration_is_told_harmlessly(world: World, tmp_path: Path) -> None:
    """Keys and values of the file are repeated in what is said about them."""
    config = tmp_path / "config.toml"
    key = json.dumps(TITLE + BIDI)
    config.write_text(f"{world.config.read_text(encoding='utf-8')}\n{key} = {key}\n", encoding="utf-8")
    for options in ([], ["--json"]):
        answered = command("check", "--config", config, *options)
        assert answered.status == 78
        assert tame(answered)


@pytest.mark.slow
def test_what_a_server_says_is_logged_and_told_harmlessly(world: World) -> None:
    """Its reason goes into an error, and that into a line of the log with what caused it."""
    world.state.fail("customers", FaultAnswer(500, TITLE.encode() + b"\x9b2J"))
    assert tame(command("customers", "all", 1, "--config", world.config))
    out = io.StringIO()
    log_writing.configure("error", "console", out)
    error = RuntimeError(TITLE)
    error.__cause__ = DeliverydError(HOSTILE)
    log_events.log(Event.WORKER_DIED, error=error)
    assert STEERING.search(out.getvalue()) is None, ascii(out.getvalue())
