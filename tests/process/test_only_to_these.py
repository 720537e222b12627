"""A staging system that is killed and started again reaches nobody who isn't on its list, and says so."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.sandbox.faults import Hang
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import command
from support.world import World, get, open_world

pytestmark = pytest.mark.slow

TESTER, STRANGER = "+447700900101", "+447700900199"
SENTENCE = "sends only to the 2 entries of safety.only_to; messages to all others end with an error"
REASON = "not on the list of this installation"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers(
            [{"id": 1, "language": "en", "phone": TESTER}, {"id": 2, "language": "en", "phone": STRANGER}]
        )
        world.state.settings[1] = sms_settings("hello")
        world.change('[admin]\nlisten = ""', '[admin]\nlisten = "127.0.0.1:0"')
        yield world


def pages(world: World) -> str:
    """The address of the latest worker's administrative pages."""
    lines = map(json.loads, world.log().splitlines())
    return [str(line["listen"]) for line in lines if line["event"] == "server.listening"][-1]


def events(world: World, name: str) -> list[dict[str, object]]:
    return [line for line in map(json.loads, world.log().splitlines()) if line["event"] == name]


def test_what_was_in_doubt_before_the_list_is_not_sent_again_through_kills(world: World) -> None:
    """It is held; what comes later for others ends with one error; a reload that allows all repeats it."""
    world.state.fail("provider.sms", Hang())
    world.state.enqueue(message(1, customer_id=2))
    worker = world.start()
    world.state.wait_for(lambda state: state.requests["provider.sms"], PATIENCE)
    worker.send_signal(signal.SIGKILL)
    worker.wait()

    before = world.config.read_text(encoding="utf-8")
    world.add(f'[safety]\nonly_to = ["{TESTER}", "*@example.com"]\n')
    world.state.enqueue(message(2, customer_id=2), message(3, customer_id=1))
    worker = world.start(log="info")
    world.state.wait_for(
        lambda state: {"sent", "error"} <= {*state.statuses(2), *state.statuses(3)}, PATIENCE
    )
    worker.send_signal(signal.SIGKILL)
    worker.wait()

    world.state.enqueue(message(4, customer_id=2), message(5, customer_id=1))
    worker = world.start(log="info")
    world.state.wait_for(
        lambda state: {"sent", "error"} <= {*state.statuses(4), *state.statuses(5)}, PATIENCE
    )
    assert [received.message_id for received in world.state.received] == [3, 5]
    assert [received.to for received in world.state.received] == [TESTER, TESTER]
    assert world.state.requests["provider.sms"] == 3
    for id_ in (2, 4):
        own = [json.dumps(event) for event in world.state.events if event["messageId"] == id_]
        told = [json.loads(event) for event in dict.fromkeys(own)]  # after a kill one may come again
        assert [event["status"] for event in told] == ["dequeued", "error"]
        assert told[-1]["details"] == REASON
    assert world.state.statuses(1) == ["dequeued"]

    world.write_config(before)
    worker.send_signal(signal.SIGHUP)
    world.state.wait_for(lambda state: "sent" in state.statuses(1), PATIENCE)
    assert [received.message_id for received in world.state.received] == [3, 5, 1]
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert len(events(world, "safety.limited")) == 2
    assert len(events(world, "safety.lifted")) == 1
    assert STRANGER not in world.log()


def test_the_list_is_shown_wherever_an_operator_looks(world: World) -> None:
    """In the log, on the pages, in the metrics, and by the commands; none of them shows an entry."""
    world.add(f'[safety]\nonly_to = ["{TESTER}", "*@example.com"]\n')
    world.state.enqueue(message(1, customer_id=2))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "error"], PATIENCE)
    [line] = events(world, "safety.limited")
    assert (line["level"], line["reason"]) == ("warning", SENTENCE)
    url = pages(world)
    assert get(f"{url}/status").json()["safety"] == {"only_to": 2, "share": None}
    assert "deliveryd_safety_only_to_entries 2.0" in get(f"{url}/metrics").text
    page = get(f"{url}/").text
    assert SENTENCE.capitalize().partition(" of safety")[0] in page
    deadline = time.monotonic() + PATIENCE
    while SENTENCE.capitalize() not in " ".join(
        (status := command("status", "--config", world.config).out).split()  # it is wrapped
    ):
        assert time.monotonic() < deadline, status
    explained = command("explain", "--config", world.config, 1)
    assert explained.out.startswith(f"this installation {SENTENCE}\n")
    assert REASON in explained.out
    explained_data = command("explain", "--config", world.config, 1, "--json").data
    assert explained_data["safety"] == {"only_to": 2, "share": None}
    checked = command("check", "--config", world.config, "--offline")
    assert SENTENCE in checked.out
    assert TESTER not in page + status + explained.out + checked.out + world.log()
    previewed = command("render", "--config", world.config, "--settings", 1, "--customer", 2)
    assert (previewed.status, f"can't be sent: {REASON}" in previewed.out) == (1, True)
    assert command("render", "--config", world.config, "--settings", 1, "--customer", 1).status == 0
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


def test_a_test_message_goes_only_to_the_list(world: World) -> None:
    world.add(f'[safety]\nonly_to = ["{TESTER}", "*@example.com"]\n')
    to = ("send-test", "--config", world.config, "--channel", "sms", "--text", "hello", "--to")
    refused = command(*to, STRANGER)
    assert (refused.status, refused.out) == (1, "")
    assert f"sms: the address is {REASON}: safety.only_to must name it" in refused.err
    assert world.state.received == []
    assert command(*to, TESTER).status == 0
    assert len(world.state.received) == 1


@pytest.mark.parametrize(
    ("before", "after"), [(TESTER, f"{TESTER}9999999999"), ("[content]", "[contents]\n[content]")]
)
def test_a_file_with_problems_says_nothing_of_the_list(world: World, before: str, after: str) -> None:
    """No worker follows it, so that `explain` can't say by it whom the installation sends to."""
    world.add(f'[safety]\nonly_to = ["{TESTER}", "customer:2"]\n')
    world.state.enqueue(message(1, customer_id=2))
    world.run_until_idle()
    assert "this installation" in command("explain", "--config", world.config, 1).out
    world.change(before, after)
    explained = command("explain", "--config", world.config, 1)
    assert explained.status == 0
    assert explained.out.startswith("message 1: ")
    assert "safety" not in command("explain", "--config", world.config, 1, "--json").data
