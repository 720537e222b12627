"""The sums of many stories, as a table and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from crashes.oracle import Account

SUMS: Mapping[str, str] = {
    "lives": "lives of a worker",
    "messages": "messages",
    "events": "events accepted",
    "repeats_in_doubt": "repeats in doubt",
    "doubles": "doubles, no key",
    "lost_to_the_gap": "lost to the gap",
}
"""Sums of an account, and what the table calls them."""


@dataclass(slots=True)
class Figures:
    """What happened in all stories so far."""

    kills: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    failpoints: set[str] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)

    def add(self, kind: str, account: Account) -> None:
        """Count a story of one kind."""
        self.kills[kind] += account.kills
        self.sums.update({name: getattr(account, name) for name in SUMS})
        self.violations += account.violations

    def lines(self) -> Iterator[str]:
        """The table."""
        yield f"kills              {self.kills.total():9,}"
        for kind, times in sorted(self.kills.items()):
            yield f"  {kind:<24} {times:,}"
        yield f"failpoints covered {len(self.failpoints):9,}"
        for name, title in SUMS.items():
            yield f"{title:<18} {self.sums[name]:9,}"
        yield f"violations         {len(self.violations):9,}"

    def as_json(self) -> Mapping[str, object]:
        """The same for programs."""
        return {
            "kills": self.kills.total(),
            "kills_by_kind": dict(sorted(self.kills.items())),
            "failpoints": len(self.failpoints),
            **{name: self.sums[name] for name in SUMS},
            "violations": len(self.violations),
        }
