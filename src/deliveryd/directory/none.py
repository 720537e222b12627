"""The directory of an issuer without one: every customer is unknown."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import BaseModel, ConfigDict

from deliveryd.directory.base import Answered


class NoOptions(BaseModel):
    """The source "none" has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class NoDirectory:
    """Has no customers."""

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
