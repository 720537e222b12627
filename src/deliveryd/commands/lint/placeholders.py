"""Rules about placeholders: whether something provides a value for each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from deliveryd.commands.lint.rules import LintFinding
from deliveryd.commands.lint.subject import (
    CUSTOMER_NAME,
    GREETING,
    GREETINGS_BLOCK,
    Field,
    Sample,
    Subject,
    fields_of,
)
from deliveryd.options.suggestion import suggestion
from deliveryd.rendering.escaping import HTML, VERBATIM
from deliveryd.rendering.template import Template


class Placeholder(NamedTuple):
    """A placeholder that must have a value, as it is written, and its place in the text."""

    name: str
    written: str
    offset: int


def placeholders_in(field: Field) -> Iterator[Placeholder]:
    """Yield the placeholders of a text that must have a value, in order."""
    naming = (HTML if field.is_html else VERBATIM).naming
    template = Template.compile(field.text, naming)
    slots = dict(template.slots)
    offset = 0
    for index, piece in enumerate(template.pieces):
        if index in slots and naming(slots[index]):
            yield Placeholder(slots[index], piece, offset)
        offset += len(piece)


def placeholder_findings(subject: Subject) -> Iterator[LintFinding]:
    """Check every placeholder."""
    for field in fields_of(subject):
        told: set[str] = set()
        for each in placeholders_in(field):
            if each.name not in told:
                told.add(each.name)
                yield from _of_placeholder(subject, field, each)
    yield from _uneven(subject)


def _of_placeholder(subject: Subject, field: Field, placeholder: Placeholder) -> Iterator[LintFinding]:
    sample = subject.sample
    if sample is not None and placeholder.name in sample.always:
        return
    match placeholder.name:
        case "greeting":
            yield from _of_greeting(subject, field, placeholder)
        case "customer.name":
            yield from _of_name(subject, field, placeholder)
        case name if sample is not None:
            yield from _of_variable(sample, field, placeholder, name)


def _of_variable(sample: Sample, field: Field, placeholder: Placeholder, name: str) -> Iterator[LintFinding]:
    if name in sample.ever:
        text = f"{{{name}}} has a value in only some of {sample.source}"
        remedy = "messages without it fail: give it in all of them, or leave it out"
        yield _finding("optional-placeholder", text, remedy, field, placeholder)
        return
    known = [*sample.ever, GREETING, CUSTOMER_NAME]
    text = f"{{{name}}} has no value in {sample.source}{suggestion(name, known)}"
    yield _finding(
        "unknown-placeholder", text, "correct the name, or provide the variable", field, placeholder
    )


def _of_name(subject: Subject, field: Field, placeholder: Placeholder) -> Iterator[LintFinding]:
    if not subject.setup.has_names:
        text = '{customer.name} has no value, since customers.source is "none"'
        yield _finding("unknown-placeholder", text, "configure a customer directory", field, placeholder)
    elif (field.block, field.name) != (GREETINGS_BLOCK, "personal"):
        text = "{customer.name} has no value for customers without a name, so their messages fail"
        yield _finding(
            "customer-name", text, "use {greeting} with a general and a personal one", field, placeholder
        )


def _of_greeting(subject: Subject, field: Field, placeholder: Placeholder) -> Iterator[LintFinding]:
    if field.block == GREETINGS_BLOCK:
        yield _finding(
            "nested-greeting", "{greeting} has no value inside a greeting", "remove it", field, placeholder
        )
        return
    content = subject.settings.content[field.language]
    personal = content.personal is not None or not subject.setup.has_names
    general = content.general is not None
    if content.personal is None and not general:
        text = "{greeting} is used, and the language has no greetings"
        remedy = f"add content.{field.language}.greetings with general and personal"
        yield _finding("missing-greeting", text, remedy, field, placeholder)
    elif not general:
        text = "{greeting} has no value for customers without a name: greetings.general is missing"
        yield _finding("half-greeting", text, "add greetings.general", field, placeholder)
    elif not personal and not subject.setup.greeting_fallback:
        text = "{greeting} has no value for customers with a name: greetings.personal is missing"
        remedy = "add greetings.personal, or set content.greeting_fallback = true"
        yield _finding("half-greeting", text, remedy, field, placeholder)


def _uneven(subject: Subject) -> Iterator[LintFinding]:
    """Compare the placeholders of a block in all languages that have it."""
    used: dict[str, dict[str, set[str]]] = {}
    for field in fields_of(subject):
        if field.block != GREETINGS_BLOCK:
            names = used.setdefault(field.block, {}).setdefault(field.language, set())
            names |= {each.name for each in placeholders_in(field)} - {GREETING, CUSTOMER_NAME}
    for block, by_language in used.items():
        yield from _differences(block, by_language)


def _differences(block: str, by_language: Mapping[str, Collection[str]]) -> Iterator[LintFinding]:
    for name in sorted(set[str]().union(*by_language.values())):
        lacking = [tag for tag, names in by_language.items() if name not in names]
        having = [tag for tag, names in by_language.items() if name in names]
        # Where as many lack it as have it, either may be meant.
        for tag in lacking if len(lacking) <= len(having) else having:
            verb = "isn't used" if tag in lacking else "is used"
            others = ", ".join(having if tag in lacking else lacking)
            text = f"{{{name}}} {verb} here, unlike in {others}"
            yield LintFinding("uneven-placeholder", text, "compare the texts", tag, block)


def _finding(rule: str, text: str, remedy: str, field: Field, placeholder: Placeholder) -> LintFinding:
    return LintFinding(rule, text, remedy, field.language, field.block, field.name, placeholder.offset)
