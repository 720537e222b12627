"""What is tried again: under which key, with which words, and what follows where it may have arrived."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from deliveryd.channels.base import (
    Accepted,
    Dispatch,
    InDoubt,
    Misconfigured,
    Refused,
    TryAgain,
    Verdict,
)
from deliveryd.directory.base import NoDirectory
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.model import Customer, format_instant
from deliveryd.runtime.threads import inline
from deliveryd.states import State
from deliveryd.transitions import CHANGED
from support.virtual import START, VirtualWorld, live

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
BOTH = json.dumps({"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "s", "body": "b"}}}})
EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""
SECOND = 1_000_000


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """The whole line, with one message for the channel sms."""
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    world.service.enqueue({"id": 1, "settingsId": 1, "customerId": 1, "variables": {}})
    return world


def details(world: VirtualWorld) -> str:
    """The details of the one error that the message ended with."""
    (error,) = [event for event in world.service.events if "details" in event]
    return str(error["details"])


def rows(world: VirtualWorld, query: str) -> list[tuple[Any, ...]]:
    """Read the journal."""
    with closing(sqlite3.connect(world.folder / "journal.db")) as db:
        return db.execute(query).fetchall()


# Keys


@pytest.mark.parametrize(
    "failure",
    [TryAgain("busy"), TryAgain("busy", may_have_arrived=True), InDoubt("cut off"), Misconfigured("401")],
)
def test_all_tries_at_one_provider_have_one_key(world: VirtualWorld, failure: Verdict) -> None:
    """Whatever became of the earlier ones: a provider that heeds keys sends once, though it lied."""
    channel = world.channels["sms"]
    answers: list[Verdict] = [failure, failure, Accepted("p1")]
    channel.verdict = lambda _dispatch: answers.pop(0)
    live(world.run_until_idle)
    assert len(channel.attempts) == 3
    assert len({dispatch.key for _, dispatch in channel.attempts}) == 1
    assert len({dispatch.entry.begun_at for _, dispatch in channel.attempts}) == 1
    assert [dispatch.entry.stay_tries for _, dispatch in channel.attempts] == [1, 2, 3]
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_a_provider_that_keeps_the_key_of_what_it_rejected_is_given_a_new_one(world: VirtualWorld) -> None:
    """It would reject the repeat as a duplicate, which reads as accepted. The journal has each try's key."""
    channel = world.channels["sms"]
    rejected = TryAgain("flooded", new_key=True)
    answers: list[Verdict] = [rejected, rejected, Accepted("p1")]
    channel.verdict = lambda _dispatch: answers.pop(0)
    live(world.run_until_idle)
    keys = [dispatch.key for _, dispatch in channel.attempts]
    assert len(set(keys)) == 3
    assert [dispatch.entry.stay_tries for _, dispatch in channel.attempts] == [1, 2, 3]
    assert rows(world, "SELECT stay_tries, generation FROM unaccepted ORDER BY stay_tries") == [
        (1, 1),
        (2, 2),
    ]
    assert rows(world, "SELECT stay_tries, generation FROM message") == [(3, 3)]
    assert world.service.statuses(1) == ["dequeued", "sent"]


@pytest.mark.parametrize("before", [InDoubt("cut off"), TryAgain("busy", may_have_arrived=True)])
def test_what_may_have_arrived_keeps_its_key_whatever_the_provider_keeps(
    world: VirtualWorld, before: Verdict
) -> None:
    """A new one would send it a second time."""
    channel = world.channels["sms"]
    answers: list[Verdict] = [before, TryAgain("flooded", new_key=True), Accepted("p1")]
    channel.verdict = lambda _dispatch: answers.pop(0)
    live(world.run_until_idle)
    assert len(channel.attempts) == 3
    assert len({dispatch.key for _, dispatch in channel.attempts}) == 1


def test_the_next_channel_has_a_key_of_its_own(world: VirtualWorld) -> None:
    """Two providers know nothing of one another, and receipts must tell them apart."""
    world.add(f"retry = {{ attempts = 2 }}\n{EMAIL}")
    world.service.settings[1] = BOTH
    world.channels["sms"].verdict = lambda _dispatch: TryAgain("busy")
    live(world.run_until_idle)
    keys = [[dispatch.key for _, dispatch in world.channels[name].attempts] for name in ("sms", "email")]
    (once, again), (other,) = keys
    assert once == again
    assert other not in (once, again)


# What a repeat says


class Renaming(NoDirectory):
    """Calls its customers something else each time that they are asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Any]:
        self.asked += 1
        name = f"Ann{self.asked}"
        return {id_: Customer(id_, {"name": name, "phone": f"+{self.asked}"}) for id_ in ids}


NAMED = json.dumps({"content": {"en": {"sms": {"text": "Hello {customer.name}"}}}})


@pytest.fixture
def renaming(world: VirtualWorld) -> VirtualWorld:
    """A message whose text, and whose customer's number, are others each time that they are asked for."""
    world.service.settings[1] = NAMED
    world.directory = Renaming()
    world.channels["sms"].customer_fields = frozenset({"phone"})
    return world


def said(world: VirtualWorld, provider: str = "sms") -> list[tuple[str, str]]:
    """What each attempt said, and to whom."""
    return [
        (dispatch.rendered.fields["text"], dispatch.customer.fields["phone"] if dispatch.customer else "")
        for _, dispatch in world.channels[provider].attempts
    ]


@pytest.mark.parametrize(
    "failure",
    [TryAgain("provider answered 503", may_have_arrived=True), InDoubt("cut off")],
    ids=["503", "in doubt"],
)
def test_what_may_have_arrived_is_repeated_with_the_same_words(
    renaming: VirtualWorld, failure: Verdict
) -> None:
    """Also after repeats that surely failed; once it is accepted nothing of the text is kept."""
    answers: list[Verdict] = [failure, TryAgain("never connected"), Misconfigured("401"), Accepted("p1")]
    renaming.channels["sms"].verdict = lambda _dispatch: answers.pop(0)
    live(renaming.run_until_idle)
    assert said(renaming) == [("Hello Ann1", "+1")] * 4
    assert rows(renaming, "SELECT content, digest FROM message") == [(None, None)]


@pytest.mark.parametrize("failure", [TryAgain("never connected"), Misconfigured("401")])
def test_what_surely_did_not_arrive_is_rendered_anew(renaming: VirtualWorld, failure: Verdict) -> None:
    """So that what was mended meanwhile counts, and nothing of the text is kept while it waits."""
    kept: list[object] = []

    def verdict(_dispatch: Dispatch) -> Verdict:
        kept.extend(rows(renaming, "SELECT content FROM message"))
        return Accepted("p1") if len(kept) == 3 else failure

    renaming.channels["sms"].verdict = verdict
    live(renaming.run_until_idle)
    assert [text for text, _ in said(renaming)] == ["Hello Ann1", "Hello Ann2", "Hello Ann3"]
    assert kept == [(None,)] * 3


def test_a_crash_keeps_the_words_of_what_may_have_arrived(renaming: VirtualWorld) -> None:
    answers: list[Verdict] = [InDoubt("cut off")]
    channel = renaming.channels["sms"]
    channel.verdict = lambda _dispatch: answers.pop(0)
    live(lambda: cut_off_during(renaming, 2))
    channel.verdict = lambda _dispatch: Accepted("p1")
    live(renaming.run_until_idle)
    assert said(renaming) == [("Hello Ann1", "+1")] * 2
    assert renaming.service.statuses(1) == ["dequeued", "sent"]


async def cut_off_during(world: VirtualWorld, attempt: int) -> None:
    """Run a worker, and end it in the middle of an attempt, before it can record an outcome."""
    channel, begun = world.channels["sms"], 0
    send = channel.send

    async def hang(dispatch: Dispatch) -> Verdict:
        nonlocal begun
        begun += 1
        if begun < attempt:
            return await send(dispatch)
        scope.cancel()
        await trio.sleep_forever()
        raise AssertionError

    channel.send = hang  # type: ignore[method-assign]
    with trio.CancelScope() as scope:
        await world.run_until_idle()
    channel.send = send  # type: ignore[method-assign]


def test_after_a_crash_what_says_the_same_is_repeated_under_its_key(world: VirtualWorld) -> None:
    """The worker had no time to keep what the attempt said, and rendering it anew gives the same."""
    live(lambda: cut_off_during(world, 1))
    live(world.run_until_idle)
    ((_, repeat),) = world.channels["sms"].attempts
    assert (repeat.entry.stay, repeat.entry.stay_tries, repeat.entry.begun_at < START) == (1, 2, False)
    assert world.service.statuses(1) == ["dequeued", "sent"]


def test_after_a_crash_what_would_say_something_else_is_held(renaming: VirtualWorld) -> None:
    """Under the old key it would be another message; the operator hears why, and may begin it anew."""
    live(lambda: cut_off_during(renaming, 1))
    for _ in range(2):
        live(renaming.run_until_idle)
    assert not renaming.channels["sms"].attempts
    assert renaming.service.statuses(1) == ["dequeued"]
    ((state, reason),) = rows(renaming, "SELECT m.state, a.reason FROM message m, unaccepted a")
    assert state == State.IN_DOUBT
    assert reason == f"the worker ended before the outcome was known; {CHANGED}"


def test_an_operators_new_key_renders_a_message_anew(renaming: VirtualWorld) -> None:
    """It may reach the customer twice, and that is the operator's choice."""
    renaming.add('on_in_doubt = "hold"\n')
    channel = renaming.channels["sms"]
    channel.verdict = lambda _dispatch: InDoubt("cut off")
    live(renaming.run_until_idle)
    channel.verdict = lambda _dispatch: Accepted("p1")

    async def begin_anew() -> None:
        async with open_journal_file(renaming.folder / "journal.db", blocking=inline) as journal:
            order = Order(Action.RESEND_ANEW, ItemKind.MESSAGE, ("1",))
            assert (await journal.decide(order, START, ["sms"])).done == ("1",)
        await renaming.run_until_idle()

    live(begin_anew)
    assert [text for text, _ in said(renaming)] == ["Hello Ann1", "Hello Ann2"]
    assert [dispatch.entry.stay for _, dispatch in channel.attempts] == [1, 2]
    assert renaming.service.statuses(1) == ["dequeued", "sent"]


# What ends in doubt


@pytest.mark.parametrize(
    "failure",
    [TryAgain("provider answered 503", may_have_arrived=True), InDoubt("cut off")],
    ids=["503", "in doubt"],
)
def test_a_repeat_that_is_refused_is_in_doubt_as_well(world: VirtualWorld, failure: Verdict) -> None:
    """A provider may refuse a key that it has seen; the message ends where it is, after all of its tries."""
    world.add(f"retry = {{ attempts = 4 }}\n{EMAIL}")
    world.service.settings[1] = BOTH
    answers = iter([failure])
    world.channels["sms"].verdict = lambda _dispatch: next(answers, Refused("provider answered 422"))
    live(world.run_until_idle)
    assert len(world.channels["sms"].attempts) == 4
    assert not world.channels["email"].attempts
    assert world.service.statuses(1) == ["dequeued", "error"]
    assert details(world) == "sms: provider answered 422 (tried 4 times); sms: outcome unknown"


def test_a_provider_that_answers_503_for_ever_leaves_the_message_to_the_next_channel(
    world: VirtualWorld,
) -> None:
    """It says that it doesn't have the message; promise 2 names what a provider can do that lies."""
    world.add(f"retry = {{ attempts = 3 }}\n{EMAIL}")
    world.service.settings[1] = BOTH
    world.channels["sms"].verdict = lambda _dispatch: TryAgain("provider answered 503", may_have_arrived=True)
    live(world.run_until_idle)
    assert len(world.channels["email"].attempts) == 1
    assert rows(world, "SELECT state, provider, stay, content FROM message") == [
        (State.SENT, "email", 2, None)
    ]


def test_what_expires_in_doubt_says_so(world: VirtualWorld) -> None:
    """Plain `expired` would say that it surely wasn't sent."""
    expires_at = format_instant(START + 60 * SECOND)
    settings = {**json.loads(SMS), "delivery": {"expiresAt": expires_at}}
    world.service.settings[1] = json.dumps(settings)
    world.add('retry = { base = "5m", max = "5m" }\n')
    world.channels["sms"].verdict = lambda _dispatch: InDoubt("cut off")
    live(world.run_until_idle)
    assert len(world.channels["sms"].attempts) == 1
    assert details(world) == f"expired at {expires_at}; sms: outcome unknown"
    assert rows(world, "SELECT content FROM message") == [(None,)]


def test_after_a_crash_what_cannot_be_rendered_is_held_with_that_reason(world: VirtualWorld) -> None:
    """The settings have no text any more, and nothing but a digest is known of what was sent."""
    live(lambda: cut_off_during(world, 1))
    shutil.rmtree(world.path.parent / "cache")
    world.service.settings[1] = json.dumps({"content": {"en": {}}})
    live(world.run_until_idle)
    assert not world.channels["sms"].attempts
    ((state, reason),) = rows(world, "SELECT m.state, a.reason FROM message m, unaccepted a")
    assert state == State.IN_DOUBT
    assert "not repeated: it can't be rendered again (" in reason
