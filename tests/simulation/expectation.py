"""What a message should say and over which channel: worked out from the interface, apart from the code."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from simulation.plan import CHANNELS, Message, Person, Plan

_PLACEHOLDER = re.compile(r"\{([\w.-]+)\}")
_NOBODY = Person(None, None, None, None)


class Choice(NamedTuple):
    """A channel and the language that a message has there."""

    channel: str
    language: str


def languages(person: Person) -> list[str]:
    """The customer's own, what it falls back to, and English."""
    tags = [person.language.lower(), person.language.split("-")[0].lower()] if person.language else []
    return list(dict.fromkeys([*tags, "en"]))


def person_of(plan: Plan, message: Message) -> Person:
    """Whom the message is for."""
    return plan.people.get(message.customer_id, _NOBODY)


def reaches(channel: str, person: Person) -> bool:
    """Whether there is an address."""
    return {"sms": person.phone, "email": person.email, "messenger": "none needed"}[channel] is not None


def choices(plan: Plan, message: Message, configured: Sequence[str]) -> list[Choice]:
    """The channels that can be taken, the best first: by language, in each by the order of channels."""
    person = person_of(plan, message)
    template = plan.templates.get(message.settings_id)
    if template is None:
        return []
    found: dict[str, Choice] = {}
    for language in languages(person):
        blocks = template.content.get(language, {})
        for channel in CHANNELS:
            if channel in blocks and channel in configured and reaches(channel, person):
                found.setdefault(channel, Choice(channel, language))
    return list(found.values())


def rendered(plan: Plan, message: Message, choice: Choice) -> tuple[dict[str, str], list[str]]:
    """The fields of the chosen block with every placeholder replaced, and the names that have no value."""
    template = plan.templates[message.settings_id]
    content = template.content[choice.language]
    greetings = content.get("greetings", {})
    person = person_of(plan, message)
    values = dict(message.variables)
    if person.name is not None:
        values.setdefault("customer.name", person.name)
    missing: list[str] = []
    greeting = greetings.get("general" if person.name is None else "personal")
    if greeting is not None and "greeting" not in values:
        values["greeting"] = _filled(greeting, values, missing=[])
    is_html = choice.channel == "email" and "<b>" in content["email"]["body"]
    fields = {
        name: _filled(text, _escaped(values, is_html and name == "body"), missing)
        for name, text in content[choice.channel].items()
    }
    return fields, list(dict.fromkeys(missing))


def _escaped(values: Mapping[str, str], is_html: bool) -> Mapping[str, str]:
    return {name: html.escape(value) for name, value in values.items()} if is_html else values


def _filled(text: str, values: Mapping[str, str], missing: list[str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            missing.append(name)
        return values.get(name, match[0])

    return _PLACEHOLDER.sub(value, text)


_WIRE_NAMES = {"button.text": "label", "button.url": "link"}


def on_the_wire(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields as the simulation's provider requests carry them."""
    return {_WIRE_NAMES.get(name, name): text for name, text in fields.items()}
