"""Keys from end to end: real workers, and a provider on a real socket that heeds keys, and lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.sandbox.faults import ApplyThenAnswer, ApplyThenHangUp
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import World, open_world

pytestmark = pytest.mark.slow

CUSTOMERS = 20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world with a customer for each message."""
    for world in open_world(tmp_path):
        world.customers(
            [{"id": id_, "name": "Ann", "phone": f"+44770090{id_:04}"} for id_ in range(1, CUSTOMERS + 1)]
        )
        world.state.settings[1] = sms_settings()
        yield world


@pytest.mark.parametrize("status", [500, 503, 408, 502, 409])
def test_a_provider_that_took_a_message_before_it_answered_badly_gives_it_to_its_customer_once(
    world: World, status: int
) -> None:
    """It heeds keys, and each try of a message has the same one; 20 customers, and each gets one message."""
    world.state.fail("provider.sms", *[ApplyThenAnswer(status)] * CUSTOMERS)
    world.state.enqueue(*(message(id_, customer_id=id_) for id_ in range(1, CUSTOMERS + 1)))
    world.run_until_idle()
    assert Counter(received.to for received in world.state.accepted("sms")) == Counter(
        f"+44770090{id_:04}" for id_ in range(1, CUSTOMERS + 1)
    )
    assert len(world.state.received) == 2 * CUSTOMERS
    assert all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, CUSTOMERS + 1))


def test_a_repeat_has_the_same_body_though_the_customers_name_and_number_changed(world: World) -> None:
    """While what proves who sends may be mended in between."""
    world.change("retry = {", 'on_in_doubt = "hold"\nretry = {')
    world.state.fail("provider.sms", ApplyThenHangUp())
    world.state.enqueue(message(1))
    assert world.start("--until-idle").wait(PATIENCE) == 1
    world.customers([{"id": 1, "name": "Beth", "phone": "+15550199"}])
    world.change('/sms"\n', '/sms"\nheaders = { X-Mended = "yes" }\n')
    world.change('on_in_doubt = "hold"', 'on_in_doubt = "resend"')
    world.run_until_idle()
    first, repeat = world.state.received
    assert repeat.payload == first.payload
    assert repeat.headers["x-mended"] == "yes"
    assert (repeat.idempotency_key, repeat.duplicate_of) == (first.idempotency_key, first.seq)
