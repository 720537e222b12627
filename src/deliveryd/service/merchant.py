"""A merchant's configuration, typed (interface 2.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
)

from deliveryd.errors import ServiceUnreadable
from deliveryd.service.plain_json import integral
from deliveryd.service.wire import problems_of

_MERCHANT = re.compile(rb"/merchants/[^/]+/[^/]+/[^/?]+/?(?:\?.*)?$")


def _number(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value


Degrees = Annotated[float, Field(strict=True), BeforeValidator(_number)]


class _MerchantPart(BaseModel):
    """Further fields are kept in `model_extra`; the interface doesn't define which are required."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)


class Location(_MerchantPart):
    """A merchant's location (interface 2.5); latitude and longitude are in degrees."""

    name: StrictStr | None = None
    lat: Degrees | None = None
    lon: Degrees | None = None
    phones: StrictStr | None = None
    address: StrictStr | None = None
    schedule: StrictStr | None = None


class Merchant(_MerchantPart):
    """A merchant, its texts in the language that the configuration's address names (interface 2.5)."""

    id: Annotated[StrictInt | None, BeforeValidator(integral)] = None
    market_name: StrictStr | None = Field(None, alias="marketName")
    legal_name: StrictStr | None = Field(None, alias="legalName")
    about: StrictStr | None = None
    phones: StrictStr | None = None
    emails: StrictStr | None = None
    website: StrictStr | None = None
    fb_link: StrictStr | None = Field(None, alias="fbLink")
    vk_link: StrictStr | None = Field(None, alias="vkLink")
    instagram_link: StrictStr | None = Field(None, alias="instagramLink")
    category: StrictStr | None = None
    button_text: StrictStr | None = Field(None, alias="buttonText")
    button_url: StrictStr | None = Field(None, alias="buttonUrl")
    locations: tuple[Location, ...] = ()

    @field_validator("locations", mode="before")
    @classmethod
    def _none_for_null(cls, locations: object) -> object:
        return () if locations is None else locations


def is_merchant(path: bytes) -> bool:
    """Whether the path of a configuration's address has the form that merchants' have (interface 4.5)."""
    return _MERCHANT.search(path) is not None


def read_merchant(value: Mapping[str, Any]) -> Merchant:
    """Parse the `value` of a merchant's configuration. Raises ServiceUnreadable."""
    try:
        return Merchant.model_validate(value)
    except ValidationError as error:
        raise ServiceUnreadable(f"merchant: {problems_of(error)}") from None
