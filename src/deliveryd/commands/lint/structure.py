"""Rules about the settings as a whole: languages, blocks, fields, expiry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deliveryd.commands.lint.rules import GREETINGS_BLOCK, LintFinding, Subject, fields_of
from deliveryd.errors import LanguageUnreadable
from deliveryd.model import BLOCKS, format_instant
from deliveryd.options.suggestion import suggestion
from deliveryd.rendering.language import candidates, matching, standard_tag

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
