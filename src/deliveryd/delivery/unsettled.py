"""The events that were read from the outbox and aren't settled, while refused ones are searched for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deliveryd.journal.base import OutboxRow


class Unsettled:
    """Which of them may be posted now, and which may be settled.

    The journal settles events in the order of the outbox. So an event that was answered stays here until all
    ahead of it were. An event is posted once no earlier one of its message is left here.
    """

    def __init__(self) -> None:
        self._rows: dict[int, OutboxRow] = {}
        self._posted: set[int] = set()
        self._answers: dict[int, str | None] = {}  # by number; None: accepted, else why it was refused

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: Sequence[OutboxRow]) -> None:
        """Add what was read of the outbox; rows that are here already change nothing."""
        for row in rows:
            self._rows.setdefault(row.seq, row)

    def unposted(self) -> list[OutboxRow]:
        """The rows that may be posted now, all of them at once."""
        under_way = {self._rows[seq].message_id for seq in self._posted}
        return [
            row
            for seq, row in self._rows.items()
            if seq not in self._posted and row.message_id not in under_way
        ]

    def post(self, rows: Sequence[OutboxRow]) -> None:
        """Note that these rows are posted."""
        self._posted.update(row.seq for row in rows)

    def answer(self, rows: Sequence[OutboxRow], refused: str | None) -> None:
        """Note that the service accepted these rows, or why it `refused` them."""
        self._answers.update((row.seq, refused) for row in rows)

    def in_turn(self) -> Iterator[tuple[list[OutboxRow], str | None]]:
        """What was answered and has nothing unanswered ahead: accepted rows together, each refused one alone.

        Each yielded portion is to be settled; it is removed when the next one is asked for.
        """
        while portion := self._first_portion():
            refused = self._answers[portion[0].seq]
            yield portion, refused
            for row in portion:
                del self._rows[row.seq], self._answers[row.seq]
                self._posted.discard(row.seq)

    def _first_portion(self) -> list[OutboxRow]:
        portion: list[OutboxRow] = []
        for seq, row in self._rows.items():
            if seq not in self._answers or (portion and self._answers[seq] is not None):
                break
            portion.append(row)
            if self._answers[seq] is not None:
                break
        return portion
