"""`deliveryd send-test`: one real message through one provider."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from deliveryd.cli.alive import FAILED, USUAL_CONFIG
from deliveryd.cli.configuration import load_as_owner
from deliveryd.cli.options import AsData, ConfigOption
from deliveryd.cli.output import print_errors, print_json, print_lines
from deliveryd.cli.provider_options import ProviderOption
from deliveryd.inspection.offline import configured_provider
from deliveryd.inspection.send_test import Draft, send_test_message, sent_data, sent_lines


def send_test(
    *,
    config: ConfigOption = USUAL_CONFIG,
    channel: Annotated[
        str, typer.Option(metavar="NAME", help="A channel, or one of its providers as CHANNEL/PROVIDER.")
    ],
    provider: ProviderOption = None,
    to: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to: a phone number, an e-mail address or an ID.")
    ],
    text: Annotated[str, typer.Option(metavar="TEXT", help="What the message says.")],
    as_data: AsData = False,
) -> None:
    """Send one real message through one provider.

    It doesn't pass the queue: neither the service nor the journal has it. Shows the request and the answer,
    with secrets masked.

    Exit status 1: the provider didn't accept it.
    """
    if not text.strip():
        raise typer.BadParameter("must not be empty", param_hint="--text")
    loaded = load_as_owner(config)
    chosen = configured_provider(loaded, channel, provider)
    print_errors(f"deliveryd: this sends a real message to {to} through {chosen.identity}")
    sent = anyio.run(send_test_message, loaded, chosen, Draft(to, text))
    if as_data:
        print_json(sent_data(sent))
    else:
        print_lines(*sent_lines(sent))
    if not sent.is_accepted:
        raise typer.Exit(FAILED)
