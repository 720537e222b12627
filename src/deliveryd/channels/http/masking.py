"""Masks a provider's secrets in what it answered, however it wrote them."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import NamedTuple

MASK = "***"

_LEVELS = 4
"""How often escaped text may be escaped again, such as JSON in a form."""

_MOST_READINGS = 64
"""Texts that are searched: the orders in which kinds of escapes can be resolved are many."""

_LEAST_CODED = 8
"""Digits of Base64 from which they can't be anything else."""

_ONE_ALPHABET = str.maketrans("-_", "+/")


class _Read(NamedTuple):
    """A text without escapes, and for each character the part of the original that it was read from."""

    text: str
    parts: list[tuple[int, int]]


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets, also as addresses, forms, JSON, HTML, headers and mail have them.

    Each kind of escapes is resolved by itself: what looks like another kind may belong to the secret.
    """
    wanted = [secret for secret in {*secrets} if secret]
    hidden = bytearray(len(text))
    for read in _readings(text):
        for start, end in _found(read.text, wanted):
            first, last = read.parts[start][0], read.parts[end - 1][1]
            hidden[first:last] = b"\1" * (last - first)
    return re.sub("\1+", MASK, _marked(text, hidden)) if any(hidden) else text


def _readings(text: str) -> Iterator[_Read]:
    """Yield the text, then what it is without escapes: in each order of their kinds, short orders first."""
    level = [_Read(text, [(at, at + 1) for at in range(len(text))])]
    seen = {text}
    yield level[0]
    for _ in range(_LEVELS):
        following = []
        for read, kind in product(level, _KINDS):
            resolved = _unescaped(read, kind)
            if resolved is None or resolved.text in seen:
                continue
            if len(seen) == _MOST_READINGS:
                return
            seen.add(resolved.text)
            following.append(resolved)
            yield resolved
        level = following


def _marked(text: str, hidden: bytearray) -> str:
    return "".join("\1" if is_hidden else each for each, is_hidden in zip(text, hidden, strict=True))


def _found(text: str, secrets: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield where a secret stands in a text without escapes, as it is, in hex or in Base64."""
    lower, coded = text.lower(), text.translate(_ONE_ALPHABET)
    for secret in secrets:
        octets = secret.encode(errors="replace")
        for form in {secret, secret.replace(" ", "+")}:
            yield from _all(text, form)
        yield from _all(lower, octets.hex())
        for before in range(3):  # a login or a whole header may be encoded with it
            whole = b64encode(bytes(before) + octets).decode("ascii").rstrip("=")
            form = whole[-(-8 * before // 6) : 8 * (before + len(octets)) // 6]
            if len(form) >= _LEAST_CODED:
                yield from _with_shared_digits(coded, form)


def _with_shared_digits(text: str, form: str) -> Iterator[tuple[int, int]]:
    """Yield where digits of Base64 stand, with those beside them that share bits, and the padding."""
    for start, end in _all(text, form):
        first = start - 1 if text[start - 1 : start].isalnum() else start
        last = end + 1 if text[end : end + 1].isalnum() or text[end : end + 1] in "+/=" else end
        while text[last : last + 1] == "=":
            last += 1
        yield first, min(last, len(text))


def _all(text: str, form: str) -> Iterator[tuple[int, int]]:
    at = text.find(form)
    while at >= 0:
        yield at, at + len(form)
        at = text.find(form, at + 1)


def _unescaped(read: _Read, kind: _Kind) -> _Read | None:
    """Resolve one level of one kind of escapes; None: there are none."""
    characters: list[str] = []
    parts: list[tuple[int, int]] = []
    done = 0
    for found in kind.escapes.finditer(read.text):
        characters.append(read.text[done : found.start()])
        parts += read.parts[done : found.start()]
        meant = kind.meant(found[0])
        characters.append(meant)
        if kind.meant is _octets and len(meant) * 3 == len(found[0]):  # one escape for each character
            parts += [_joined(read, at, at + 3) for at in range(found.start(), found.end(), 3)]
        else:
            parts += [_joined(read, found.start(), found.end())] * len(meant)
        done = found.end()
    if not done:
        return None
    characters.append(read.text[done:])
    parts += read.parts[done:]
    return _Read("".join(characters), parts)


def _joined(read: _Read, start: int, end: int) -> tuple[int, int]:
    return read.parts[start][0], read.parts[end - 1][1]


def _octets(escapes: str) -> str:
    octets = bytes.fromhex(re.sub("[%=]", "", escapes))
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def _json(escape: str) -> str:
    try:
        return str(json.loads(f'"{escape}"'))
    except ValueError:  # not one of JSON's
        return escape[1:]


def _nothing(_fold: str) -> str:
    return ""


class _Kind(NamedTuple):
    """One way to escape: what its escapes look like, and what one of them means."""

    escapes: re.Pattern[str]
    meant: Callable[[str], str]


_KINDS = (
    _Kind(re.compile("(?:%[0-9A-Fa-f]{2})+"), _octets),  # addresses and forms
    _Kind(
        re.compile(r"\\u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\[^u]"),
        _json,
    ),
    _Kind(re.compile("&#?[0-9A-Za-z]{1,32};?"), html.unescape),
    _Kind(re.compile("(?:=[0-9A-Fa-f]{2})+"), _octets),  # quoted-printable
    _Kind(re.compile("=?\r?\n"), _nothing),  # lines folded in mail and in Base64
)
