"""`--help` of every command, as a newcomer reads it at a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from typer.core import TyperGroup

from deliveryd import __version__
from deliveryd.commands.app import COMMANDS, build_program
from support import terminal


def commands() -> Iterator[tuple[str, ...]]:
    """The words of each command, and of each group of commands."""
    program = build_program(COMMANDS)
    yield ()
    for name, command in program.commands.items():
        yield (name,)
        if isinstance(command, TyperGroup):
            yield from ((name, verb) for verb in command.commands)


ALL = list(commands())


def helped(words: tuple[str, ...]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        answered = terminal.command(*words, "--help")
    assert (answered.status, answered.err) == (0, "")
    return answered.out


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_names_no_type_of_the_program_and_breaks_off_no_sentence(words: tuple[str, ...]) -> None:
    """No `<bool>` behind a flag, no `<list[str]>` behind an argument, no box, no summary that is cut."""
    text = helped(words)
    assert not re.search(r"<[a-z]+(\[[a-z]+\])?>", text)
    assert not re.search(r"\d{19}", text)
    assert re.search(r"[a-z ]\.\.\.$", text, re.MULTILINE) is None
    assert "\x1b" not in text
    assert "│" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_paragraphs_of_help_are_filled(words: tuple[str, ...]) -> None:
    """A line of a paragraph ends only where its next word wouldn't fit."""
    paragraphs = helped(words).split("\n\n")[1:]
    prose = [each.splitlines() for each in paragraphs if re.match("  [A-Z]", each)]
    for lines in prose:
        for line, following in pairwise(lines):
            assert len(line) + 1 + len(following.split()[0]) > 78, line


@pytest.mark.slow
def test_every_command_has_a_configuration_by_itself() -> None:
    """Wherever `--config` can be given, it can be left out; some commands need none."""
    optional = {("health",), ("channels", "list"), ("channels", "show"), ("lint",)}
    for words in ALL:
        text = re.sub(r"\s+", " ", helped(words))
        if "--config" in text and words not in optional:
            assert "default: /etc/deliveryd/config.toml" in text, words


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_is_told(option: str) -> None:
    assert terminal.command(option) == (0, f"deliveryd {__version__}\n", "")


def test_an_id_that_is_none_is_told_in_words() -> None:
    """Not in those of the library that reads options."""
    answered = terminal.command("customers", "all", "9223372036854775808")
    assert answered.status == 2
    assert "9223372036854775808 isn't a 64-bit integer" in answered.err
    assert "'ten' isn't an integer" in terminal.command("explain", "ten").err
    settling = ("in-doubt", "settle", "--as", "sent")
    assert "'ten' isn't an integer" in terminal.command(*settling, "1", "ten").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("dead", "list", "--kind", "letter"),
            "Invalid value for '--kind': 'letter' isn't a kind of dead letter",
        ),
        (("dead", "list", "--kind", "worker"), "there are event, message, malformed, receipt, report\n"),
        (("in-doubt", "settle", "--as", "maybe", "1"), "Invalid value for '--as': 'maybe' is not one of"),
        (("sandbox", "--port", "many"), "Invalid value for '--port': must be a valid integer\n"),
        (("sandbox", "--port", "65536"), "Invalid value for '--port': "),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_a_wrong_value_is_told_in_words(words: tuple[str, ...], told: str) -> None:
    """Without the prefixes of the library that checks values."""
    answered = terminal.command(*words)
    assert answered.status == 2
    assert told in answered.err
    assert not re.search("Value error|Input should|unable to parse", answered.err)


def completed(words: str, capfd: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_DELIVERYD_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", words)
        patch.setenv("COMP_CWORD", str(words.count(" ")))
        answered = terminal.command()
    return answered.out.split() or capfd.readouterr().out.split()


def test_completion_knows_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    """What a shell is told when somebody presses the tabulator."""
    assert completed("deliveryd ", capfd) == list(COMMANDS)


def test_completion_knows_the_verbs_and_options_of_a_command(capfd: pytest.CaptureFixture[str]) -> None:
    """The command is loaded for it."""
    assert completed("deliveryd dead ", capfd) == ["list", "show", "retry", "drop"]
    assert "--kind" in completed("deliveryd dead list --", capfd)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_entry_says_what_its_command_says(name: str) -> None:
    """The help and a shell show the same of a command before it is loaded, at any width."""
    entry, command = build_program().commands[name], build_program([name]).commands[name]
    assert entry.help == command.get_short_help_str(1000)
    for width in (30, 45, 60):
        assert entry.get_short_help_str(width) == command.get_short_help_str(width)


def test_groups_come_last_in_the_help() -> None:
    program = build_program(COMMANDS)
    are_groups = [isinstance(program.commands[name], TyperGroup) for name in COMMANDS]
    assert are_groups == sorted(are_groups)
