"""Finds values in what a provider sent: in the parsed body, in plain text, in a header, in the query.

Conditions test them: `{ at = "/error/code", is = [130429] }`.
"""

from __future__ import annotations

import json
import re
from binascii import unhexlify
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple, Self

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from deliveryd.http.expressions import SEARCHED_TEXT, Expression, compile_expression
from deliveryd.http.json_pointer import (
    EVERY,
    Steps,
    follow,
    parse_pointer,
    scalar_text,
    value_text,
    values_at,
)

HEADER = "header:"
QUERY = "query:"
_MOST_FIELDS = 1000
MOST_ESCAPES = 100_000
"""Escapes of a form, and wrong ones of JSON, that are resolved: more take longer than the loop may stand."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

TextFields = Mapping[str, str | list[str]]
"""A form's fields, or a query's parameters; a name that is given several times has a list."""

_NOTHING: Mapping[str, str] = {}
_OCTETS = re.compile(rb"(?:%[0-9A-Fa-f]{2})+")
_WRONG_ESCAPE = re.compile(r'\\(?!["/bfnrt]|u[0-9A-Fa-f]{4})')
_BACKSLASH = "\ud800"
"""Stands for an escaped backslash meanwhile: half a surrogate pair is in no text that was decoded."""

_AROUND = " \t\r\n\0\ufeff"
"""What may stand around JSON; a NUL ends the strings of some programming languages."""


class _Unreadable:
    """Stands for a body that can't be parsed."""


_UNREADABLE = _Unreadable()


def read_pairs(encoded: bytes) -> list[tuple[bytes, bytes]]:
    """Return the names and values of a form or a query, by the URL Standard. Raises ValueError: too many."""
    if encoded.count(b"%") > MOST_ESCAPES:
        raise ValueError(f"there are more than {MOST_ESCAPES} escapes")
    fields = encoded.split(b"&", _MOST_FIELDS)
    if len(fields) > _MOST_FIELDS:
        raise ValueError(f"there are more than {_MOST_FIELDS} fields")
    pairs = [field.partition(b"=") for field in fields if field]
    return [(_unquoted(name), _unquoted(value)) for name, _, value in pairs]


def _unquoted(text: bytes) -> bytes:
    return _OCTETS.sub(lambda octets: unhexlify(octets[0].replace(b"%", b"")), text.replace(b"+", b" "))


def read_texts(encoded: bytes) -> TextFields:
    """Return those fields as text; what isn't UTF-8 is U+FFFD. Raises ValueError: too many."""
    texts: dict[str, str | list[str]] = {}
    for raw_name, raw_value in read_pairs(encoded):
        name, value = raw_name.decode("utf-8", "replace"), raw_value.decode("utf-8", "replace")
        earlier = texts.get(name)
        if earlier is None:
            texts[name] = value
        elif isinstance(earlier, list):
            earlier.append(value)
        else:
            texts[name] = [earlier, value]
    return texts


class Document:
    """An answer or a report, parsed when a value is first looked up.

    `headers` have lower-case names. `form` replaces the parsed body by an object of texts, such as a form's
    fields; None: the body is JSON.
    """

    _exactly: Callable[[], object] | None = None

    def __init__(
        self,
        body: bytes,
        headers: Mapping[str, str] = _NOTHING,
        query: TextFields = _NOTHING,
        form: TextFields | None = None,
    ) -> None:
        self.body = body
        self.headers = headers
        self.query = query
        self._tree: object = form
        self._exact: object = form

    @property
    def is_readable(self) -> bool:
        """Whether the body could be parsed."""
        return self._parsed() is not _UNREADABLE

    @property
    def tree(self) -> object:
        """The parsed body, or None if it couldn't be parsed. Numbers with a fraction are rounded."""
        tree = self._parsed()
        return None if tree is _UNREADABLE else tree

    def value(self, steps: Steps) -> object:
        """Return the value at steps without "*", or None; a number with a fraction as it is written."""
        found = follow(self._tree if self._tree is not None else self._parsed(), steps)
        return follow(self._parsed_exactly(), steps) if isinstance(found, float) else found

    def values(self, steps: Steps) -> Sequence[object]:
        """Return the values at the steps of a pointer; numbers with a fraction as they are written."""
        found = values_at(self._parsed(), steps)
        if any(isinstance(value, float) for value in found):
            return values_at(self._parsed_exactly(), steps)
        return found

    def elements(self, steps: Steps) -> list[object]:
        """Return the elements of the arrays at the steps of a pointer."""
        return _elements(self._parsed(), steps)

    def each(self, steps: Steps) -> Iterator[Document]:
        """Yield those elements as documents with the same headers."""
        exact = cache(lambda: _elements(self._parsed_exactly(), steps))
        for index, element in enumerate(self.elements(steps)):
            yield self._part(element, exact, index)

    def _part(self, element: object, exact: Callable[[], list[object]], index: int) -> Document:
        part = Document(b"null", self.headers, self.query)
        part._tree = element
        part._exactly = lambda: _at(exact(), index)
        return part

    def _parsed(self) -> object:
        """Parse with the fast parser; the other one reads what it refuses, such as another coding."""
        if self._tree is None:
            try:
                self._tree = orjson.loads(self.body)
            except (ValueError, RecursionError):
                self._tree = _leniently(self.body)
        return self._tree

    def _parsed_exactly(self) -> object:
        """Parse with the slower parser, which keeps numbers such as 1.50 as they are written."""
        if self._exact is None:
            self._exact = self._exactly() if self._exactly else _leniently(self.body, parse_float=str)
        return self._exact


def _leniently(body: bytes, parse_float: Callable[[str], object] = float) -> object:
    """Parse JSON in which a field that may not be needed isn't as it should be.

    Bytes that aren't UTF-8 are U+FFFD, control characters belong to the text, and so does a backslash that
    begins no escape of JSON; NaN and Infinity are missing.
    """
    loads = partial(json.loads, strict=False, parse_float=parse_float, parse_constant=_missing)
    text = body.decode(json.detect_encoding(body), "replace").strip(_AROUND)
    try:
        return loads(_with_right_escapes(text))
    except (ValueError, RecursionError):
        return _UNREADABLE


def _with_right_escapes(text: str) -> str:
    """Escape the backslashes that begin no escape of JSON; not those beyond `MOST_ESCAPES`."""
    if "\\" not in text:
        return text
    others = _WRONG_ESCAPE.sub(r"\\\\", text.replace("\\\\", _BACKSLASH), count=MOST_ESCAPES)
    return others.replace(_BACKSLASH, "\\\\")


def _missing(_constant: str) -> None:
    return None


def _at(elements: list[object], index: int) -> object:
    """Return an element, also where the slower parser can't read what the other one did."""
    return elements[index] if index < len(elements) else _UNREADABLE


def _elements(tree: object, steps: Steps) -> list[object]:
    arrays = (value for value in values_at(tree, steps) if isinstance(value, list))
    return [element for array in arrays for element in array]


class Finder(NamedTuple):
    """Finds the values that an expression names."""

    expression: str
    values: Callable[[Document], Iterable[object]]
    """Returns what stands there, of any type."""
    steps: Steps | None = None
    """Of a JSON Pointer to one value: the most frequent expression, looked up without detours."""

    def find(self, document: Document) -> str | None:
        """Return the first value: text, a number, true or false as written.

        A value that is longer than 255 characters or has control characters counts as missing.
        """
        if self.steps is not None:
            return scalar_text(document.value(self.steps))
        for value in self.values(document):
            text = scalar_text(value)
            if text is not None:
                return text
        return None

    def find_all(self, document: Document) -> list[str]:
        """Return every value, as `find` does."""
        return [text for value in self.values(document) if (text := scalar_text(value)) is not None]

    def texts(self, document: Document) -> Iterator[str]:
        """Return every value that is text, a number, true or false, whatever its length and characters."""
        return (text for value in self.values(document) if (text := value_text(value)) is not None)


def compile_finder(expression: str) -> Finder:
    """Compile what names a place in an answer or a report. Raises ValueError.

    "/errors/*/code" is a JSON Pointer into the parsed body, where "*" stands for every element of an array;
    "header:NAME" is a header, "query:NAME" a parameter of the called address; anything else is a regular
    expression for plain text, of which the first group counts, or the whole match.
    """
    if expression.startswith("/"):
        steps = parse_pointer(expression)
        if EVERY in steps:
            return Finder(expression, partial(_in_arrays, steps))
        return Finder(expression, partial(_in_tree, steps), steps)
    if expression.startswith(HEADER):
        return Finder(expression, partial(_in_headers, _name(expression, HEADER).lower()))
    if expression.startswith(QUERY):
        return Finder(expression, partial(_in_query, _name(expression, QUERY)))
    if not expression:
        raise ValueError('expected a JSON Pointer such as "/id", "header:NAME" or a regular expression')
    try:
        return Finder(expression, partial(_in_text, compile_expression(expression)))
    except ValueError as error:
        raise ValueError(f"no JSON Pointer, and {error}") from None


def _checked(expression: str) -> str:
    compile_finder(expression)
    return expression


FinderText = Annotated[str, AfterValidator(_checked)]
"""An expression for `compile_finder`, in the configuration."""


def _name(expression: str, prefix: str) -> str:
    name = expression.removeprefix(prefix)
    if not name or (prefix == HEADER and not _TOKEN.fullmatch(name)):
        raise ValueError(f'expected a name after "{prefix}", as in "{prefix}X-Request-Id"')
    return name


def _in_tree(steps: Steps, document: Document) -> Iterable[object]:
    value = document.value(steps)
    return () if value is None else (value,)


def _in_arrays(steps: Steps, document: Document) -> Iterable[object]:
    return document.values(steps)


def _in_headers(name: str, document: Document) -> Iterable[object]:
    value = document.headers.get(name)
    return () if value is None else (value,)


def _in_query(name: str, document: Document) -> Iterable[object]:
    value = document.query.get(name)
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _in_text(expression: Expression, document: Document) -> Iterable[object]:
    found = expression.found(document.body[: 4 * SEARCHED_TEXT].decode("utf-8", "replace"))
    return () if found is None else (found,)


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
