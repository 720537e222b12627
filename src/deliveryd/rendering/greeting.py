"""Which greeting stands for `{greeting}` (interface 2.7, rule 3)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from deliveryd.model import LanguageContent
from deliveryd.rendering.template import Template, is_words


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
