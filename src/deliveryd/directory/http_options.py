"""The options of the source "http", and their validation."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, StrictInt, model_validator

from deliveryd.http.target import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import Target
from deliveryd.network.address import SECURE_ADDRESS, goes_out_plain, plain_text_problem
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.connections import ProxyOptions, TlsOptions, tls_problems
from deliveryd.options.units import Pointer

ID_PLACEHOLDER = "{customerId}"
IDS_PLACEHOLDER = "{customerIds}"

PLACE = b"deliveryd-customer"
"""Stands for the IDs in a parsed address; needs no escaping."""


def _address_with(placeholder: str, url: str) -> str:
    target = address_with_place(url, placeholder)
    if "#" in url:
        raise ValueError("must have no fragment, since it isn't sent")
    if PLACE not in target.path:
        raise ValueError(f"must contain {placeholder} in its path or query")
    return url


def address_with_place(url: str, placeholder: str) -> Target:
    """Parse an address, with `PLACE` instead of the placeholder. Raises ValueError."""
    return target_of(url.replace(placeholder, PLACE.decode()))


class HttpDirectoryOptions(ProxyOptions):
    """A directory that answers GET with JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    url: Annotated[str, AfterValidator(lambda url: _address_with(ID_PLACEHOLDER, url))] = Field(
        description="address of one customer, with {customerId}"
    )
    fields: Annotated[dict[str, Pointer], Field(min_length=1)] = Field(
        description="JSON Pointers of name, language, phone, email and further fields"
    )
    batch_url: Annotated[str, AfterValidator(lambda url: _address_with(IDS_PLACEHOLDER, url))] | None = Field(
        None, description="address of many, with {customerIds}: IDs separated by commas"
    )
    batch_size: StrictInt = Field(100, ge=1, le=1000, description="most customers per request")
    batch_entries: Pointer | None = Field(None, description="JSON Pointer to the customers; none: the answer")
    auth: AuthOptions = Field(AuthOptions.model_construct(), description="authentication, as for the service")
    tls: TlsOptions = Field(TlsOptions.model_construct(), description="certificates")

    def tls_files(self) -> TlsFiles:
        """Return the files of `tls` in the form that connections take."""
        return self.tls.files("customers.tls.ca_file")

    @model_validator(mode="after")
    def _ids_are_found(self) -> Self:
        if self.batch_url is not None and "id" not in self.fields:
            raise ValueError("batch_url needs fields.id: the JSON Pointer of a customer's id")
        return self

    def problems(self) -> list[str]:
        """Return the problems of the files that are named, as `key: what`."""
        return [
            *(f"auth.{problem}" for problem in self.auth.problems()),
            *self.proxy_problems(),
            *self._plain_text_problems(),
            *tls_problems("tls", self.tls.files()),
        ]

    def _plain_text_problems(self) -> list[str]:
        if self.allow_plain_text or not self.auth.is_given:
            return []
        addresses = {"url": self.url, "batch_url": self.batch_url or ""}
        return [
            f"{key}: {plain_text_problem('the secret of auth', urlsplit(url).netloc, SECURE_ADDRESS)}"
            for key, url in addresses.items()
            if goes_out_plain(url, self.proxy)
        ]
