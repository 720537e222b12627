"""A customer with many shops, for the tests of customers."""

from __future__ import annotations

import json
from typing import Any

from deliveryd.sandbox.state import CUSTOMER_GROUPS, SandboxState
from deliveryd.service.wire import GROUPS
from support.world import World

CUSTOMER = 7


def fill(state: SandboxState, count: int, page_size: int = 30) -> list[tuple[str, int]]:
    """Give the customer so many entities in all groups together; in the order in which they are read."""
    state.page_size = page_size
    state.customers[CUSTOMER] = {
        group: [{"id": number * 10 + at, "points": number} for number in range(count // 6 + (at < count % 6))]
        for at, group in enumerate(CUSTOMER_GROUPS)
    }
    return [
        (group, entity["id"])
        for group in GROUPS
        for entity in state.customers[CUSTOMER][group]  # type: ignore[index]  # the same names
    ]


def shops(world: World, *numbers: int, **fields: Any) -> None:
    """Give the customer merchants, with configurations in English."""
    world.state.customers[CUSTOMER] = {"merchants": [{"id": number, **fields} for number in numbers]}
    for number in numbers:
        config = {"id": number, "marketName": f"Shop {number}", "category": "Food"}
        world.state.add_entity("merchants", number, {"en": config})


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]
