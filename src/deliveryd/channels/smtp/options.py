"""The options of the smtp adapter, in a separate module, so that they load no e-mail library."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator

from deliveryd.channels.mail.options import MailOptions
from deliveryd.http.tls import TlsFiles
from deliveryd.network.address import is_loopback, plain_text_problem
from deliveryd.options.connections import tls_problems
from deliveryd.options.units import Duration, FilePath, SecretPath

SMTP_PORTS = {"tls": 465, "starttls": 587, "none": 25}
_USUAL_TLS = {25: "starttls", 465: "tls", 587: "starttls"}
_SECURE = frozenset({"starttls", "tls"})
_SECURED = 'set tls = "starttls"'


class SmtpOptions(MailOptions):
    """The keys of a mail server."""

    host: Annotated[str, Field(pattern=r"^[^\s/@]+$")] = Field(description="mail server")
    port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        None, description='left out: 587 for "starttls", 465 for "tls", 25 for "none"'
    )
    tls: Literal["starttls", "tls", "none"] = Field("starttls", description='"tls": from the first byte')
    ca_file: FilePath | None = Field(None, description="authorities to trust instead of the system's, PEM")
    cert_file: FilePath | None = Field(None, description="certificate to show, PEM")
    key_file: FilePath | None = Field(None, description="its key, PEM, if it isn't in cert_file")
    username: Annotated[str, Field(min_length=1)] | None = Field(None, description="left out: no login")
    password_file: SecretPath | None = Field(None, description="password, together with username")
    helo: Annotated[str, Field(pattern=r"^[A-Za-z0-9.:\[\]-]+$")] | None = Field(
        None, description="name to greet with; left out: this computer's"
    )
    connections: Annotated[int, Field(ge=0)] = Field(4, description="connections kept between messages")
    idle_timeout: Duration = Field(30.0, description="how long an idle connection is kept")
    allow_plain_text: StrictBool = Field(False, description='allow a password with tls = "none"')

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file must be given together")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        return self

    @property
    def actual_port(self) -> int:
        """Return the configured port, or the default for this TLS mode."""
        return self.port or SMTP_PORTS[self.tls]

    @property
    def tls_hint(self) -> str:
        """Return a hint to append to a reason if the port is usual for another TLS mode; else nothing."""
        usual = _USUAL_TLS.get(self.actual_port)
        if usual is None or self.tls not in _SECURE or self.tls == usual:
            return ""
        return f'; port {self.actual_port} is usually for tls = "{usual}", not "{self.tls}"'

    def tls_files(self) -> TlsFiles:
        """Return the TLS files in the form that connections take."""
        return TlsFiles(self.ca_file, self.cert_file, self.key_file)

    def problems(self, block: str) -> list[str]:
        """Return the problems with its block and its files, as `key: what`."""
        found = []
        if block != "email":
            found.append(f'block: smtp sends e-mail only: set block = "email" instead of {block!r}')
        problem = self.password_file.problem() if self.password_file else None
        if problem:
            found.append(f"password_file: {problem}")
        is_plain = self.tls == "none" and not is_loopback(self.host)
        if is_plain and self.username is not None and not self.allow_plain_text:
            found.append(f"tls: {plain_text_problem('the password', self.host, _SECURED)}")
        if self.tls != "none":
            found += tls_problems("", self.tls_files())
        return found
