"""Kept content and a changed configuration: what may have arrived is repeated as it was, or held."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from deliveryd.directory.base import NoDirectory
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action, Decided
from deliveryd.journal.sql.audit import CHECKS
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.model import Customer
from deliveryd.runtime.threads import inline
from deliveryd.states import State
from support.http_world import Answer, HttpWorld, accept, busy, cut_off
from support.messages import message
from support.virtual import START, VirtualSupervisor, live

COUNT = 20
EVERYBODY = range(1, COUNT + 1)
KEPT = 'json = { text = "{content.text}" }'
WITH_PHONE = 'json = { text = "{content.text}", to = "{customer.phone}" }'
UNREADABLE = 'json = { text = "{content.text}" }\nheaders = { X-Text = "{content.text}" }'


class Everybody(NoDirectory):
    """Knows a phone number of each customer."""

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Any]:
        return {id_: Customer(id_, {"phone": f"+4477009001{id_:02}"}) for id_ in ids}


class KeptWorld(HttpWorld):
    """The line with the real http adapter, and twenty messages."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.directory = Everybody()
        self.service.settings[1] = settings("hello")
        self.service.enqueue(*(message(id_) for id_ in EVERYBODY))
        self.add('retry = { attempts = 6, base = "10s", max = "10s" }\nbreaker = { failures = 0 }\n')

    def map(self, mapping: str, before: str = KEPT) -> None:
        """Change the mapping in the file."""
        text = self.path.read_text(encoding="utf-8")
        assert before in text
        self.write(text.replace(before, mapping))

    def standing(self) -> list[tuple[object, ...]]:
        """How many messages are in each state, with how many counted tries."""
        query = "SELECT state, counted_tries, count(*) FROM message GROUP BY 1, 2 ORDER BY 1, 2"
        return self.journal_rows(query)

    def order(self, verb: Action) -> Decided:
        """Have an order carried out for all messages, with the journal at rest."""
        return self.decide(verb, *EVERYBODY)

    def release(self) -> None:
        """Let all that waits for the provider go to any, as when its breaker opens."""

        async def let_go() -> None:
            async with open_journal_file(self.folder / "journal.db", blocking=inline) as journal:
                assert await journal.release("sms", START, 100) == COUNT

        live(let_go)

    def reasons(self) -> set[str | None]:
        """Why messages are held, as `in-doubt list` says."""
        held = open_reader(self.config().journal.place).in_doubt(None, None)
        assert len(held) == COUNT
        return {each.reason for each in held}

    def violations(self) -> Mapping[str, int]:
        """The checks of the audit that the journal violates."""
        return {name: len(found) for name, sql in CHECKS.items() if (found := self.journal_rows(sql))}


def settings(text: str) -> str:
    return json.dumps({"content": {"en": {"sms": {"text": text}}}})


@pytest.fixture
def world(tmp_path: Path) -> KeptWorld:
    return KeptWorld(tmp_path)


def run(world: KeptWorld, seconds: float | None = None) -> None:
    """Run a worker, until there is nothing to do or for so many seconds."""

    async def story() -> None:
        with trio.move_on_after(seconds or float("inf")):
            await world.run_until_idle()

    live(story)


def reload_after(world: KeptWorld, seconds: float, change: Callable[[], None]) -> None:
    """Run a worker until there is nothing to do; after so many seconds change something and reload."""

    async def story() -> None:
        worker: VirtualSupervisor = world.supervisor()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: worker.run(until_idle=True))
            await trio.sleep(seconds)
            change()
            assert worker.reloader is not None
            await worker.reloader.reload(accept_orphans=False)

    live(story)


BOTH = pytest.mark.parametrize("answer", [busy, cut_off], ids=["503", "in doubt"])
"""What may have arrived."""


@BOTH
@pytest.mark.parametrize(
    "mapping", [WITH_PHONE, UNREADABLE], ids=["a value is missing", "a text doesn't fit"]
)
@pytest.mark.parametrize("by_reload", [True, False], ids=["reload", "restart"])
def test_what_is_kept_and_fits_the_mapping_no_more_is_held(
    world: KeptWorld, answer: Answer, mapping: str, by_reload: bool
) -> None:
    """With that reason, without a request, and without a try that counts."""
    world.service.settings[1] = settings("grüße")
    world.provider.answer = answer

    def change() -> None:
        world.provider.answer = accept
        world.map(mapping)

    if by_reload:
        reload_after(world, 5, change)
    else:
        run(world, 5)
        change()
        run(world)
    assert len(world.provider.requests) == COUNT
    assert world.standing() == [(State.IN_DOUBT, 1, COUNT)]
    assert world.service.statuses(1) == ["dequeued"]
    [reason] = world.reasons()
    assert reason is not None
    assert "not repeated: what is kept of it doesn't fit the configuration any more" in reason
    assert world.violations() == {}


@BOTH
def test_what_is_held_goes_on_when_a_reload_puts_the_mapping_back(world: KeptWorld, answer: Answer) -> None:
    """Under its key, with the content that was kept."""
    world.provider.answer = answer
    run(world, 5)
    world.map(WITH_PHONE)
    world.service.settings[1] = settings("other words")
    world.provider.answer = accept

    def change() -> None:
        assert world.standing() == [(State.IN_DOUBT, 1, COUNT)]
        world.map(KEPT, before=WITH_PHONE)

    async def story() -> None:
        worker, ready = world.supervisor(), trio.Event()
        worker._on_ready = lambda _addresses: ready.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await ready.wait()
            await trio.sleep(60)
            change()
            assert worker.reloader is not None
            await worker.reloader.reload(accept_orphans=False)
            await trio.sleep(60)
            worker.stop()

    live(story)
    assert set(world.provider.said) == {"hello"}
    assert set(world.provider.keys.values()) == {2}
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in EVERYBODY)


def test_what_may_go_to_any_provider_is_held_at_the_one_that_may_have_it(world: KeptWorld) -> None:
    """After a 503 others may take it while that one is down: it goes on when the mapping is put back."""
    world.provider.answer = busy
    run(world, 5)
    world.release()
    world.map(WITH_PHONE)
    world.provider.answer = accept
    run(world)
    assert world.standing() == [(State.IN_DOUBT, 0, COUNT)]
    assert world.violations() == {}
    world.map(KEPT, before=WITH_PHONE)
    run(world)
    assert set(world.provider.keys.values()) == {2}
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in EVERYBODY)


def test_an_operators_resend_renders_what_was_only_answered_503_anew(world: KeptWorld) -> None:
    """Under the same key, with what the mapping needs now: a 503 alone is no doubt for an operator."""
    world.provider.answer = busy
    run(world, 5)
    world.map(WITH_PHONE)
    run(world)
    assert len(world.order(Action.RESEND).done) == COUNT
    world.provider.answer = accept
    run(world)
    assert set(world.provider.keys.values()) == {2}
    assert {json.loads(request.content).get("to", "")[:9] for request in world.provider.requests[COUNT:]} == {
        "+44770090"
    }
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in EVERYBODY)


def test_what_was_only_answered_503_and_settled_as_failed_begins_anew(world: KeptWorld) -> None:
    """Without a word about duplicates."""
    world.provider.answer = busy
    run(world, 5)
    world.map(WITH_PHONE)
    run(world)
    assert len(world.order(Action.SETTLE_FAILED).done) == COUNT
    run(world)
    assert len(world.order(Action.BEGIN_ANEW).done) == COUNT


def test_an_operators_resend_of_a_doubt_says_the_same_or_nothing(world: KeptWorld) -> None:
    """It is held again while the mapping needs more than was kept."""
    world.provider.answer = cut_off
    run(world, 5)
    world.map(WITH_PHONE)
    run(world)
    assert len(world.order(Action.RESEND).done) == COUNT
    run(world)
    assert len(world.provider.requests) == COUNT
    assert world.standing() == [(State.IN_DOUBT, 1, COUNT)]
    world.map(KEPT, before=WITH_PHONE)
    world.provider.answer = accept
    run(world)
    assert set(world.provider.said) == {"hello"}
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in EVERYBODY)


def test_what_was_only_answered_503_goes_on_though_doubts_are_held(world: KeptWorld) -> None:
    """When the mapping is put back: `on_in_doubt` is about doubts, and there is none."""
    world.add('on_in_doubt = "hold"\n')
    world.provider.answer = busy
    run(world, 5)
    world.map(WITH_PHONE)
    world.provider.answer = accept
    run(world)
    assert world.standing() == [(State.IN_DOUBT, 1, COUNT)]
    world.map(KEPT, before=WITH_PHONE)
    run(world)
    assert all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in EVERYBODY)


@pytest.mark.parametrize("by_reload", [True, False])
def test_what_waits_in_doubt_is_held_when_doubts_are_held_from_now_on(
    world: KeptWorld, by_reload: bool
) -> None:
    """Nothing is sent once more after `on_in_doubt` is "hold", nor reported, but by an operator's order."""
    world.write("[events]\nintermediate = ['sending']\n" + world.path.read_text(encoding="utf-8"))
    world.provider.answer = cut_off

    def change() -> None:
        world.add('on_in_doubt = "hold"\n')
        world.provider.answer = busy

    if by_reload:
        reload_after(world, 5, change)
    else:
        run(world, 5)
        change()
        run(world)
    assert len(world.provider.requests) == COUNT
    assert world.standing() == [(State.IN_DOUBT, 1, COUNT)]
    assert world.journal_rows("SELECT DISTINCT stay_tries FROM unaccepted") == [(1,)], "no other try was made"
    assert all(world.service.statuses(id_) == ["dequeued", "sending"] for id_ in EVERYBODY)
    assert world.violations() == {}
    assert len(world.order(Action.RESEND).done) == COUNT
    run(world, 5)
    world.provider.answer = accept
    run(world)
    assert set(world.provider.keys.values()) == {3}, "an order stands until its repeat is made"
    assert all(world.service.statuses(id_)[-1] == "sent" for id_ in EVERYBODY)
