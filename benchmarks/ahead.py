"""How long a code waits that comes behind a campaign, by how many messages are taken ahead.

    python benchmarks/ahead.py [--campaign N] [--rate R] [--codes C]

A worker process and a stand-in service over real sockets. When as much of the campaign is taken as the worker
takes, codes come one after the other. Prints how long the campaign took to leave the service's queue, and how
long codes waited from that queue to the provider.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.messages import message  # noqa: E402  # only behind the path
from support.sandboxes import open_sandbox  # noqa: E402
from support.world import World  # noqa: E402

LINE = "{:<12} {:>10} {:>14} {:>12} {:>12} {:>10}"
CAMPAIGN, CODE = 1, 2
RULE = '[[rules]]\nsettings = [2]\npriority = "high"\n'
SETTINGS = {"content": {"en": {"sms": {"text": "hello"}}}}


def main() -> None:
    """Measure without and with taking ahead, and print both."""
    chosen = _arguments()
    print(LINE.format("take_ahead", "campaign", "taken after, s", "median, s", "longest, s", "by first"))
    first = None
    without = min(chosen.campaign, chosen.without)
    for ahead, campaign in ((0, without), (chosen.campaign, without), (chosen.campaign, chosen.campaign)):
        taken, waits = measured(ahead, campaign, chosen.rate, chosen.codes if ahead else 1)
        median = statistics.median(waits)
        first = first or median
        row = f"{taken:.1f}", f"{median:.2f}", f"{max(waits):.2f}", f"{median / first:.4f}"
        print(LINE.format(ahead, campaign, *row), flush=True)


def measured(ahead: int, campaign: int, rate: int, codes: int) -> tuple[float, list[float]]:
    """Seconds until the queue was empty, and those that each code waited."""
    with tempfile.TemporaryDirectory(dir=ROOT / "benchmarks") as folder, open_sandbox() as sandbox:
        world = World(Path(folder), sandbox)
        world.change("[queue]\n", f"[queue]\ntake_ahead = {ahead}\nbatch_size = 1000\n")
        world.change('timeout = "60s"\n', f'timeout = "60s"\nrate = "{rate}/s"\n')
        world.add(RULE)
        world.customers([{"id": 1, "phone": "+4915112345678"}])
        state = world.state
        state.settings[CAMPAIGN] = SETTINGS
        state.settings[CODE] = SETTINGS
        state.enqueue(*(message(id_, CAMPAIGN) for id_ in range(1, campaign + 1)))
        began = time.monotonic()
        worker = world.start()
        while ahead and state.offers.waiting:
            time.sleep(0.1)
        taken = time.monotonic() - began
        if not ahead:
            state.wait_for(lambda state: bool(state.received), 60)
        waits = []
        for number in range(codes):
            id_ = campaign + 1 + number
            came = time.monotonic()
            state.enqueue(message(id_, CODE))
            state.wait_for(lambda state, id_=id_: any(r.message_id == id_ for r in state.received), 7200)
            waits.append(time.monotonic() - came)
        worker.kill()
        worker.wait()
    return taken, waits


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--campaign", type=int, default=200_000)
    parser.add_argument("--without", type=int, default=2000, help="the campaign where nothing is taken ahead")
    parser.add_argument("--rate", type=int, default=50, help="of the provider, for each second")
    parser.add_argument("--codes", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
