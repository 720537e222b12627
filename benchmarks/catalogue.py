"""The subjects: what each is, and how it is started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "subjects"

CONFIG = """\
[service]
base_url = "{base_url}"

[queue]
batch_size = 500
poll_interval = "50ms"

[settings]
cache_dir = "cache"

[content]
languages = ["en", "de"]

[customers]
source = "file"
path = "customers.jsonl"

[journal]
url = "sqlite:///journal.db"

[admin]
listen = "127.0.0.1:0"

[receipts]
listen = ""

[log]
level = "info"
format = "json"

[channels]
order = ["sms"]

[channels.sms]
adapter = "http"
url = "{base_url}/sms"
json = {{ to = "{{customer.phone}}", text = "{{content.text}}", reference = "{{message.id}}" }}
provider_id = "/id"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a subject works: the world's address, a folder of its own, and a Redis if it wants one."""

    base_url: str
    folder: Path
    redis: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """How a subject is started in a folder of its own, with what environment."""

    command: list[str]
    environ: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Subject:
    """One way to do the work. `share` is the part of the messages that a slow one gets."""

    name: str
    title: str
    start: Callable[[Place], Start]
    share: float = 1.0
    redis: bool = False


@dataclass(frozen=True, slots=True)
class Daemon(Subject):
    """A subject that goes on when the work is done, until it is told to stop."""


def write_config(base_url: str, folder: Path) -> Path:
    """Write deliveryd's configuration."""
    path = folder / "config.toml"
    path.write_text(CONFIG.format(base_url=base_url), encoding="utf-8")
    return path


def _until_idle(place: Place) -> Start:
    config = write_config(place.base_url, place.folder)
    return Start([sys.executable, "-m", "deliveryd", "run", "--until-idle", "--config", str(config)], {})


def _daemon(place: Place) -> Start:
    config = write_config(place.base_url, place.folder)
    return Start([sys.executable, "-m", "deliveryd", "run", "--config", str(config)], {})


def _program(file: str) -> Callable[[Place], Start]:
    def start(place: Place) -> Start:
        return Start([sys.executable, str(FOLDER / file), place.base_url, str(place.folder)], {})

    return start


def _task_queue(file: str) -> Callable[[Place], Start]:
    def start(place: Place) -> Start:
        environ = {
            "BENCH_BASE_URL": place.base_url,
            "BENCH_FOLDER": str(place.folder),
            "BENCH_REDIS": place.redis,
        }
        return Start([sys.executable, str(FOLDER / file)], environ)

    return start


DAEMON = Daemon("daemon", "deliveryd as a daemon", _daemon)
"""For a queue that is empty at times, at which `--until-idle` would end."""

SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("floor", "floor: bare protocol, bare SQLite", _program("floor.py")),
        Subject("deliveryd", "deliveryd", _until_idle),
        Subject("aiohttp", "aiohttp and uvloop, semaphore 100", _program("script_aiohttp.py")),
        Subject("httpx", "httpx, semaphore 100", _program("script_httpx.py"), share=0.1),
        Subject("sequential", "httpx, sequential", _program("script_httpx_sequential.py"), share=0.2),
        Subject("taskiq", "taskiq, Redis", _task_queue("queue_taskiq.py"), share=0.2, redis=True),
        Subject("dramatiq", "dramatiq, Redis", _task_queue("queue_dramatiq.py"), share=0.2, redis=True),
        Subject("arq", "arq, Redis", _task_queue("queue_arq.py"), share=0.1, redis=True),
        Subject("celery", "Celery, Redis", _task_queue("queue_celery.py"), share=0.1, redis=True),
    )
}
