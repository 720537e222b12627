"""What was read of the outbox and isn't settled: what may be posted, and what may be settled."""

from __future__ import annotations

from deliveryd.delivery.unsettled import Unsettled
from deliveryd.journal.base import OutboxRow


def _row(seq: int, message_id: int, status: str = "sent") -> OutboxRow:
    return OutboxRow(seq, message_id, status, "{}")


def test_a_later_event_waits_until_the_earlier_one_of_its_message_is_settled() -> None:
    """Not only until it is answered: a crash before would have the service hear both in the wrong order."""
    first, other, later = _row(1, 7), _row(2, 8), _row(3, 7, "delivered")
    unsettled = Unsettled()
    unsettled.read([first, other])
    assert unsettled.first(9, ()) == [first, other]
    unsettled.post([first, other])
    unsettled.read([first, other, later])
    assert unsettled.first(9, ()) == []
    unsettled.answer([other], None)
    assert list(unsettled.in_turn()) == []
    assert unsettled.first(9, ()) == []
    unsettled.answer([first], None)
    assert [(rows, refused) for rows, refused in unsettled.in_turn()] == [([first, other], None)]
    assert unsettled.first(9, ()) == [later]


def test_what_was_answered_is_settled_in_order() -> None:
    """Accepted events together, each refused one alone, and none that has an unanswered one ahead."""
    rows = [_row(seq, seq) for seq in range(1, 8)]
    unsettled = Unsettled()
    unsettled.read(rows)
    unsettled.post(rows)
    unsettled.answer(rows[:2], None)
    unsettled.answer(rows[2:4], "400")
    unsettled.answer([rows[4], rows[6]], None)
    assert list(unsettled.in_turn()) == [
        (rows[:2], None), ([rows[2]], "400"), ([rows[3]], "400"), ([rows[4]], None),
    ]  # fmt: skip
    assert len(unsettled) == 2
    unsettled.answer([rows[5]], None)
    assert list(unsettled.in_turn()) == [(rows[5:], None)]
    assert len(unsettled) == 0
