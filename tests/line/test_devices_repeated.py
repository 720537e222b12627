"""A worker is killed in the middle of a message for several devices, and the customer's list changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import httpx
import pytest
import trio

from deliveryd import transitions
from deliveryd.journal.orders import Action
from deliveryd.states import State
from support.devices_world import Devices, DevicesWorld
from support.messages import message
from support.virtual import live

SUBSCRIPTION = {"endpoint": "e", "keys": {"p": "1", "auth": "2"}}
OTHERWISE = {"keys": {"auth": "2", "p": "1"}, "endpoint": "e"}
AS_KEPT = '{"endpoint":"e","keys":{"auth":"2","p":"1"}}'


class Story(DevicesWorld):
    """All devices accept whatever they are asked; the first worker is killed at the request for one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.provider.answer = self.answer

    def answer(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"id": "x"})

    def tokens(self, text: str) -> None:
        """Let the customers have these devices from now on."""
        self.directory = Devices()
        self.directory.tokens = text

    def run_until_asked(self, device: str) -> None:
        """Run a worker until it asks a device, and kill it before it records anything of that attempt."""

        async def story() -> None:
            with trio.CancelScope() as scope:

                def kill(request: httpx.Request) -> httpx.Response:
                    if json.loads(request.content)["token"] == device:
                        scope.cancel()
                    return self.answer(request)

                self.provider.answer = kill
                await self.run_until_idle()

        live(story)
        self.provider.answer = self.answer


@pytest.fixture
def world(tmp_path: Path) -> Story:
    return Story(tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ('["a","b","c"]', '["c","b","a"]', ()),
        ('["a","b","c"]', '["a", "b",\t"c"]', ()),
        ('["a","b","c"]', '["a","b ","c"]', ()),
        ('["a","b","c"]', '["a","b","c","a"]', ()),
        ('["a","b","c"]', '["a","b","c","d"]', ("d",)),
        ('["a","b","c"]', '["a","b"]', ()),
        ('["a","b","c"]', '["d","e"]', ("d", "e")),
        ('["a","b","c"]', "b", ()),
        ("b", '["b"]', ()),
        ("b", '["a","b"]', ("a",)),
    ],
)
def test_a_list_in_another_form_is_repeated_under_the_same_keys(
    world: Story, before: str, after: str, new: tuple[str, ...]
) -> None:
    """One device more never had the message; one fewer is left out."""
    world.tokens(before)
    world.run_until_asked("b")
    assert world.state is State.SENDING
    first = world.keys
    world.tokens(after)
    world.run()
    assert (world.state, world.service.statuses(1)) == (State.SENT, ["dequeued", "sent"])
    assert world.keys.keys() == first.keys() | set(new)
    assert max(world.asked.values()) <= 2
    world.check()


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("blank", ["", " "])
def test_an_object_is_the_same_device_however_it_is_written(world: Story, is_alone: bool, blank: str) -> None:
    """Its key and its digest don't depend on the order of its names, nor on white space."""
    written = [json.dumps(each, separators=("," + blank, ":")) for each in (SUBSCRIPTION, OTHERWISE)]
    before, after = written if is_alone else (f"[{each}]" for each in written)
    world.tokens(before)
    world.run_until_asked(AS_KEPT)
    assert world.state is State.SENDING
    world.tokens(after)
    world.run()
    assert world.asked == {AS_KEPT: 2}
    assert (world.state, world.service.statuses(1)) == (State.SENT, ["dequeued", "sent"])
    world.check()
    world.tokens(before)
    world.provider.answer = lambda _request: httpx.Response(404)
    world.service.enqueue(message(2))
    world.run()
    world.tokens(after)
    world.service.enqueue(message(3))
    world.run()
    assert (world.stopped(), world.asked) == (1, {AS_KEPT: 3})


def test_a_message_that_says_something_else_now_is_held(world: Story) -> None:
    """And nothing is asked again."""
    world.tokens('["a","b"]')
    world.run_until_asked("b")
    asked = world.asked
    world.service.settings[1] = json.dumps({"content": {"en": {"sms": {"text": "other words"}}}})
    shutil.rmtree(world.config().settings.cache_dir)
    world.run()
    assert (world.state, world.asked) == (State.IN_DOUBT, asked)
    [(reason,)] = world.journal_rows("SELECT reason FROM attempt")
    assert str(reason).endswith(transitions.CHANGED)


def test_a_message_is_held_when_no_device_is_left(world: Story) -> None:
    world.tokens('["a","b"]')
    world.run_until_asked("b")
    asked = world.asked
    world.tokens("[]")
    world.run()
    assert (world.state, world.asked) == (State.IN_DOUBT, asked)
    assert world.service.statuses(1) == ["dequeued"]
    [(reason,)] = world.journal_rows("SELECT reason FROM attempt")
    assert "no address of the customer" in str(reason)


def test_doubts_are_held_whatever_the_list_is(world: Story) -> None:
    """An operator's order repeats it under the same keys."""
    world.add('on_in_doubt = "hold"\n')
    world.tokens('["a","b"]')
    world.run_until_asked("b")
    asked = world.asked
    world.tokens('["b","a"]')
    world.run()
    assert (world.state, world.asked) == (State.IN_DOUBT, asked)
    [(reason,)] = world.journal_rows("SELECT reason FROM attempt")
    assert reason == "the worker ended before the outcome was known"
    world.decide(Action.RESEND, 1)
    world.run()
    assert (world.state, world.asked) == (State.SENT, {"a": 2, "b": 2})
    world.check()
