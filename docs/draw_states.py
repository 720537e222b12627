"""Print the states of a message and the steps between them, as explanation/states.md shows them."""  # noqa: INP001  # a script

from __future__ import annotations

import sys
from collections.abc import Iterator

from deliveryd.states import TRANSITIONS, State


def lines() -> Iterator[str]:
    """A Mermaid diagram of the table of states."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {State.TAKEN.name}"
    for before, steps in TRANSITIONS.items():
        for after in sorted(steps):
            yield f"    {before.name} --> {after.name}"
        if not steps:
            yield f"    {before.name} --> [*]"
    yield "```"


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
