"""The directory of an issuer who keeps none: every customer is unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from deliveryd.model import Customer


class NoDirectory:
    """Knows nobody."""

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:  # noqa: ARG002 - nobody is known anyway
        """Nobody, whoever is asked for."""
        return {}

    async def aclose(self) -> None:
        """Nothing is held open."""
