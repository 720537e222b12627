"""What deliveryd costs beside the work itself: `make bench-costs`, or some of it by name.

It prints a line for each, beside what it must be and aims to be, and writes benchmarks/results/costs.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from catalogue import DAEMON, SUBJECTS, Place, write_config
from conditions import conditions
from measuring import Run, folder_on_disk, measure
from ports import free_port
from process import (
    PATIENCE,
    Process,
    SubjectFailed,
    clean_up_when_told_to_end,
    on_core,
    subject_core,
    world_core,
)
from work import Work, write_customers
from world import Conditions, World

RESULTS = Path(__file__).parent / "results"
US = SUBJECTS["deliveryd"]
IDLE_SECONDS = 60.0
SETTLE_SECONDS = 10.0
RECEIPTS = 20_000
PLACES = 1_000
LATENCY_MS = 100.0
ROUNDS = 3

AS_DELIVERED = {"DELIVERYD_QUEUE__POLL_INTERVAL": "1s"}
"""The pauses of the queue as they are when nobody sets them."""

RECEIPT_KEYS = """
[channels.sms.receipt]
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
failed = ["failed"]
reported_at = "/at"
"""

EACH_KEY = 'each = "/results"\n'
SIGNATURE_KEY = 'signature = { header = "X-Signature", secret_file = "secret" }\n'
SIGNED_WITH = "shared-secret"


@dataclass(frozen=True, slots=True)
class Cost:
    """One figure with its bar; `better` says which way is good."""

    what: str
    value: float
    unit: str
    must: float | None = None
    aim: float | None = None
    better: str = "less"
    note: str = ""

    def verdict(self) -> str:
        """In a word."""
        if self.must is None or self.aim is None:
            return ""
        sign = 1 if self.better == "less" else -1
        if sign * self.value <= sign * self.aim:
            return "aim met"
        return "must met" if sign * self.value <= sign * self.must else "missed"


def start_to_first_delivery() -> list[Cost]:
    """Seconds from the command to the first message at the provider's door, the queue not being empty."""
    times = [_measured(Work(1_000)).first_ms / 1000 for _ in range(5)]
    note = f"median of 5, {min(times):.2f} to {max(times):.2f}"
    return [Cost("start to first delivery", median(times), "s", 1.0, 0.5, note=note)]


def idle() -> list[Cost]:
    """CPU and requests while the queue is empty."""
    with folder_on_disk() as folder, World(Work(0), core=world_core()) as world:
        write_customers(folder / "customers.jsonl")
        start = DAEMON.start(Place(world.base_url, folder))
        process = Process(start.command, folder / "log", subject_core(), AS_DELIVERED)
        try:
            time.sleep(SETTLE_SECONDS)
            cpu, polls, begun = process.cpu, world.report().polls, time.perf_counter()
            time.sleep(IDLE_SECONDS)
            cpu, polls, lasted = process.cpu - cpu, world.report().polls - polls, time.perf_counter() - begun
            process.stop()
            process.wait()
        finally:
            process.close()
    return [
        Cost("idle", cpu / lasted * 100, "% of a core", 0.5, 0.1, note=f"over {lasted:.0f} s"),
        Cost("requests while idle", polls / lasted * 60, "a minute"),
    ]


@dataclass(frozen=True, slots=True)
class Reports:
    """Receipts of one kind: what they add to the configuration and the load; how many tell of a delivery."""

    kind: str
    keys: str
    options: tuple[str, ...]
    delivered: int


REPORTS = (
    Reports("receipts", "", (), RECEIPTS),
    Reports("signed receipts", SIGNATURE_KEY, ("--secret", SIGNED_WITH), RECEIPTS),
    Reports("receipts of other messages", "", ("--prefix", "other"), 0),
    Reports("receipts by the hundred", EACH_KEY, ("--batch", "100"), RECEIPTS),
)


def receipts() -> list[Cost]:
    """Receipts a second that are durable before they are answered, and their CPU, after as many messages."""
    return [cost for reports in REPORTS for cost in _receipts(reports)]


def _receipts(reports: Reports) -> list[Cost]:
    with folder_on_disk() as folder, World(Work(RECEIPTS), core=world_core()) as world:
        write_customers(folder / "customers.jsonl")
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_text(SIGNED_WITH, "utf-8")
        port = free_port()
        config = write_config(world.base_url, folder)
        config.write_text(config.read_text("utf-8") + RECEIPT_KEYS + reports.keys, "utf-8")
        command = [sys.executable, "-m", "deliveryd", "run", "--config", str(config)]
        environ = {"DELIVERYD_RECEIPTS__LISTEN": f"127.0.0.1:{port}"}
        process = Process(command, folder / "log", subject_core(), environ)
        try:
            world.wait_until_finished(PATIENCE)
            before = process.cpu
            posted = _post_receipts(f"http://127.0.0.1:{port}/receipts/sms", reports.options)
            process.stop()
            cost = process.wait()
        finally:
            process.close()
        found = world.report()
    if found.flaws or found.delivered != reports.delivered:
        raise SubjectFailed(
            "; ".join([*found.flaws, f"{found.delivered} of {reports.delivered} reported as delivered"])
        )
    rate = RECEIPTS / posted["seconds"]
    note = f"whoever posts them was busy for {posted['cpu'] / posted['seconds']:.0%} of the time"
    return [
        Cost(f"{reports.kind} durable before the answer", rate, "a second", 3_000, 8_000, "more", note),
        Cost(f"CPU for 1,000 {reports.kind} and their events", (cost.cpu - before) / RECEIPTS * 1e6, "ms"),
    ]


def half_load() -> list[Cost]:
    """The time that deliveryd adds when messages come half as fast as it could send them."""
    full = _measured(Work()).rate
    run = _measured(Work(), Conditions(rate=full / 2), daemon=True)
    note = f"at {full / 2:,.0f} messages a second"
    return [
        Cost("p99 at half of full load", run.p99_ms, "ms", 100, 30, note=note),
        Cost("p50 at half of full load", run.p50_ms, "ms", note=note),
    ]


def slow_provider() -> list[Cost]:
    """The rate with a slow provider and a thousand places, as a share of what is possible, in turns."""
    batch = PLACES // 5  # as docs/how-to/tune.md advises
    fulls: list[float] = []
    rates: dict[int, list[float]] = {PLACES: [], 3 * PLACES: []}
    for _ in range(ROUNDS):
        fulls.append(_measured(Work()).rate)
        for places, measured in rates.items():
            keys = {
                "QUEUE__MAX_IN_FLIGHT": places,
                "QUEUE__BATCH_SIZE": batch,
                "CHANNELS__SMS__CONCURRENCY": PLACES,
            }
            environ = {f"DELIVERYD_{key}": str(value) for key, value in keys.items()}
            measured.append(_measured(Work(), Conditions(latency_ms=LATENCY_MS), environ=environ).rate)
    full = median(fulls)
    possible = min(PLACES / LATENCY_MS * 1000, full)
    costs = []
    for places, measured in rates.items():
        rate = median(measured)
        note = f"{rate:,.0f} of {possible:,.0f} messages a second; CPU-bound rate {full:,.0f}"
        what = f"{LATENCY_MS:.0f} ms of latency, {PLACES:,} at a time, {places:,} places, batches of {batch}"
        costs.append(Cost(what, rate / possible * 100, "% of the possible", 85, 95, "more", note))
    return costs


def _measured(
    work: Work,
    world: Conditions | None = None,
    *,
    daemon: bool = False,
    environ: dict[str, str] | None = None,
) -> Run:
    run = measure(DAEMON if daemon else US, work, world, environ)
    if run.flaws:
        raise SubjectFailed("; ".join(run.flaws))
    return run


def _post_receipts(url: str, options: tuple[str, ...]) -> dict[str, float]:
    """Post them from the world's core; return the seconds that it took, and the CPU seconds."""
    program = str(Path(__file__).parent / "receipts_load.py")
    command = [sys.executable, program, url, str(RECEIPTS), "100", *options]
    with on_core(world_core()):
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    posted: dict[str, float] = json.loads(output)
    return posted


PARTS: dict[str, Callable[[], list[Cost]]] = {
    "start": start_to_first_delivery,
    "idle": idle,
    "receipts": receipts,
    "half-load": half_load,
    "slow-provider": slow_provider,
}


def main() -> int:
    """Measure and print; 1 when something could not be measured."""
    clean_up_when_told_to_end()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; left out: all")
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "costs.json"
    kept = json.loads(path.read_text("utf-8")) if path.exists() else {"parts": {}}
    kept["conditions"] = conditions()
    failed = False
    for name in chosen.parts or PARTS:
        try:
            costs = PARTS[name]()
        except SubjectFailed as error:
            print(f"{name}: {error}")
            failed = True
            continue
        for cost in costs:
            bar = f"must {cost.must:g}, aim {cost.aim:g}: {cost.verdict()}" if cost.must is not None else ""
            print(f"{cost.what}: {cost.value:,.2f} {cost.unit}. {bar} {cost.note}", flush=True)
        kept["parts"][name] = [asdict(cost) for cost in costs]
        path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
