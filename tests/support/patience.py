"""How long tests wait for what must come, on a machine that is ten times slower than a usual one."""

from __future__ import annotations

PATIENCE = 300.0
"""Seconds. No time-out that is part of a case comes near it."""
