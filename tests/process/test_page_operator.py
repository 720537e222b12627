"""What the status page orders of a real worker, over its socket and without a browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from deliveryd.errors import DeliverydError
from deliveryd.journal import orders
from deliveryd.journal.followers import NOT_FOLLOWED
from deliveryd.journal.reader import file_reader
from deliveryd.worker import operator
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import PAGE_TOKEN, World, open_world

pytestmark = pytest.mark.slow


Order = Callable[..., httpx.Response]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """More messages than one order has keys fail for a name that their settings misspell."""
    for world in open_world(tmp_path):
        world.take_orders()
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings("{wrod}")
        yield world


def ordering(world: World) -> Order:
    """Start a worker; what orders something of it as the page does."""
    world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    listening = next(entry for line in world.log().splitlines() if "listen" in (entry := json.loads(line)))
    headers = {"Authorization": f"Bearer {PAGE_TOKEN}"}

    def order(action: str, fields: Mapping[str, object]) -> httpx.Response:
        url = f"{listening['listen']}/actions/{action}"
        return httpx.post(url, json=fields, headers=headers, trust_env=False, timeout=PATIENCE)

    return order


def test_messages_that_failed_are_counted_and_begin_anew(world: World) -> None:
    count = 600
    world.state.enqueue(*(message(id_) for id_ in range(1, count + 1)))
    order = ordering(world)
    world.state.wait_for(lambda state: sum(e["status"] == "error" for e in state.events) == count, PATIENCE)
    why = "missing placeholders: wrod"
    counted = order("failed", {})
    assert counted.json() == {"reasons": [{"reason": why, "count": count}], "complete": True}
    done = order("retry", {"failure": why, "reason": "a typing error"})
    assert (done.status_code, len(done.json()["done"]), done.json()["skipped"]) == (200, count, {})
    world.state.wait_for(
        lambda state: sum(e["status"] == "error" for e in state.events) == 2 * count, PATIENCE
    )


@pytest.mark.anyio
async def test_a_pause_names_the_workers_that_dont_go_by_it_yet() -> None:
    """Whoever pauses a shared journal on the page isn't left to believe that nothing is sent any more."""

    class Orders:
        async def carry_out(self, order: orders.Order, _user: str | None) -> Mapping[str, object]:
            return {"done": ["sms"] if order.keys == ("sms",) else [], "skipped": {}}

    health = SimpleNamespace(reloader=object())
    page = operator.PageOperator(Orders(), health, None, ["sms", "email"], lambda: ["two"])  # type: ignore[arg-type]
    paused = await page.pause("channel", "sms", None, None)
    assert paused == {"done": ["sms"], "skipped": {"two": NOT_FOLLOWED}}
    assert await page.pause("channel", "email", None, None) == {"done": [], "skipped": {}}


def test_what_cant_be_read_in_time_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.state.enqueue(message(1))
    world.run_until_idle()
    monkeypatch.setattr(operator, "READ_SECONDS", -1.0)
    reader = operator.PageOperator(None, None, file_reader(world.folder / "journal.db"), ["sms"], list)  # type: ignore[arg-type]
    assert reader._count_failed() == ({}, False)
    with pytest.raises(DeliverydError, match="run deliveryd failed retry --all"):
        reader._failed_for("missing placeholders: wrod")
