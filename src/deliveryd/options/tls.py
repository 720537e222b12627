"""The keys of a `tls` table: trusted authorities and the client certificate."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deliveryd.http.tls import TlsFiles
from deliveryd.options.units import FilePath


class TlsOptions(BaseModel):
    """PEM files of trusted authorities and of the client certificate."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    ca_file: FilePath | None = Field(None, description="trusted authorities instead of the system's, PEM")
    cert_file: FilePath | None = Field(None, description="client certificate, PEM")
    key_file: FilePath | None = Field(
        None, description="key of the certificate, PEM, if it isn't in cert_file"
    )

    @model_validator(mode="after")
    def _key_has_certificate(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self

    def files(self, ca_key: str = "tls.ca_file") -> TlsFiles:
        """Return the files in the form that clients take; `ca_key` names the authorities in errors."""
        return TlsFiles(self.ca_file, self.cert_file, self.key_file, ca_key)


def tls_problems(table: str, files: TlsFiles | None) -> list[str]:
    """Return why these TLS files can't be used, as `key: what`; `table` is their table."""
    if files is None or files.is_empty:
        return []
    return [f"{table}.{problem}".lstrip(".") for problem in files.problems()]
