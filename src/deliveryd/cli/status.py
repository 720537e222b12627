"""`deliveryd status`: the state of a running worker on one screen."""

from __future__ import annotations

import typer

from deliveryd.cli.alive import FAILED, USUAL_CONFIG
from deliveryd.cli.options import AsData, ConfigOption
from deliveryd.cli.output import print_json
from deliveryd.cli.text_output import print_texts, width_of
from deliveryd.cli.watching import UrlOption, watched
from deliveryd.inspection.screens import status_lines
from deliveryd.inspection.watched import read_overview


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
