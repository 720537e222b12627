"""The sums of many runs, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulation.oracle import violations
from simulation.run import History


@dataclass(slots=True)
class Figures:
    """What happened in all runs so far."""

    plans: int = 0
    lives: int = 0
    messages: int = 0
    crashes: int = 0
    attempts: int = 0
    repeats_in_doubt: int = 0
    events: int = 0
    reports: int = 0
    violations: int = 0
    troubles: Counter[str] = field(default_factory=Counter)

    def add(self, history: History) -> list[str]:
        """Count a run; return what the oracle has against it."""
        ledger = history.ledger
        found = violations(history)
        self.plans += 1
        self.lives += len(history.lives)
        self.messages += len(history.plan.messages)
        self.crashes += len(ledger.crashed)
        self.attempts += len(ledger.asked)
        self.repeats_in_doubt += len(ledger.asked) - len({asked.key for asked in ledger.asked})
        self.events += sum(len(post.bodies) for post in ledger.posted)
        self.reports += len(ledger.reported)
        self.violations += len(found)
        for trouble, times in ledger.troubles.items():
            if trouble is not None:
                self.troubles[trouble.value] += times
        return found

    def add_all(self, other: Figures) -> None:
        """Add the sums of other runs."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def lines(self) -> Iterator[str]:
        """The table."""
        yield f"plans              {self.plans:9,}"
        yield f"lives of a worker  {self.lives:9,}"
        yield f"crashes            {self.crashes:9,}"
        yield f"messages           {self.messages:9,}"
        yield f"attempts           {self.attempts:9,}"
        yield f"repeats in doubt   {self.repeats_in_doubt:9,}"
        yield f"events accepted    {self.events:9,}"
        yield f"receipts           {self.reports:9,}"
        yield f"troubles           {sum(self.troubles.values()):9,}"
        for trouble, times in self.troubles.most_common():
            yield f"  {trouble:<24} {times:,}"
        yield f"violations         {self.violations:9,}"
