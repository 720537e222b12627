"""Rules about the length of texts: the coding and the parts of an SMS, and what providers accept."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from deliveryd.channels.http.options import HttpChannelOptions, LimitOptions
from deliveryd.channels.options import ChannelConfig
from deliveryd.channels.sms_text import outside_gsm, sms_parts, transliterate
from deliveryd.commands.lint.placeholders import placeholders_in
from deliveryd.commands.lint.rules import GREETING, Field, LintFinding, Subject, fields_of, greetings_of
from deliveryd.model import LanguageContent

_FEW = 3
"""Different characters outside GSM-7 that a text may hold by mistake; more of them are its language."""


class Filled(NamedTuple):
    """A text with the values that are known; `is_whole`: all of them are, else it is longer when sent."""

    text: str
    is_whole: bool

    @property
    def least(self) -> str:
        """Words to put before a length."""
        return "" if self.is_whole else "at least "


def length_findings(subject: Subject) -> Iterator[LintFinding]:
    """Check the length of every text."""
    for field in fields_of(subject):
        if (field.block, field.name) == ("sms", "text"):
            yield from _of_sms(subject, field)
        yield from _beyond_limits(subject, field)


def fill_known(field: Field, content: LanguageContent, values: Mapping[str, str]) -> Filled:
    """Fill what has a value; {greeting} becomes the longer of the greetings, the others nothing."""
    pieces, is_whole, end = [], True, 0
    for each in placeholders_in(field):
        pieces.append(field.text[end : each.offset])
        end = each.offset + len(each.written)
        if each.name in values:
            pieces.append(values[each.name])
        elif each.name == GREETING:
            greetings = [fill_known(one, content, values) for one in _greetings(field, content)]
            longest = max(greetings, key=lambda one: len(one.text), default=Filled("", is_whole=False))
            pieces.append(longest.text)
            is_whole = is_whole and longest.is_whole
        else:
            is_whole = False
    return Filled("".join([*pieces, field.text[end:]]), is_whole)


def _greetings(field: Field, content: LanguageContent) -> list[Field]:
    found = greetings_of(field.language, content)
    return [one for one in found if GREETING not in {each.name for each in placeholders_in(one)}]


def _of_sms(subject: Subject, field: Field) -> Iterator[LintFinding]:
    content = subject.settings.content[field.language]
    values = subject.sample.values if subject.sample is not None else {}
    filled = fill_known(field, content, values)
    channels = subject.sending("sms")
    yield from _of_coding(subject, field, content, all(channel.common.transliterate for channel in channels))
    for channel in channels:
        yield from _too_many_parts(field, filled, channel)


def _too_many_parts(field: Field, filled: Filled, channel: ChannelConfig) -> Iterator[LintFinding]:
    size = sms_parts(transliterate(filled.text) if channel.common.transliterate else filled.text)
    most = channel.common.max_parts
    if most is not None and size.parts > most:
        text = (
            f"{filled.least}{size.parts} parts ({size.units} units of {size.encoding}), and"
            f" channels.{channel.name}.max_parts is {most}"
        )
        yield field.finding("too-many-parts", text, "shorten the text")


def _of_coding(
    subject: Subject, field: Field, content: LanguageContent, replaced: bool
) -> Iterator[LintFinding]:
    """Report the characters that force UCS-2, each where it stands: in the text, or in a greeting."""
    written = fill_known(field, content, {})
    if replaced and subject.sending("sms"):
        written = written._replace(text=transliterate(written.text))
    forcing = outside_gsm(written.text)
    if not forcing:
        return
    plain = written.text.translate({ord(char): _substitute(char) for char in forcing})
    now, then = sms_parts(written.text), sms_parts(plain)
    places = [field, *_greetings(field, content)]
    size = f"{written.least}{now.parts} {_parts(now.parts)}{_compared(now.parts, then.parts)}"
    codes = ", ".join(_named(char) for char in forcing[:_FEW])
    if len(forcing) <= _FEW and (now.parts > then.parts or _is_typography(written.text)):
        text = f"{codes} {'forces' if len(forcing) == 1 else 'force'} UCS-2: {size}"
        yield _at(places, forcing[0], "forced-ucs2", text, _remedy(forcing))
    else:
        more = f" and {len(forcing) - _FEW} more" if len(forcing) > _FEW else ""
        text = f"UCS-2 because of {codes}{more}: {size}"
        yield _at(places, forcing[0], "ucs2-text", text, "nothing to do if the language needs them")


def _is_typography(text: str) -> bool:
    return transliterate(text) != text


def _substitute(char: str) -> str:
    """Return what GSM-7 has in place of a character; a question mark if it has nothing."""
    replaced = transliterate(char)
    return replaced if replaced != char else "?"


def _remedy(forcing: tuple[str, ...]) -> str:
    if all(_substitute(char) != "?" for char in forcing):
        written = ", ".join(f"{_substitute(char)!a} for U+{ord(char):04X}" for char in forcing)
        return f"write {written}, or set transliterate = true"
    return "write the text without them, if that is possible"


def _named(char: str) -> str:
    if unicodedata.category(char)[0] in "LNPS":
        return f"{char} (U+{ord(char):04X})"
    return f"U+{ord(char):04X} {unicodedata.name(char, '')}".rstrip()


def _compared(now: int, then: int) -> str:
    return f" instead of {then}" if now > then else ", as many as in GSM-7"


def _parts(count: int) -> str:
    return "part" if count == 1 else "parts"


def _at(places: Sequence[Field], char: str, rule: str, text: str, remedy: str) -> LintFinding:
    """Return a finding at the first of these texts that holds the character."""
    found = next((place for place in places if char in place.text), places[0])
    return found.finding(rule, text, remedy, max(found.text.find(char), 0))


def _beyond_limits(subject: Subject, field: Field) -> Iterator[LintFinding]:
    content = subject.settings.content[field.language]
    values = subject.sample.values if subject.sample is not None else {}
    for provider, limit in _limits(subject, field, content):
        filled = fill_known(field, content, values)
        most = limit.characters
        if limit.ucs2 is not None and outside_gsm(filled.text):
            most = limit.ucs2
        if len(filled.text) > most:
            beside = f" beside {limit.beside}" if limit.beside is not None else ""
            text = f"{filled.least}{len(filled.text)} characters, and {provider} accepts {most}{beside}"
            yield field.finding("too-long", text, "shorten the text", provider=provider)


def _limits(subject: Subject, field: Field, content: LanguageContent) -> Iterator[tuple[str, LimitOptions]]:
    """Yield the limits that hold for a text, each with its provider."""
    for channel in subject.sending(field.block):
        for provider in channel.providers.values():
            limits = provider.options.limits if isinstance(provider.options, HttpChannelOptions) else ()
            for limit in limits:
                is_beside = limit.beside is None or limit.beside in content.blocks[field.block]
                if limit.field == field.name and is_beside:
                    yield provider.identity, limit
