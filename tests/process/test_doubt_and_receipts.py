"""Receipts that settle what is in doubt, before and while an operator decides about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deliveryd.sandbox.faults import ApplyThenDelay, ApplyThenHangUp
from support.messages import message, sms_settings
from support.ordering import ANN, audited, end, hold, order, running
from support.patience import PATIENCE
from support.terminal import command
from support.world import World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([ANN])
        world.state.settings[1] = sms_settings()
        world.add('on_in_doubt = "hold"\n')
        yield world


# receipts that settle what is in doubt


RECEIPT = """
receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"], \
reference = "/reference" }
"""


def receipts_of(world: World) -> str:
    """Where the worker takes receipts of the channel sms."""
    found = re.findall(r'"listen": "(http://[^"]+)"', world.log())
    return f"{found[-1]}/receipts/sms"


def report(url: str, reference: str, status: str = "delivered") -> None:
    """Report as the gateway; the worker has it once it answers."""
    body = {"id": "gateway-1", "status": status, "reference": reference}
    assert httpx.post(url, json=body, trust_env=False).status_code == 200


@pytest.fixture
def reporting(world: World) -> World:
    """A world whose gateway echoes the message's id in its receipts."""
    world.change('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"')
    world.add(RECEIPT)
    return world


@pytest.mark.parametrize(("status", "last"), [("delivered", "delivered"), ("failed", "error")])
def test_a_receipt_settles_what_is_held_in_doubt(reporting: World, status: str, last: str) -> None:
    """The provider's answer never came, so the receipt is known by the reference that it echoes."""
    world = reporting
    hold(world, 1)
    worker = running(world)
    url = receipts_of(world)
    report(url, "1", status)
    report(url, "1", status)
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent", last], PATIENCE)
    end(worker)
    assert len(world.state.received) == 1
    assert order(world, "in-doubt", "list", "--json").data == []
    assert "settled by the provider's receipt" in command("explain", "--config", world.config, 1).out
    audited(world)


def test_a_receipt_takes_back_what_waits_to_be_resent(reporting: World) -> None:
    """Known by the attempt's id; the worker doesn't wait for the message any more, and becomes idle."""
    world = reporting
    world.change('on_in_doubt = "hold"', 'on_in_doubt = "resend"')
    world.change('base = "50ms", max = "200ms"', 'base = "1h", max = "1h"')
    world.state.fail("provider.sms", ApplyThenHangUp())
    world.state.enqueue(message(1))
    worker = world.start("--until-idle", log="info")
    world.state.wait_for(lambda state: state.received, PATIENCE)
    key = world.state.received[0].idempotency_key
    assert key is not None
    url = receipts_of(world)
    report(url, key)
    assert worker.wait(PATIENCE) == 0
    assert world.state.statuses(1) == ["dequeued", "sent", "delivered"]
    assert len(world.state.received) == 1
    audited(world)


def test_a_receipt_that_comes_while_the_answer_is_awaited_settles_the_doubt_as_it_arises(
    reporting: World,
) -> None:
    world = reporting
    world.change('timeout = "60s"', 'timeout = "1s"')
    world.state.fail("provider.sms", ApplyThenDelay(30.0))
    world.state.enqueue(message(1))
    worker = world.start("--until-idle", log="info")
    world.state.wait_for(lambda state: state.received, PATIENCE)
    report(receipts_of(world), "1")
    assert worker.wait(PATIENCE) == 0
    assert world.state.statuses(1) == ["dequeued", "sent", "delivered"]
    audited(world)
