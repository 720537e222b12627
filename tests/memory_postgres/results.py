"""What a statement returns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple


class Result(NamedTuple):
    """What a statement returns. `columns` None: it returns nothing. `changed` -1: it changes no rows."""

    rows: list[tuple[Any, ...]]
    columns: Collection[str] | None
    changed: int


NOTHING = Result([], None, -1)
