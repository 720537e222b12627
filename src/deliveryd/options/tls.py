"""The keys of a `tls` table: which authorities are trusted, and which certificate is shown."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deliveryd.http.tls import TlsFiles
from deliveryd.options.units import FilePath


class TlsOptions(BaseModel):
    """PEM files: which authorities are trusted, and which certificate is shown."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    ca_file: FilePath | None = Field(None, description="authorities to trust instead of the system's, PEM")
    cert_file: FilePath | None = Field(None, description="certificate to show, PEM")
    key_file: FilePath | None = Field(None, description="its key, PEM, if it isn't in cert_file")

    @model_validator(mode="after")
    def _key_has_certificate(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self

    def files(self, ca_key: str = "tls.ca_file") -> TlsFiles:
        """The same files as clients take them; `ca_key` names the authorities in errors."""
        return TlsFiles(self.ca_file, self.cert_file, self.key_file, ca_key)


def tls_problems(table: str, files: TlsFiles | None) -> list[str]:
    """Why these TLS files can't be used, as `key: what`; `table` is the one that their keys stand in."""
    if files is None or files.is_empty:
        return []
    return [f"{table}.{problem}".lstrip(".") for problem in files.problems()]
