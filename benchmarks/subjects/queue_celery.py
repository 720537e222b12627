"""Celery with Redis: the prefork pool, results ignored, a session kept by each process."""

from __future__ import annotations

import os
import sys
from typing import Any

from celery import Celery
from celery.signals import worker_process_init
from queueing import REDIS, Events, Sender, produce, work_with
from templates import Json

PROCESSES = os.environ.get("BENCH_CELERY_PROCESSES", "4")

app = Celery("queue_celery", broker=REDIS)
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    task_serializer="json",
    broker_connection_retry_on_startup=True,
)
senders: list[Sender] = []


@worker_process_init.connect
def _open(**_: Any) -> None:
    senders.append(Sender(Events()))


@app.task(name="deliver")
def deliver(message: Json) -> None:
    """One message."""
    senders[0].send(message)


def _enqueue_all() -> None:
    with app.producer_pool.acquire(block=True) as producer:
        produce(lambda messages: [deliver.apply_async((message,), producer=producer) for message in messages])


if __name__ == "__main__":
    options = ["--pool=prefork", f"--concurrency={PROCESSES}", "--loglevel=WARNING"]
    lean = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    work_with([sys.executable, "-m", "celery", "-A", "queue_celery", "worker", *options, *lean], _enqueue_all)
