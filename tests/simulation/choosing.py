"""Where the choices of a plan come from: a seed, or Hypothesis."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices(Protocol):
    """A source of choices. The least number and the first value are the simplest ones."""

    def number(self, least: int, most: int) -> int:
        """A number."""

    def one_of(self, values: Sequence[T]) -> T:
        """One of these."""


class Seeded:
    """Choices out of a seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def number(self, least: int, most: int) -> int:
        """A number."""
        return self._random.randint(least, most)

    def one_of(self, values: Sequence[T]) -> T:
        """One of these."""
        return self._random.choice(values)


class Drawn:
    """Choices of Hypothesis."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def number(self, least: int, most: int) -> int:
        """A number."""
        return self._draw(st.integers(least, most))

    def one_of(self, values: Sequence[T]) -> T:
        """One of these."""
        return values[self._draw(st.integers(0, len(values) - 1))]
