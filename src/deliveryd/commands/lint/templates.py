"""Rules about what is sent to whom: languages and blocks, placeholders, and braces that look like them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from deliveryd.cleaning import is_invisible
from deliveryd.commands.lint.rules import (
    CUSTOMER_NAME,
    GREETING,
    GREETINGS_BLOCK,
    Field,
    LintFinding,
    Sample,
    Subject,
    fields_of,
    shown,
)
from deliveryd.errors import LanguageUnreadable
from deliveryd.model import BLOCKS, format_instant
from deliveryd.options.suggestion import suggestion
from deliveryd.rendering.escaping import HTML, VERBATIM
from deliveryd.rendering.language import candidates, matching, standard_tag
from deliveryd.rendering.template import Naming, Template

_BUTTON = {"text": None, "url": None}
_KNOWN: Mapping[str, Mapping[str, Any]] = {
    GREETINGS_BLOCK: {"general": None, "personal": None},
    "messenger": {"text": None, "image": None, "button": _BUTTON},
    "sms": {"text": None},
    "inApp": {
        "name": None, "description": None, "image": None, "button": _BUTTON,
        "notification": {"title": None, "body": None},
    },
    "email": {"subject": None, "body": None},
}  # fmt: skip
"""The fields of a language (interface 2.2)."""


def structure_findings(subject: Subject) -> Iterator[LintFinding]:
    """Check the settings as a whole."""
    yield from _expiry(subject)
    yield from _languages(subject)
    for tag, content in subject.settings.content.items():
        for block, reason in content.unreadable.items():
            text = f"can't be read, and is skipped: {reason}"
            yield LintFinding("unreadable-block", text, "correct its fields", tag, block)
    yield from _unknown_fields(subject)
    yield from _empty(subject)
    yield from _missing_blocks(subject)


def _expiry(subject: Subject) -> Iterator[LintFinding]:
    expires_at = subject.settings.expires_at
    if expires_at is not None and expires_at <= subject.now:
        text = f"expired at {format_instant(expires_at)}: nothing is sent"
        yield LintFinding("expired", text, "set a later instant, or remove it", field="delivery.expiresAt")


def _languages(subject: Subject) -> Iterator[LintFinding]:
    content, config = subject.settings.content, subject.config
    for tag in content:
        if not _is_tag(tag):
            yield LintFinding(
                "unknown-language", f"{tag!a} isn't a language tag", 'use one such as "en"', tag
            )
    if config is None:
        return
    sent = {channel.block for channel in config.channels.configured.values()}
    if not any(sent & language.blocks.keys() for language in content.values()):
        text = f"no block is sent by a configured channel; their blocks are {', '.join(sorted(sent))}"
        yield LintFinding("no-channel", text, "add one of these blocks")
    there = tuple(standard_tag(tag) for tag in content if _is_tag(tag))
    if not matching(candidates(None, config.content.languages), there):
        languages = ", ".join(config.content.languages)
        text = f"customers without one of these languages get an error: content.languages is {languages}"
        yield LintFinding("missing-default-language", text, "add one of them")


def _is_tag(tag: str) -> bool:
    try:
        standard_tag(tag)
    except LanguageUnreadable:
        return False
    return True


def _unknown_fields(subject: Subject) -> Iterator[LintFinding]:
    content = subject.raw.get("content")
    for tag, language in content.items() if isinstance(content, Mapping) else ():
        if not isinstance(language, Mapping):
            continue
        for block, fields in language.items():
            if block not in _KNOWN:
                text = f"{block!a} isn't a block, and is ignored{suggestion(block, _KNOWN)}"
                yield LintFinding("unknown-field", text, f"there are {', '.join(_KNOWN)}", tag, block)
            elif isinstance(fields, Mapping):
                yield from _unknown_in(tag, block, "", fields, _KNOWN[block])


def _unknown_in(
    tag: str, block: str, prefix: str, fields: Mapping[str, Any], known: Mapping[str, Any]
) -> Iterator[LintFinding]:
    for name, value in fields.items():
        if name not in known:
            text = f"{name!a} isn't a field, and is ignored{suggestion(name, known)}"
            yield LintFinding(
                "unknown-field", text, f"there are {', '.join(known)}", tag, block, f"{prefix}{name}"
            )
        elif isinstance(value, Mapping) and isinstance(known[name], Mapping):
            yield from _unknown_in(tag, block, f"{prefix}{name}.", value, known[name])


def _empty(subject: Subject) -> Iterator[LintFinding]:
    for field in fields_of(subject):
        if not field.text.strip():
            yield field.finding("empty-field", "holds no text", "write a text, or remove the field")


def _missing_blocks(subject: Subject) -> Iterator[LintFinding]:
    content, config = subject.settings.content, subject.config
    sent = BLOCKS if config is None else [each.block for each in config.channels.configured.values()]
    languages = [tag for tag in content if _is_tag(tag)]
    for block in dict.fromkeys(sent):
        having = [tag for tag in languages if block in content[tag].blocks]
        for tag in languages if having else ():
            if block in content[tag].unreadable or any(_covers(other, tag) for other in having):
                continue
            text = f"has no block {block}, unlike {', '.join(having)}"
            remedy = "its customers get another channel or language: add the block"
            yield LintFinding("missing-block", text, remedy, tag, block)


def _covers(having: str, tag: str) -> bool:
    """Whether customers with this tag get what the other one has: `pt` covers `pt-BR`."""
    return bool(matching(candidates(tag, ()), (standard_tag(having),)))


class Placeholder(NamedTuple):
    """A placeholder, as it is written, and its place in the text."""

    name: str
    written: str
    offset: int


def placeholders_in(field: Field) -> Iterator[Placeholder]:
    """Yield the placeholders of a text that must have a value, in order."""
    naming = _naming(field)
    return (each for each in _braced_in(field.text, naming) if naming(each.name))


def _naming(field: Field) -> Naming:
    return (HTML if field.is_html else VERBATIM).naming


def _braced_in(text: str, naming: Naming) -> Iterator[Placeholder]:
    """Yield all that stands between braces."""
    template = Template.compile(text, naming)
    slots = dict(template.slots)
    offset = 0
    for index, piece in enumerate(template.pieces):
        if index in slots:
            yield Placeholder(slots[index], piece, offset)
        offset += len(piece)


def placeholder_findings(subject: Subject) -> Iterator[LintFinding]:
    """Check every placeholder."""
    for field in fields_of(subject):
        reported: set[str] = set()
        for each in placeholders_in(field):
            if each.name not in reported:
                reported.add(each.name)
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
        yield field.finding("optional-placeholder", text, remedy, placeholder.offset)
        return
    known = [*sample.ever, GREETING, CUSTOMER_NAME]
    text = f"{{{name}}} has no value in {sample.source}{suggestion(name, known)}"
    yield field.finding(
        "unknown-placeholder", text, "correct the name, or provide the variable", placeholder.offset
    )


def _of_name(subject: Subject, field: Field, placeholder: Placeholder) -> Iterator[LintFinding]:
    if not subject.has_names:
        text = '{customer.name} has no value, since customers.source is "none"'
        yield field.finding("unknown-placeholder", text, "configure a customer directory", placeholder.offset)
    elif (field.block, field.name) != (GREETINGS_BLOCK, "personal"):
        text = "{customer.name} has no value for customers without a name, so their messages fail"
        yield field.finding(
            "customer-name", text, "use {greeting} with a general and a personal one", placeholder.offset
        )


def _of_greeting(subject: Subject, field: Field, placeholder: Placeholder) -> Iterator[LintFinding]:
    if field.block == GREETINGS_BLOCK:
        yield field.finding(
            "nested-greeting", "{greeting} has no value inside a greeting", "remove it", placeholder.offset
        )
        return
    content = subject.settings.content[field.language]
    personal = content.personal is not None or not subject.has_names
    general = content.general is not None
    if content.personal is None and not general:
        text = "{greeting} is used, and the language has no greetings"
        remedy = f"add content.{field.language}.greetings with general and personal"
        yield field.finding("missing-greeting", text, remedy, placeholder.offset)
    elif not general:
        text = "{greeting} has no value for customers without a name: greetings.general is missing"
        yield field.finding("half-greeting", text, "add greetings.general", placeholder.offset)
    elif not personal and not subject.content.greeting_fallback:
        text = "{greeting} has no value for customers with a name: greetings.personal is missing"
        remedy = "add greetings.personal, or set content.greeting_fallback = true"
        yield field.finding("half-greeting", text, remedy, placeholder.offset)


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


_FOREIGN = re.compile(
    r"[$#%]\{[\w.]{1,64}\}|%\([\w.]{1,64}\)[sd]|<%=?[^<>%]{1,64}%>|\[\[[\w.]{1,64}\]\]|\{%[^{}%]{1,64}%\}"
)
_OPENING = (
    r"&(?:amp;)?(?:#0*123(?:;|(?!\d))|#x0*7b(?:;|(?![\da-f]))|lcub;|lbrace;)"
    r"|%(?:25)?7b|\\u007b|[\uff5b\ufe5b\u2774\u2983{]"
)
_CLOSING = (
    r"&(?:amp;)?(?:#0*125(?:;|(?!\d))|#x0*7d(?:;|(?![\da-f]))|rcub;|rbrace;)"
    r"|%(?:25)?7d|\\u007d|[\uff5d\ufe5c\u2775\u2984}]"
)
_BRACED = re.compile(
    rf"(?P<before>(?:{_OPENING}){{1,2}}) ?(?P<name>\w(?:[\w .-]{{0,62}}[\w.-])?) ?"
    rf"(?P<after>(?:{_CLOSING}){{1,2}})",
    re.IGNORECASE,
)
"""A name between braces, which may be written as in HTML, addresses or JSON, or only look like braces."""
_STYLED = re.compile(r"<(style|script)\b[^<>]*>.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)


def brace_findings(subject: Subject) -> Iterator[LintFinding]:
    """Check the braces of every text."""
    given = frozenset() if subject.sample is None else subject.sample.ever
    for field in fields_of(subject):
        yield from _in_field(field, given)


def _in_field(field: Field, given: Collection[str]) -> Iterator[LintFinding]:
    text = _without_styles(field.text) if field.is_html else field.text
    foreign = list(_FOREIGN.finditer(text))
    for match in foreign:
        said = f"{shown(match[0])} is a placeholder of another template language"
        yield field.finding("foreign-placeholder", said, "write {name}", match.start())
    encoded = [
        each for each in _BRACED.finditer(text) if each["before"].strip("{") or each["after"].strip("}")
    ]
    for match in encoded:
        said = f"{shown(match[0])} is no placeholder, and is sent as it is"
        yield field.finding("encoded-braces", said, f"write {{{match['name']}}}", match.start())
    taken = {place for match in (*foreign, *encoded) for place in range(*match.span())}
    yield from (found for found in _braced(field, text, given) if found.offset not in taken)
    yield from (found for found in _unbalanced(field, text) if found.offset not in taken)


def _without_styles(html: str) -> str:
    """Blank out style sheets and scripts, whose braces are their own."""
    return _STYLED.sub(lambda match: " " * len(match[0]), html)


def _braced(field: Field, text: str, given: Collection[str]) -> Iterator[LintFinding]:
    naming = _naming(field)
    for name, piece, offset in _braced_in(text, naming):
        is_doubled = text[offset - 1 : offset] == "{" and text.startswith("}", offset + len(piece))
        if is_doubled and piece not in given:
            said = f"{{{shown(piece)}}} becomes the value between braces"
            yield field.finding("doubled-braces", said, f"write {shown(piece)}", offset - 1)
        elif piece[1:-1] in given:
            pass
        elif not naming(name) and name not in given:
            said = f"{shown(piece)} holds no name, so it is sent as it is"
            yield field.finding("literal-braces", said, _remedy_of(name, field), offset)
        elif name != piece[1:-1]:
            yield _spelled(field, piece, name, offset)


def _remedy_of(name: str, field: Field) -> str:
    if field.is_html and len(name.split()) > 1:
        return "in HTML a name is one word: join the words with _, or remove the braces"
    return "a name has letters, digits, _, . and -: correct it, or remove the braces"


def _spelled(field: Field, piece: str, name: str, offset: int) -> LintFinding:
    hidden = [char for char in piece if is_invisible(char)]
    if hidden:
        codes = ", ".join(f"U+{ord(char):04X}" for char in dict.fromkeys(hidden))
        said = f"{{{name}}} holds {codes}, which can't be seen"
        return field.finding("invisible-character", said, f"type {{{name}}} again", offset)
    return field.finding(
        "padded-placeholder", f"{shown(piece)} is read as {{{name}}}", f"write {{{name}}}", offset
    )


def _unbalanced(field: Field, text: str) -> Iterator[LintFinding]:
    """Yield the braces without a counterpart; pairs may be nested."""
    open_: list[int] = []
    stray: list[int] = []
    for offset, char in enumerate(text):
        if char == "{":
            open_.append(offset)
        elif char == "}":
            if open_:
                open_.pop()
            else:
                stray.append(offset)
    for offset in sorted([*open_, *stray]):
        brace, other = ("{", "}") if text[offset] == "{" else ("}", "{")
        around = shown(text[offset : offset + 16] if brace == "{" else text[max(0, offset - 15) : offset + 1])
        said = f"{brace} has no {other}: {around}"
        yield field.finding("unbalanced-brace", said, f"add {other}, or remove {brace}", offset)
