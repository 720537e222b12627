"""Which phone numbers are sent to, through a kill, and what operators see of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.sandbox.faults import Hang
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import command
from support.world import World, open_world

pytestmark = pytest.mark.slow

GERMAN, AUSTRIAN, PREMIUM = "+4915112345678", "+436641234567", "+499001234567"
REASON = "a number in AT is not in channels.sms.countries"
EXPENSIVE = "a premium-rate number in DE, and channels.sms.allow_premium isn't set"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers(
            [
                {"id": id_, "language": "en", "phone": phone}
                for id_, phone in enumerate((GERMAN, AUSTRIAN, PREMIUM), 1)
            ]
        )
        world.state.settings[1] = sms_settings("hello")
        yield world


def test_what_was_in_doubt_before_the_rule_is_repeated_through_a_kill(world: World) -> None:
    """At its provider under its key; what comes later for such numbers ends with one error."""
    world.state.fail("provider.sms", Hang())
    world.state.enqueue(message(1, customer_id=2))
    worker = world.start()
    world.state.wait_for(lambda state: state.requests["provider.sms"], PATIENCE)
    worker.send_signal(signal.SIGKILL)
    worker.wait()

    before = world.config.read_text(encoding="utf-8")
    world.change("[channels.sms]", '[channels.sms]\ncountries = ["DE"]')
    world.state.enqueue(*(message(1 + id_, customer_id=id_) for id_ in (1, 2, 3)))
    worker = world.start(log="info")
    world.state.wait_for(
        lambda state: (
            "sent" in state.statuses(1)
            and "sent" in state.statuses(2)
            and "error" in state.statuses(3)
            and "error" in state.statuses(4)
        ),
        PATIENCE,
    )
    assert {(each.message_id, each.to) for each in world.state.received} == {(1, AUSTRIAN), (2, GERMAN)}
    assert world.state.requests["provider.sms"] == 3
    details = {event["messageId"]: event.get("details") for event in world.state.events}
    assert (details[3], details[4]) == (f"sms: {REASON}", f"sms: {EXPENSIVE}")

    world.write_config(before)
    worker.send_signal(signal.SIGHUP)
    world.state.enqueue(message(5, customer_id=2))
    world.state.wait_for(lambda state: "dequeued" in state.statuses(5), PATIENCE)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    for number in (GERMAN, AUSTRIAN, PREMIUM):
        assert number not in world.log()
        assert number[1:] not in world.log()


def test_the_commands_show_why_a_number_is_not_sent_to(world: World) -> None:
    """Each with the reason that the event has; none of them sends anything."""
    world.change("[channels.sms]", '[channels.sms]\ncountries = ["DE"]')
    world.state.enqueue(message(1, customer_id=2))
    world.run_until_idle()
    explained = command("explain", "--config", world.config, 1)
    assert explained.out.startswith("channels.sms sends only to DE\n")
    assert REASON in explained.out
    data = command("explain", "--config", world.config, 1, "--json").data
    assert data["destinations"] == {"channels.sms": "DE"}
    previewed = command("render", "--config", world.config, "--settings", 1, "--customer", 2)
    assert (previewed.status, f"sms: {REASON}" in previewed.out) == (1, True)
    assert command("render", "--config", world.config, "--settings", 1, "--customer", 1).status == 0
    ruled = command("rules", "test", "--config", world.config, "--settings", 1, "--customer", 2)
    assert f"is not sent: {REASON}" in ruled.out
    ruled_data = command(
        "rules", "test", "--config", world.config, "--settings", 1, "--customer", 3, "--json"
    ).data
    [channel] = [each for each in ruled_data["channels"] if each["channel"] == "sms"]
    assert (channel["may_be_sent"], channel["refused"]) == (False, {"sms": EXPENSIVE})
    tested = command(
        "send-test", "--config", world.config, "--channel", "sms", "--to", AUSTRIAN, "--text", "hello"
    )
    assert (tested.status, REASON in tested.err) == (1, True)
    assert world.state.requests["provider.sms"] == 0
