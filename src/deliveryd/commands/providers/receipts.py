"""`deliveryd receipts`: try what a provider reported."""

from __future__ import annotations

from typing import Annotated

import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.offline import ProviderChoice, offline_provider
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.providers.provider_options import (
    AtOption,
    KeysOption,
    PresetOption,
    PresetsDirOption,
    ProviderOption,
    SecretsOption,
    TriedChannel,
    instant_of,
    read_message,
)
from deliveryd.commands.providers.receipt_trial import receipt_table, trial_data, trial_lines, try_receipts

receipts = CommandGroup(no_args_is_help=True, help="Try what providers report.")


@receipts.command("test")
def try_request(
    *,
    config: ConfigOption = USUAL_CONFIG,
    channel: TriedChannel = None,
    provider: ProviderOption = None,
    preset: PresetOption = None,
    keys: KeysOption = None,
    secrets: SecretsOption = None,
    presets_dir: PresetsDirOption = None,
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="The request as it was sent: request line, headers, body; or -."),
    ],
    at: AtOption = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address that the provider called; left out: receipts.public_url."),
    ] = None,
    certificate: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Certificate of an SNS signature, PEM or DER; trusted as it is."),
    ] = None,
    as_data: AsData = False,
) -> None:
    """Try a provider's request offline.

    Prints whether its signature is valid, each report in it or why it can't be read, and the answer that the
    provider would get. Nothing is recorded, fetched or sent.

    Exit status 1: the answer isn't 2xx.
    """
    choice = ProviderChoice(config, channel, provider, preset, keys or (), secrets or (), presets_dir)
    table = receipt_table(offline_provider(choice))
    page = None if certificate is None else read_message(certificate)
    trial = try_receipts(table, read_message(file), file, instant_of(at), url, certificate=page)
    if as_data:
        print_json(trial_data(trial))
    else:
        print_lines(*trial_lines(trial))
    if not 200 <= trial.reply.status < 300:
        raise typer.Exit(1)
