"""A provider with a budget beside one without, and what was sent in each hour."""

from __future__ import annotations

from collections import Counter

from support.virtual import CONFIG, VirtualWorld

HOUR = 3600


def two_providers(weight_of_one: int = 1, weight_of_other: int = 1) -> str:
    """A configuration of which one provider has a budget of three messages an hour, then the next."""
    return (
        CONFIG.partition("[channels.sms]")[0]
        + f"""
[channels.sms.providers.a]
adapter = "http"
url = "http://a/sms"
json = {{ text = "{{content.text}}" }}
weight = {weight_of_one}
budget = "3 messages/hour"
spent = "next"
[channels.sms.providers.b]
adapter = "http"
url = "http://b/sms"
json = {{ text = "{{content.text}}" }}
weight = {weight_of_other}
"""
    )


def hours_of(world: VirtualWorld, provider: str = "sms") -> dict[int, int]:
    """How many attempts were made at a provider in each hour."""
    return dict(Counter(int(at // HOUR) for at, _ in world.channels[provider].attempts))
