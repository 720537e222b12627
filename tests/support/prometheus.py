"""A real Prometheus that scrapes a worker: Debian's package, on a free port, with its data in a folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from support.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
RULES_TEST = ROOT / "deploy" / "prometheus" / "rules_test.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "deliveryd.json"
PROMTOOL = shutil.which("promtool")
PROMETHEUS = shutil.which("prometheus")
MISSING = "needs Debian's prometheus (apt-get install prometheus)"
SCRAPES = 0.5
"""Seconds between two scrapes."""

CONFIG = """\
global: {{ scrape_interval: 500ms, evaluation_interval: 500ms }}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: deliveryd
    static_configs: [{{ targets: ["{target}"] }}]
"""


class Prometheus:
    """A server to ask."""

    def __init__(self, address: str) -> None:
        self._client = httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=PATIENCE)

    def series(self, query: str) -> list[dict[str, Any]]:
        """What an instant query returns."""
        answer = self._client.get("/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", (query, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def until(self, query: str) -> None:
        """Wait until a query returns something."""
        deadline, between = time.monotonic() + PATIENCE, threading.Event()
        while not self.series(query):
            assert time.monotonic() < deadline, f"{query} returned nothing within {PATIENCE} s"
            between.wait(SCRAPES / 2)  # nothing tells of a scrape

    def rules(self) -> list[dict[str, Any]]:
        """The rules as the server read them, and how their last evaluation went."""
        groups = self._client.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def close(self) -> None:
        """Close the connections to it."""
        self._client.close()


@contextmanager
def scraping(target: str, folder: Path) -> Iterator[Prometheus]:
    """A server that scrapes a worker's address, with our rules, as long as the block lasts."""
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(rules=RULES, target=target), encoding="utf-8")
    assert PROMETHEUS is not None
    process = subprocess.Popen(
        [
            *(PROMETHEUS, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"),
            *("--web.listen-address=127.0.0.1:0", "--log.format=json"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        prometheus = Prometheus(_address(process))
        yield prometheus
        prometheus.close()
    finally:
        process.kill()
        process.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    """Read the log up to where it listens and serves requests, logged in either order; return the address."""
    assert process.stderr is not None
    address, ready, lines = "", False, []
    for line in process.stderr:
        lines.append(line)
        entry = json.loads(line)
        if entry.get("msg") == "Listening on":
            address = entry["address"]
        ready = ready or entry.get("msg") == "Server is ready to receive web requests."
        if ready and address:
            return address
    raise AssertionError(f"Prometheus ended: {''.join(lines)}")
