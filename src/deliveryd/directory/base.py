"""What a customer directory is to the line, and what a source of customers is to a remote directory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

from deliveryd.errors import DirectoryUnavailable
from deliveryd.model import Customer

DirectoryAnswer = Customer | None | DirectoryUnavailable
"""Who a customer is; None: nobody knows them; or why that can't be said now."""

Answered = Callable[[Mapping[int, DirectoryAnswer]], Awaitable[None]]
"""Is told who some customers are."""


class Directory(Protocol):
    """Says who the customers of messages are, by their `customerId` (interface 2.6)."""

    @property
    def is_down(self) -> bool:
        """Whether the directory counts as down: what is asked now can't be answered, but for a probe."""

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        """Those of `ids` of whom it is known already who they are, or that nobody knows them."""

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """Tell `answered` of each of `ids` once, of some of them at a time, as it becomes known."""

    async def probe(self) -> str | None:
        """Whether the directory can be used: None, or what is wrong."""

    async def aclose(self) -> None:
        """Close what the directory holds open."""


class Source(Protocol):
    """Where a remote directory asks for customers; a package may bring one.

    It is asked by several tasks at the same time, keeps nothing, and never tries again by itself for long:
    `RemoteDirectory` gathers, remembers, bounds and repeats.
    """

    @property
    def batch_size(self) -> int:
        """How many customers can be asked for at once, at most."""

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        """Those of `ids` who are known; the others are left out. `ids` are `batch_size` at most.

        Raises DirectoryUnavailable, whose text names rules and statuses, never what a customer is called.
        """

    async def probe(self) -> str | None:
        """Whether the source can be reached: None, or what is wrong."""

    async def aclose(self) -> None:
        """Close what the source holds open."""


async def find(directory: Directory, customer_id: int) -> Customer | None:
    """One customer; None when nobody knows them. Raises DirectoryUnavailable."""
    found: dict[int, DirectoryAnswer] = {}

    async def keep(answers: Mapping[int, DirectoryAnswer]) -> None:
        found.update(answers)

    await directory.look_up([customer_id], keep)
    answer = found[customer_id]
    if isinstance(answer, DirectoryUnavailable):
        raise answer
    return answer
