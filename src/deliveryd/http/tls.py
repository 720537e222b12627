"""TLS: which certificates are trusted, and which one is shown."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class TlsFiles(NamedTuple):
    """PEM files: authorities to trust instead of the system's, and a client certificate with its key."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @property
    def paths(self) -> Sequence[Path]:
        """Those that are given."""
        return [path for path in self if path is not None]

    def context(self) -> ssl.SSLContext:
        """A context that verifies certificates and host names. Raises OSError when a file can't be used."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context
