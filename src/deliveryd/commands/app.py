"""The `deliveryd` command line: the table of commands, and error handling common to all of them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from deliveryd import __version__
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.conventions import FAILED
from deliveryd.commands.common.outcome import exit_status
from deliveryd.commands.common.output import print_errors
from deliveryd.commands.common.printable import printable
from deliveryd.options.messages import plain_message
from deliveryd.runtime.hardening import protect_memory

INTERRUPTED = 130
"""Typer's exit status for a Ctrl-C that no command handles; reported as a plain failure (design 6)."""

COMMANDS: Mapping[str, str] = {
    "run": "run.run",
    "status": "watch.status",
    "top": "watch.top",
    "tail": "watch.tail",
    "reload": "run.reload",
    "demo": "sandbox.demo",
    "sandbox": "sandbox.sandbox",
    "check": "check.check",
    "lint": "lint.lint",
    "render": "render.render",
    "explain": "messages.explain",
    "audit": "storage.audit",
    "in-doubt": "orders.in_doubt",
    "overdue": "messages.overdue",
    "dead": "orders.dead",
    "failed": "orders.failed",
    "find": "messages.find",
    "decisions": "orders.decisions",
    "forget": "orders.forget",
    "stopped": "orders.stopped",
    "pause": "orders.pause",
    "resume": "orders.resume",
    "paused": "orders.paused",
    "erase": "orders.erase",
    "customers": "customers.customers",
    "channels": "providers.channels",
    "presets": "providers.presets",
    "receipts": "providers.receipts",
    "send-test": "providers.send_test",
    "cache": "storage.cache",
    "config": "config.config_file",
    "journal": "storage.journal",
    "health": "watch.health",
    "workers": "storage.workers",
    "accept-loss": "storage.accept_loss",
}
"""The module of each command. It defines a function or a command group of its own name."""


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
    """All commands. Usage errors quote arguments, so they are made printable first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before the command."""
        with _printable_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> object:
        """Parse the command's arguments and run it."""
        with _printable_errors():
            return super().invoke(ctx)


@contextmanager
def _printable_errors() -> Iterator[None]:
    try:
        yield
    except TyperException as error:
        is_help = error.message.startswith("Usage: ")  # raised as an error when the command is missing
        lines = error.message.split("\n") if is_help else [plain_message(error.message)]
        error.message = "\n".join(map(printable, lines))
        raise


def build_app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Build the command line with these commands."""
    app = CommandGroup(
        name="deliveryd",
        cls=Program,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in commands:
        module = COMMANDS[name]
        command = getattr(import_module(f"deliveryd.commands.{module}"), module.rpartition(".")[2])
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _needed(arguments: Sequence[str]) -> Iterable[str]:
    """Return the commands to load: only the requested one, since loading all takes a second."""
    asked = arguments[:1]
    return asked if asked and asked[0] in COMMANDS and "_DELIVERYD_COMPLETE" not in os.environ else COMMANDS


@contextmanager
def _loading() -> Iterator[None]:
    """Disable garbage collection while modules load, and exempt what was loaded from later collections.

    Collections would otherwise take a fifth of the time of a short command.
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
            print_errors("deliveryd: interrupted")
        raise SystemExit(FAILED if end.code == INTERRUPTED else end.code) from None
    except Exception as error:  # last resort: print any error as one line
        sys.exit(exit_status(error))
