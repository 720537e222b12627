"""`deliveryd check` on a world's configuration, and what it printed."""

from __future__ import annotations

from support.terminal import Answered, command
from support.world import World


def check(world: World, *options: str) -> Answered:
    """Run the command in this process."""
    return command("check", "--config", world.config, *options)


def line(answered: Answered, key: str) -> str:
    """The line of one thing that was checked."""
    (found,) = [line for line in answered.out.splitlines() if f" {key} " in line]
    return found


def warned(answered: Answered) -> dict[str, str]:
    """The warnings, by key."""
    lines = [line for line in answered.out.splitlines() if line.startswith("warning")]
    return {key: text for _, key, text in (line.split(maxsplit=2) for line in lines)}
