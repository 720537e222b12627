"""What a message should say and over which channel: worked out from the interface, apart from the code."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from simulation.ledger import channel_served_by
from simulation.plan import CHANNELS, DEVICES, Life, Message, Person, Plan

_BRACED = re.compile(r"\{([^{}]*)\}")
_WORD = re.compile(r"[\w.-]+")
_WORDS = re.compile(r"[\w.-]+(\s[\w.-]+)*")
_NOBODY = Person(None, None, None, None)
_REQUIRED = {"sms": {"text"}, "email": {"subject", "body"}, "messenger": set[str]()}
_BUTTON = {"button.text", "button.url"}


class Choice(NamedTuple):
    """A channel and the language that a message has there, for a customer as the directory knows them."""

    channel: str
    language: str
    person: Person


def providers_of(plan: Plan, life: Life) -> list[str]:
    """The providers that a life's configuration has."""
    return [
        provider
        for provider in plan.weights
        if channel_served_by(provider) in life.channels and provider not in life.removed
    ]


def enabled_in(plan: Plan, life: Life) -> list[str]:
    """The providers that get new messages in a life."""
    return [provider for provider in providers_of(plan, life) if provider not in life.disabled]


def channels_open_in(plan: Plan, life: Life) -> set[str]:
    """The channels with a provider that gets new messages."""
    return {channel_served_by(provider) for provider in enabled_in(plan, life)}


def languages(person: Person) -> list[str]:
    """The customer's own, what it falls back to, and English."""
    tags = [person.language.lower(), person.language.split("-")[0].lower()] if person.language else []
    return list(dict.fromkeys([*tags, "en"]))


def persons_of(plan: Plan, message: Message) -> list[Person]:
    """Whom the message is for, as the directory says at first and, if that changes, later."""
    known = [plan.people, plan.renewal.people] if plan.renewal is not None else [plan.people]
    return [people.get(message.customer_id, _NOBODY) for people in known]


def reaches(plan: Plan, channel: str, person: Person) -> bool:
    """Whether there is an address, or none is needed."""
    if channel == DEVICES:
        return bool(person.devices) or not plan.has_devices
    return address_of(person, channel) is not None


def is_readable(channel: str, fields: Mapping[str, str]) -> bool:
    """Whether a block has all that it must have (interface 2.2)."""
    buttons = _BUTTON & fields.keys()
    return fields.keys() >= _REQUIRED[channel] and buttons in (set(), _BUTTON)


def choices(plan: Plan, message: Message, configured: Collection[str]) -> Iterator[list[Choice]]:
    """The channels that can be taken, the best first, for each state of the directory."""
    return (_choices(plan, message, configured, person) for person in persons_of(plan, message))


def _choices(plan: Plan, message: Message, configured: Collection[str], person: Person) -> list[Choice]:
    """By language, in each by the order of channels."""
    template = plan.templates.get(message.settings_id)
    if template is None:
        return []
    found: dict[str, Choice] = {}
    for language in languages(person):
        blocks = template.content.get(language, {})
        for channel in CHANNELS:
            fields = blocks.get(channel)
            if not fields or not is_readable(channel, fields):
                continue
            if channel in configured and reaches(plan, channel, person):
                found.setdefault(channel, Choice(channel, language, person))
    return list(found.values())


def rendered(plan: Plan, message: Message, choice: Choice) -> tuple[dict[str, str], list[str]]:
    """The fields of the chosen block with every placeholder replaced, and the names that have no value."""
    template = plan.templates[message.settings_id]
    content = template.content[choice.language]
    greetings = content.get("greetings", {})
    person = choice.person
    values = dict(message.variables)
    if person.name is not None:
        values.setdefault("customer.name", person.name)
    missing: list[str] = []
    greeting = greetings.get("general" if person.name is None else "personal")
    if greeting is not None and "greeting" not in values:
        values["greeting"] = _filled(greeting, values, _WORDS, missing=[])
    block = content[choice.channel]
    is_html = choice.channel == "email" and "<b>" in block["body"]
    fields = {}
    for name, text in block.items():
        if is_html and name == "body":
            escaped = {key: html.escape(value) for key, value in values.items()}
            fields[name] = _filled(text, escaped, _WORD, missing)
        else:
            fields[name] = _filled(text, values, _WORDS, missing)
    return fields, list(dict.fromkeys(missing))


def _filled(text: str, values: Mapping[str, str], names: re.Pattern[str], missing: list[str]) -> str:
    def value(match: re.Match[str]) -> str:
        written = match[1]
        if written in values:
            return values[written]
        name = _without_invisible(written).strip()
        if name not in values and names.fullmatch(name):
            missing.append(name)
        return values.get(name, match[0])

    return _BRACED.sub(value, text)


def _without_invisible(text: str) -> str:
    return "".join(sign for sign in text if unicodedata.category(sign) != "Cf")


_WIRE_NAMES = {"button.text": "label", "button.url": "link"}


def on_the_wire(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields as the simulation's provider requests carry them."""
    return {_WIRE_NAMES.get(name, name): text for name, text in fields.items()}


def addresses(plan: Plan, message: Message, channel: str) -> set[str | None]:
    """Where a channel may send it to."""
    if plan.sends_to_devices(channel):
        return {device for person in persons_of(plan, message) for device in person.devices}
    return {address_of(person, channel) for person in persons_of(plan, message)}


def address_of(person: Person, channel: str) -> str | None:
    """Where a channel sends what is for somebody; None: nowhere, or it needs no address."""
    return {"sms": person.phone, "email": person.email}.get(channel)
