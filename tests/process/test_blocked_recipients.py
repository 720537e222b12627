"""Three people of a thousand blocked the bot: real sockets, a real worker, and the operators' list."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from deliveryd.testing.gateway import Gateway, GatewayRequest, Reply, open_gateway
from support.messages import message
from support.terminal import Answered, command
from support.world import World, open_world

pytestmark = pytest.mark.slow

PEOPLE = 1000
BLOCKED = {117, 500, 984}
WORDS = "Forbidden: bot was blocked by the user"
SETTINGS = {"content": {"en": {"messenger": {"text": "hello"}, "sms": {"text": "hello"}}}}
BOT = """
[channels]
order = ["messenger", "sms"]

[channels.messenger]
adapter = "http"
url = "{url}/bot/sendMessage"
json = {{ chat_id = "{{customer.chat}}", text = "{{content.text}}" }}
provider_id = "/result/message_id"
breaker.failures = 2

[[channels.messenger.answers]]
status = [403]
where = [{{ at = "/description", matches = "(?i)blocked by the user" }}]
verdict = "stopped"
reason = "/description"
"""


def telegram(request: GatewayRequest) -> Reply:
    """Answer as Telegram does."""
    chat = json.loads(request.body)["chat_id"]
    if int(chat.removeprefix("c")) in BLOCKED:
        return Reply(403, json.dumps({"ok": False, "error_code": 403, "description": WORDS}).encode())
    return Reply(200, json.dumps({"ok": True, "result": {"message_id": int(chat[1:])}}).encode())


@pytest.fixture
def bot() -> Iterator[Gateway]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_gateway()) as gateway,
    ):
        gateway.respond = telegram
        yield gateway


@pytest.fixture
def world(tmp_path: Path, bot: Gateway) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers(
            [
                {"id": id_, "name": f"n{id_}", "phone": f"+4477{id_:08}", "chat": f"c{id_}"}
                for id_ in range(1, PEOPLE + 1)
            ]
        )
        world.state.settings[1] = SETTINGS
        world.add(BOT.format(url=bot.url))
        yield world


def stopped(world: World, verb: str, *arguments: object) -> Answered:
    return command("stopped", verb, "--config", world.config, *arguments)


def test_who_blocked_the_bot_takes_the_next_channel_and_the_others_are_sent(
    world: World, bot: Gateway
) -> None:
    """The breaker stays closed; the next message to them isn't tried on the messenger."""
    world.state.enqueue(*(message(id_, customer_id=id_) for id_ in range(1, PEOPLE + 1)))
    world.run_until_idle(log="info")

    statuses = Counter(event["status"] for event in world.state.events)
    assert statuses == {"dequeued": PEOPLE, "sent": PEOPLE}
    assert len(bot.seen) == PEOPLE
    assert {received.message_id for received in world.state.received} == BLOCKED
    events = {json.loads(line)["event"] for line in world.log().splitlines() if line.startswith("{")}
    assert not {event for event in events if event.startswith("channel.")}

    listed = stopped(world, "list", "--json").data
    assert [(each["channel"], each["source"]) for each in listed] == [("messenger", "answer")] * 3
    assert {each["reason"] for each in listed} == {"provider answered 403"}
    told = command("explain", "--config", world.config, 117)
    assert "provider answered 403" in told.out
    assert WORDS not in told.out  # emptied with the variables, once the message was sent
    assert WORDS not in json.dumps(world.state.events)
    assert WORDS not in world.log()

    world.state.enqueue(*(message(PEOPLE + id_, customer_id=id_) for id_ in (116, 117, 118)))
    world.run_until_idle()
    assert len(bot.seen) == PEOPLE + 2
    assert {received.message_id for received in world.state.received} == {*BLOCKED, PEOPLE + 117}


def test_the_list_in_the_hands_of_operators(world: World, bot: Gateway) -> None:
    """Imported by address, exported and lifted by digest; without a channel left, the event says why."""
    world.change('order = ["messenger", "sms"]', 'order = ["messenger"]')
    world.write_config(
        world.config.read_text().split("[channels.sms]")[0]
        + BOT.format(url=bot.url).replace('order = ["messenger", "sms"]', 'order = ["messenger"]')
    )
    addresses = world.folder / "addresses"
    addresses.write_text("c1\n\n c2 \nc1\n")
    assert stopped(world, "import", "--channel", "messenger", addresses).out.startswith("import: 2\n")
    assert stopped(world, "import", "--channel", "messenger", addresses).out == "import: 0\n"
    assert "2 suppressed" in stopped(world, "list").out
    digests = stopped(world, "export", "--channel", "messenger").out.split()
    assert [each.startswith("digest:") for each in digests] == [True, True]

    world.state.enqueue(message(1, customer_id=1))
    world.run_until_idle()
    [error] = [event for event in world.state.events if event["status"] == "error"]
    assert error["details"] == "the recipient is suppressed on messenger"
    assert bot.seen == []

    assert stopped(world, "lift", "--channel", "messenger", *digests).status == 0
    assert stopped(world, "list", "--json").data == []
    assert stopped(world, "export", "--channel", "messenger") == Answered(0, "", "")
    mistyped = stopped(world, "export", "--channel", "mesenger")
    assert (mistyped.status, mistyped.out) == (2, "")
    assert "there is no channel 'mesenger'; did you mean messenger?" in mistyped.err
    again = stopped(world, "lift", "--channel", "messenger", "c1")
    assert (again.status, "isn't suppressed on messenger" in again.out) == (1, True)
    addresses.write_text("\n".join(digests))
    assert stopped(world, "import", "--channel", "messenger", addresses).status == 0
    assert len(stopped(world, "list", "--channel", "messenger", "--json").data) == 2
    mistaken = stopped(world, "import", "--channel", "mesenger", addresses)
    assert (mistaken.status, "did you mean messenger?" in mistaken.err) == (2, True)
