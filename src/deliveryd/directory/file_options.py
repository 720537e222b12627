"""Options of the source "file"."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from deliveryd.options.units import FilePath


class FileOptions(BaseModel):
    """Options of the source "file"."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    path: FilePath = Field(description="JSON Lines or CSV; read again when it changes")
