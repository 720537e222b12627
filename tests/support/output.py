"""What the commands of the harnesses print."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
