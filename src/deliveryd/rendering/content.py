"""Settings compiled for rendering: compiled once per ID, rendered per message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from deliveryd.errors import LanguageUnreadable
from deliveryd.model import SETTINGS_REFERENCE, Customer, LanguageContent, Rendered, Settings
from deliveryd.rendering.escaping import EmailFormat, Escaping, escaping_for, is_html
from deliveryd.rendering.language import standard_tag
from deliveryd.rendering.template import LONGEST_TEXT, Template, TooLong, braced_keys, is_words


@dataclass(frozen=True, slots=True)
class Greetings:
    """The greeting for customers whose name is known, and the one for the others; None: no value."""

    named: Template | None
    unnamed: Template | None

    @property
    def spellings(self) -> frozenset[str]:
        """The placeholders of both that are written otherwise than their names."""
        templates = (template for template in (self.named, self.unnamed) if template is not None)
        return frozenset[str]().union(*(template.spellings for template in templates))

    def with_keys(self, keys: Collection[str]) -> Greetings:
        """The same greetings, read with these keys as names too."""
        return Greetings(
            named=self.named.with_keys(keys) if self.named else None,
            unnamed=self.unnamed.with_keys(keys) if self.unnamed else None,
        )


GreetingPolicy = Callable[[LanguageContent], Greetings]
"""Decides what greets whom in a language: `strict` or `general_stands_in`."""


def strict(content: LanguageContent) -> Greetings:
    """The personal greeting for those with a name, the general one for those without (design 5)."""
    return Greetings(named=_compile(content.personal), unnamed=_compile(content.general))


def general_stands_in(content: LanguageContent) -> Greetings:
    """Where there is no personal greeting, the general one is used (`content.greeting_fallback`)."""
    greetings = strict(content)
    return Greetings(named=greetings.named or greetings.unnamed, unnamed=greetings.unnamed)


def _compile(text: str | None) -> Template | None:
    return None if text is None else Template.compile(text, is_words)


LONGEST_BRACED_KEYS = 1000
"""Characters, in all, of a message's keys that hold braces: each brace of a template is held against each."""

MOST_BRACES = 2000
"""Opening braces of a block that is read again for the keys of one message."""


class Missing(NamedTuple):
    """Placeholders without a value, each once, in order of first appearance (interface 2.7, rule 4)."""

    names: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Return the details of the `error` event."""
        return f"missing placeholders: {', '.join(self.names)}"


class Broken(NamedTuple):
    """The filled block can't be sent. The reason names a field and a rule, never a value."""

    reason: str


class CompiledField(NamedTuple):
    """A string field of a block: its dotted name, its template, and how values go into it."""

    name: str
    template: Template
    escaping: Escaping


@dataclass(frozen=True, slots=True)
class CompiledBlock:
    """A channel's block in one language. `names` are the placeholders of all its fields (design 5).

    `marks` are fields that come from no template: the `format` of an e-mail, `html` or `text`, and the
    reference of the settings. `needed_named`
    and `needed_unnamed` are all names that need values for customers with a name and for those without.
    `spellings` are placeholders, the greetings' among them, that are written otherwise than their names.
    """

    block: str
    language: str
    fields: tuple[CompiledField, ...]
    names: tuple[str, ...]
    marks: Mapping[str, str]
    greetings: Greetings
    needed_named: frozenset[str]
    needed_unnamed: frozenset[str]
    spellings: frozenset[str]

    def render(self, variables: Mapping[str, str], customer: Customer | None) -> Rendered | Missing | Broken:
        """Fill every field by the rules of interface 2.7. `customer` None: unknown."""
        keys = braced_keys(variables)
        if keys and sum(map(len, keys)) > LONGEST_BRACED_KEYS:
            return Broken("the names of the variables contain too many braces")
        if self.spellings:
            keys = (*keys, *(self.spellings & variables.keys()))
        if keys and self.braces > MOST_BRACES:
            return Broken("the text contains too many braces for the names of the variables")
        block = self.with_keys(keys) if keys else self
        name = None if customer is None else customer.name
        if name is None:
            values, greeting, needed = variables, block.greetings.unnamed, block.needed_unnamed
        else:
            values, greeting = {"customer.name": name, **variables}, block.greetings.named
            needed = block.needed_named
        if values.keys() >= needed:  # the ordinary case, without a look at each name
            return block.fill(values, greeting)
        missing = block.missing(values, greeting)
        return Missing(missing) if missing else block.fill(values, greeting)

    def needs_name(self, variables: Mapping[str, str]) -> bool:
        """Whether the text depends on the customer: rules 2 and 3 of interface 2.7.

        Keys that hold braces, or are written as a placeholder is, may take one away, and never bring one.
        """
        if "customer.name" in self.names and "customer.name" not in variables:
            return True
        if "greeting" not in self.names or "greeting" in variables:
            return False
        named, unnamed = self.greetings.named, self.greetings.unnamed
        if named != unnamed:
            return True
        return named is not None and "customer.name" in named.names and "customer.name" not in variables

    def missing(self, values: Mapping[str, str], greeting: Template | None) -> tuple[str, ...]:
        """Return the names without a value, including the greeting's if it is used."""
        names = [name for name in self.names if name not in values]
        if greeting is not None and "greeting" in names:
            place = names.index("greeting")
            names[place : place + 1] = [name for name in greeting.names if name not in values]
        return tuple(dict.fromkeys(names))

    def fill(self, values: Mapping[str, str], greeting: Template | None) -> Rendered | Broken:
        """Fill all fields; all values must be present."""
        texts = dict(self.marks)
        for field in self.fields:
            name, _, escaping = field
            try:
                text = _fill(field, values, greeting)
            except TooLong:
                return Broken(f"{self.block}.{name} would be longer than {LONGEST_TEXT} characters")
            flaw = escaping.flaw(text)
            if flaw is not None:
                return Broken(f"{self.block}.{name} {flaw}")
            texts[name] = text
        return Rendered(self.block, self.language, texts)

    @property
    def braces(self) -> int:
        """The number of opening braces of all fields and of the greetings."""
        templates = (*(field.template for field in self.fields), self.greetings.named, self.greetings.unnamed)
        return sum(piece.count("{") for each in templates if each is not None for piece in each.pieces)

    def with_keys(self, keys: Collection[str]) -> CompiledBlock:
        """The same block, read with these keys as names exactly as they are."""
        fields = tuple(field._replace(template=field.template.with_keys(keys)) for field in self.fields)
        return _block(self.block, self.language, fields, self.marks, self.greetings.with_keys(keys))


@dataclass(frozen=True, slots=True)
class CompiledLanguage:
    """A language of the settings: the blocks that have at least one string field, by channel.

    `unreadable` is why a block, or the greetings, can't be read.
    """

    blocks: Mapping[str, CompiledBlock]
    unreadable: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CompiledSettings:
    """Settings ready for rendering. `expires_at` is an instant; languages by standard tag in lower case.

    `lifetime` (microseconds from the take) holds where there is no `expires_at`; None: no end. `unreadable`
    is, of all languages, why blocks can't be read, each reason once.
    """

    id: int
    expires_at: int | None
    languages: Mapping[str, CompiledLanguage]
    unreadable: tuple[str, ...]
    lifetime: int | None = None

    def expiry_of(self, taken_at: int) -> int | None:
        """Return the instant after which a message taken at `taken_at` isn't sent; None: there is none."""
        if self.expires_at is None and self.lifetime is not None:
            return taken_at + self.lifetime
        return self.expires_at

    @property
    def pieces(self) -> int:
        """The number of pieces of all templates, which take more memory than short texts."""
        blocks = (block for language in self.languages.values() for block in language.blocks.values())
        return sum(len(field.template.pieces) for block in blocks for field in block.fields)


def compile_settings(
    settings: Settings,
    email_format: EmailFormat = "auto",
    greetings: GreetingPolicy = strict,
    lifetime: int | None = None,
) -> CompiledSettings:
    """Compile all templates of these settings. Never raises."""
    languages: dict[str, CompiledLanguage] = {}
    marks = {} if settings.reference is None else {SETTINGS_REFERENCE: settings.reference}
    for tag in sorted(settings.content, key=_is_respelled):
        language = _content_tag(tag)
        if language not in languages:
            languages[language] = _compile_language(
                language, settings.content[tag], email_format, greetings, marks
            )
    return CompiledSettings(settings.id, settings.expires_at, languages, settings.unreadable, lifetime)


def _compile_language(
    language: str,
    content: LanguageContent,
    email_format: EmailFormat,
    greetings: GreetingPolicy,
    marks: Mapping[str, str],
) -> CompiledLanguage:
    greeting = greetings(content)
    blocks = {
        block: _compile_block(block, language, texts, email_format, greeting, marks)
        for block, texts in content.blocks.items()
        if texts
    }
    return CompiledLanguage(blocks, content.unreadable)


def _compile_block(  # noqa: PLR0917 - what one block is made from
    block: str,
    language: str,
    texts: Mapping[str, str],
    email_format: EmailFormat,
    greetings: Greetings,
    marks: Mapping[str, str],
) -> CompiledBlock:
    if block == "email":
        if email_format == "auto":
            email_format = "html" if is_html(texts.get("body", "")) else "text"
        marks = {**marks, "format": email_format}
    fields = tuple(
        _compile_field(name, text, escaping_for(block, name, email_format)) for name, text in texts.items()
    )
    return _block(block, language, fields, marks, greetings)


def _compile_field(name: str, text: str, escaping: Escaping) -> CompiledField:
    return CompiledField(name, Template.compile(text, escaping.naming), escaping)


def _block(
    block: str,
    language: str,
    fields: tuple[CompiledField, ...],
    marks: Mapping[str, str],
    greetings: Greetings,
) -> CompiledBlock:
    names = _names(fields)
    needed_named, needed_unnamed = _needed(names, greetings.named), _needed(names, greetings.unnamed)
    spellings = greetings.spellings.union(*(field.template.spellings for field in fields))
    return CompiledBlock(
        block, language, fields, names, marks, greetings, needed_named, needed_unnamed, spellings
    )


def _needed(names: tuple[str, ...], greeting: Template | None) -> frozenset[str]:
    if greeting is None or "greeting" not in names:
        return frozenset(names)
    return frozenset(names) - {"greeting"} | frozenset(greeting.names)


def _names(fields: tuple[CompiledField, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for field in fields for name in field.template.names))


def _fill(field: CompiledField, values: Mapping[str, str], greeting: Template | None) -> str:
    _, template, escaping = field
    values = escaping.values(values)
    if greeting is not None and "greeting" not in values and "greeting" in template.names:
        values = {**values, "greeting": greeting.fill(values)}
    return template.fill(values)


def _content_tag(tag: str) -> str:
    # A key that is no language tag is no customer's language, and no reason to give up the other ones.
    try:
        return standard_tag(tag)
    except LanguageUnreadable:
        return tag.lower()


def _is_respelled(tag: str) -> bool:
    # Of "he" and the old "iw" in the same settings, the one that is spelled in the standard way counts.
    return _content_tag(tag) != tag.lower()
