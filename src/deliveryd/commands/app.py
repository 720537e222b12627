"""The `deliveryd` command line: the table of commands, and error handling common to all of them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, cast

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command, get_group

from deliveryd import __version__
from deliveryd.commands.common.command_group import CommandGroup, PlainCommand
from deliveryd.commands.common.conventions import CONFIGURATION, FAILED, USAGE
from deliveryd.commands.common.output import print_errors
from deliveryd.commands.common.printable import printable
from deliveryd.errors import ConfigError, DeliverydError, JournalUnusable, UsageError, describe
from deliveryd.options.suggestion import plain_message
from deliveryd.runtime.process import protect_memory
from deliveryd.telemetry.log_events import Event, log

INTERRUPTED = 130
"""Typer's exit status for a Ctrl-C that no command handles; reported as a plain failure (design 6)."""

NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Keeps pydantic from looking for plug-ins in all packages, and from showing them the configuration."""


class CommandEntry(NamedTuple):
    """A command that isn't loaded: its module, and the first sentence of its help.

    The module defines a function or a command group of the command's name, or of `name`.
    """

    module: str
    help: str
    name: str | None = None


COMMANDS: Mapping[str, CommandEntry] = {
    "run": CommandEntry("run.run", "Run the worker: take, send and report messages."),
    "status": CommandEntry("watch.status", "Show the state of the running worker on one screen."),
    "top": CommandEntry("watch.top", "Watch the running worker live."),
    "tail": CommandEntry("watch.tail", "Print what happens to messages as it happens."),
    "reload": CommandEntry("run.reload", "Apply the changed configuration to the running worker."),
    "demo": CommandEntry("sandbox.demo", "Send 42 messages through a sandbox and show their outcomes."),
    "sandbox": CommandEntry("sandbox.sandbox", "Run a stand-in for the remote service and the providers."),
    "check": CommandEntry("check.check", "Check the configuration and everything that it names."),
    "lint": CommandEntry("lint.lint", "Check message settings for mistakes."),
    "render": CommandEntry("render.render", "Preview a message without sending it."),
    "explain": CommandEntry("messages.explain", "Show the history of one message."),
    "audit": CommandEntry("storage.audit", "Check that the journal accounts for every message."),
    "overdue": CommandEntry("messages.find", "List sent messages that were never confirmed."),
    "find": CommandEntry("messages.find", "Find messages by what is known of them."),
    "decisions": CommandEntry("orders.decisions", "List operators' decisions, oldest first."),
    "forget": CommandEntry("orders.removal", "Have messages taken as new if the queue gives them again."),
    "paused": CommandEntry("orders.pause", "List what is paused, since when and by whom."),
    "erase": CommandEntry("orders.removal", "Remove a customer's data from the journal."),
    "send-test": CommandEntry("providers.send_test", "Send one real message through one provider."),
    "health": CommandEntry("watch.health", "Check that a running worker is alive."),
    "accept-loss": CommandEntry("storage.workers", "Show lost commits; with --yes, let workers continue."),
    "in-doubt": CommandEntry("orders.in_doubt", "List messages held in doubt, and resend or settle them."),
    "dead": CommandEntry("orders.dead", "List dead letters, and retry or drop them."),
    "failed": CommandEntry("orders.failed", "List the messages that failed, and send them again."),
    "stopped": CommandEntry("orders.stopped", "List suppressed recipients, and change the suppression list."),
    "pause": CommandEntry("orders.pause", "Pause the intake, channels, providers, settings or messages."),
    "resume": CommandEntry("orders.pause", "Resume what deliveryd pause paused."),
    "customers": CommandEntry("customers.customers", "Show the service's data about a customer."),
    "channels": CommandEntry("providers.channels", "Show what a channel can be."),
    "presets": CommandEntry("providers.presets", "Describe a provider that deliveryd has no preset for."),
    "receipts": CommandEntry("providers.receipts", "Try what providers report."),
    "rules": CommandEntry("render.rules", "Show what the rules of the configuration mean for a message."),
    "cache": CommandEntry("storage.cache", "Show or clear the disk caches of the service's answers."),
    "config": CommandEntry(
        "config.config_file", "Show or write the configuration, or print an example.", "config_file"
    ),
    "journal": CommandEntry("storage.journal", "Move the journal, or have it follow a service that moved."),
    "workers": CommandEntry(
        "storage.workers", "List the workers of a shared journal, and end one that hangs."
    ),
}
"""All commands, in the order of the help: first those that are no groups."""


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
    """All commands. Each is loaded when it is asked for; until then its entry stands for it.

    Usage errors quote arguments, so they are made printable first.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: PlainCommand(name, help=entry.help) for name, entry in COMMANDS.items()}

    def load(self, name: str) -> None:
        """Replace a command's entry by the command."""
        entry = COMMANDS[name]
        module = import_module(f"deliveryd.commands.{entry.module}")
        command = getattr(module, entry.name or name.replace("-", "_"))
        app = _app(TyperGroup)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
        self.commands[name] = get_group(app).commands[name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments name, and load it."""
        if args[0] in COMMANDS:
            with _loading():
                self.load(args[0])
            if callable(ctx.obj):  # see `run_program`
                ctx.obj()
        return super().resolve_command(ctx, args)

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


def _app(group: type[TyperGroup]) -> CommandGroup:
    app = CommandGroup(
        name="deliveryd",
        cls=group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app


def build_program(loaded: Iterable[str] = ()) -> Program:
    """Build the command line; the commands `loaded` at once, any other when it is asked for."""
    program = cast("Program", get_command(_app(Program)))
    for name in loaded:
        program.load(name)
    return program


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


def run_program(on_loaded: Callable[[], None] | None = None) -> None:
    """Run the command line. Exit status: 0 good, 1 failed, 2 usage, 78 configuration (design 6).

    `on_loaded` is called when the command is loaded, before it runs.
    """
    protect_memory()
    os.environ[NO_PLUGINS] = "__all__"
    try:
        build_program()(prog_name="deliveryd", obj=on_loaded)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            print_errors("deliveryd: interrupted")
        raise SystemExit(FAILED if end.code == INTERRUPTED else end.code) from None
    except Exception as error:  # last resort: print any error as one line
        sys.exit(_exit_status(error))


def _exit_status(error: BaseException) -> int:
    """Print an error on standard error, and return the exit status (design 6)."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConfigError):
        for problem in error.problems:
            print_errors(problem)
        return CONFIGURATION
    if isinstance(error, DeliverydError):
        print_errors(f"deliveryd: {error}")
        if isinstance(error, UsageError):
            return USAGE
        return CONFIGURATION if isinstance(error, JournalUnusable) else FAILED
    log(Event.WORKER_DIED, error=error)
    print_errors(f"deliveryd: unexpected error: {describe(error)}")
    return FAILED
