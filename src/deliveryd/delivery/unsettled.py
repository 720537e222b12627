"""The events that were read from the outbox and aren't settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from random import choice

from deliveryd.journal.base import OutboxRow

_message_of = attrgetter("message_id")
_number_of = attrgetter("seq")


class Unsettled:
    """Which of them may be posted now, and which may be settled.

    The journal settles events in the order of the outbox. So an event that was answered stays here until all
    ahead of it were. An event is posted once each earlier one of its message was accepted, or is settled.
    """

    def __init__(self) -> None:
        self._rows: dict[int, OutboxRow] = {}
        self._unposted: dict[int, OutboxRow] = {}
        self._under_way: Counter[int] = Counter()  # by message: its rows that are posted, or refused
        self._answers: dict[int, str | None] = {}  # by number; None: accepted, else why it was refused
        self.last = 0
        """The number that was read last."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def answered(self) -> int:
        """How many have an answer, and others ahead of them that have none."""
        return len(self._answers)

    def read(self, rows: Sequence[OutboxRow]) -> None:
        """Add what was read of the outbox; rows that are here already change nothing."""
        new = dict(zip(map(_number_of, rows), rows, strict=True))
        for known in new.keys() & self._rows.keys():
            del new[known]
        self._rows |= new
        self._unposted |= new
        if rows:
            self.last = rows[-1].seq

    def first(self, most: int, left_out: Collection[int], behind: int = 0) -> list[OutboxRow]:
        """The first rows that may be posted now, behind a number, but for messages that are left out."""
        if not (behind or left_out or self._under_way):
            return list(islice(self._unposted.values(), most))
        passed_over: set[int] = set()
        found: list[OutboxRow] = []
        for seq, row in self._unposted.items():
            if row.message_id in left_out or self._under_way[row.message_id]:
                continue
            if seq <= behind or row.message_id in passed_over:
                passed_over.add(row.message_id)
                continue
            found.append(row)
            if len(found) == most:
                break
        return found

    def anywhere(self, behind: int) -> int:
        """This number or that of any unposted row: where the next post begins that is to find accepted ones.

        Those at fault may be the first ones, and very many.
        """
        return choice([behind, choice([*self._unposted, 0])])

    def unposted_of(self, messages: Collection[int]) -> list[list[OutboxRow]]:
        """The unposted rows of each of these messages, in order, of which none is posted or refused."""
        found: dict[int, list[OutboxRow]] = {}
        for row in self._unposted.values():
            if row.message_id in messages and not self._under_way[row.message_id]:
                found.setdefault(row.message_id, []).append(row)
        return list(found.values())

    def post(self, rows: Sequence[OutboxRow]) -> None:
        """Note that these rows are posted."""
        if len(rows) == len(self._unposted):
            self._unposted.clear()
        else:
            for row in rows:
                del self._unposted[row.seq]
        self._under_way.update(map(_message_of, rows))

    def take_back(self, rows: Sequence[OutboxRow]) -> None:
        """Note that these rows have to be posted again."""
        self._unposted = dict(sorted({**self._unposted, **{row.seq: row for row in rows}}.items()))
        self._free(rows)

    def answer(self, rows: Sequence[OutboxRow], refused: str | None) -> None:
        """Note that the service accepted these rows, as the journal has it too, or why it `refused` them."""
        self._answers.update((row.seq, refused) for row in rows)
        if refused is None:
            self._free(rows)

    def forget(self, rows: Sequence[OutboxRow]) -> None:
        """Remove unposted rows that the journal is to move: they are read again where they are then."""
        for row in rows:
            del self._rows[row.seq], self._unposted[row.seq]

    def lead(self, rows: Sequence[OutboxRow]) -> bool:
        """Whether these posted rows are the first ones here, so that nothing is ahead of them."""
        if len(rows) == len(self._rows):
            return True
        return list(islice(self._rows, len(rows))) == [row.seq for row in rows]

    def in_turn(self) -> Iterator[tuple[list[OutboxRow], str | None]]:
        """What was answered and has nothing unanswered ahead: accepted rows together, each refused one alone.

        Each yielded portion is to be settled; it is removed when the next one is asked for.
        """
        while portion := self._first_portion():
            yield portion, self._answers[portion[0].seq]
            self.remove(portion)

    def remove(self, rows: Sequence[OutboxRow]) -> None:
        """Remove posted rows that are settled."""
        under_way = rows
        if self._answers:
            under_way = [row for row in rows if self._answers.get(row.seq, "") is not None]
        if len(rows) == len(self._rows):
            self._rows.clear()
            self._answers.clear()
        else:
            for row in rows:
                del self._rows[row.seq]
                self._answers.pop(row.seq, None)
        self._free(under_way)

    def _free(self, rows: Sequence[OutboxRow]) -> None:
        if len(self._rows) == len(self._unposted):  # none is posted or answered any more
            self._under_way.clear()
            return
        for row in rows:
            self._under_way[row.message_id] -= 1
            if not self._under_way[row.message_id]:
                del self._under_way[row.message_id]

    def _first_portion(self) -> list[OutboxRow]:
        portion: list[OutboxRow] = []
        for seq, row in self._rows.items():
            if seq not in self._answers or (portion and self._answers[seq] is not None):
                break
            portion.append(row)
            if self._answers[seq] is not None:
                break
        return portion
