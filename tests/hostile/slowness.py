"""Whether time grows with the length of a text, or with its square: the same input at n, 2n, 4n and 8n."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from deliveryd.channels.mail.html_text import html_to_text
from deliveryd.channels.mail.mail_headers import parse_mailbox
from deliveryd.channels.mail.mime import Letter, compose
from deliveryd.channels.sms_text import sms_parts
from deliveryd.model import LanguageContent, Settings
from deliveryd.rendering.content import compile_settings
from deliveryd.service.array_text import NoArray, spans
from deliveryd.service.batch import read_queue
from deliveryd.service.wire import read_settings

Work = Callable[[str], object]

BASE = 5_000
STEPS = (1, 2, 4, 8)
TOO_SHORT = 0.001
"""Seconds below which a measurement says nothing."""

SEEDS = (
    *(
        "<",
        "<a ",
        "<a href='",
        '<a href="x',
        "<a href= ",
        "<!--",
        "<ul><li>",
        "<a href=x>",
        "</p>",
        "<style>",
    ),
    *("&#", "&#9", "&amp", "{", "{{", "{a}", "{a", "}", "{\u00e9}", "{a}{b", "[]~", "=?utf-8?q?a?="),
    *("{ a}", "{\u200ba b}"),
    *("\u20ac", "\U0001f600", "\u2028", " ", "\r", ".\n", "a"),
)
"""Pieces that a hostile text repeats."""


class Growth(NamedTuple):
    """Processor seconds for a text of n, 2n, 4n and 8n pieces."""

    work: str
    seed: str
    seconds: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """How many times as long the last took as the first: 8 where time grows with length, else 64."""
        return self.seconds[-1] / max(self.seconds[0], TOO_SHORT)


def rendered(text: str) -> object:
    """Compile a template and fill it, in an e-mail of HTML and in a text message."""
    blocks = {"email": {"subject": "s", "body": "<p>" + text}, "sms": {"text": text}}
    settings = Settings(1, None, {"en": LanguageContent(None, None, blocks)})
    language = compile_settings(settings).languages["en"]
    values = {"a": "<b>" * 5, "b": "{a}", "\u00e9": "e", "{": "x", "a{": "y"}
    return [block.render(values, None) for block in language.blocks.values()]


def mailed(text: str) -> object:
    """Compose a mail with this body."""
    box = parse_mailbox("a@example.com")
    fields = {
        "subject": text[:5000].replace("\r", "").replace("\n", "").replace("\u2028", ""),
        "body": "<p>" + text,
    }
    return compose(Letter("a-1-1", 0, 1, box, box, None, {}, fields)).content()


def addressed(text: str) -> object:
    """Read a mail address."""
    try:
        return parse_mailbox(f"{text}@example.com")
    except ValueError:
        return None


def taken(text: str) -> object:
    """Read an answer of the queue whose one element is nested too deeply."""
    return read_queue(("[" * 2000 + '"' + text.replace("a", '\\"')).encode())


def cut_apart(text: str) -> object:
    """Cut what claims to be an array into its elements."""
    try:
        return list(spans(('["' + text).encode()))
    except NoArray:
        return None


def read(text: str) -> object:
    """Read settings with this text."""
    return read_settings(1, json.dumps({"content": {"en": {"sms": {"text": text}}}}).encode())


WORKS: Mapping[str, Work] = {
    "rendering": rendered,
    "HTML to text": html_to_text,
    "a mail": mailed,
    "an address": addressed,
    "SMS parts": sms_parts,
    "the queue's JSON": taken,
    "elements of an array": cut_apart,
    "settings": read,
}


def growths(names: tuple[str, ...] = tuple(WORKS)) -> Iterator[Growth]:
    """For each piece of work the seed with which its time grows most."""
    for name in names:
        yield max((grown(name, seed) for seed in SEEDS), key=lambda growth: growth.ratio)


def grown(name: str, seed: str) -> Growth:
    """Measure one, the best of several."""
    texts = [seed * (BASE * step // len(seed)) for step in STEPS]
    return Growth(name, seed, tuple(min(_seconds(WORKS[name], text) for _ in range(2)) for text in texts))


def _seconds(work: Work, text: str) -> float:
    began = time.process_time()
    work(text)
    return time.process_time() - began
