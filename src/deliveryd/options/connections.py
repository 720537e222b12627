"""The keys of tables that make connections: TLS files, and a forward proxy.

Proxies of the environment (`HTTPS_PROXY` and others) are ignored: only the configuration decides where
requests go.
"""

from __future__ import annotations

import re
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StrictBool, model_validator

from deliveryd.http.target import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import Proxy
from deliveryd.network.address import goes_out_plain, plain_text_problem
from deliveryd.options.tables import Table
from deliveryd.options.units import FilePath, SecretPath


class TlsOptions(Table):
    """PEM files of trusted authorities and of the client certificate."""

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


ENVIRONMENT = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
"""Environment variables that name a proxy for other programs."""

_URL = re.compile(r"https?://[^/?#@\s]+/?")


def _address(url: str) -> str:
    if not _URL.fullmatch(url):
        raise ValueError(
            "expected http://host:port, without a user name or password: "
            "those are proxy_username and proxy_password_file"
        )
    target_of(url)
    return url


class ProxyOptions(Table):
    """A forward proxy for the requests of this table; the environment's proxies are never used."""

    proxy: Annotated[str, AfterValidator(_address)] | None = Field(
        None, description="address of the proxy; left out: none"
    )
    proxy_username: str | None = Field(
        None, description="login at the proxy, together with proxy_password_file"
    )
    proxy_password_file: SecretPath | None = Field(None, description="password at the proxy")
    allow_plain_text: StrictBool = Field(False, description="allow secrets to be sent over http://")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        name = self.proxy_username
        if (name is None) is not (self.proxy_password_file is None):
            raise ValueError("proxy_username and proxy_password_file must be given together")
        if name is not None and self.proxy is None:
            raise ValueError("proxy_username needs proxy")
        if name is not None and (":" in name or not name.isprintable()):
            raise ValueError("proxy_username must be printable and must not contain a colon")
        return self

    def proxy_problems(self) -> list[str]:
        """Return problems with the password's file and with sending it, as `key: what`."""
        file = self.proxy_password_file
        problems = {
            "proxy_password_file": file.problem() if file is not None else None,
            "proxy": self.plain_text_problem(),
        }
        return [f"{key}: {problem}" for key, problem in problems.items() if problem is not None]

    def plain_text_problem(self) -> str | None:
        """Return an error if the password would be sent to the proxy in plain text."""
        if self.proxy is None or self.proxy_username is None or self.allow_plain_text:
            return None
        if not goes_out_plain(self.proxy):
            return None
        remedy = "give the proxy an https:// address"
        return plain_text_problem("the password for the proxy", urlsplit(self.proxy).netloc, remedy)

    def open_proxy(self) -> Proxy | None:
        """Return the proxy in the form that clients take."""
        if self.proxy is None:
            return None
        return Proxy(self.proxy, self.proxy_username, self.proxy_password_file)
