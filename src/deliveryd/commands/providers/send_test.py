"""`deliveryd send-test`: one real message through one provider, outside the queue."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import anyio
import typer

from deliveryd.channels.base import Accepted, Channel, Dispatch, Expired, OneVerdict, Unsent, of_one
from deliveryd.channels.devices import at_one_device
from deliveryd.channels.http.adapter import HttpChannel
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.options import ProviderConfig
from deliveryd.commands.common.configuration import load_as_owner
from deliveryd.commands.common.conventions import FAILED, USUAL_CONFIG
from deliveryd.commands.common.offline import configured_provider
from deliveryd.commands.common.options import AsData, ConfigOption
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.providers.trying import ProviderOption, row_text, verdict_data, verdict_lines
from deliveryd.config import Config
from deliveryd.delivery.safety import NOT_ON_THE_LIST, Safety
from deliveryd.errors import DeliverydError
from deliveryd.http.wire import WireResponse
from deliveryd.model import Customer, Entry, Rendered, WallClock
from deliveryd.worker.phones import destinations_of, phone_providers
from deliveryd.worker.wiring import open_provider

_ADDRESSES = ("phone", "email")
_OTHERS = {"name": "Test", "language": "en"}
"""Fields of a customer that hold no address, with their values."""

_MOST_SEARCHED = 4 << 20
"""Characters that are resolved to find secrets in an answer: some seconds."""


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
    text: Annotated[str, typer.Option(metavar="TEXT", help="The text of the message.")],
    as_data: AsData = False,
) -> None:
    """Send one real message through one provider.

    It doesn't pass the queue: neither the service nor the journal has it. Shows the request and the answer,
    with secrets masked. If safety.only_to is set, the address must be on that list;
    countries and prefixes of the channel and the provider hold as for any message.

    Exit status 1: the provider didn't accept it.
    """
    if not text.strip():
        raise typer.BadParameter("must not be empty", param_hint="--text")
    loaded = load_as_owner(config)
    chosen = configured_provider(loaded, channel, provider)
    print_errors(f"deliveryd: this sends a real message to {to} through {chosen.identity}")
    sent = anyio.run(_send, loaded, chosen, to, text)
    if as_data:
        print_json(sent_data(sent))
    else:
        print_lines(*sent_lines(sent))
    if not sent.is_accepted:
        raise typer.Exit(FAILED)


class Sent(NamedTuple):
    """What went out and came back, secrets masked. `answer` is None without a complete one.

    `decided_by` is the part of the configuration that decided about a complete answer.
    """

    request: str
    answer: str | None
    verdict: OneVerdict
    decided_by: str | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether the provider accepted the message."""
        return isinstance(self.verdict, Accepted)


async def _send(config: Config, provider: ProviderConfig, to: str, text: str) -> Sent:
    """Send a message. Raises ConfigError, DeliverydError."""
    channel = at_one_device(open_provider(config, provider))
    try:
        dispatch = _dispatch(channel, provider.block, to, text)
        _insist_on_the_list(config, channel, provider, dispatch)
        _insist_on_its_destinations(config, channel, provider, dispatch)
        return await _sent(channel, provider, dispatch)
    finally:
        await channel.aclose()


def _insist_on_the_list(
    config: Config, channel: Channel, provider: ProviderConfig, dispatch: Dispatch
) -> None:
    """Raise DeliverydError unless all addresses that the message goes to are on the list, if there is one."""
    if config.safety.only_to is None or dispatch.customer is None:
        return
    safety = Safety(config.safety, phone_providers(config))
    addresses = channel.recipients(dispatch.customer)
    if not addresses or not all(safety.lists(provider.identity, address) for address in addresses):
        raise DeliverydError(
            f"{provider.identity}: the address is {NOT_ON_THE_LIST}: safety.only_to must name it, or its"
            " domain or beginning, before a test is sent there"
        )


def _insist_on_its_destinations(
    config: Config, channel: Channel, provider: ProviderConfig, dispatch: Dispatch
) -> None:
    """Raise DeliverydError unless the provider is sent the number, by its table and its channel's."""
    found = destinations_of(config.channels.configured[provider.channel], provider, channel)
    if found is not None and (why := found.refusal(dispatch.customer)) is not None:
        raise DeliverydError(f"{provider.identity}: {why}")


async def _sent(channel: Channel, provider: ProviderConfig, dispatch: Dispatch) -> Sent:
    if not channel.reaches(dispatch.customer):
        raise DeliverydError(f"{provider.identity}: {channel.unreached(dispatch.customer)}")
    answers: list[WireResponse] = []
    if isinstance(channel, HttpChannel):
        channel.note_answers(answers.append)
    request = channel.preview(dispatch)
    verdict = of_one(await channel.send(dispatch))
    options = provider.options
    if not answers or not isinstance(channel, HttpChannel) or not isinstance(options, HttpChannelOptions):
        return Sent(request, None, verdict)
    answer = answers[-1]
    decided_by = row_text(options, channel.row(answer))
    return Sent(request, channel.masked(_written(answer), _MOST_SEARCHED), verdict, decided_by)


def _dispatch(channel: Channel, block: str, to: str, text: str) -> Dispatch:
    fields = dict.fromkeys((*channel.customer_fields, *_ADDRESSES), to) | _OTHERS
    entry = Entry(0, 0, 0, {}, stay_tries=1, begun_at=WallClock().now())
    key = f"test-{secrets.token_hex(8)}"
    rendered = Rendered(block, "en", _content(block, text))
    return Dispatch(key, entry, Customer(0, fields), rendered, None, WallClock())


def _content(block: str, text: str) -> Mapping[str, str]:
    match block:
        case "email":
            return {"subject": text.partition("\n")[0], "body": text, "format": "text"}
        case "inApp":
            return {"name": text, "description": text, "notification.title": text, "notification.body": text}
        case _:
            return {"text": text}


def _written(answer: WireResponse) -> str:
    lines = [f"{answer.status}", *(f"{name}: {value}" for name, value in answer.headers.items())]
    body = answer.body.decode("utf-8", "replace")
    return "\n".join([*lines, "", body] if body else lines)


def sent_lines(sent: Sent) -> Iterator[str]:
    """Return the result for people."""
    yield from ("request", *_indented(sent.request), "")
    if sent.answer is not None:
        yield from ("answer", *_indented(sent.answer), "")
    elif not sent.is_accepted:  # only HTTP answers are kept
        yield from ("answer", "  none that is complete", "")
    if isinstance(sent.verdict, Expired | Unsent):
        yield sent.verdict.reason
    else:
        yield from verdict_lines(sent.verdict, sent.decided_by)


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}".rstrip() for line in text.replace("\r\n", "\n").split("\n"))


def sent_data(sent: Sent) -> Mapping[str, object]:
    """Return the result as JSON."""
    verdict = {} if isinstance(sent.verdict, Expired | Unsent) else verdict_data(sent.verdict)
    return {"request": sent.request, "answer": sent.answer, **verdict, "decided_by": sent.decided_by}
