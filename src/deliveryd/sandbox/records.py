"""Records of requests to the sandbox: frozen values in order of arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

StandInChannel: TypeAlias = Literal["sms", "messenger", "inApp", "email"]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request to any endpoint. Header names are in lower case."""

    endpoint: str
    method: str
    target: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that a provider accepted. `at` is an ISO instant in UTC.

    `message_id` is `reference` where that is a whole number. `duplicate_of` is the `seq` of the message that
    was accepted under the same idempotency key before; a duplicate reaches the customer only once.
    """

    seq: int
    at: str
    channel: StandInChannel
    provider_id: str
    message_id: int | None
    reference: str | None
    idempotency_key: str | None
    to: str
    payload: Mapping[str, Any]
    headers: Mapping[str, str]
    duplicate_of: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to send a message to a provider, with the status of the response (0: none)."""

    at: str
    channel: StandInChannel
    to: str
    reference: str | None
    idempotency_key: str | None
    status: int


@dataclass(frozen=True, slots=True)
class PlannedReceipt:
    """A provider's receipt. `answered` is the status of the response, None without one."""

    channel: StandInChannel
    provider_id: str
    status: Literal["delivered", "failed"]
    at: str
    answered: int | None
