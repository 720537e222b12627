"""Masks a provider's secrets in what it answered, however it wrote them."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from string import ascii_lowercase, ascii_uppercase
from typing import NamedTuple

MASK = "***"

MOST_SEARCHED = 32 * 1024
"""Characters that are resolved to find secrets, over all readings of a text."""

_LEVELS = 4
"""How often escaped text may be escaped again, such as JSON in a form."""

_LEAST_CODED = 8
"""Digits of Base64 from which they can't be anything else."""

_FOLDED = str.maketrans(f"{ascii_uppercase}-_", f"{ascii_lowercase}+/")
"""Without the case of ASCII, and with one alphabet of Base64; no character changes its place."""

_UNFOLDED = str.maketrans("-_", "+/")
"""With one alphabet of Base64, in the case that it has."""

_LEAST_FOLDED = 8
"""Characters from which on a secret is found in any case: shorter ones would stand in many words."""


_TOKEN = re.compile(r"(?<![\w-])eyJ[\w-]++\.eyJ[\w-]++\.[\w-]++", re.ASCII)
"""A JSON Web Token: made of a secret, and as good as one while it is valid."""


class _Read(NamedTuple):
    """A text without escapes, and for each character the part of the original that it was read from."""

    text: str
    parts: list[tuple[int, int]]


class _TooMuch(Exception):
    """A text has so many escapes of different kinds that not all of its readings are searched."""


def mask(text: str, secrets: Iterable[str], most: int = MOST_SEARCHED) -> str:
    """Return the text without the secrets, also as addresses, forms, JSON, HTML, headers and mail have them.

    Tokens that were made of a secret are masked as well.
    Each kind of escapes is resolved by itself: what looks like another kind may belong to the secret. These
    readings of a text can be many: if more than `most` characters are to be resolved, all of it is masked.
    """
    wanted = [secret for secret in {*secrets} if secret]
    if not wanted:
        return text
    forms = [form for secret in wanted for form in _forms(secret)]
    hidden = bytearray(len(text))
    try:
        for read in _readings(text, most):
            tokens = (found.span() for found in _TOKEN.finditer(read.text))
            for start, end in chain(_found(read.text, forms), tokens):
                first, last = read.parts[start][0], read.parts[end - 1][1]
                hidden[first:last] = b"\1" * (last - first)
    except _TooMuch:
        return MASK
    return re.sub("\1+", MASK, _marked(text, hidden)) if any(hidden) else text


def _readings(text: str, most: int) -> Iterator[_Read]:
    """Yield the text, then what it is without escapes: in each order of their kinds. Raises _TooMuch."""
    level = [_Read(text, [(at, at + 1) for at in range(len(text))])]
    seen = {text}
    yield level[0]
    for _ in range(_LEVELS):
        following = []
        for read in level:
            for kind in _KINDS:
                if kind.escapes.search(read.text) is None:
                    continue
                most -= len(read.text)
                if most < 0:
                    raise _TooMuch
                resolved = _unescaped(read, kind)
                if resolved.text not in seen:
                    seen.add(resolved.text)
                    following.append(resolved)
                    yield resolved
        level = following


def _marked(text: str, hidden: bytearray) -> str:
    return "".join("\1" if is_hidden else each for each, is_hidden in zip(text, hidden, strict=True))


class _Form(NamedTuple):
    """How a secret is written in a text without escapes; `is_coded`: as digits of Base64."""

    text: str
    is_coded: bool = False


def _forms(secret: str) -> Iterator[_Form]:
    """Yield a secret as it is, in hex and in Base64."""
    octets = secret.encode(errors="replace")
    for form in {secret, secret.replace(" ", "+"), octets.hex()}:
        yield _Form(form)
    for before in range(3):  # a login or a whole header may be encoded with it
        whole = b64encode(bytes(before) + octets).decode("ascii").rstrip("=")
        form = whole[-(-8 * before // 6) : 8 * (before + len(octets)) // 6]
        if len(form) >= _LEAST_CODED:
            yield _Form(form, is_coded=True)


def _found(text: str, forms: Iterable[_Form]) -> Iterator[tuple[int, int]]:
    """Yield where a secret stands in a text without escapes."""
    folded, unfolded = text.translate(_FOLDED), text.translate(_UNFOLDED)
    for form in forms:
        find = _with_shared_digits if form.is_coded else _all
        if len(form.text) >= _LEAST_FOLDED:
            yield from find(folded, form.text.translate(_FOLDED))
        else:
            yield from find(unfolded, form.text.translate(_UNFOLDED))


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


def _unescaped(read: _Read, kind: _Kind) -> _Read:
    """Resolve one level of one kind of escapes."""
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
    characters.append(read.text[done:])
    parts += read.parts[done:]
    return _Read("".join(characters), parts)


def _joined(read: _Read, start: int, end: int) -> tuple[int, int]:
    return read.parts[start][0], read.parts[end - 1][1]


def _octets(escapes: str) -> str:
    if escapes[1] == "u":
        return chr(int(escapes[-4:], 16))
    octets = bytes.fromhex(re.sub("[%=]", "", escapes))
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets.decode("latin-1")


def _json(escape: str) -> str:
    try:
        return str(json.loads(f'"{escape}"'))
    except ValueError:  # not one of JSON's
        return chr(int(escape[-2:], 16)) if len(escape) == 4 else escape[1:]


def _nothing(_fold: str) -> str:
    return ""


class _Kind(NamedTuple):
    """One way to escape: what its escapes look like, and what one of them means."""

    escapes: re.Pattern[str]
    meant: Callable[[str], str]


_KINDS = (
    _Kind(re.compile("(?:%[0-9A-Fa-f]{2})+|%u[0-9A-Fa-f]{4}"), _octets),  # addresses and forms
    _Kind(
        re.compile(
            r"\\u[Dd][89ABab][0-9A-Fa-f]{2}\\u[Dd][C-Fc-f][0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}"
            r"|\\x[0-9A-Fa-f]{2}|\\[^u]"
        ),
        _json,
    ),
    _Kind(re.compile("&#?[0-9A-Za-z]{1,32};?"), html.unescape),
    _Kind(re.compile("(?:=[0-9A-Fa-f]{2})+"), _octets),  # quoted-printable
    _Kind(re.compile("=?\r?\n"), _nothing),  # lines folded in mail and in Base64
)
