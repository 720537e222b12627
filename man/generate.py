"""Print the manual page deliveryd(1) from the help of the command line; `make man` writes man/deliveryd.1."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperGroup

from deliveryd import __version__
from deliveryd.commands.app import COMMANDS, build_program

EXIT_STATUS = {
    "0": "Success.",
    "1": "Failure: something can't be reached or refused, or a message isn't known. A later try may succeed.",
    "2": "The command line is wrong.",
    "78": "The configuration, or a file that it names, must be changed.",
}
ENVIRONMENT = {
    "DELIVERYD_CONFIG": "The configuration file, where --config isn't given.",
    "DELIVERYD_SECTION__KEY": "Overrides a key of the configuration, such as DELIVERYD_QUEUE__BATCH_SIZE=50.",
}
FILES = {
    "/etc/deliveryd/config.toml": 'The default of --config; "deliveryd config example" prints one.',
    "PREFIX/share/deliveryd/systemd/": "The systemd units, below the prefix of the installation.",
}


def page() -> Iterator[str]:
    """The lines of the manual page."""
    program: Any = build_program(COMMANDS)
    summary, *_ = _paragraphs(program)
    yield f'.TH DELIVERYD 1 "" "deliveryd {__version__}" "User Commands"'
    yield from (".SH NAME", "deliveryd \\- deliver queued customer messages and report what became of each")
    yield from (".SH SYNOPSIS", ".B deliveryd", ".I COMMAND", "[\\fIOPTIONS\\fR]")
    yield from (".SH DESCRIPTION", _escaped(summary))
    yield from (".SH OPTIONS", *_options(program))
    yield ".SH COMMANDS"
    for words, command in _commands("", program):
        yield from _section(words, command)
    for title, entries in (("EXIT STATUS", EXIT_STATUS), ("ENVIRONMENT", ENVIRONMENT), ("FILES", FILES)):
        yield f".SH {title}"
        for term, text in entries.items():
            yield from (".TP", f".B {_escaped(term)}", _escaped(text))


def _commands(prefix: str, group: TyperGroup) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield f"{prefix}{name}", command
        if isinstance(command, TyperGroup):
            yield from _commands(f"{prefix}{name} ", command)


def _section(words: str, command: Any) -> Iterator[str]:
    names = [
        each.metavar or (each.name or "").upper()
        for each in command.params
        if isinstance(each, TyperArgument)
    ]
    yield f'.SS "{_escaped(" ".join(["deliveryd", words, *names]))}"'
    for number, paragraph in enumerate(_paragraphs(command)):
        yield from ([".PP"] if number else [])
        yield _escaped(paragraph)
    yield from _options(command)


def _options(command: Any) -> Iterator[str]:
    for option in command.params:
        text = getattr(option, "help", None)
        if isinstance(option, TyperArgument) or getattr(option, "hidden", False) or not text:
            continue
        names = ", ".join([*sorted(option.opts, key=len), *option.secondary_opts])
        value = "" if getattr(option, "is_flag", False) else f" \\fI{_escaped(option.metavar or 'VALUE')}\\fR"
        yield from (".TP", f"\\fB{_escaped(names)}\\fR{value}", _escaped(text))


def _paragraphs(command: Any) -> list[str]:
    return [re.sub(r"\s+", " ", each).strip() for each in (command.help or "").split("\n\n")]


def _escaped(text: str) -> str:
    """Text as roff shows it: no control lines, no dashes out of hyphens."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", "\\\\&", escaped)


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()) + "\n")
