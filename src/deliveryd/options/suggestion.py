"""Suggestions for misspelled names in configuration files and on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `word`, ignoring case, or None."""
    spelled = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), spelled, n=1)
    return spelled[near[0]] if near else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean NAME?` for the closest known name, or an empty string."""
    name = closest(word, known)
    return f"; did you mean {name}?" if name is not None else ""
