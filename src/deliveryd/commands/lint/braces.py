"""Rules about braces that look like placeholders and aren't, or not quite (design 5: placeholder syntax)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from deliveryd.cleaning import is_invisible
from deliveryd.commands.lint.rules import LintFinding
from deliveryd.commands.lint.subject import Field, Subject, fields_of
from deliveryd.rendering.escaping import HTML, VERBATIM
from deliveryd.rendering.template import Template

_FOREIGN = re.compile(
    r"[$#%]\{[\w.]{1,64}\}|%\([\w.]{1,64}\)[sd]|<%=?[^<>%]{1,64}%>|\[\[[\w.]{1,64}\]\]|\{%[^{}%]{1,64}%\}"
)
_OPENING = (
    r"&(?:amp;)?(?:#0*123(?:;|(?!\d))|#x0*7b(?:;|(?![\da-f]))|lcub;|lbrace;)"
    r"|%(?:25)?7b|\\u007b|[\uff5b\ufe5b\u2774\u2983{]"
)
_CLOSING = (
    r"&(?:amp;)?(?:#0*125(?:;|(?!\d))|#x0*7d(?:;|(?![\da-f]))|rcub;|rbrace;)"
    r"|%(?:25)?7d|\\u007d|[\uff5d\ufe5c\u2775\u2984}]"
)
_BRACED = re.compile(
    rf"(?P<before>(?:{_OPENING}){{1,2}}) ?(?P<name>\w(?:[\w .-]{{0,62}}[\w.-])?) ?"
    rf"(?P<after>(?:{_CLOSING}){{1,2}})",
    re.IGNORECASE,
)
"""A name between braces, which may be written as in HTML, addresses or JSON, or only look like braces."""
_STYLED = re.compile(r"<(style|script)\b[^<>]*>.*?(?:</\1\s*>|\Z)", re.IGNORECASE | re.DOTALL)
_LONGEST_SHOWN = 40


def brace_findings(subject: Subject) -> Iterator[LintFinding]:
    """Check the braces of every text."""
    given = frozenset() if subject.sample is None else subject.sample.ever
    for field in fields_of(subject):
        yield from _in_field(field, given)


def _in_field(field: Field, given: Collection[str]) -> Iterator[LintFinding]:
    text = _without_styles(field.text) if field.is_html else field.text
    foreign = list(_FOREIGN.finditer(text))
    for match in foreign:
        said = f"{_shown(match[0])} is a placeholder of another template language"
        yield _finding("foreign-placeholder", said, "write {name}", field, match.start())
    encoded = [
        each for each in _BRACED.finditer(text) if each["before"].strip("{") or each["after"].strip("}")
    ]
    for match in encoded:
        said = f"{_shown(match[0])} is no placeholder, and is sent as it is"
        yield _finding("encoded-braces", said, f"write {{{match['name']}}}", field, match.start())
    taken = {place for match in (*foreign, *encoded) for place in range(*match.span())}
    yield from (found for found in _braced(field, text, given) if found.offset not in taken)
    yield from (found for found in _unbalanced(field, text) if found.offset not in taken)


def _without_styles(html: str) -> str:
    """Blank out style sheets and scripts, whose braces are their own."""
    return _STYLED.sub(lambda match: " " * len(match[0]), html)


def _braced(field: Field, text: str, given: Collection[str]) -> Iterator[LintFinding]:
    naming = (HTML if field.is_html else VERBATIM).naming
    template = Template.compile(text, naming)
    slots = dict(template.slots)
    offset = 0
    for index, piece in enumerate(template.pieces):
        if index in slots:
            name = slots[index]
            is_doubled = text[offset - 1 : offset] == "{" and text.startswith("}", offset + len(piece))
            if is_doubled and piece not in given:
                said = f"{{{_shown(piece)}}} becomes the value between braces"
                yield _finding("doubled-braces", said, f"write {_shown(piece)}", field, offset - 1)
            elif piece[1:-1] in given:
                pass
            elif not naming(name) and name not in given:
                said = f"{_shown(piece)} holds no name, so it is sent as it is"
                yield _finding("literal-braces", said, _remedy_of(name, field), field, offset)
            elif name != piece[1:-1]:
                yield _spelled(field, piece, name, offset)
        offset += len(piece)


def _remedy_of(name: str, field: Field) -> str:
    if field.is_html and len(name.split()) > 1:
        return "in HTML a name is one word: join the words with _, or remove the braces"
    return "a name has letters, digits, _, . and -: correct it, or remove the braces"


def _spelled(field: Field, piece: str, name: str, offset: int) -> LintFinding:
    hidden = [char for char in piece if is_invisible(char)]
    if hidden:
        codes = ", ".join(f"U+{ord(char):04X}" for char in dict.fromkeys(hidden))
        said = f"{{{name}}} holds {codes}, which can't be seen"
        return _finding("invisible-character", said, f"type {{{name}}} anew", field, offset)
    return _finding(
        "padded-placeholder", f"{_shown(piece)} is read as {{{name}}}", f"write {{{name}}}", field, offset
    )


def _unbalanced(field: Field, text: str) -> Iterator[LintFinding]:
    """Yield the braces without a counterpart; pairs may be nested."""
    open_: list[int] = []
    stray: list[int] = []
    for offset, char in enumerate(text):
        if char == "{":
            open_.append(offset)
        elif char == "}":
            if open_:
                open_.pop()
            else:
                stray.append(offset)
    for offset in sorted([*open_, *stray]):
        brace, other = ("{", "}") if text[offset] == "{" else ("}", "{")
        around = _shown(
            text[offset : offset + 16] if brace == "{" else text[max(0, offset - 15) : offset + 1]
        )
        said = f"{brace} has no {other}: {around}"
        yield _finding("unbalanced-brace", said, f"add {other}, or remove {brace}", field, offset)


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _finding(rule: str, text: str, remedy: str, field: Field, offset: int) -> LintFinding:
    return LintFinding(rule, text, remedy, field.language, field.block, field.name, offset)
