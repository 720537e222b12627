"""Rules about what a text says: its length, its links, and the HTML of e-mails."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from itertools import accumulate
from typing import NamedTuple
from urllib.parse import urlsplit

from deliveryd.channels.http.options import HttpChannelOptions, LimitOptions
from deliveryd.channels.options import ChannelConfig
from deliveryd.channels.sms_text import outside_gsm, sms_parts, transliterate
from deliveryd.commands.lint.rules import (
    GREETING,
    Field,
    LintFinding,
    Subject,
    fields_of,
    greetings_of,
    shown,
)
from deliveryd.commands.lint.templates import placeholders_in
from deliveryd.model import LanguageContent
from deliveryd.rendering.escaping import is_html

CLIPPED = 102 * 1024
"""Bytes of a body after which Gmail shows no more of it."""

_DEEPEST = 500
"""Open elements among which the one that a tag closes is looked for."""

_REMOVED = frozenset(
    {"applet", "audio", "base", "button", "canvas", "embed", "form", "frame", "iframe", "input", "math"}
    | {"object", "select", "svg", "textarea", "video"}
)
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
_OPTIONAL_END = frozenset(
    {"li", "dt", "dd", "p", "tr", "td", "th", "thead", "tbody", "tfoot", "option", "html", "head", "body"}
    | {"colgroup"}
)
_ADDRESSES = frozenset({"href", "src", "background"})
_ABSOLUTE = re.compile(r"(?:[a-z][a-z0-9+.-]*:|//|#|\{)", re.IGNORECASE)
_UNQUOTED = re.compile(r"=\s*[^\s\"'>=<]*\{[^{}\s]+\}")
_STYLES = re.compile(
    r"\b(position\s*:\s*(?:absolute|fixed|sticky)|display\s*:\s*(?:inline-)?(?:flex|grid)|background-image\s*:"
    r"|float\s*:|animation(?:-name)?\s*:|@import|@font-face)",
    re.IGNORECASE,
)
_BREAK = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_ENTITY = re.compile(r"&(?:[a-z]{2,8}|#\d{2,5}|#x[0-9a-f]{2,5});", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:a|b|br|div|em|font|h[1-6]|i|img|li|ol|p|span|strong|table|u|ul)\b[^<>]*>", re.IGNORECASE
)


def html_findings(subject: Subject) -> Iterator[LintFinding]:
    """Check the HTML of e-mails, and all other texts for HTML."""
    for field in fields_of(subject):
        if field.is_html:
            yield from _of_body(field)
        else:
            yield from _of_text(field)


def _of_text(field: Field) -> Iterator[LintFinding]:
    if (field.block, field.name) == ("email", "subject") and (found := _BREAK.search(field.text)):
        yield field.finding("subject-line-break", "a line break ends a header", "remove it", found.start())
    remedy = "write plain text"
    if field.block == "email" and field.name == "body" and is_html(field.text):
        remedy = 'set content.email_format = "auto" or "html", or write plain text'
    if (tag := _TAG.search(field.text)) is not None:
        yield field.finding("tags-in-text", f"{shown(tag[0])} is sent as it is", remedy, tag.start())
    if (entity := _ENTITY.search(field.text)) is not None and "://" not in field.text[: entity.start()][
        -200:
    ]:
        text = f"{entity[0]} is sent as it is"
        yield field.finding("entity-in-text", text, "write the character itself", entity.start())


def _of_body(field: Field) -> Iterator[LintFinding]:
    size = len(field.text.encode("utf-8", "replace"))
    if size > CLIPPED:
        text = f"{size:,} bytes; Gmail shows the first {CLIPPED:,}"
        yield field.finding("html-clipped", text, "shorten it, or put styles into fewer places", CLIPPED)
    parser = _BodyParser(field)
    # Comments and tags that aren't closed take the square of the length.
    parser.feed(field.text[: field.text.rfind(">", 0, CLIPPED) + 1])
    parser.close()
    yield from parser.found()


class _BodyParser(HTMLParser):
    """Collects findings while it reads a body."""

    def __init__(self, field: Field) -> None:
        super().__init__(convert_charrefs=True)
        self._field = field
        self._found: list[LintFinding] = []
        self._open: list[tuple[str, int]] = []
        lengths = (len(line) for line in field.text.split("\n"))
        self._line_starts = [0, *accumulate(length + 1 for length in lengths)]

    def found(self) -> Iterator[LintFinding]:
        """Return all findings, those about tags that were never closed last."""
        yield from self._found
        is_whole = len(self._field.text) <= CLIPPED
        for tag, offset in self._open if is_whole else ():
            if tag not in _OPTIONAL_END:
                text = f"<{tag}> isn't closed"
                yield self._field.finding("html-unbalanced-tag", text, f"add </{tag}>", offset)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._check(tag, attrs)
        if tag not in _VOID:
            self._open.append((tag, self._offset()))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._check(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        near = range(len(self._open) - 1, max(len(self._open) - _DEEPEST, 0) - 1, -1)
        opened = next((index for index in near if self._open[index][0] == tag), None)
        if opened is None:
            if tag not in _VOID and tag not in ("p", "br"):
                self._note("html-unbalanced-tag", f"</{tag}> closes nothing", f"remove it, or add <{tag}>")
            return
        for name, offset in self._open[opened + 1 :]:
            if name not in _OPTIONAL_END:
                text = f"<{name}> isn't closed before </{tag}>"
                self._found.append(self._field.finding("html-unbalanced-tag", text, f"add </{name}>", offset))
        del self._open[opened:]

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "style":
            self._check_style(data)

    def _check(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag in ("script", "noscript"):
            self._note("html-script", f"mail clients remove <{tag}>", "remove it")
        elif tag in _REMOVED:
            self._note("html-removed-element", f"mail clients remove <{tag}>", "link to a page instead")
        elif tag == "link" and "stylesheet" in values.get("rel", "").lower():
            remedy = "write the styles into the head, or into style attributes"
            self._note("html-removed-element", "mail clients load no style sheets", remedy)
        elif tag == "img" and "alt" not in values:
            self._note(
                "html-image-without-text", "an image without alt", 'add alt="…", or alt="" for decoration'
            )
        for name, value in values.items():
            self._check_attribute(tag, name, value.strip())
        if (unquoted := _UNQUOTED.search(self.get_starttag_text() or "")) is not None:
            text = f"a value with a blank would end the attribute: {shown(unquoted[0])}"
            self._note("html-unquoted-placeholder", text, "put the value into quotes")

    def _check_attribute(self, tag: str, name: str, value: str) -> None:
        if name.startswith("on"):
            self._note("html-script", f"mail clients remove the attribute {name}", "remove it")
        elif name == "style":
            self._check_style(value)
        elif name not in _ADDRESSES or not value:
            return
        elif value.lower().startswith(("javascript:", "vbscript:")):
            self._note(
                "html-script", f"mail clients remove links to {value.partition(':')[0]}:", "link to a page"
            )
        elif value.lower().startswith("data:"):
            text = "Gmail and Outlook show no images from data: addresses"
            self._note("html-data-image", text, "put the image on the web")
        elif not _ABSOLUTE.match(value):
            text = f'{name}="{shown(value)}" of <{tag}> isn\'t absolute'
            self._note("html-relative-link", text, "write it with https://")

    def _check_style(self, style: str) -> None:
        for match in _STYLES.finditer(style):
            text = f"some mail clients ignore {match[1].rstrip(': ')}"
            self._note("html-unsupported-style", text, "see that the mail is readable without it")

    def _note(self, rule: str, text: str, remedy: str) -> None:
        self._found.append(self._field.finding(rule, text, remedy, self._offset()))

    def _offset(self) -> int:
        line, column = self.getpos()
        return self._line_starts[line - 1] + column


_HTTP = re.compile(r"\bhttp://[^\s<>\"']+", re.IGNORECASE)
_BARE = re.compile(r"(?<![\w/.@-])www\.[\w-]+\.[^\s<>\"']+", re.IGNORECASE)
_ADDRESS_FIELDS = ("image", "button.url")
_APP = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_LONGEST_SHOWN = 60


def link_findings(subject: Subject) -> Iterator[LintFinding]:
    """Check the links of every text."""
    for field in fields_of(subject):
        if field.name in _ADDRESS_FIELDS:
            yield from _of_address(field)
        for match in _HTTP.finditer(field.text):
            said = f"{shown(match[0], _LONGEST_SHOWN)} isn't encrypted, and clients warn of it"
            yield field.finding("insecure-link", said, "write https://", match.start())
        if field.name not in _ADDRESS_FIELDS and not field.is_html:
            for match in _BARE.finditer(field.text):
                said = f"{shown(match[0], _LONGEST_SHOWN)} is opened with http:// or isn't a link at all"
                yield field.finding("link-without-scheme", said, "write https://", match.start())


def _of_address(field: Field) -> Iterator[LintFinding]:
    """Check a whole field that is an address. One that begins with a placeholder may be anything."""
    address = field.text.strip()
    if not address or address.startswith("{"):
        return
    if problem := _problem(field, address):
        remedy = "write an address such as https://shop.example.com/offers"
        yield field.finding("bad-link", f"{shown(address, _LONGEST_SHOWN)} {problem}", remedy, 0)


def _problem(field: Field, address: str) -> str | None:
    if any(char.isspace() for char in re.sub(r"\{[^{}]*\}", "", address)):
        return "holds a blank"
    if not _APP.match(address):
        return "has no https://"
    try:
        parts = urlsplit(address)
    except ValueError:
        return "isn't an address"
    if parts.scheme.lower() in ("http", "https"):
        return None if parts.netloc else "names no host"
    if parts.scheme.lower() in ("javascript", "data", "file", "vbscript"):
        return f"begins with {parts.scheme}:, which no provider accepts"
    return None if field.name == "button.url" else "isn't an image on the web"  # an app's own: shop://offers


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
