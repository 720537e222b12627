"""`deliveryd`: the table of commands, and what every command does about errors."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from deliveryd import __version__
from deliveryd.cli.outcome import FAILED, exit_status
from deliveryd.cli.output import complain
from deliveryd.cli.printable import printable
from deliveryd.runtime.hardening import protect_memory

INTERRUPTED = 130
"""What typer makes of Ctrl-C where no command hears it; here it is a failure like any other (design 6)."""

COMMANDS = (
    "run", "demo", "sandbox", "check", "render", "explain", "audit", "in-doubt", "dead", "erase", "customers",
    "cache", "config", "health",
)  # fmt: skip
"""Each is a function, or a group of commands, of that name in the module of that name; "-" is "_" there."""
MODULES = {"config": "config_file"}
"""The exceptions: `deliveryd.config` is the model of the configuration."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"deliveryd {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(  # answered by its callback
        False, "--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Take queued customer messages from a service, send them, and report what became of each."""


class Program(TyperGroup):
    """All commands. What is said about wrong usage repeats arguments, which may come from anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words before the command."""
        with _told_harmlessly():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> object:
        """Read the command's own words, and run it."""
        with _told_harmlessly():
            return super().invoke(ctx)


@contextmanager
def _told_harmlessly() -> Iterator[None]:
    try:
        yield
    except TyperException as error:
        is_help = error.message.startswith("Usage: ")  # told as an error where a command is missing
        lines = error.message.split("\n") if is_help else [error.message]
        error.message = "\n".join(map(printable, lines))
        raise


def build_app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands."""
    app = typer.Typer(
        name="deliveryd",
        cls=Program,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in commands:
        module = MODULES.get(name, name.replace("-", "_"))
        command = getattr(import_module(f"deliveryd.cli.{module}"), module)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _needed(arguments: Sequence[str]) -> Iterable[str]:
    """The commands that have to be loaded: only the one asked for, since loading all takes a second."""
    asked = arguments[:1]
    return asked if asked and asked[0] in COMMANDS and "_DELIVERYD_COMPLETE" not in os.environ else COMMANDS


@contextmanager
def _loading() -> Iterator[None]:
    """Keep Python from looking for garbage in what is being loaded: all of it is there to stay.

    It would go through it dozens of times, and once more at the end: a fifth of the time of a short command.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def main() -> None:
    """Run the command line. Exit status: 0 good, 1 failed, 2 usage, 78 configuration (design 6)."""
    protect_memory()
    try:
        with _loading():
            app = build_app(_needed(sys.argv[1:]))
        app(prog_name="deliveryd")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            complain("deliveryd: interrupted")
        raise SystemExit(FAILED if end.code == INTERRUPTED else end.code) from None
    except Exception as error:  # the last place where an error can be put into words
        sys.exit(exit_status(error))
