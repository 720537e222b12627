"""An answer of the queue (interface 4.1): its messages, its malformed elements, and where it breaks off.

An ordinary answer is parsed at once. Any other is read element by element: a malformed element doesn't affect
others, and a truncated answer keeps every complete element.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Generator, Iterator
from functools import partial
from typing import NamedTuple, cast

import anyio.lowlevel
from pydantic import ValidationError

from deliveryd.errors import ServiceError, ServiceUnreadable
from deliveryd.model import Malformed, QueuedMessage
from deliveryd.runtime.json_numbers import NumberText, VariablesText
from deliveryd.runtime.threads import Aside
from deliveryd.service import exact_json
from deliveryd.service.array_text import BYTE_ORDER_MARK, NoArray, member, skip_blanks, spans, without_texts
from deliveryd.service.exact_json import TooDeep
from deliveryd.service.wire import id_of, message_of, why

LARGEST_BATCH = 64 << 20
"""Largest answer read, in bytes, so that it can't exhaust memory."""

LARGEST_AT_ONCE = 8 << 20
"""Largest answer parsed without looking for the ends of its elements first, in bytes."""

LARGEST_IN_THE_LOOP = 64 << 10
"""Largest answer read in the event loop, in bytes; a larger one is read beside it, by its elements."""

LARGEST_IN_ONE_CALL = 256 << 10
"""Largest answer parsed by one call, in bytes: for two milliseconds, in which no other thread runs."""

ELEMENTS_AT_ONCE = 50
"""Elements read in one turn of the event loop: some milliseconds, if all are malformed."""

_DECODED_AT_ONCE = 64 << 10

MANY_MARKS = 500_000
"""Commas and opening brackets, in texts too, with which an answer isn't parsed like that."""

FEW_VARIABLES = 100
"""Variables of each message that are held as values, whatever the others of its answer have."""

MOST_VARIABLES = 500_000
"""Most further variables of an answer that are held as values; those of later messages are kept as text."""

LARGEST_ELEMENT = 1 << 20
"""Largest message in bytes of JSON."""

KEPT_OF_LARGE = 64 << 10
"""Bytes kept of an element that is larger than any message."""

MOST_ELEMENTS = 10_000
"""Most elements read of one answer, unless more were requested."""


class Batch(NamedTuple):
    """An answer of the queue. `fault`: why it couldn't be read completely; the rest of it may be lost."""

    messages: list[QueuedMessage]
    malformed: list[Malformed]
    fault: ServiceError | None = None

    @property
    def size(self) -> int:
        """The number of elements that could be read."""
        return len(self.messages) + len(self.malformed)

    @property
    def nameless(self) -> int:
        """The number of elements without a usable ID: unreported, the queue may deliver them again."""
        return sum(element.id is None for element in self.malformed)


_Reading = Generator[None, None, Batch]
"""Reads an answer; pauses after some elements each time."""


async def read_batch(aside: Aside, body: bytes, asked: int, fault: ServiceError | None = None) -> Batch:
    """Read an answer of any size: in slices, or beside the event loop.

    `fault` is why it is incomplete, if it is.
    """
    reading = _read(body, asked) if fault is None else _salvage(body, asked, fault)
    if len(body) > LARGEST_IN_THE_LOOP:
        return await aside(partial(_at_once, reading))
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return cast("Batch", end.value)
        await anyio.lowlevel.checkpoint()


def read_queue(body: bytes, asked: int = 0) -> Batch:
    """Read a complete answer, separating messages from malformed elements (design 5)."""
    return _at_once(_read(body, asked))


def salvaged(body: bytes, asked: int = 0, fault: ServiceError | None = None) -> Batch:
    """Read as much as possible of an answer, element by element; `fault` is what is known to be wrong."""
    return _at_once(_salvage(body, asked, fault))


def _at_once(reading: _Reading) -> Batch:
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return cast("Batch", end.value)


def _read(body: bytes, asked: int) -> _Reading:
    if _is_empty(body):
        return Batch([], [])
    elements = _parsed_whole(body, asked)
    if elements is not None:
        messages: list[QueuedMessage] = []
        try:
            for first in range(0, len(elements), ELEMENTS_AT_ONCE):
                messages += map(message_of, elements[first : first + ELEMENTS_AT_ONCE])
                yield
        except ValidationError:  # one is no message
            pass
        else:
            return Batch(messages, [])
    return (yield from _salvage(body, asked))


def _is_empty(body: bytes) -> bool:
    """Whether there is nothing, or `null`."""
    begin = skip_blanks(body, len(BYTE_ORDER_MARK) if body.startswith(BYTE_ORDER_MARK) else 0)
    if body.startswith(b"null", begin):
        begin = skip_blanks(body, begin + len(b"null"))
    return begin == len(body)


def _salvage(body: bytes, asked: int, fault: ServiceError | None = None) -> _Reading:
    messages: list[QueuedMessage] = []
    malformed: list[Malformed] = []
    try:
        for count, element in enumerate(_elements(body, asked), 1):
            if isinstance(element, Malformed):
                malformed.append(element)
            else:
                messages.append(element)
            if count % ELEMENTS_AT_ONCE == 0:
                yield
    except NoArray as error:
        fault = fault or ServiceUnreadable(f"the queue's answer {error}")
    return Batch(messages, malformed, fault)


def _elements(body: bytes, asked: int) -> Iterator[QueuedMessage | Malformed]:
    """Yield each element within the limits. Raises NoArray after the last readable one."""
    most_elements, left = max(MOST_ELEMENTS, asked), MOST_VARIABLES
    for count, (begin, end) in enumerate(spans(body)):
        if count == most_elements:
            raise NoArray(f"holds more than {most_elements} elements, {asked} were asked for")
        element = _element(body, begin, end)
        if isinstance(element, QueuedMessage):  # all other values have been freed
            further = max(len(element.variables) - FEW_VARIABLES, 0)
            if further > left:
                element = element._replace(variables=VariablesText(element.variables))
            else:
                left -= further
        yield element


def _parsed_whole(body: bytes, asked: int) -> list[object] | None:
    """Return the elements of an answer that is within all limits; None for any other."""
    if len(body) > LARGEST_AT_ONCE or sum(map(body.count, (b",", b"[", b"{"))) > MANY_MARKS:
        return None
    try:
        text = body.decode("utf-8-sig")
        if len(body) > LARGEST_IN_ONE_CALL:
            parsed = exact_json.elements_of(text, LARGEST_ELEMENT)
        else:
            parsed = exact_json.loads_integers(text)
    except ValueError:  # what isn't UTF-8, isn't JSON, or is nested too deeply
        return None
    return parsed if type(parsed) is list and len(parsed) <= max(MOST_ELEMENTS, asked) else None


def _element(body: bytes, begin: int, end: int) -> QueuedMessage | Malformed:
    """Read an element of an answer. Raises NoArray if it isn't JSON."""
    if end - begin > LARGEST_ELEMENT:
        reason = f"larger than {LARGEST_ELEMENT} bytes"
        return Malformed(_text(body[begin : begin + KEPT_OF_LARGE]), reason, _id_in(body, begin))
    return _parsed(body[begin:end])


def _parsed(raw: bytes) -> QueuedMessage | Malformed:
    """Parse an element within all limits.

    The end of one that isn't JSON is uncertain, and so is everything after it: NoArray. If only a string in
    it isn't JSON, or isn't UTF-8, its end is certain.
    """
    try:
        element = exact_json.loads_integers(raw.decode())
    except UnicodeDecodeError:
        reason = "isn't UTF-8"
    except TooDeep:
        return Malformed(_text(raw), "nested too deeply", _id_in(raw))
    except ValueError:
        reason = "holds a text that isn't JSON"
    else:
        try:
            return message_of(element)
        except ValidationError as error:
            id_ = id_of(element.get("id")) if isinstance(element, dict) else None
            return Malformed(raw.decode(), why(error), id_)
    if not _ends_surely(raw):
        raise NoArray("isn't JSON")
    return Malformed(_text(raw), reason, _id_in(raw))


def _text(raw: bytes) -> str:
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    starts = range(0, len(raw), _DECODED_AT_ONCE)
    pieces = [decoder.decode(raw[start : start + _DECODED_AT_ONCE]) for start in starts]
    return "".join([*pieces, decoder.decode(b"", final=True)])


def _id_in(body: bytes, begin: int = 0) -> int | None:
    """Return the ID of an unparsed element, if it can be found."""
    id_ = member(body, begin, b"id")
    return None if id_ is None else id_of(NumberText(id_.decode("ascii", "replace")))


def _ends_surely(raw: bytes) -> bool:
    try:
        exact_json.loads_exact(without_texts(raw).decode())
    except TooDeep:
        return True
    except ValueError:
        return False
    return True
