"""Budgets and caps through kill -9, and of two workers on one PostgreSQL database."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.postgres import new_database
from support.two_workers import Place, both, on_database
from support.world import World, get, open_world

pytestmark = pytest.mark.slow

BUDGET, MESSAGES = 150, 400
WAITING = "SELECT count(*) FROM message WHERE waits_for LIKE '{} %'"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.state.settings[1] = sms_settings("hello")
        world.customers([{"id": id_, "phone": f"+4477009001{id_:02}"} for id_ in range(1, 11)])
        world.change('[admin]\nlisten = ""', '[admin]\nlisten = "127.0.0.1:0"')
        yield world


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that no signal tells of. Fails after `PATIENCE`."""
    ends = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.05)


def killed_thrice(world: World, among: int) -> None:
    """Have workers killed one after the other, each after some more messages, and start another one."""
    for round_ in (1, 2, 3):
        worker = world.start()
        wanted = round_ * among // 4
        world.state.wait_for(lambda state, wanted=wanted: len(state.received) >= wanted, PATIENCE)  # type: ignore[misc]
        worker.kill()
        worker.wait()
    world.start(log="info")


def test_kills_neither_lose_nor_double_what_a_budget_counts(world: World) -> None:
    """What was in doubt is repeated, and counts once; all else waits, and the page shows for what."""
    world.add(f'[[rules]]\nbudget = "{BUDGET} parts/month"')
    world.state.enqueue(*(message(id_, customer_id=1 + id_ % 10) for id_ in range(MESSAGES)))
    killed_thrice(world, BUDGET)
    until(lambda: world.rows(WAITING.format("budget")) == [(MESSAGES - BUDGET,)])
    world.state.wait_for(lambda state: len({each.message_id for each in state.received}) == BUDGET, PATIENCE)
    lines = map(json.loads, world.log().splitlines())
    page = [str(line["listen"]) for line in lines if line["event"] == "server.listening"][-1]
    waiting = f'deliveryd_limited_messages{{limit="budget all messages per month"}} {MESSAGES - BUDGET}'
    until(lambda: waiting in shown(page, "/metrics"))
    assert 'deliveryd_budget_used_ratio{budget="all messages per month"} 1.0' in shown(page, "/metrics")
    (limit,) = json.loads(shown(page, "/status"))["limits"]
    assert (limit["used"], limit["most"], limit["waiting"]) == (BUDGET, BUDGET, MESSAGES - BUDGET)


def shown(page: str, path: str) -> str:
    """What the worker's pages show."""
    return str(get(f"{page}{path}").text)


def test_kills_let_no_customer_get_more_than_the_cap(world: World) -> None:
    """Ten customers get three each, whichever worker sent them."""
    world.add('[[rules]]\nsettings = [1]\ncap = { messages = 3, per = "7d" }')
    world.state.enqueue(*(message(id_, customer_id=1 + id_ % 10) for id_ in range(100)))
    killed_thrice(world, 28)
    until(lambda: world.rows(WAITING.format("cap")) == [(70,)])
    world.state.wait_for(lambda state: len({each.message_id for each in state.received}) == 30, PATIENCE)
    got = Counter(each.to for each in {each.message_id: each for each in world.state.received}.values())
    assert set(got.values()) == {3}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_two_workers_hold_a_budget_and_a_cap_together(tmp_path: Path) -> None:
    """One of them is killed in the middle; the other one knows what it used."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    rules = (
        '\n[[rules]]\nsettings = [1]\nbudget = "80 messages/month"\n'
        '[[rules]]\nsettings = [2]\ncap = { messages = 3, per = "7d" }\n'
    )
    with on_database(url):
        place = Place(tmp_path, url)
        for worker in (place.one, place.other):
            worker.add(rules)
        place.service.settings[2] = place.service.settings[1]
        place.service.enqueue(*map(message, range(1, 201)))
        place.service.enqueue(*(message(id_, 2, id_ % 5) for id_ in range(301, 351)))
        async with both(place):
            await place.until(lambda: len(place.attempts) > 40)
            place.one.kill()
            under_way = "SELECT count(*) FROM main.message WHERE ended_at IS NULL AND waits_for IS NULL"
            await place.until(lambda: len(place.keys()) == 95 and place.count(under_way) == 0)
            await place.until(lambda: place.ended(*place.keys()))
    sent = {dispatch.entry.id: dispatch.entry for _, dispatch in place.attempts}
    assert Counter(entry.settings_id for entry in sent.values()) == {1: 80, 2: 15}
    assert set(Counter(each.customer_id for each in sent.values() if each.settings_id == 2).values()) == {3}
