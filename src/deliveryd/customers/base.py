"""What a customer directory is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from deliveryd.model import Customer


class Directory(Protocol):
    """Looks customers up by the `customerId` of a message."""

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        """The customers that are known among `ids`; the others are left out.

        Raises DirectoryUnavailable when the directory can't answer now.
        """

    async def aclose(self) -> None:
        """Close what the directory holds open."""
