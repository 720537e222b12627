"""The text alternative of an HTML body: links, lists and line breaks as plain text has them."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

_SILENT = frozenset({"style", "script", "head", "title", "template"})
_BLOCKS = frozenset(
    {"p", "div", "table", "tr", "ul", "ol", "blockquote", "section", "article", "header", "footer", "address"}
    | {"h1", "h2", "h3", "h4", "h5", "h6", "pre", "figure", "form", "dl", "dt", "dd", "center"}
)
_APART = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "blockquote", "table", "pre"})
_TAG = re.compile(r"<[^<>]*>")


def looks_like_html(text: str) -> bool:
    """Whether a text holds anything that reads as a tag."""
    return re.search(r"<(?:!doctype\b|/?[a-zA-Z][a-zA-Z0-9]*[\s/>])", text, re.IGNORECASE) is not None


def html_to_text(html: str) -> str:
    """Plain text that says the same as an HTML body. Never raises for any markup."""
    reader = _Reader()
    try:
        reader.feed(html)
        reader.close()
    except AssertionError:  # html.parser's way of giving up on a declaration such as <![x y]>
        return _tidy(unescape(_TAG.sub(" ", html)))
    return _tidy("".join(reader.pieces))


def _tidy(text: str) -> str:
    lines = [re.sub(r"[ \t\xa0]+", " ", line).strip() for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._silent = 0
        self._numbers: list[int | None] = []  # per open list: the next number, or None for bullets
        self._links: list[tuple[str, int]] = []  # per open link: its address, and where its text begins

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in _SILENT:
            self._silent += 1
        elif tag == "br":
            self.pieces.append("\n")
        elif tag == "hr":
            self.pieces.append("\n---\n")
        elif tag == "img":
            self.handle_data(attributes.get("alt") or "")
        elif tag == "a":
            self._links.append((attributes.get("href") or "", len(self.pieces)))
        elif tag == "li":
            self.pieces.append(self._bullet())
        elif tag in ("td", "th"):
            self.pieces.append(" ")
        else:
            if tag in ("ul", "ol"):
                self._numbers.append(1 if tag == "ol" else None)
            self._break_before(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag == "a" and self._links:
            self._end_link(*self._links.pop())
        elif tag == "body":
            self._silent = 0  # an unclosed head or style doesn't swallow what follows
        else:
            if tag in ("ul", "ol") and self._numbers:
                self._numbers.pop()
            self._break_before(tag)

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.pieces.append(re.sub(r"\s+", " ", data))

    def _break_before(self, tag: str) -> None:
        if tag in _BLOCKS and not self._silent:
            self.pieces.append("\n\n" if tag in _APART else "\n")

    def _bullet(self) -> str:
        if not self._numbers or self._numbers[-1] is None:
            return "\n- "
        number = self._numbers[-1]
        self._numbers[-1] = number + 1
        return f"\n{number}. "

    def _end_link(self, address: str, start: int) -> None:
        shown = "".join(self.pieces[start:]).strip()
        bare = address.removeprefix("mailto:").removeprefix("tel:")
        if bare and not bare.startswith("#") and bare != shown and not self._silent:
            self.pieces.append(f" ({bare})" if shown else bare)
