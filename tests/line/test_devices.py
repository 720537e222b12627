"""A customer with several devices: one message, one attempt for each, and one `sent` event."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from deliveryd.channels.devices import MOST_DEVICES
from deliveryd.directory.base import NoDirectory
from deliveryd.errors import ConfigError
from deliveryd.field_lists import MOST_MEMBERS
from deliveryd.model import SECOND, Customer, format_instant
from deliveryd.states import State
from support.devices_world import Devices, DevicesWorld
from support.http_world import HttpWorld
from support.logs import log_lines
from support.messages import message
from support.virtual import START

RECEIPT = """\
recipient = "{customer.tokens}"
receipt = { status = "/s", delivered = ["ok"], reference = "/r" }
"""


class OddDevices(NoDirectory):
    """Each message's customer has a device, and beside it a list or an object as deep as half of the id."""

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Any]:
        return {id_: Customer(id_, {"tokens": self.tokens(id_ // 2, id_ % 2 == 1)}) for id_ in ids}

    def tokens(self, depth: int, is_list: bool) -> str:
        start, end = ("[", "]") if is_list else ('{"a":', "}")
        return f'["fine",{start * depth}1{end * depth}]'


@pytest.fixture
def world(tmp_path: Path) -> DevicesWorld:
    return DevicesWorld(tmp_path)


def test_each_device_gets_the_message_and_one_event_is_reported(world: DevicesWorld) -> None:
    world.have(a=[200], b=[200], c=[200])
    world.run()
    assert world.asked == {"a": 1, "b": 1, "c": 1}
    assert world.service.statuses(1) == ["dequeued", "sent"]
    world.check()


def test_five_devices_two_dead_one_throttled_two_fine(world: DevicesWorld) -> None:
    """`sent` is reported at once; only the throttled device is repeated; the dead ones are suppressed."""
    world.have(dead=[404], gone=[404], slow=[429, 429, 200], fine=[200], well=[200])
    world.run(5)
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert world.state is State.WAITING
    world.run()
    assert world.asked == {"dead": 1, "gone": 1, "slow": 3, "fine": 1, "well": 1}
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert (world.state, world.kept, world.stopped()) == (State.SENT, None, 2)
    world.check()
    world.service.enqueue(message(2))
    world.run()
    assert world.asked == {"dead": 1, "gone": 1, "slow": 4, "fine": 2, "well": 2}


def test_a_repeat_for_the_rest_has_no_intermediate_status(world: DevicesWorld) -> None:
    """What the service receives last stays `sent`."""
    world.write('[events]\nintermediate = ["sending", "accepted"]\n' + world.path.read_text(encoding="utf-8"))
    world.have(slow=[429, 200], fine=[200])
    world.run()
    assert world.asked == {"slow": 2, "fine": 1}
    assert world.service.statuses(1) == ["dequeued", "sending", "accepted", "sent"]
    world.check()


def test_what_became_of_each_device_is_explained_by_its_digest(world: DevicesWorld) -> None:
    """And no reason quotes a token."""
    world.have(deadtoken=[404], slowtoken=[503, 200], finetoken=[200])
    world.run()
    rows = world.journal_rows("SELECT reason FROM attempt")
    reasons = [str(reason) for (reason,) in rows if reason]
    assert len(reasons) == 2
    first = reasons[0].split("; ")
    assert [part.partition(": ")[2][:10] for part in first] == ["suppressed", "provider a", "accepted"]
    assert "token" not in str(reasons)
    world.check()


def test_which_device_accepted_is_explained_after_the_rest_ended(world: DevicesWorld) -> None:
    """While the others are put off, nothing is shown as in doubt."""
    world.have(fine=[200], slow=[503])
    world.run(5)
    explained = world.explained()
    assert "  sent       to some of the customer's devices; it is repeated for the others" in explained
    assert not [line for line in explained if line.startswith("  in doubt")]
    world.run()
    outcomes = [re.sub(r"device [0-9a-f]{12}", "D", line[39:]) for line in world.explained()]
    assert [line for line in outcomes if line.startswith("attempt") and "begins" not in line] == [
        "attempt 1 on sms: accepted by the provider: D: accepted; D: provider answered 503",
        "attempt 2 on sms: not accepted now: D: provider answered 503",
        "attempt 3 on sms: not accepted now: D: provider answered 503",
    ]
    assert not [line for line in world.explained() if line.startswith("  sent ")]


@pytest.mark.parametrize("last", [404, 400])
def test_what_is_left_may_be_refused_and_the_message_stays_sent(world: DevicesWorld, last: int) -> None:
    world.have(fine=[200], slow=[429, last])
    world.run()
    assert world.asked == {"fine": 1, "slow": 2}
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert (world.state, world.kept, world.stopped()) == (State.SENT, None, int(last == 404))
    world.check()


@pytest.mark.parametrize("answer", [429, 503, "cut off"])
def test_what_is_left_after_all_tries_stays_sent(world: DevicesWorld, answer: int | str) -> None:
    world.have(fine=[200], slow=[answer])
    world.run()
    assert world.asked == {"fine": 1, "slow": 3}
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert (world.state, world.kept) == (State.SENT, None)
    world.check()


def test_only_devices_in_doubt_are_repeated(world: DevicesWorld) -> None:
    """None accepted it: the one that refused it isn't asked again, and the message isn't sent yet."""
    world.have(doubt=["cut off", 200], bad=[400], dead=[404])
    world.run(5)
    assert world.service.statuses(1) == ["dequeued"]
    world.run()
    assert world.asked == {"doubt": 2, "bad": 1, "dead": 1}
    assert world.service.statuses(1) == ["dequeued", "sent"]
    world.check()


def test_no_device_is_left(world: DevicesWorld) -> None:
    """One `error` event that names what became of them; the next message finds nobody."""
    world.have(dead=[404], bad=[400])
    world.run()
    assert world.service.statuses(1) == ["dequeued", "error"]
    assert world.asked == {"dead": 1, "bad": 1}
    world.have(dead=[404])
    world.service.enqueue(message(2))
    world.run()
    assert world.service.statuses(2) == ["dequeued", "error"]
    assert world.asked == {"dead": 1, "bad": 1}
    world.check()


def test_doubts_that_are_held_hold_nothing_that_a_device_has(world: DevicesWorld) -> None:
    world.add('on_in_doubt = "hold"\n')
    world.have(fine=[200], doubt=["cut off"])
    world.run()
    assert world.asked == {"fine": 1, "doubt": 1}
    assert (world.state, world.service.statuses(1)) == (State.SENT, ["dequeued", "sent"])
    world.have(doubt=["cut off", 200], bad=[400])
    world.service.enqueue(message(2))
    world.run()
    assert world.service.statuses(2) == ["dequeued"]
    world.check()


def test_a_part_ends_as_sent_when_doubts_are_held_from_now_on(world: DevicesWorld) -> None:
    """Nothing is repeated, nothing waits for an operator, and back again changes nothing."""
    world.have(fine=[200], doubt=["cut off", 200])
    world.run(5)
    world.add('on_in_doubt = "hold"\n')
    world.run()
    assert world.asked == {"fine": 1, "doubt": 1}
    assert (world.state, world.service.statuses(1)) == (State.SENT, ["dequeued", "sent"])
    world.check()


def test_a_part_ends_as_sent_when_the_channel_sends_to_one_device_only(world: DevicesWorld) -> None:
    world.have(fine=[200], slow=[429, 200])
    world.run(5)
    world.write(world.path.read_text(encoding="utf-8").replace("devices = true\n", ""))
    world.run()
    assert world.asked == {"fine": 1, "slow": 1}
    assert (world.state, world.service.statuses(1)) == (State.SENT, ["dequeued", "sent"])
    world.check()


def test_the_time_runs_out_after_devices_accepted_in_two_tries(world: DevicesWorld) -> None:
    """Both acceptances stay known."""
    world.service.settings[1] = json.dumps(
        {
            "delivery": {"expiresAt": format_instant(START + 15 * SECOND)},
            "content": {"en": {"sms": {"text": "hello"}}},
        }
    )
    world.have(a=[200], b=[429, 200], c=[429])
    world.run()
    assert (world.state, world.service.statuses(1)) == (State.SENT, ["dequeued", "sent"])
    verdicts = world.journal_rows("SELECT verdict, provider_id FROM attempt ORDER BY stay_tries")
    assert verdicts == [("accepted", "id-a"), ("accepted", "id-b")]
    world.check()


def test_an_odd_list_concerns_its_customer_alone(world: DevicesWorld) -> None:
    """Whatever its depth: it comes from a browser, or from an app."""
    world.provider.answer = lambda _request: httpx.Response(200, json={"id": "x"})
    world.directory = OddDevices()
    depths = (1, 10, 900, 930, 940, 945, 950, 955, 960, 990, 1000, 5000)
    ids = [2 * depth + is_list for depth in depths for is_list in (0, 1)]
    world.service.enqueue(*(message(id_, customer_id=id_) for id_ in ids))
    world.run()
    assert {world.service.statuses(id_)[-1] for id_ in ids} == {"sent"}


def test_a_device_whose_adapter_fails_leaves_the_others_alone(world: DevicesWorld) -> None:
    """It is in doubt; what isn't Unicode is no device."""
    world.have(fine=[200], broken=["cut off"], well=[200])
    assert isinstance(world.directory, Devices)
    world.directory.tokens = '["fine","broken","\\ud800x","well"]'
    answer = world.provider.answer

    def fail(request: httpx.Request) -> httpx.Response:
        if b"broken" in request.content:
            raise RuntimeError("a mistake")
        return answer(request)

    world.provider.answer = fail
    world.run(5)
    assert world.service.statuses(1) == ["dequeued", "sent"]
    assert world.asked["fine"] == world.asked["well"] == 1
    world.run()
    assert world.asked["fine"] == world.asked["well"] == 1
    assert (world.state, world.service.statuses(1)) == (State.SENT, ["dequeued", "sent"])


def test_a_rest_that_is_misconfigured_is_counted_and_stops_nobody(world: DevicesWorld) -> None:
    """The provider accepted the same message for another device."""
    world.add("")
    world.write(world.path.read_text(encoding="utf-8").replace("breaker = { failures = 0 }", ""))
    world.have(fine=[200], other=[403])
    world.run()
    assert world.asked == {"fine": 1, "other": 3}
    assert (world.state, world.service.statuses(1)) == (State.SENT, ["dequeued", "sent"])
    world.check()


def test_a_device_that_is_gone_meanwhile_isnt_repeated(world: DevicesWorld) -> None:
    world.have(fine=[200], slow=[429, 404, 200])
    world.run(5)
    world.service.enqueue(message(2))
    world.run(7)
    assert world.stopped() == 1
    world.run()
    assert world.asked["slow"] == 2
    assert [world.service.statuses(id_) for id_ in (1, 2)] == [["dequeued", "sent"]] * 2
    world.check()


def test_the_last_try_is_what_it_was(world: DevicesWorld) -> None:
    """Not accepted, where nothing was."""
    world.have(fine=[200], slow=[429])
    world.run()
    verdicts = world.journal_rows("SELECT verdict FROM attempt ORDER BY stay_tries")
    assert verdicts == [("accepted",), ("try_again",), ("try_again",)]
    world.check()


def test_a_field_without_a_list_is_one_device(world: DevicesWorld) -> None:
    """Its verdict is the message's, and its key is that of the device, as in a list."""
    world.have(only=["cut off", 200])
    assert isinstance(world.directory, Devices)
    world.directory.tokens = "only"
    world.run()
    assert world.asked == {"only": 2}
    world.check()
    assert world.service.statuses(1) == ["dequeued", "sent"]
    reason, _ = [reason for (reason,) in world.journal_rows("SELECT reason FROM attempt ORDER BY stay_tries")]
    assert "device" not in str(reason)


def test_a_text_that_was_sent_before_there_were_devices_keeps_its_key(world: DevicesWorld) -> None:
    """The repeat of what may have arrived has the key of its first try."""
    world.have(only=["cut off", 200])
    assert isinstance(world.directory, Devices)
    world.directory.tokens = "only"
    text = world.path.read_text(encoding="utf-8")
    world.write(text.replace("devices = true\n", ""))
    world.run(5)
    world.write(text)
    world.run()
    assert world.asked == {"only": 2}
    world.check()
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_the_time_runs_out_for_what_is_left(world: DevicesWorld) -> None:
    """Nothing is sent late, and the message stays sent."""
    world.service.settings[1] = json.dumps(
        {
            "delivery": {"expiresAt": format_instant(START + 15 * SECOND)},
            "content": {"en": {"sms": {"text": "hello"}}},
        }
    )
    world.have(fine=[200], slow=[429])
    world.run()
    assert world.asked["slow"] <= 2
    assert (world.state, world.service.statuses(1)) == (State.SENT, ["dequeued", "sent"])
    world.check()


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_worker_that_is_cut_off_at_any_step_loses_no_device(world: DevicesWorld, cut: int) -> None:
    """Each device gets the message, under one key; what was recorded of a device isn't asked again."""
    world.have(dead=[404], gone=[404], slow=[429, 200], fine=[200], well=[200])
    with suppress(BaseExceptionGroup):  # it is cut off while the journal records something
        world.run(0.012 + 0.002 * cut)
    before = world.asked
    recorded = world.journal_rows("SELECT 1 FROM attempt WHERE verdict = 'accepted'")
    world.run()
    assert world.service.statuses(1).count("sent") == 1
    assert world.state is State.SENT
    assert min(world.asked[token] for token in world.devices) >= 1
    assert world.asked["slow"] >= 2
    for token in ("fine", "well", "dead", "gone"):
        assert world.asked[token] == before[token] if recorded else world.asked[token] <= before[token] + 1
    world.check()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("devices = true\n", "devices needs the field with the list"),
        (
            f"devices = true\n{RECEIPT}",
            "devices: a message for several devices has no receipt",
        ),
    ],
)
def test_devices_need_a_field_and_have_no_lookup(tmp_path: Path, options: str, problem: str) -> None:
    world = HttpWorld(tmp_path)
    world.add(options)
    with pytest.raises(ConfigError, match=problem):
        world.config()


def test_a_device_behind_a_hundred_dead_ones_is_reached(world: DevicesWorld) -> None:
    """Wherever it stands in the list: suppressed devices don't count."""
    dead: dict[str, list[int | str]] = {f"dead{number}": [404] for number in range(MOST_DEVICES)}
    world.have(old=[200], **dead)
    world.run()
    assert (world.service.statuses(1), world.stopped()) == (["dequeued", "error"], MOST_DEVICES)
    world.service.enqueue(message(2))
    world.run()
    assert (world.asked["old"], world.asked["dead0"]) == (1, 1)
    assert world.service.statuses(2) == ["dequeued", "sent"]
    world.check()


def test_a_message_goes_to_the_last_of_very_many_devices(world: DevicesWorld) -> None:
    """How many were left out is in the reason, and once in the log."""
    devices: dict[str, list[int | str]] = {f"d{number}": [200] for number in range(MOST_DEVICES + 3)}
    world.have(**devices)
    world.service.enqueue(message(2))
    with log_lines("warning") as lines:
        world.run()
        logged = [line for line in lines() if line["event"] == "channel.devices_left_out"]
    assert world.asked.keys() == set(list(devices)[3:])
    assert [(line["provider"], line["count"]) for line in logged] == [("sms", 3)]
    for (reason,) in world.journal_rows("SELECT reason FROM attempt"):
        assert str(reason).endswith("; the first 3 were left out, as a message goes to 100 devices")


def test_the_last_members_of_a_list_without_end_count(world: DevicesWorld) -> None:
    """A device before them isn't one."""
    world.have(fine=[200])
    world.directory = Devices("first", *["fine"] * MOST_MEMBERS)
    world.run()
    assert world.asked == {"fine": 1}
    assert world.service.statuses(1) == ["dequeued", "sent"]
