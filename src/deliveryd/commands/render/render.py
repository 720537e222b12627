"""`deliveryd render`: preview a message without sending it."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from deliveryd.commands.common.configuration import load_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.offline import configured_provider, split_identity
from deliveryd.commands.common.options import (
    AsData,
    ConfigOption,
    identifier,
    insist_on_a_channel,
    language_tag,
)
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.render.preview import PreviewResult, Scope, preview, preview_data, preview_lines
from deliveryd.commands.render.preview_request import PreviewRequest, gather
from deliveryd.model import WallClock


def render(
    *,
    config: ConfigOption = USUAL_CONFIG,
    settings: Annotated[
        str,
        typer.Option(
            metavar="FILE|ID", help="Settings: a JSON file in the service's format, or a settings ID."
        ),
    ],
    variables: Annotated[
        str | None,
        typer.Option(metavar="FILE|JSON", help="Variables: a JSON object, or a file that holds one."),
    ] = None,
    customer: Annotated[
        int | None,
        typer.Option(metavar="ID", parser=identifier, help="ID of a customer in the configured directory."),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            metavar="TAG", parser=language_tag, help="Show only this language, regardless of the customer's."
        ),
    ] = None,
    channel: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Show only this channel, or its provider as CHANNEL/PROVIDER."),
    ] = None,
    message_id: Annotated[
        int, typer.Option(metavar="N", parser=identifier, help="ID of the previewed message.")
    ] = 1,
    as_data: AsData = False,
) -> None:
    """Preview a message without sending it.

    Shows every channel with its providers, and which one would be chosen: where there are several, the
    message's ID decides by their weights. Recipients who stopped a channel aren't reached there. Secrets are
    masked.

    Exit status 1: the message can't be sent, for example because a placeholder has no value.
    """
    loaded = load_as_owner(config)
    provider = None
    if channel is not None:
        channels = loaded.channels
        channel, provider = split_identity(channel)
        insist_on_a_channel(channel, [name for name in channels.order if name in channels.configured])
        if provider is not None:
            provider = configured_provider(loaded, channel, provider).identity

    async def look() -> PreviewResult:
        message = await gather(loaded, PreviewRequest(settings, variables, customer, message_id))
        return await preview(loaded, message, Scope(channel, language, provider), WallClock().now())

    result = anyio.run(look)
    if as_data:
        print_json(preview_data(result))
    else:
        print_lines(*preview_lines(result))
    if result.problem is not None:
        raise typer.Exit(1)
