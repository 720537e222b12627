"""`deliveryd render`: preview a message without sending it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from deliveryd.commands.render.preview import (
    Preview,
    PreviewMessage,
    PreviewResult,
    Scope,
    SmsSize,
    gather,
    hindrance,
    preview,
)
from deliveryd.model import WallClock, channel_of, first_of, format_instant


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
    message's ID decides by their weights. Suppressed recipients, and those to whom
    [safety] doesn't allow to send, aren't reached there. Secrets are masked.

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
        message = await gather(loaded, settings, variables, customer, message_id)
        return await preview(loaded, message, Scope(channel, language, provider), WallClock().now())

    result = anyio.run(look)
    if as_data:
        print_json(_data(result))
    else:
        print_lines(*_lines(result))
    if result.problem is not None:
        raise typer.Exit(1)


def _lines(result: PreviewResult) -> Iterator[str]:
    """Return the result as lines, the problem last."""
    message = result.message
    yield f"settings from {message.source}, which {_until(message)}"
    yield f"customer {_customer(message)}"
    if result.further_languages:
        yield f"other languages (see --language): {', '.join(result.further_languages)}"
    yield from (f"unreadable and skipped: {reason}" for reason in result.unreadable)
    for each in result.previews:
        yield ""
        yield _headline(each, message, each is result.chosen)
        for line in _facts(each, message):
            yield f"  {line}".rstrip()
    if result.problem is not None:
        yield ""
        yield f"can't be sent: {result.problem}"


def _headline(preview: Preview, message: PreviewMessage, is_chosen: bool) -> str:
    place = f"{preview.provider}, {preview.language}"
    if preview.weight is None:
        return f"{place} (chosen)" if is_chosen else place
    chosen = f" (chosen for message {message.entry.id})" if is_chosen else ""
    return f"{place}, weight {preview.weight} of {preview.weights}{chosen}"


def _customer(message: PreviewMessage) -> str:
    if not message.has_customer:
        return "unknown: give one with --customer"
    if message.customer is None:
        return f"{message.entry.customer_id}, not in the directory"
    return f"{message.customer.id}, with {', '.join(message.customer.fields) or 'no other fields'}"


def _facts(preview: Preview, message: PreviewMessage) -> Iterator[str]:
    if (why := hindrance(preview, message)) is not None:
        yield f"can't be sent: {why}"
    yield from (f"not sent to {devices}" for devices in preview.left_out)
    if preview.sms is not None:
        yield _sms_line(preview.sms)
    for name, text in preview.fields.items():
        # Most requests contain the text verbatim; in others escapes make it unreadable.
        if text.strip() not in (preview.request or ""):
            yield from _indented(f"{name}: ", text)
    if preview.request is not None:
        yield ""
        yield from _broken(preview.request)


def _sms_line(sms: SmsSize) -> str:
    forced = ", ".join(first_of([f"U+{ord(char):04X}" for char in sms.forced_by]))
    cause = f", forced by {forced}" if forced else ""
    return f"{sms.parts} SMS ({sms.units} units of {sms.encoding}{cause})"


def _indented(label: str, text: str) -> Iterator[str]:
    first, *rest = _broken(text)
    yield f"{label}{first}"
    yield from (f"{'':{len(label)}}{line}" for line in rest)


def _until(message: PreviewMessage) -> str:
    if message.expires_at is None:
        return "never expire"
    expiry = f"expire at {format_instant(message.expires_at)}"
    if message.settings.expires_at is None:
        return f"name no expiry: a message taken now would {expiry} (content.default_lifetime)"
    return expiry


def _broken(text: str) -> list[str]:
    """Split a text at line feeds only; other line separators stay in it, to be escaped visibly."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _data(result: PreviewResult) -> Mapping[str, object]:
    """Return the result as JSON."""
    message = result.message
    expires_at = message.expires_at
    return {
        "settings_from": message.source,
        "expires_at": None if expires_at is None else format_instant(expires_at),
        "customer_known": message.customer is not None,
        "problem": result.problem,
        "further_languages": result.further_languages,
        "unreadable": result.unreadable,
        "previews": [
            {"channel": channel_of(preview.provider)}
            | preview._asdict()
            | {"chosen": preview is result.chosen, "sms": preview.sms and preview.sms._asdict()}
            for preview in result.previews
        ],
    }
