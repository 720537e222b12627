"""Under what conditions figures were measured."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = [
    *("deliveryd", "uvloop", "httptools", "orjson", "aiohttp", "httpx", "requests"),
    *("celery", "dramatiq", "taskiq", "taskiq-redis", "arq", "redis"),
]


def conditions() -> dict[str, str]:
    """What a reader has to know of the machine and of the programs."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "python": f"{platform.python_version()}, {platform.python_compiler()}",
        "speed": f"{_million_additions() * 1000:.0f} ms for a loop of a million additions",
        "sqlite": sqlite3.sqlite_version,
        "redis": _redis(),
        "disk": _file_system("/var/tmp"),  # noqa: S108 - it is only looked at
        "load": f"{os.getloadavg()[0]:.1f} at the start",
        "packages": ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name))),
    }


def _million_additions() -> float:
    """CPU seconds of a plain loop, in which a slow build of the interpreter shows, and a busy machine."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        total = 0
        for number in range(1_000_000):
            total += number
        best = min(best, time.process_time() - start)
    return best


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _redis() -> str:
    program = shutil.which("redis-server")
    if program is None:
        return "none"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return next((word.removeprefix("v=") for word in said.split() if word.startswith("v=")), "unknown")


def _file_system(path: str) -> str:
    """The type of the file system that a path lies on, by the longest mount point above it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    above = [(point, kind) for point, kind in mounts if f"{path}/".startswith(point.rstrip("/") + "/")]
    return max(above, key=lambda mount: len(mount[0]))[1] if above else "unknown"
