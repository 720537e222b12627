"""What `countries` and `prefixes` of a channel and its providers come to: rules, the channel's first."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from deliveryd.channels.options import ChannelConfig, ProviderConfig


class DestinationRule(NamedTuple):
    """The numbers that the table at `place` names: those of `countries`, and those that begin so."""

    place: str
    countries: frozenset[str] | None
    prefixes: tuple[str, ...]

    @property
    def keys(self) -> str:
        """The keys that are set."""
        if self.countries is None:
            return f"{self.place}.prefixes"
        return f"{self.place}.countries" + (" or prefixes" if self.prefixes else "")

    @property
    def text(self) -> str:
        """The countries and prefixes that the table names."""
        return ", ".join([*sorted(self.countries or ()), *(f"{prefix}*" for prefix in self.prefixes)])

    def serves(self, country: str) -> bool:
        """Whether any number of a country may be among those that the table names."""
        from deliveryd.channels.number_ranges import calling_code_of  # noqa: PLC0415  # loads phonenumbers

        code = calling_code_of(country)
        by_prefix = any(prefix.startswith(code) or code.startswith(prefix) for prefix in self.prefixes)
        return by_prefix or (self.countries is not None and country in self.countries)


def rules_of(channel: ChannelConfig, provider: ProviderConfig) -> list[DestinationRule]:
    """Return what a provider's table and its channel's name, the channel's first."""
    return [
        DestinationRule(
            place,
            None if table.countries is None else frozenset(table.countries),
            table.prefixes or (),
        )
        for place, table in ((f"channels.{channel.name}", channel.common), (provider.place, provider.common))
        if table.given
    ]
