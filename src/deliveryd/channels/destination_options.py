"""Keys about phone numbers: which a channel, or one of its providers, sends to, and weights by country."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

from deliveryd.channels.http.options import HttpChannelOptions

WITHOUT_PHONES = ("smtp", "webpush")
"""The adapters whose addresses are no phone numbers."""

_PREFIX = re.compile(r"\+[1-9][0-9]{0,14}")
_FORMATTED = re.compile(r"\+[0-9 ()./-]+\*?")


def _country(code: str) -> str:
    from deliveryd.channels.phone_numbers import country_problem  # noqa: PLC0415  # loads phonenumbers

    if (problem := country_problem(code)) is not None:
        raise ValueError(problem)
    return code


def _prefix(text: str) -> str:
    if _PREFIX.fullmatch(text):
        return text
    meant = f"+{re.sub('[^0-9]', '', text)}"
    if _FORMATTED.fullmatch(text) and _PREFIX.fullmatch(meant):
        raise ValueError(f'write {text!r} with digits alone, "{meant}"')
    raise ValueError(f'{text!r} is no beginning of a number; expected + and digits, such as "+4915"')


def _some(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("names none; name at least one, or leave the key out for all")
    return values


_SOME = AfterValidator(_some)

Country = Annotated[str, AfterValidator(_country)]
"""A country by its code of two letters (ISO 3166), such as "DE"."""


class DestinationOptions(BaseModel):
    """Which phone numbers are sent to: those of some countries, or with some prefixes; without both all."""

    countries: Annotated[tuple[Country, ...], _SOME] | None = Field(
        None, description='countries of the phone numbers sent to, such as ["DE", "AT"]; left out: all'
    )
    prefixes: Annotated[tuple[Annotated[str, AfterValidator(_prefix)], ...], _SOME] | None = Field(
        None, description='beginnings of further numbers sent to, such as ["+4915"]; left out: none'
    )

    @property
    def given(self) -> list[str]:
        """Return the keys that are set; without any, all phone numbers are sent to."""
        return [key for key in DestinationOptions.model_fields if getattr(self, key) is not None]


def phones_problem(adapter: str, options: BaseModel) -> str | None:
    """Return why the phone numbers of a provider can't be looked at, and what to do; None: they can."""
    if adapter in WITHOUT_PHONES:
        return f"is for phone numbers, which the adapter {adapter} doesn't send to"
    if isinstance(options, HttpChannelOptions) and options.address() is None:
        return 'needs the phone number that is sent to: set recipient = "{customer.FIELD}"'
    return None
