"""What the task queues have in common: where things are, a producer, and buffered events.

Events are sent by the hundred, not one for each task, since a team that cares for throughput would do so too.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import requests
from templates import Json, Templates, event, parse, read_customers

BATCH = 500
EVENTS = 100
PAUSE = 0.1

BASE_URL = os.environ["BENCH_BASE_URL"]
FOLDER = Path(os.environ["BENCH_FOLDER"])
REDIS = os.environ["BENCH_REDIS"]


def produce(enqueue: Callable[[list[Json]], None]) -> None:
    """Take all messages, report them as dequeued, put them into the task queue."""
    with requests.Session() as session:
        while True:
            answer = session.get(f"{BASE_URL}/queue", params={"take": BATCH}, timeout=30)
            messages = parse(answer.content)
            if not messages:
                return
            dequeued = [event(message["id"], "dequeued") for message in messages]
            session.post(f"{BASE_URL}/events", json=dequeued, timeout=30).raise_for_status()
            enqueue(messages)


def work_with(worker: list[str], enqueue_all: Callable[[], None]) -> None:
    """Run a worker beside the producer until every message has its events."""
    process = subprocess.Popen(worker, cwd=Path(__file__).parent)
    try:
        enqueue_all()
        requests.get(f"{BASE_URL}/finished", timeout=280).raise_for_status()
    finally:
        process.terminate()
        process.wait()


class Sender:
    """A session, templates and where events go; one for each thread that sends."""

    def __init__(self, events: Events) -> None:
        self._session = requests.Session()
        self._session.trust_env = False  # else each request looks for proxies and passwords
        self._templates = Templates(read_customers(FOLDER))
        self._events = events

    def send(self, message: Json) -> None:
        """Fetch the settings where they aren't known, send the message, report it as sent."""
        for settings_id in self._templates.unknown([message]):
            answer = self._session.get(f"{BASE_URL}/settings/{settings_id}", timeout=30)
            self._templates.add(settings_id, parse(answer.content))
        answer = self._session.post(
            f"{BASE_URL}/sms",
            json=self._templates.request(message),
            headers={"Idempotency-Key": f"task-{message['id']}"},
            timeout=30,
        )
        answer.raise_for_status()
        _ = answer.json()["id"]
        self._events.add(event(message["id"], "sent"))


class Events:
    """Collects events of a process and posts them, a hundred at a time or after a tenth of a second."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session = requests.Session()
        self._events: list[Json] = []
        threading.Thread(target=self._post_forever, daemon=True).start()

    def add(self, one: Json) -> None:
        """Report this soon."""
        with self._lock:
            self._events.append(one)
            full = len(self._events) >= EVENTS
        if full:
            self._post()

    def _post_forever(self) -> None:
        while True:
            time.sleep(PAUSE)
            self._post()

    def _post(self) -> None:
        with self._lock:
            events, self._events = self._events, []
            if events:
                self._session.post(f"{BASE_URL}/events", json=events, timeout=30).raise_for_status()
