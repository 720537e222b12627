"""What the worker's memory does over many messages: it must be flat.

    python benchmarks/memory.py [--messages 1000000] [--settings 1000]

Runs a real worker against the world, and prints its resident memory at each tenth of the work. The world
keeps all that it got until it has judged it, some 2 kB for each message.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from catalogue import write_config
from measuring import folder_on_disk
from process import Process, subject_core, world_core
from work import Work, write_customers
from world import World

PARTS = 10
PAUSE = 0.1
PATIENCE = 3600.0


@dataclass(frozen=True, slots=True)
class Look:
    """The worker at one moment: messages sent; memory in MB: resident, its part in no file, the greatest."""

    sent: int
    resident: float
    own: float
    greatest: float


def looks(process: Process, log: Path, messages: int) -> Iterator[Look]:
    """One at each tenth of the work."""
    url = wait_for_address(log)
    end = time.monotonic() + PATIENCE
    for part in range(1, PARTS + 1):
        while (sent := sent_so_far(url)) < messages * part // PARTS:
            assert time.monotonic() < end, f"{sent} of {messages} in {PATIENCE} s"
            time.sleep(PAUSE)
        yield Look(sent, *(memory(process.pid, key) for key in ("VmRSS", "RssAnon", "VmHWM")))


def wait_for_address(log: Path) -> str:
    """Where the worker's pages are, from its log."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
            entry = json.loads(line)
            if entry.get("event") == "server.listening":
                return str(entry["listen"])
        time.sleep(PAUSE)
    sys.exit(f"the worker didn't start:\n{log.read_text(encoding='utf-8')}")


def sent_so_far(url: str) -> int:
    """How many messages came to their end."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:  # noqa: S310  # our own worker
        text = answer.read().decode()
    found = re.search(r'^deliveryd_messages_ended_total\{state="sent"\} (\S+)$', text, re.MULTILINE)
    return int(float(found[1])) if found is not None else 0


def memory(pid: int, key: str) -> float:
    """A figure of /proc in MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(f"{key}:"))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The worker's memory over many messages.")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--settings", type=int, default=20, help="how many settings ids the messages have")
    parser.add_argument("--json", type=Path, help="where to write the figures as well")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    work = Work(messages=options.messages, settings=options.settings)
    found = []
    print("| messages | resident MB | of it in no file | greatest MB |\n|---|---|---|---|")
    with folder_on_disk() as folder, World(work, None, world_core()) as world:
        write_customers(folder / "customers.jsonl")
        config = write_config(world.base_url, folder)
        command = [sys.executable, "-m", "deliveryd", "run", "--config", str(config)]
        with closing(Process(command, folder / "log.txt", subject_core(), {})) as process:
            try:
                for look in looks(process, folder / "log.txt", options.messages):
                    print(
                        f"| {look.sent:,} | {look.resident:.1f} | {look.own:.1f} | {look.greatest:.1f} |",
                        flush=True,
                    )
                    found.append(look)
            except urllib.error.URLError:
                sys.exit((folder / "log.txt").read_text(encoding="utf-8")[-4000:])
            world.wait_until_finished(PATIENCE)
            process.stop()
            process.wait()
        flaws = world.report().flaws
    growth = found[-1].resident / found[PARTS // 2 - 1].resident
    print(f"\nthe last tenth against the fifth: {growth:.3f}; flaws: {', '.join(flaws) or 'none'}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(look) for look in found]))


if __name__ == "__main__":
    main()
