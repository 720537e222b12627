"""Print the states of a message and the causes of its steps, as explanation/states.md shows them."""  # noqa: INP001  # a script

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator

from deliveryd.states import BEGINNINGS, TRANSITIONS, Cause, State


def lines() -> Iterator[str]:
    """A Mermaid diagram of the table of states; each edge names its causes."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    for cause, state in BEGINNINGS.items():
        yield f"    [*] --> {state.name}: {_label(cause)}"
    for before, steps in TRANSITIONS.items():
        causes: defaultdict[State, list[str]] = defaultdict(list)
        for cause, after in steps.items():
            causes[after].append(_label(cause))
        for after in sorted(causes):
            yield f"    {before.name} --> {after.name}: {', '.join(causes[after])}"
        if not steps:
            yield f"    {before.name} --> [*]"
    yield "```"


def _label(cause: Cause) -> str:
    """The text of a cause; Mermaid ends a label's head at a colon."""
    return cause.value.replace(":", "")


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines()) + "\n")
