"""Messages about parcels, for the demo with two workers: all alike, half of them to each of two channels."""

from __future__ import annotations

import json

from deliveryd.sandbox.scenario import Exhibit, Scenario
from deliveryd.sandbox.scenario_settings import demo_settings

FIRST_PARCEL = 2001
_PARCEL_SETTINGS = 502
_CUSTOMERS = 40


def parcel_scenario(count: int) -> Scenario:
    """Return so many messages; customers with even numbers are on the messenger, the others have phones."""
    exhibits = [_parcel(number) for number in range(FIRST_PARCEL, FIRST_PARCEL + count)]
    customers = [
        {"id": id_, "name": f"Customer {id_}", "language": "en", "phone": f"+4477009{id_:05}"}
        | ({} if id_ % 2 else {"messenger": f"customer.{id_}"})
        for id_ in range(1, _CUSTOMERS + 1)
    ]
    return Scenario(
        settings={_PARCEL_SETTINGS: demo_settings()[_PARCEL_SETTINGS]},
        exhibits=tuple(exhibits),
        customers_jsonl="".join(json.dumps(each) + "\n" for each in customers),
        customers={},
        entities={},
    )


def _parcel(number: int) -> Exhibit:
    message = {
        "id": number,
        "settingsId": _PARCEL_SETTINGS,
        "customerId": number % _CUSTOMERS + 1,
        "variables": {"order.id": f"L-{number}", "carrier": "Royal Mail", "day": "Friday"},
    }
    return Exhibit(number, json.dumps(message), "A parcel is on its way")
