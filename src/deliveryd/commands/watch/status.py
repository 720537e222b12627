"""`deliveryd status`: the state of a running worker on one screen."""

from __future__ import annotations

import typer

from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json
from deliveryd.commands.common.text_output import print_texts, width_of
from deliveryd.commands.watch.screens import status_lines
from deliveryd.commands.watch.watched import read_overview
from deliveryd.commands.watch.watching import UrlOption, watched


def status(*, config: ConfigOption = USUAL_CONFIG, url: UrlOption = None, as_data: AsData = False) -> None:
    """Show the state of the running worker on one screen.

    Exit status: 0 it takes messages, 1 it doesn't, or no worker is running.
    """
    found = watched(config, url).status()
    overview = read_overview(found)
    if as_data:
        print_json(found)
    else:
        print_texts(status_lines(overview, width_of()))
    if not overview.ready:
        raise typer.Exit(FAILED)
