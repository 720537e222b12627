"""The bodies of the customer data area as pydantic models (interface 2.4), and how they are read."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
)

from deliveryd.errors import ServiceUnreadable
from deliveryd.service import plain_json
from deliveryd.service.wire import GROUPS, ServiceBody, problems_of

EntityId = Annotated[StrictInt, BeforeValidator(plain_json.integral)]


class EntityBody(BaseModel):
    """An entity of a customer; further fields are kept (interface 2.4)."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    id: EntityId
    config_url: str = Field(alias="configUrl")


class GroupBody(ServiceBody):
    """One page of a group of entities."""

    list: list[EntityBody]
    continuation_token: Annotated[str | None, AfterValidator(lambda token: token or None)] = Field(
        default=None, alias="continuationToken"
    )


class CustomerDataBody(ServiceBody):
    """A customer's groups by their names (interface 2.4), and why others can't be read."""

    value: dict[str, GroupBody]
    unreadable: dict[str, str] = Field(default_factory=dict)


def read_customer_data(body: bytes) -> CustomerDataBody:
    """Parse a page of customer data. Raises ServiceUnreadable if no group of it can be read."""
    value, unreadable = {}, {}
    for name, raw in read_groups(body).items():
        try:
            value[name] = read_group(name, raw)
        except ServiceUnreadable as error:
            unreadable[name] = str(error)
    if unreadable and not value:
        raise ServiceUnreadable("; ".join(unreadable.values()))
    return CustomerDataBody(value=value, unreadable=unreadable)


def read_groups(body: bytes) -> dict[str, Any]:
    """Return the unparsed groups of a page of customer data by name. Raises ServiceUnreadable."""
    try:
        parsed = plain_json.loads_service_json(body)
    except ServiceUnreadable as error:
        raise ServiceUnreadable(f"customer data: {error}") from None
    value = parsed.get("value") if isinstance(parsed, dict) else None
    if not isinstance(value, dict):
        raise ServiceUnreadable("customer data: expected an object with an object in `value`")
    return {name: value[name] for name in GROUPS if name in value}


def read_group(name: str, raw: object) -> GroupBody:
    """Parse a page of one group (interface 2.4). Raises ServiceUnreadable."""
    try:
        return GroupBody.model_validate(raw)
    except ValidationError as error:
        raise ServiceUnreadable(f"customer data: {name}: {problems_of(error)}") from None
