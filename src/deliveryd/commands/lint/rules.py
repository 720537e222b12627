"""All rules of `lint` by their ids, what they are given, and the findings that name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from deliveryd.channels.options import ChannelConfig
from deliveryd.config import Config, ContentOptions
from deliveryd.model import LanguageContent, Settings
from deliveryd.rendering.escaping import EmailFormat, is_html


class Severity(IntEnum):
    """How bad a finding is, ascending."""

    NOTE = 0  # works as written; worth a look
    WARNING = 1  # works for some customers only, costs more, or is displayed wrongly
    ERROR = 2  # messages fail


class Rule(NamedTuple):
    """One rule: its severity, and what it reports, in one sentence."""

    severity: Severity
    about: str


_NOTE, _WARNING, _ERROR = Severity

RULES: Mapping[str, Rule] = {
    # structure
    "unreadable-settings": Rule(_ERROR, "The settings can't be read, so each of their messages fails."),
    "unreadable-block": Rule(_ERROR, "A block or the greetings can't be read, and are skipped."),
    "no-channel": Rule(_ERROR, "No language has a block that a configured channel sends."),
    "expired": Rule(_ERROR, "The expiry is in the past, so nothing is sent."),
    "unknown-language": Rule(_WARNING, "The key of a language isn't a language tag, so no customer has it."),
    "unknown-field": Rule(_WARNING, "A block or a field isn't part of the interface, and is ignored."),
    "empty-field": Rule(_WARNING, "A field holds no text."),
    "missing-block": Rule(_WARNING, "A language lacks a block that another language has."),
    "missing-default-language": Rule(_WARNING, "None of content.languages is among the languages."),
    # placeholders
    "unknown-placeholder": Rule(_ERROR, "Nothing provides a value for a placeholder."),
    "missing-greeting": Rule(_ERROR, "{greeting} is used, and there is no greeting."),
    "nested-greeting": Rule(_ERROR, "A greeting contains {greeting}, which has no value there."),
    "half-greeting": Rule(_WARNING, "{greeting} has no value for customers with a name, or without one."),
    "optional-placeholder": Rule(_WARNING, "Only some messages have a value for a placeholder."),
    "customer-name": Rule(_WARNING, "{customer.name} is used in a text for customers without a name too."),
    "uneven-placeholder": Rule(_NOTE, "A placeholder is used in one language and not in another."),
    # braces
    "unbalanced-brace": Rule(_WARNING, "A brace has no counterpart, and is sent as it is."),
    "doubled-braces": Rule(_WARNING, "Of {{name}} only the inner braces are replaced."),
    "encoded-braces": Rule(_WARNING, "Braces in another form, such as %7Bname%7D, are sent as they are."),
    "literal-braces": Rule(_WARNING, "Braces hold no name, and are sent as they are."),
    "foreign-placeholder": Rule(_WARNING, "A placeholder of another template language is sent as it is."),
    "invisible-character": Rule(_WARNING, "A placeholder holds invisible characters."),
    "padded-placeholder": Rule(_NOTE, "A placeholder has blanks inside its braces, which don't count."),
    # length
    "too-many-parts": Rule(_ERROR, "An SMS has more parts than max_parts of its channel."),
    "too-long": Rule(_ERROR, "A text is longer than a provider accepts."),
    "forced-ucs2": Rule(_WARNING, "Few characters force an SMS into UCS-2, which costs further parts."),
    "ucs2-text": Rule(_NOTE, "An SMS is sent in UCS-2."),
    # links
    "bad-link": Rule(_ERROR, "The address of a button or an image isn't one."),
    "insecure-link": Rule(_WARNING, "A link begins with http:// instead of https://."),
    "link-without-scheme": Rule(_WARNING, "A link in a text has no https://."),
    # e-mail
    "subject-line-break": Rule(_ERROR, "The subject of an e-mail holds a line break."),
    "html-removed-element": Rule(_WARNING, "Mail clients remove an element."),
    "html-script": Rule(_WARNING, "Mail clients remove scripts, also those in attributes and links."),
    "html-data-image": Rule(_WARNING, "Many mail clients don't show images inside the mail's own text."),
    "html-relative-link": Rule(_WARNING, "An address isn't absolute, so it leads nowhere in a mail."),
    "html-unbalanced-tag": Rule(_WARNING, "A tag isn't closed, or is closed without having been opened."),
    "html-unquoted-placeholder": Rule(_WARNING, "A placeholder is the value of an attribute without quotes."),
    "html-clipped": Rule(_WARNING, "The body is so large that Gmail cuts it."),
    "tags-in-text": Rule(_WARNING, "Tags in a text that isn't HTML are sent as they are."),
    "entity-in-text": Rule(_WARNING, "Entities in a text that isn't HTML are sent as they are."),
    "html-image-without-text": Rule(_NOTE, "An image has no alternative text."),
    "html-unsupported-style": Rule(_NOTE, "Some mail clients ignore a style."),
}  # fmt: skip


class LintFinding(NamedTuple):
    """One finding: what is wrong, what to do, and where.

    `block` is a block of the settings or `greetings`; `offset` counts characters of the field. None: the
    finding concerns all of what is left out. `provider` is the one that it concerns alone.
    """

    rule: str
    text: str
    remedy: str
    language: str | None = None
    block: str | None = None
    field: str | None = None
    offset: int | None = None
    provider: str | None = None

    @property
    def severity(self) -> Severity:
        """The severity of its rule."""
        return RULES[self.rule].severity


GREETINGS_BLOCK = "greetings"
GREETING = "greeting"
CUSTOMER_NAME = "customer.name"


class Sample(NamedTuple):
    """The variables of messages with these settings: names that all of them have, and names that any has.

    `values` are those of one message; empty if only names are known. `source` names the messages.
    """

    source: str
    always: frozenset[str]
    ever: frozenset[str]
    values: Mapping[str, str] = {}


class Subject(NamedTuple):
    """Settings to lint. `raw` is their parsed JSON, `now` the instant of the run; `config` may be missing."""

    settings: Settings
    raw: Mapping[str, Any]
    sample: Sample | None
    config: Config | None
    now: int

    @property
    def content(self) -> ContentOptions:
        """What the configuration says of rendering, or the defaults."""
        return ContentOptions() if self.config is None else self.config.content

    @property
    def has_names(self) -> bool:
        """Whether the customer directory may know names."""
        return self.config is None or self.config.customers.source != "none"

    def sending(self, block: str) -> Sequence[ChannelConfig]:
        """Return the configured channels that send this block."""
        channels = () if self.config is None else self.config.channels.configured.values()
        return [channel for channel in channels if channel.block == block]


class Field(NamedTuple):
    """A text of the settings, and where it stands; `block` may be `greetings`."""

    language: str
    block: str
    name: str
    text: str
    is_html: bool = False

    def finding(
        self, rule: str, text: str, remedy: str, offset: int | None = None, *, provider: str | None = None
    ) -> LintFinding:
        """Return a finding about this text, at a character of it."""
        return LintFinding(rule, text, remedy, self.language, self.block, self.name, offset, provider)


def fields_of(subject: Subject) -> Iterator[Field]:
    """Yield every text: those of the blocks, then the greetings, language by language."""
    for tag, content in subject.settings.content.items():
        for block, texts in content.blocks.items():
            for name, text in texts.items():
                html = block == "email" and name == "body" and _sends_html(subject.content.email_format, text)
                yield Field(tag, block, name, text, html)
        yield from greetings_of(tag, content)


def greetings_of(tag: str, content: LanguageContent) -> Iterator[Field]:
    """Yield the greetings of a language."""
    for name, text in (("general", content.general), ("personal", content.personal)):
        if text is not None:
            yield Field(tag, GREETINGS_BLOCK, name, text)


def _sends_html(email_format: EmailFormat, body: str) -> bool:
    """Whether a body is sent as HTML."""
    return email_format == "html" or (email_format == "auto" and is_html(body))


def shown(text: str, longest: int = 40) -> str:
    """Return a text as it is quoted, cut to so many characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
