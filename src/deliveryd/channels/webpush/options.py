"""The options of the webpush adapter, in a separate module, so that they load no cryptography."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from deliveryd.channels.mapping import content_problems, mapping_problems
from deliveryd.network.public import Network
from deliveryd.options.authentication import unusable_secret
from deliveryd.options.connections import ProxyOptions, TlsOptions, tls_problems
from deliveryd.options.tables import OnUse, raise_all
from deliveryd.options.units import Duration, SecretPath

LONGEST_TTL = 28 * 86400.0
"""Seconds for which push services keep a message at most."""

USUAL_HOSTS = (
    "fcm.googleapis.com",
    "*.push.services.mozilla.com",
    "*.push.apple.com",
    "*.notify.windows.com",
)
"""The push services of Chrome, Firefox, Safari and Edge."""

_SUBJECT = re.compile(r"mailto:[^\s@]+@[^\s@]+|https://\S+")

PAYLOAD = {
    "id": "{message.id}",
    "title": "{content.notification.title}",
    "body": "{content.notification.body}",
    "name": "{content.name}",
    "description": "{content.description}",
    "image": "{content.image}",
    "button": {"text": "{content.button.text}", "url": "{content.button.url}"},
}


def _allowed(host: str) -> str:
    from deliveryd.channels.webpush.services import read_allowed  # noqa: PLC0415  # loaded only where it is used

    read_allowed(host)
    return host


def _network(text: str) -> Network:
    return ipaddress.ip_network(text)


class WebPushOptions(ProxyOptions):
    """The keys of Web Push."""

    key_file: SecretPath = Field(description="VAPID key: P-256, PEM, or base64url as web-push writes it")
    subject: str = Field(description="whom push services may write to, such as mailto:ops@example.com")
    recipient: Annotated[str, Field(pattern=r"^\{customer\.[^{}|]+\}$")] = Field(
        "{customer.subscriptions}", description="customer field with subscriptions: JSON, or a list of them"
    )
    payload: dict[str, Any] = Field(
        {},
        description="what the service worker gets, as JSON; left out: all fields of the block",
    )
    urgency: Literal["very-low", "low", "normal", "high"] = Field(
        "high", description="how soon a device with a low battery gets it"
    )
    ttl: Duration = Field(
        LONGEST_TTL, gt=0, le=LONGEST_TTL, description="longest time that it is kept for a device that is off"
    )
    allowed_hosts: Annotated[list[Annotated[str, AfterValidator(_allowed)]], Field(min_length=1)] = Field(
        list(USUAL_HOSTS), description="push services; with *. all below a name"
    )
    networks: list[str] = Field([], description="private networks that their names may lead to")
    tls: OnUse[TlsOptions] | None = Field(None, description="certificates")

    @field_validator("subject")
    @classmethod
    def _an_address(cls, subject: str) -> str:
        if not _SUBJECT.fullmatch(subject):
            raise ValueError("expected mailto: with an address, or an https address")
        return subject

    @field_validator("networks")
    @classmethod
    def _are_networks(cls, networks: list[str]) -> list[str]:
        for text in networks:
            _network(text)
        return networks

    @field_validator("payload")
    @classmethod
    def _fillable(cls, payload: dict[str, Any]) -> dict[str, Any]:
        raise_all(mapping_problems(payload, {}))
        return payload

    @property
    def parsed_networks(self) -> list[Network]:
        """Return the private networks."""
        return [_network(text) for text in self.networks]

    @property
    def mapped(self) -> dict[str, Any]:
        """Return the mapping of the payload."""
        return self.payload or PAYLOAD

    @property
    def field(self) -> str:
        """Return the customer's field with the subscriptions."""
        return self.recipient.removeprefix("{customer.").removesuffix("}")

    def problems(self, block: str) -> list[str]:
        """Return the problems with its block and its files, as `key: what`."""
        from deliveryd.channels.webpush.vapid import read_vapid_key  # noqa: PLC0415  # loads cryptography

        found = [f"payload.{problem}" for problem in content_problems(self.mapped, block)]
        if (problem := self.key_file.problem()) is not None:
            found.append(f"key_file: {problem}")
        found += unusable_secret("key_file", self.key_file, read_vapid_key)
        found += self.proxy_problems()
        return found + tls_problems("tls", self.tls.files() if self.tls else None)
