"""What rules are given: settings, a sample of variables, and what the configuration adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from deliveryd.channels.http.options import LimitOptions
from deliveryd.model import LanguageContent, Settings
from deliveryd.rendering.escaping import EmailFormat, is_html

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


class ProviderLimits(NamedTuple):
    """How long fields may be at a provider of a channel."""

    provider: str
    limits: Sequence[LimitOptions]


class LintedChannel(NamedTuple):
    """What the configuration says of a channel."""

    name: str
    block: str
    max_parts: int | None = None
    transliterate: bool = False
    providers: Sequence[ProviderLimits] = ()


class Setup(NamedTuple):
    """What the configuration adds; the defaults hold without one, and `channels` is None then.

    `has_names`: the customer directory may know names.
    """

    channels: Sequence[LintedChannel] | None = None
    languages: Sequence[str] = ()
    email_format: EmailFormat = "auto"
    greeting_fallback: bool = False
    has_names: bool = True

    def sending(self, block: str) -> Sequence[LintedChannel]:
        """Return the channels that send this block."""
        return [channel for channel in self.channels or () if channel.block == block]


class Subject(NamedTuple):
    """Settings to lint. `raw` is their parsed JSON, `now` the instant of the run."""

    settings: Settings
    raw: Mapping[str, Any]
    sample: Sample | None
    setup: Setup
    now: int


class Field(NamedTuple):
    """A text of the settings, and where it stands; `block` may be `greetings`."""

    language: str
    block: str
    name: str
    text: str
    is_html: bool = False


def fields_of(subject: Subject) -> Iterator[Field]:
    """Yield every text: those of the blocks, then the greetings, language by language."""
    for tag, content in subject.settings.content.items():
        for block, texts in content.blocks.items():
            for name, text in texts.items():
                html = block == "email" and name == "body" and sends_html(subject.setup.email_format, text)
                yield Field(tag, block, name, text, html)
        yield from greetings_of(tag, content)


def greetings_of(tag: str, content: LanguageContent) -> Iterator[Field]:
    """Yield the greetings of a language."""
    for name, text in (("general", content.general), ("personal", content.personal)):
        if text is not None:
            yield Field(tag, GREETINGS_BLOCK, name, text)


def sends_html(email_format: EmailFormat, body: str) -> bool:
    """Whether a body is sent as HTML."""
    return email_format == "html" or (email_format == "auto" and is_html(body))
