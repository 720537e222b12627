"""The plain-text alternative of an HTML body, with links, lists and line breaks.

The standard library's HTML parser takes quadratic time on broken markup, seconds for 20 KB, and would delay
all other messages. The expression here never backtracks, and none is applied to a whole text: that would hold
the interpreter, also in a thread.
"""

from __future__ import annotations

import re
from html import unescape as standard_unescape

_SLICE = 16 << 10
"""Characters that one call works on: about a millisecond."""

_SILENT = frozenset({"style", "script", "head", "title", "template"})
_BLOCKS = frozenset(
    {"p", "div", "table", "tr", "ul", "ol", "blockquote", "section", "article", "header", "footer", "address"}
    | {"h1", "h2", "h3", "h4", "h5", "h6", "pre", "figure", "form", "dl", "dt", "dd", "center"}
)
_APART = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "blockquote", "table", "pre"})

# A comment's beginning, or a tag that ends before the next "<": with closed quotes, else at the first ">".
_MARKUP = re.compile(
    r"""(?P<comment><!--)
      | <(?P<tag>[/]?[a-z][^\s/<>]*+)(?P<attributes>(?:[^<>"']++|"[^"<]*+"|'[^'<]*+')*+)>
      | <(?P<loose>[/]?[a-z][^\s/<>]*+)(?P<rest>[^<>]*+)>
      | <[!?][^<>]*+>""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"""\s(href|alt)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"']+))""", re.IGNORECASE)


def looks_like_html(text: str) -> bool:
    """Whether a text contains anything that looks like a tag."""
    return re.search(r"<(?:!doctype\b|/?[a-zA-Z][a-zA-Z0-9]*[\s/>])", text, re.IGNORECASE) is not None


def unescape(text: str) -> str:
    """Decode character references, except those with thousands of digits."""
    try:
        return standard_unescape(text)
    except ValueError:
        return text


def html_to_text(html: str) -> str:
    """Convert an HTML body to plain text. Accepts any markup, in linear time."""
    writer = _Writer()
    begin = at = 0
    while (at := html.find("<", at)) >= 0:
        match = _MARKUP.match(html, at)
        if match is None:
            at += 1
            continue
        writer.write(unescape(html[begin:at]))
        at = begin = match.end() if match["comment"] is None else _comment_end(html, match.end())
        tag = match["tag"] or match["loose"]
        if tag:
            writer.meet(tag.lower(), match["attributes"] or match["rest"] or "")
    writer.write(unescape(html[begin:]))
    return writer.text()


def _comment_end(html: str, begin: int) -> int:
    end = html.find("-->", begin)
    return len(html) if end < 0 else end + 3


def single_spaced(text: str) -> str:
    """Replace each run of white space by one space, slice by slice."""
    pieces: list[str] = []
    is_spaced = False  # whether what is written ends with a space
    for begin in range(0, len(text), _SLICE):
        piece = text[begin : begin + _SLICE]
        if piece[0].isspace() and not is_spaced:
            pieces.append(" ")
        if words := " ".join(piece.split()):
            pieces.append(f"{words} " if piece[-1].isspace() else words)
        is_spaced = piece[-1].isspace()
    return "".join(pieces)


def _attributes(text: str) -> dict[str, str]:
    return {
        match[1].lower(): unescape(match[2] or match[3] or match[4] or "")
        for match in _ATTRIBUTE.finditer(text)
    }


class _Writer:
    """Collects text, with line breaks where blocks begin and end."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._silent = 0
        self._breaks = 2  # line breaks at the end of what is written so far
        self._numbers: list[int | None] = []  # per open list: the next number, or None for bullets
        self._link: tuple[str, int] | None = None  # the open link's address, and where its text begins

    def text(self) -> str:
        """Return the text."""
        lines = [single_spaced(line).strip() for line in "".join(self._pieces).split("\n")]
        return "\n".join(lines).strip()

    def write(self, data: str) -> None:
        """Write text; runs of white space become one space."""
        if data and not self._silent and (data.strip() or not self._breaks):
            self._pieces.append(single_spaced(data))
            self._breaks = 0

    def meet(self, tag: str, attributes: str) -> None:
        """Process a tag; the name of an end tag begins with a slash."""
        if tag.startswith("/"):
            self._end(tag[1:])
        elif tag in _SILENT:
            self._silent += 1
        elif tag in ("br", "hr"):
            self._break_line(tag)
        elif tag in ("img", "td", "th"):
            self.write(_attributes(attributes).get("alt", "") if tag == "img" else " ")
        elif tag == "a":
            self._end_link()  # links don't nest
            self._link = (_attributes(attributes).get("href", ""), len(self._pieces))
        elif tag == "li":
            self._break_to(1)
            self.write(self._bullet())
        else:
            if tag in ("ul", "ol"):
                self._numbers.append(1 if tag == "ol" else None)
            self._break_at(tag)

    def _end(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag == "a":
            self._end_link()
        elif tag == "body":
            self._silent = 0
        else:
            if tag in ("ul", "ol") and self._numbers:
                self._numbers.pop()
            self._break_at(tag)

    def _break_line(self, tag: str) -> None:
        if tag == "br":
            self._break_to(min(self._breaks + 1, 2))
            return
        self._break_to(1)
        self.write("---")
        self._break_to(1)

    def _break_at(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._break_to(2 if tag in _APART else 1)

    def _break_to(self, breaks: int) -> None:
        if breaks > self._breaks and not self._silent:
            self._pieces.append("\n" * (breaks - self._breaks))
            self._breaks = breaks

    def _bullet(self) -> str:
        if not self._numbers or self._numbers[-1] is None:
            return "- "
        number = self._numbers[-1]
        self._numbers[-1] = number + 1
        return f"{number}. "

    def _end_link(self) -> None:
        if self._link is None:
            return
        (address, start), self._link = self._link, None
        shown = "".join(self._pieces[start:]).strip()
        bare = address.removeprefix("mailto:").removeprefix("tel:")
        if bare and not bare.startswith("#") and bare != shown:
            self.write(f" ({bare})" if shown else bare)
