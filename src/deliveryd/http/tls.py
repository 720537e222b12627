"""TLS: trusted authorities and client certificates."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_NO_PASSWORD = ""
"""Given for encrypted keys, which are refused: OpenSSL would prompt on the terminal."""


class TlsFiles(NamedTuple):
    """PEM files: authorities to trust instead of the system's, and a client certificate with its key.

    `ca_key` is the configuration key of the authorities, for errors.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    ca_key: str = "tls.ca_file"

    @property
    def is_empty(self) -> bool:
        """Whether no file is named, so that there is nothing to check: reading the system's is slow."""
        return self.ca_file is None and self.cert_file is None

    def problems(self) -> list[str]:
        """Return why the files can't be used, as `key: what`."""
        named = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        is_alone = self.key_file is None
        parts = [_Pem(key, file, is_alone) for key, file in named.items() if file is not None]
        if found := [problem for part in parts if (problem := part.problem()) is not None]:
            return found
        try:
            self.context()
        except OSError as error:
            reason = (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or "not usable"
            return [f"{parts[-1].key}: {parts[-1].file} {_UNUSABLE.get(reason, f'is refused: {reason}')}"]
        return []

    @property
    def paths(self) -> Sequence[Path]:
        """Return the files that are named."""
        files = (self.ca_file, self.cert_file, self.key_file)
        return [file for file in files if file is not None]

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies certificates and host names. Raises OSError."""
        context = ssl.create_default_context(cafile=self.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file, _NO_PASSWORD)
        return context


class _Pem(NamedTuple):
    """A PEM file, with the configuration key that names it; `is_alone`: there is no other for the key."""

    key: str
    file: Path
    is_alone: bool

    def problem(self) -> str | None:
        """Return why the file can't be used, or None."""
        try:
            text = self.file.read_bytes()
        except OSError as error:
            return f"{self.key}: {self.file} can't be read: {error.strerror}"
        if self.key == "key_file":
            return self._problem_of_key(text)
        if b"-----BEGIN CERTIFICATE-----" not in text and b"-----BEGIN TRUSTED CERTIFICATE-----" not in text:
            return (
                f"{self.key}: {self.file} contains no certificate in PEM form (-----BEGIN CERTIFICATE-----)"
            )
        return self._problem_of_key(text) if self.key == "cert_file" and self.is_alone else None

    def _problem_of_key(self, text: bytes) -> str | None:
        if b"PRIVATE KEY-----" not in text:
            return (
                f"{self.key}: {self.file} contains no private key in PEM form (-----BEGIN PRIVATE KEY-----)"
            )
        if b"ENCRYPTED" in text:
            return f"{self.key}: {self.file} is encrypted: store the key without a password"
        return None


_UNUSABLE = {
    "KEY_VALUES_MISMATCH": "contains the key of a certificate other than the one in cert_file",
    "EE_KEY_TOO_SMALL": "belongs to a certificate whose key is too short",
    "NO_CERTIFICATE_OR_CRL_FOUND": "contains a certificate that can't be read",
}
