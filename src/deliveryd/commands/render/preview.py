"""Previews what channels would send for a message, whose parts are given or looked up. Nothing is sent."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any, NamedTuple

from deliveryd.channels.base import Channel, Dispatch
from deliveryd.channels.devices import at_device, at_one_device, devices_of, with_devices
from deliveryd.channels.sms_text import SmsRules, outside_gsm, sms_parts
from deliveryd.config import Config
from deliveryd.delivery.choice import Choice, Idle
from deliveryd.delivery.message import Delivery, is_expired
from deliveryd.delivery.pauses import Pauses
from deliveryd.delivery.routing import Route
from deliveryd.delivery.safety import Safety
from deliveryd.delivery.stopped import StoppedRecipients
from deliveryd.directory.base import find_customer
from deliveryd.errors import DeliverydError, DirectoryUnavailable, ServiceUnreadable
from deliveryd.journal.opening import open_reader
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import (
    Customer,
    Entry,
    Rendered,
    Settings,
    WallClock,
    channel_of,
    first_of,
    message_key,
)
from deliveryd.rendering.content import CompiledBlock, CompiledSettings, Missing
from deliveryd.rendering.language import candidates, matching, standard_tag
from deliveryd.service import exact_json
from deliveryd.service.client import ServiceClient
from deliveryd.transitions import expiry_details
from deliveryd.worker.caches import open_cache
from deliveryd.worker.outside import open_directory
from deliveryd.worker.phones import phone_providers
from deliveryd.worker.wiring import (
    build_choices,
    build_router,
    compiler,
    open_providers,
    open_service,
    sms_rules,
)

_NUMBER = re.compile(r"-?[0-9]+")
_MOST_DIGITS = 19
_IDS = range(-(2**63), 2**63)


class PreviewMessage(NamedTuple):
    """A message that isn't in the queue. `source` is where the settings are from.

    It `expires_at` an instant as if it were taken now; None: never.
    `customer` is None if none was given, or the directory doesn't have them.
    """

    source: str
    settings: Settings
    entry: Entry
    customer: Customer | None
    has_customer: bool
    expires_at: int | None


async def gather(
    config: Config, settings: str, variables: str | None, customer_id: int | None, message_id: int
) -> PreviewMessage:
    """Read all parts: `settings` is a file or an ID, `variables` a file or JSON; None: not given.

    Raises DeliverydError with a text for the operator.
    """
    values = {} if variables is None else read_variables(variables)
    if _NUMBER.fullmatch(settings):
        source, found = await _settings_by_id(config, _id_in(settings))
    else:
        source, found = settings, _settings_in(Path(settings))
    customer = None if customer_id is None else await customer_of(config, customer_id)
    now = WallClock().now()
    entry = Entry(message_id, found.id, customer_id or 0, values, taken_at=now)
    expires_at = compiler(config)(found).expiry_of(now)
    return PreviewMessage(source, found, entry, customer, customer_id is not None, expires_at)


def _id_in(number: str) -> int:
    if len(number.lstrip("-")) > _MOST_DIGITS or int(number) not in _IDS:
        raise DeliverydError(
            "--settings: IDs are 64-bit integers; to name a file of digits, write ./ before it"
        )
    return int(number)


def read_variables(given: str) -> dict[str, str]:
    """Read variables, given as JSON or as a file. Raises DeliverydError."""
    if given.lstrip().startswith(("{", "[", '"')):
        name, text = "--variables", given
    else:
        name, text = given, _read(Path(given)).decode("utf-8", "replace")
    variables = _json(name, text)
    if not isinstance(variables, dict):
        raise DeliverydError(f"{name}: expected a JSON object whose values are strings or numbers")
    wrong = [key for key, value in variables.items() if not isinstance(value, str)]
    if wrong:
        raise DeliverydError(f"{name}: expected a string or a number: {', '.join(wrong)}")
    return variables


def _settings_in(path: Path) -> Settings:
    body = _read(path)
    _json(str(path), body.decode("utf-8-sig", "replace"))
    try:
        return ServiceClient.parse_settings(0, body)
    except ServiceUnreadable as error:
        raise DeliverydError(f"{path}: {str(error).removeprefix('settings 0: ')}") from None


def read_json(path: Path) -> Any:
    """Parse a JSON file; numbers become texts, as they are written. Raises DeliverydError."""
    return _json(str(path), _read(path).decode("utf-8-sig", "replace"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DeliverydError(f"{path} can't be read: {error.strerror}") from None


def _json(name: str, text: str) -> Any:
    try:
        return exact_json.loads_exact(text)
    except JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DeliverydError(f"{name}: invalid JSON: {error.msg} at {place}") from None
    except ValueError as error:
        raise DeliverydError(f"{name}: invalid JSON: {error}") from None


async def _settings_by_id(config: Config, settings_id: int) -> tuple[str, Settings]:
    cached = await cached_settings(config, settings_id)
    if cached is not None:
        return "the cache", cached
    service = open_service(config)
    try:
        body = await service.fetch_settings(settings_id)
        return "the service", service.parse_settings(settings_id, body)
    except ServiceUnreadable as error:
        raise DeliverydError(f"from the service: {error}") from None
    except DeliverydError as error:
        raise DeliverydError(f"settings {settings_id}: {error}") from None
    finally:
        await service.aclose()


async def cached_settings(config: Config, settings_id: int) -> Settings | None:
    """Return settings that the disk cache has in a readable form."""
    # A cache opened without write permission would count as broken and be discarded.
    if not os.access(config.settings.cache_dir / "cache.db", os.R_OK | os.W_OK, effective_ids=True):
        return None
    cache = open_cache(config)
    try:
        cached = await cache.get(f"settings/{settings_id}")
        return None if cached is None else ServiceClient.parse_settings(settings_id, cached.value)
    except ServiceUnreadable:
        return None
    finally:
        await cache.aclose()


async def customer_of(config: Config, customer_id: int) -> Customer | None:
    """Return a customer of the configured directory. Raises DeliverydError."""
    directory = await open_directory(config)
    try:
        return await find_customer(directory, customer_id)
    except DirectoryUnavailable as error:
        raise DeliverydError(f"the customer directory: {error}") from None
    finally:
        await directory.aclose()


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
    sum. `left_out` is how many of the customer's devices aren't sent to, for each reason.
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
    left_out: tuple[str, ...] = ()


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
    stopped = read_stopped(config)
    safety = Safety(config.safety, phone_providers(config)) if message.has_customer else Safety()
    configured = config.channels.configured
    choices = build_choices(config, providers, dict.fromkeys(providers, Idle()), safety)
    previews = []
    for name, block in blocks:
        for identity in (each.identity for each in configured[name].providers.values()):
            if scope.provider in (None, identity):
                adapter = providers[identity]
                reached = _reached(choices[name], identity, block, message, stopped=stopped, safety=safety)
                if len(choices[name].senders) > 1:
                    reached = _weighed(reached, choices[name], message)
                reached, recipient = _at_devices(
                    reached, adapter, choices[name], message, stopped=stopped, safety=safety
                )
                rules = sms_rules(configured[name])
                previews.append(
                    _filled(reached, adapter, block, rules, message, recipient=recipient, now=now)
                )
    router = build_router(config, choices, stopped, Pauses(), safety)
    delivery = Delivery(message.entry, settings)
    while (route := router.route(delivery, now)) is None:
        delivery.of(message.customer)
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


def read_stopped(config: Config) -> StoppedRecipients:
    """Read the suppressed recipients; before the first run there are none. Raises JournalError."""
    try:
        listed = open_reader(config.journal.place).stop_list()
    except JournalAbsent:
        return StoppedRecipients(b"")
    stopped = StoppedRecipients(listed.key)
    stopped.load(listed.digests)
    return stopped


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


def _reached(
    choice: Choice,
    identity: str,
    block: CompiledBlock,
    message: PreviewMessage,
    *,
    stopped: StoppedRecipients,
    safety: Safety,
) -> Preview:
    """Return a preview without a text: whether the customer is reached."""
    adapter = choice.senders[identity].adapter
    if message.has_customer:
        unreached = why_unreached(
            choice, identity, message.entry.customer_id, message.customer, stopped=stopped, safety=safety
        )
    else:
        unreached = None if adapter.reaches(None) else adapter.unreached(None)
    return Preview(identity, block.language, unreached is None, unreached=unreached)


def _at_devices(
    preview: Preview,
    adapter: Channel,
    choice: Choice,
    message: PreviewMessage,
    *,
    stopped: StoppedRecipients,
    safety: Safety,
) -> tuple[Preview, Customer | None]:
    """Return the preview with why devices are left out, and the customer with those that are sent to."""
    customer, field = message.customer, adapter.devices_field
    if customer is None or field is None or not preview.reached:
        return preview, customer
    name, one_adapter = preview.provider, at_one_device(adapter)
    reasons: dict[str, str] = {}
    for device in (devices := devices_of(customer, field)):
        one = at_device(customer, field, device)
        if not one_adapter.reaches(one):
            reasons[device] = one_adapter.unreached(one)
        elif stopped.includes(channel_of(name), adapter.recipients(one)):
            reasons[device] = f"the recipient is suppressed on {channel_of(name)}"
        elif not safety.admits(name, adapter, message.entry.customer_id, one):
            reasons[device] = safety.reason
        elif (why := choice.refusal(name, one)) is not None:
            reasons[device] = why
    if not reasons:
        return preview, customer
    left_out = tuple(
        f"{count} of {len(devices)} devices: {why}" for why, count in Counter(reasons.values()).items()
    )
    kept = [device for device in devices if device not in reasons]
    return preview._replace(left_out=left_out), with_devices(customer, field, kept)


def why_unreached(
    choice: Choice,
    identity: str,
    customer_id: int,
    customer: Customer | None,
    *,
    stopped: StoppedRecipients,
    safety: Safety,
) -> str | None:
    """Return why a provider isn't sent to a customer; None: it is."""
    adapter, channel = choice.senders[identity].adapter, channel_of(identity)
    if not adapter.reaches(customer):
        return adapter.unreached(customer)
    if customer is not None and stopped.includes(channel, adapter.recipients(customer)):
        return f"the recipient is suppressed on {channel}"
    if not safety.admits(identity, adapter, customer_id, customer):
        return safety.reason
    return choice.refusal(identity, customer)


def _weighed(preview: Preview, choice: Choice, message: PreviewMessage) -> Preview:
    """Return the preview with the provider's weight among several."""
    weights = {name: round(choice.weight_of(name, message.customer)) for name in choice.enabled}
    return preview._replace(weight=weights.get(preview.provider, 0), weights=sum(weights.values()))


def _filled(
    preview: Preview,
    adapter: Channel,
    block: CompiledBlock,
    rules: SmsRules | None,
    message: PreviewMessage,
    *,
    recipient: Customer | None,
    now: int,
) -> Preview:
    """Return a preview with what would be sent, or with the problem."""
    rendered = block.render(message.entry.variables, message.customer)
    if isinstance(rendered, Missing):
        return preview._replace(problem=rendered.reason, missing=rendered.names)
    if not isinstance(rendered, Rendered):
        return preview._replace(problem=rendered.reason)
    flaw = None
    if rules is not None:
        rendered = rules.apply(rendered)
        flaw = rules.flaw(rendered)
    entry = message.entry._replace(begun_at=now)
    key = message_key("preview", entry.id, preview.provider, entry.generation)
    dispatch = Dispatch(key, entry, recipient, rendered, message.expires_at, WallClock())
    text = rendered.fields["text"] if block.block == "sms" else None
    return preview._replace(
        problem=flaw,
        fields=rendered.fields,
        sms=None if text is None else SmsSize(*sms_parts(text), outside_gsm(text)),
        request=adapter.preview(dispatch) if preview.reached else None,
    )


def _chosen(previews: Sequence[Preview], route: Route, scope: Scope) -> Preview | None:
    """Return the preview that delivery would choose, even if it can't be sent."""
    if not isinstance(route, Delivery):
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
    expires_at = message.expires_at
    if expires_at is not None and is_expired(expires_at, now):
        return expiry_details(expires_at)
    if message.has_customer and scope == WHOLE_SCOPE:
        return None if isinstance(route, Delivery) else route.events[0].details
    hindrances = (
        f"{preview.provider}: {why}" for preview in previews if (why := hindrance(preview, message))
    )
    return next(hindrances, None)


def hindrance(preview: Preview, message: PreviewMessage) -> str | None:
    """Return why a provider can't send a message; None: nothing is known to prevent it."""
    return preview.problem or (preview.unreached if message.has_customer else None)
