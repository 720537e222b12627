"""`deliveryd`: the table of commands, and what every command does about errors."""

from __future__ import annotations

import sys

import typer

from deliveryd import __version__
from deliveryd.cli import check, demo, explain, health, render, run, sandbox
from deliveryd.cli.outcome import exit_status

app = typer.Typer(
    name="deliveryd",
    help="Takes queued customer messages from a service, sends them through channels, reports what became of each.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("run")(run.run)
app.command("demo")(demo.demo)
app.command("sandbox")(sandbox.sandbox)
app.command("check")(check.check)
app.command("render")(render.render)
app.command("explain")(explain.explain)
app.command("health")(health.health)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback
    if wanted:
        typer.echo(f"deliveryd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(  # noqa: ARG001, FBT001 - answered by its callback
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Take queued customer messages from a service, send them through channels, report what became of each."""


def main() -> None:
    """Run the command line. Exit status: 0 good, 1 failed, 2 usage, 78 configuration (design 6)."""
    try:
        app()
    except Exception as error:  # noqa: BLE001 - the last place where an error can be put into words
        sys.exit(exit_status(error))
