"""Dramatiq with Redis: threads, no results, a session kept by each thread."""

from __future__ import annotations

import os
import sys
import threading

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from queueing import REDIS, Events, Sender, produce, work_with
from templates import Json

PROCESSES = os.environ.get("BENCH_DRAMATIQ_PROCESSES", "1")
THREADS = os.environ.get("BENCH_DRAMATIQ_THREADS", "8")

broker = RedisBroker(url=REDIS)
dramatiq.set_broker(broker)


class _Senders(threading.local):
    """The sender of each thread."""

    sender: Sender | None = None


senders = _Senders()
events: list[Events] = []
opening = threading.Lock()


@dramatiq.actor
def deliver(message: Json) -> None:
    """One message."""
    if senders.sender is None:
        with opening:
            if not events:
                events.append(Events())
        senders.sender = Sender(events[0])
    senders.sender.send(message)


def _enqueue(messages: list[Json]) -> None:
    for message in messages:
        deliver.send(message)


if __name__ == "__main__":
    options = ["--processes", PROCESSES, "--threads", THREADS]
    work_with([sys.executable, "-m", "dramatiq", "queue_dramatiq", *options], lambda: produce(_enqueue))
