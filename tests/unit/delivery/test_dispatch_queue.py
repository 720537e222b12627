"""The queue of one provider: settings ids take turns, and some go first."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest

from deliveryd.delivery.dispatch_queue import NEW, REPEATS, DispatchQueue, cost
from deliveryd.delivery.fetch_turns import FetchTurns
from deliveryd.delivery.message import Delivery
from deliveryd.model import Entry, Rendered
from deliveryd.rules.priorities import NO_RULES, Priorities
from support.routes import delivery
from support.virtual import VirtualClock

ids = count(1)
THREE = Priorities(frozenset({3}), frozenset({1}))
"""3 goes first, then 2, then 1."""


def queued(settings_id: int, text: str = "hello") -> Delivery:
    """An SMS that waits for its attempt."""
    message = delivery(Entry(next(ids), settings_id, 1, {}, provider="sms"), "sms")
    return message.to("sms", Rendered("sms", "en", {"text": text}), None)


def queue_of(*settings_ids: int, priorities: Priorities = NO_RULES) -> DispatchQueue:
    """A queue with messages of these settings ids, in the order in which they came."""
    queue = DispatchQueue(VirtualClock(), priorities)
    for settings_id in settings_ids:
        queue.add(queued(settings_id), NEW)
    return queue


def taken(queue: DispatchQueue, number: int) -> list[int]:
    """The settings ids of the next messages."""
    return [message.entry.settings_id for message in queue.take(number)]


def test_settings_ids_take_turns() -> None:
    """One that has many messages delays those of another by one each; alone it has all turns."""
    queue = queue_of(1, 1, 1, 1, 1, 2, 2, 3)
    assert taken(queue, 8) == [1, 2, 3, 1, 2, 1, 1, 1]
    assert not queue


def test_one_that_begins_to_wait_has_its_turn_before_the_second_one_of_others() -> None:
    queue = queue_of(1, 1, 1, 2, 2, 2)
    assert taken(queue, 1) == [1]
    queue.add(queued(3), NEW)
    assert taken(queue, 3) == [2, 1, 3]


def test_an_sms_of_three_parts_uses_three_turns() -> None:
    """Of two ids with SMS of three parts and of one, as many parts are sent."""
    queue = DispatchQueue(VirtualClock())
    for _ in range(9):
        queue.add(queued(1, "x" * 400), NEW)
        queue.add(queued(2), NEW)
    assert taken(queue, 8) == [1, 2, 2, 2, 1, 2, 2, 2]


def test_parts_are_counted_by_the_alphabet_of_the_text() -> None:
    """100 characters are one part in Latin letters, also beyond ASCII, and two in Cyrillic ones."""
    assert [cost(queued(1, letter * 100)) for letter in "xüж"] == [1, 1, 2]


def test_a_mail_uses_one_turn_however_long_it_is() -> None:
    queue = DispatchQueue(VirtualClock())
    for _ in range(2):
        long = queued(1).to("email", Rendered("email", "en", {"text": "x" * 400}), None)
        queue.add(long, NEW)
        queue.add(queued(2), NEW)
    assert taken(queue, 4) == [1, 2, 1, 2]


def test_high_ones_go_first_and_leave_one_of_ten_to_the_others() -> None:
    """So of a hundred 90 are high, and of the ten others nine normal and one low."""
    queue = queue_of(*[1, 2, 3] * 100, priorities=Priorities(frozenset({3}), frozenset({1})))
    found = taken(queue, 100)
    assert found[:10] == [3] * 9 + [2]
    assert Counter(found) == {3: 90, 2: 9, 1: 1}


def test_low_ones_go_after_normal_ones() -> None:
    queue = queue_of(*[1, 2] * 20, priorities=Priorities(low=frozenset({1})))
    assert Counter(taken(queue, 20)) == {2: 18, 1: 2}


def test_a_priority_without_company_has_all_turns() -> None:
    queue = queue_of(*[1] * 15, priorities=Priorities(low=frozenset({1})))
    assert taken(queue, 15) == [1] * 15


def test_what_is_queued_goes_by_new_rules() -> None:
    """An id that a reload puts first doesn't wait for the others any more."""
    queue = queue_of(*[1, 2, 3] * 5)
    queue.follow(Priorities(high=frozenset({3})))
    assert taken(queue, 5) == [3] * 5
    assert taken(queue, 4) == [1, 2, 1, 2]


def test_repeats_of_one_settings_id_have_half_of_its_turns_and_none_of_another() -> None:
    queue = queue_of(1, 1, 1, 2, 2, 2)
    repeats = [queued(1) for _ in range(3)]
    for message in repeats:
        queue.add(message, REPEATS)
    found = queue.take(6)
    assert [message.entry.settings_id for message in found] == [1, 2] * 3
    assert [message in repeats for message in found[::2]] == [True, False, True]


def test_probes_are_of_each_settings_id_in_turn() -> None:
    """One whose messages fail has every second probe, though it has most messages; the newest among them."""
    queue = queue_of(1, 1, 1, 1, 2, 2)
    everything = list(queue)
    probes = [message for _ in range(4) for message in queue.take_probe()]
    assert [message.entry.settings_id for message in probes] == [1, 2, 1, 2]
    assert probes[0] is [each for each in everything if each.entry.settings_id == 1][-1]


def test_what_is_left_while_a_provider_is_down_is_of_many_settings_ids() -> None:
    queue = queue_of(*[1] * 20, 2, 3)
    surplus = queue.take_surplus(6)
    assert len(surplus) == 16
    assert len(queue) == 6
    assert {message.entry.settings_id for message in queue} == {1, 2, 3}


def test_all_of_a_settings_id_can_be_taken_out() -> None:
    queue = queue_of(1, 2, 1, 2)
    assert [message.entry.settings_id for message in queue.take_settings(1)] == [1, 1]
    assert len(queue) == 2
    assert queue.settings_ids() == {2}
    assert taken(queue, 2) == [2, 2]


# What is fetched from the journal


def test_what_is_fetched_one_by_one_is_shared_like_what_is_sent() -> None:
    """A slow provider has room for one message at a time: nine of ten are high while others wait."""
    assert fetched_one_by_one(100, waiting=(3, 2, 1)) == Counter({3: 90, 2: 9, 1: 1})


def test_low_ones_have_their_share_where_no_high_ones_wait() -> None:
    """Whether messages are fetched one by one or many at a time."""
    assert fetched_one_by_one(100, waiting=(2, 1)) == Counter({2: 90, 1: 10})
    turns, shares = FetchTurns(), []
    for _ in range(5):
        _, _, low = turns.portions(100, THREE)
        shares.append(low.most)
        turns.took([Entry(1, 2, 1, {})] * (100 - low.most) + [Entry(1, 1, 1, {})] * low.most, THREE)
    assert sum(shares) == pytest.approx(50, abs=10)


def fetched_one_by_one(number: int, waiting: tuple[int, ...]) -> Counter[int]:
    """How many messages of each settings id are fetched, of these that wait; the highest is the first."""
    turns, found = FetchTurns(), Counter[int]()
    for _ in range(number):
        portions = turns.portions(1, THREE)
        rank = next(rank for rank, portion in enumerate(portions) if portion.most)
        ranks = [*range(rank, 3), *range(rank)]  # what one portion leaves, the next one has
        settings_id = next(3 - each for each in ranks if 3 - each in waiting)
        turns.took([Entry(1, settings_id, 1, {})], THREE)
        found[settings_id] += 1
    return found


def test_the_next_fetch_goes_on_behind_the_id_that_had_its_turn() -> None:
    turns = FetchTurns()
    turns.took([Entry(1, 7, 1, {})], NO_RULES)
    assert [portion.after for portion in turns.portions(5, NO_RULES)] == [7]
