"""Conditions on what a provider sent: `{ at = "/error/code", is = [130429] }`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from deliveryd.http.expressions import Expression, compile_expression
from deliveryd.http.finder import Document, Finder, FinderText, compile_finder


class ConditionOptions(BaseModel):
    """One condition; of several values at its place, such as those of an array, one must fit.

    Values are compared as text: `is = [4]` fits 4 and "4".
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    at: FinderText = Field(description='place of the value: JSON Pointer, "header:NAME", regular expression')
    one_of: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, alias="is", description="values, one of which must stand there"
    )
    matches: str | None = Field(None, description="regular expression that must match a part of the value")
    absent: Literal[True] | None = Field(None, description="true: there must be no value, or null")

    @field_validator("one_of", mode="before")
    @classmethod
    def _texts(cls, values: Any) -> Any:
        return [_as_text(value) for value in values] if isinstance(values, list) else values

    @field_validator("matches")
    @classmethod
    def _an_expression(cls, expression: str) -> str:
        compile_expression(expression)
        return expression

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        tests = [self.one_of, self.matches, self.absent]
        if sum(test is not None for test in tests) != 1:
            raise ValueError("needs one of is, matches and absent beside at")
        return self


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


class Condition(NamedTuple):
    """A compiled condition."""

    finder: Finder
    one_of: frozenset[str] = frozenset()
    expression: Expression | None = None

    def holds(self, document: Document) -> bool:
        """Whether the condition holds for an answer or a report."""
        if self.expression is not None:
            return any(self.expression.matches(text) for text in self.finder.texts(document))
        if self.one_of:
            return self.matched(document) is not None
        return self._is_absent(document)

    def _is_absent(self, document: Document) -> bool:
        """Whether there is no value. In a body that can't be parsed, nothing is known to be absent."""
        if self.finder.expression.startswith("/") and not document.is_readable:
            return False
        return not any(True for _ in self.finder.values(document))

    def matched(self, document: Document) -> str | None:
        """Return the first value that is one of `one_of`, or None."""
        return next((text for text in self.finder.texts(document) if text in self.one_of), None)


def compile_condition(options: ConditionOptions) -> Condition:
    """Compile a condition of the configuration."""
    finder = compile_finder(options.at)
    if options.matches is not None:
        return Condition(finder, expression=compile_expression(options.matches))
    return Condition(finder, frozenset(options.one_of or ()))


def compile_conditions(options: Iterable[ConditionOptions]) -> tuple[Condition, ...]:
    """Compile conditions that must all hold."""
    return tuple(compile_condition(each) for each in options)


def all_hold(conditions: Iterable[Condition], document: Document) -> bool:
    """Whether every condition holds."""
    return all(condition.holds(document) for condition in conditions)
