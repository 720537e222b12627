"""The protocols of a customer directory and of a source behind a remote one, and the empty directory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from deliveryd.errors import DirectoryUnavailable
from deliveryd.model import Customer

DirectoryAnswer = Customer | None | DirectoryUnavailable
"""A customer; None: unknown; or the error that keeps the directory from answering."""

Answered = Callable[[Mapping[int, DirectoryAnswer]], Awaitable[None]]
"""Called with answers about some customers."""


class Directory(Protocol):
    """Looks up customers by their `customerId` (interface 2.6)."""

    @property
    def is_down(self) -> bool:
        """Whether the directory counts as down: only probes are made."""

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        """Return answers about those of `ids` that are in memory, unknown customers included."""

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """Call `answered` with each of `ids` once, some at a time, as answers arrive."""

    async def probe(self) -> str | None:
        """Return why the directory can't be used, or None."""

    async def aclose(self) -> None:
        """Release the directory's resources."""


class Source(Protocol):
    """A source of customers for `RemoteDirectory`; packages may provide one.

    It is used by several tasks concurrently, and should neither cache nor retry for long: `RemoteDirectory`
    batches, caches, limits and retries.
    """

    @property
    def batch_size(self) -> int:
        """Most customers in one query."""

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        """Return the known customers among `ids`, of which there are `batch_size` at most.

        Raises DirectoryUnavailable, whose text names rules and statuses, never customers' data.
        """

    async def probe(self) -> str | None:
        """Return why the source can't be reached, or None."""

    async def aclose(self) -> None:
        """Release the source's resources."""


async def find_customer(directory: Directory, customer_id: int) -> Customer | None:
    """Return one customer, or None if unknown. Raises DirectoryUnavailable."""
    found: dict[int, DirectoryAnswer] = {}

    async def keep(answers: Mapping[int, DirectoryAnswer]) -> None:
        found.update(answers)

    await directory.look_up([customer_id], keep)
    answer = found[customer_id]
    if isinstance(answer, DirectoryUnavailable):
        raise answer
    return answer


class Terms(NamedTuple):
    """How long answers are cached and may take, in seconds, and the number of concurrent queries."""

    cache_ttl: float
    timeout: float
    concurrency: int


class NoDirectory:
    """The directory of an issuer without one: every customer is unknown."""

    is_down = False

    def at_hand(self, ids: Collection[int]) -> Mapping[int, None]:
        """Return None for each of `ids`."""
        return dict.fromkeys(ids)

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """Answer all `ids` with None."""
        await answered(dict.fromkeys(ids))

    async def probe(self) -> str | None:
        """Return None: nothing can fail."""
        return None

    async def aclose(self) -> None:
        """Do nothing: no resource is open."""
