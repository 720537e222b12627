"""How long the fields of a block may be at a provider: `[[channels.NAME.limits]]`, for `deliveryd lint`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, StrictInt


class LimitOptions(BaseModel):
    """The length of one field; a longer one is refused by the provider."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    field: str = Field(min_length=1, description="field of the block, such as text or button.text")
    characters: StrictInt = Field(ge=1, description="most characters")
    ucs2: StrictInt | None = Field(None, ge=1, description="most characters of an SMS in UCS-2")
    beside: str | None = Field(None, description="only if the block also has this field, such as image")
