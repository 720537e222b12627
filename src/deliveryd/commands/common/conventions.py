"""What all commands agree on: the usual configuration file, and the exit statuses."""

from __future__ import annotations

from pathlib import Path

USUAL_CONFIG = Path("/etc/deliveryd/config.toml")
FAILED, USAGE, CONFIGURATION = 1, 2, 78
