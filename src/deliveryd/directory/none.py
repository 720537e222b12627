"""The directory of an issuer who keeps none: every customer is unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import BaseModel, ConfigDict

from deliveryd.directory.base import Answered


class NoOptions(BaseModel):
    """The source "none" needs nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class NoDirectory:
    """Knows nobody."""

    is_down = False

    def at_hand(self, ids: Collection[int]) -> Mapping[int, None]:
        """Nobody, whoever is asked for."""
        return dict.fromkeys(ids)

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """The same."""
        await answered(dict.fromkeys(ids))

    async def probe(self) -> str | None:
        """There is nothing that could be wrong."""
        return None

    async def aclose(self) -> None:
        """Nothing is held open."""
