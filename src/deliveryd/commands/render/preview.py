"""Previews what channels would send for a message. Nothing is sent or stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from deliveryd.channels.base import Channel, Dispatch
from deliveryd.channels.options import ChannelConfig
from deliveryd.channels.sms_text import SmsRules, outside_gsm, sms_parts
from deliveryd.commands.render.preview_request import PreviewMessage
from deliveryd.config import Config
from deliveryd.delivery.choice import Idle
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.routing import Route, Routed, Undeliverable, is_expired
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.errors import DeliverydError
from deliveryd.journal.opening import open_reader
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import Rendered, WallClock, channel_of, first_of, format_instant, message_key
from deliveryd.rendering.content import CompiledBlock, CompiledSettings, Missing
from deliveryd.rendering.language import candidates, matching, standard_tag
from deliveryd.transitions import expiry_details
from deliveryd.worker.wiring import build_choices, build_router, compiler, open_providers, sms_rules


class Scope(NamedTuple):
    """The channel, the language and the provider to show; None: all that delivery would try."""

    channel: str | None
    language: str | None
    provider: str | None = None


WHOLE_SCOPE = Scope(None, None)


class SmsSize(NamedTuple):
    """The size of an SMS as it would be sent, and the characters that force UCS-2."""

    encoding: str
    units: int
    parts: int
    forced_by: tuple[str, ...]


class Preview(NamedTuple):
    """What one provider would send in one language.

    `problem` is why nothing can be sent; `missing` are the placeholders without a value. `reached`: whether
    the customer has an address there and didn't stop the channel, else `unreached` is why not. Only then
    there is a `request`, with secrets masked. `weight` is that of a provider among several, `weights` their
    sum.
    """

    provider: str
    language: str
    reached: bool
    problem: str | None = None
    missing: tuple[str, ...] = ()
    fields: Mapping[str, str] = {}
    sms: SmsSize | None = None
    request: str | None = None
    unreached: str | None = None
    weight: int | None = None
    weights: int | None = None


class PreviewResult(NamedTuple):
    """All previews in the order in which channels would be tried, and the one that would be chosen.

    `unreadable` are the reasons for which blocks of the settings are skipped. `problem` is why the message,
    or the requested part of it, can't be sent.
    """

    message: PreviewMessage
    previews: Sequence[Preview]
    chosen: Preview | None
    further_languages: tuple[str, ...]
    unreadable: tuple[str, ...]
    problem: str | None


async def preview(config: Config, message: PreviewMessage, scope: Scope, now: int) -> PreviewResult:
    """Preview a message. Must be called within an asyncio loop. Raises DeliverydError."""
    providers = open_providers(config)
    try:
        return _preview_result(config, providers, message, scope, now)
    finally:
        for provider in providers.values():
            await provider.aclose()


def _preview_result(
    config: Config, providers: Mapping[str, Channel], message: PreviewMessage, scope: Scope, now: int
) -> PreviewResult:
    settings = compiler(config)(message.settings)
    tags = _languages(config, message, settings, scope)
    blocks = _blocks(config, settings, tags, scope)
    if not blocks:
        nothing = f"settings {message.entry.settings_id} have no such content in {', '.join(tags)}"
        raise DeliverydError("; ".join((nothing, *first_of(settings.unreadable))))
    stopped = _stop_list(config)
    previews = [
        _weighed(
            _preview(
                provider.identity,
                providers[provider.identity],
                block,
                sms_rules(config.channels.configured[name]),
                message,
                now=now,
                has_stopped=_has_stopped(stopped, name, providers[provider.identity], message),
            ),
            config.channels.configured[name],
        )
        for name, block in blocks
        for provider in config.channels.configured[name].providers.values()
        if scope.provider in (None, provider.identity)
    ]
    choices = build_choices(config, providers, dict.fromkeys(providers, Idle()))
    router = build_router(config, choices, stopped, Pauses())
    customer = message.customer if router.needs_customer(message.entry, settings, now) else None
    route = router.route(message.entry, settings, customer, now)
    return PreviewResult(
        message,
        previews,
        _chosen(previews, route, scope),
        tuple(
            tag for tag in settings.languages if tag not in matching(tuple(tags), tuple(settings.languages))
        ),
        settings.unreadable,
        _why_not(message, previews, route, scope, now),
    )


def _stop_list(config: Config) -> StoppedRecipients:
    """Read the recipients who stopped a channel; before the first run there are none. Raises JournalError."""
    try:
        listed = open_reader(config.journal.place).stop_list()
    except JournalAbsent:
        return StoppedRecipients(b"")
    stopped = StoppedRecipients(listed.key)
    stopped.load(listed.digests)
    return stopped


def _has_stopped(stopped: StoppedRecipients, name: str, channel: Channel, message: PreviewMessage) -> bool:
    return message.customer is not None and stopped.includes(name, channel.recipient(message.customer))


def _weighed(preview: Preview, channel: ChannelConfig) -> Preview:
    """Return a preview with its provider's weight, where the channel has several."""
    if len(channel.providers) < 2:
        return preview
    enabled = [each for each in channel.providers.values() if each.common.enabled]
    weights = {each.identity: each.common.weight for each in enabled}
    return preview._replace(weight=weights.get(preview.provider, 0), weights=sum(weights.values()))


def _languages(
    config: Config, message: PreviewMessage, settings: CompiledSettings, scope: Scope
) -> Sequence[str]:
    if scope.language is None:
        return candidates(message.customer.language if message.customer else None, config.content.languages)
    tag = standard_tag(scope.language)
    if tag not in settings.languages:
        there = ", ".join(settings.languages) or "none"
        raise DeliverydError(f"there is no language {tag} in these settings; there are: {there}")
    return (tag,)


def _blocks(
    config: Config, settings: CompiledSettings, tags: Sequence[str], scope: Scope
) -> list[tuple[str, CompiledBlock]]:
    """Return each channel with its block in the first language that has one, in the order of attempts."""
    configured = config.channels.configured
    shown = configured if scope.channel is None else {scope.channel}
    names = [name for name in config.channels.order if name in configured and name in shown]
    found: dict[str, CompiledBlock] = {}
    for tag in matching(tuple(tags), tuple(settings.languages)):
        blocks = settings.languages[tag].blocks
        for name in names:
            block = blocks.get(configured[name].block)
            if block is not None:
                found.setdefault(name, block)
    return list(found.items())


def _preview(
    name: str,
    channel: Channel,
    block: CompiledBlock,
    rules: SmsRules | None,
    message: PreviewMessage,
    *,
    now: int,
    has_stopped: bool,
) -> Preview:
    reached = channel.reaches(message.customer) and not has_stopped
    unreached = None if reached else channel.unreached(message.customer)
    if has_stopped:
        unreached = f"the recipient stopped {channel_of(name)}"
    rendered = block.render(message.entry.variables, message.customer)
    if isinstance(rendered, Missing):
        return Preview(name, block.language, reached, rendered.reason, rendered.names, unreached=unreached)
    if not isinstance(rendered, Rendered):
        return Preview(name, block.language, reached, rendered.reason, unreached=unreached)
    flaw = None
    if rules is not None:
        rendered = rules.apply(rendered)
        flaw = rules.flaw(rendered)
    entry = message.entry._replace(begun_at=now)
    key = message_key("preview", entry.id, name, entry.beginning)
    dispatch = Dispatch(key, entry, message.customer, rendered, message.settings.expires_at, WallClock())
    return Preview(
        name,
        block.language,
        reached,
        flaw,
        fields=rendered.fields,
        sms=_sms_size(rendered.fields["text"]) if block.block == "sms" else None,
        request=channel.preview(dispatch) if reached else None,
        unreached=unreached,
    )


def _sms_size(text: str) -> SmsSize:
    return SmsSize(*sms_parts(text), outside_gsm(text))


def _chosen(previews: Sequence[Preview], route: Route, scope: Scope) -> Preview | None:
    """Return the preview that delivery would choose, even if it can't be sent."""
    if not isinstance(route, Routed):
        reached = (preview for preview in previews if preview.reached)
        return next(reached, None) if scope == WHOLE_SCOPE else None
    place = (route.provider, route.rendered.language)
    return next((preview for preview in previews if (preview.provider, preview.language) == place), None)


def _why_not(
    message: PreviewMessage,
    previews: Sequence[Preview],
    route: Route,
    scope: Scope,
    now: int,
) -> str | None:
    expires_at = message.settings.expires_at
    if expires_at is not None and is_expired(expires_at, now):
        return expiry_details(expires_at)
    if message.has_customer and scope == WHOLE_SCOPE:
        return route.details if isinstance(route, Undeliverable) else None
    hindrances = (
        f"{preview.provider}: {why}" for preview in previews if (why := _hindrance(preview, message))
    )
    return next(hindrances, None)


def _hindrance(preview: Preview, message: PreviewMessage) -> str | None:
    return preview.problem or (preview.unreached if message.has_customer else None)


def preview_lines(result: PreviewResult) -> Iterator[str]:
    """Return the result as lines, the problem last."""
    message = result.message
    expires_at = message.settings.expires_at
    until = f"expire at {format_instant(expires_at)}" if expires_at is not None else "never expire"
    yield f"settings from {message.source}, which {until}"
    yield f"customer {_customer(message)}"
    if result.further_languages:
        yield f"other languages (see --language): {', '.join(result.further_languages)}"
    yield from (f"unreadable and skipped: {reason}" for reason in result.unreadable)
    for preview in result.previews:
        yield ""
        yield _headline(preview, message, preview is result.chosen)
        for line in _facts(preview, message):
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
    if (why := _hindrance(preview, message)) is not None:
        yield f"can't be sent: {why}"
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


def _broken(text: str) -> list[str]:
    """Split a text at line feeds only; other line separators stay in it, to be escaped visibly."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def preview_data(result: PreviewResult) -> Mapping[str, object]:
    """Return the result as JSON."""
    message = result.message
    expires_at = message.settings.expires_at
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
