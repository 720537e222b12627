"""A real worker whose last reporting provider stops to report: the reload is applied as a whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.messages import message, sms_settings
from support.ordering import ANN, end, running
from support.patience import PATIENCE
from support.terminal import command
from support.world import World, open_world

pytestmark = pytest.mark.slow

RECEIPT = 'receipt = { provider_id = "/id", status = "/status", delivered = ["d"], failed = ["f"] }\n'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.change('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"')
        world.customers([ANN])
        world.state.settings[1] = sms_settings()
        world.add(RECEIPT)
        yield world


def test_the_last_provider_that_reports_may_stop_to(world: World) -> None:
    """Its address is gone from the server, which had answered it; messages go on."""
    worker = running(world)
    [url] = [line["listen"] for line in map(json.loads, world.log().splitlines()) if "listen" in line]
    assert httpx.post(f"{url}/receipts/sms", json={}, trust_env=False).status_code != 404
    world.change(RECEIPT, "")
    reloaded = command("reload", "--config", world.config)
    assert reloaded.status == 0, reloaded.err
    assert httpx.post(f"{url}/receipts/sms", json={}, trust_env=False).status_code == 404
    world.state.enqueue(message(1))
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    end(worker)
