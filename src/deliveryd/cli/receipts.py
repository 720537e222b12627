"""`deliveryd receipts`: try what a provider reported."""

from __future__ import annotations

from typing import Annotated

import typer

from deliveryd.cli.command_group import CommandGroup
from deliveryd.cli.options import USUAL_CONFIG, AsData, ConfigOption
from deliveryd.cli.output import print_json, print_lines
from deliveryd.cli.provider_options import (
    KeysOption,
    PresetOption,
    ProviderOption,
    SecretsOption,
    TriedChannel,
    read_message,
)
from deliveryd.inspection.offline import ProviderChoice, offline_provider
from deliveryd.inspection.receipt_trial import receipt_table, trial_data, trial_lines, try_receipts
from deliveryd.model import WallClock, parse_instant

receipts = CommandGroup(no_args_is_help=True, help="Try what providers report.")


def _instant(text: str) -> int:
    try:
        return parse_instant(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@receipts.command("test")
def try_request(
    *,
    config: ConfigOption = USUAL_CONFIG,
    channel: TriedChannel = None,
    provider: ProviderOption = None,
    preset: PresetOption = None,
    keys: KeysOption = None,
    secrets: SecretsOption = None,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The request as it was sent: request line, headers, body; or -."),
    ],
    at: Annotated[
        int | None,
        typer.Option(parser=_instant, metavar="TIME", help="Verify signatures as of this instant, not now."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address that the provider called; left out: receipts.public_url."),
    ] = None,
    as_data: AsData = False,
) -> None:
    """Try a provider's request offline.

    Prints whether its signature is valid, each report in it, and the answer that the provider would get.
    Nothing is recorded or sent.

    Exit status 1: the answer isn't 2xx.
    """
    choice = ProviderChoice(config, channel, provider, preset, keys or (), secrets or ())
    now = WallClock().now() if at is None else at
    trial = try_receipts(receipt_table(offline_provider(choice)), read_message(file), now, url)
    if as_data:
        print_json(trial_data(trial))
    else:
        print_lines(*trial_lines(trial))
    if not 200 <= trial.reply.status < 300:
        raise typer.Exit(1)
