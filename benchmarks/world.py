"""The world around a subject: the remote service and the provider, cheap enough never to be the limit.

One process with a hand-written protocol on uvloop. `python benchmarks/world.py` opens it for a program of
your own: it prints its address, and `GET /report` tells what became of the work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import uvloop

from ledger import Findings, Ledger
from process import on_core
from work import Work

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
ACCEPTED = HEAD % 17 + b'{"id":"p%07d"}'
EVENTS_TAKEN = HEAD % 2 + b"{}"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Latencies of the provider and of posts of events; messages a second that the queue lets go (0: all)."""

    latency_ms: float = 0.0
    rate: float = 0.0
    events_latency_ms: float = 0.0


class Service:
    """What the service and the provider answer. Every answer that can be is made before the first request."""

    def __init__(self, work: Work, conditions: Conditions) -> None:
        self.ledger = Ledger(work)
        self.latency = conditions.latency_ms / 1000
        self.events_latency = conditions.events_latency_ms / 1000
        self.finished = asyncio.Event()
        self._work = work
        self._rate = conditions.rate
        self._elements = list(work.elements())
        self._settings = {
            id_: _answer(work.settings_body(id_)) for id_ in range(1, min(work.settings, 100) + 1)
        }
        self._given = 0
        self._opened = 0.0
        self._searched: dict[bytes, int] = {}

    def take(self, count: int) -> bytes:
        """Answer the queue."""
        now = time.perf_counter()
        ledger = self.ledger
        ledger.polls += 1
        if self._rate:
            self._opened = self._opened or now
            count = min(count, int((now - self._opened) * self._rate) + 1 - self._given)
        start, stop = self._given, min(self._given + max(count, 0), len(self._elements))
        if start == stop:
            return HEAD % 2 + b"[]"
        self._given = stop
        answer = _answer(b"[" + b",".join(self._elements[start:stop]) + b"]")
        ledger.takes.append((time.perf_counter(), start + 1, stop + 1))
        return answer

    def settings(self, settings_id: int) -> bytes:
        """Answer a request for settings."""
        self.ledger.settings_requests += 1
        return self._settings.get(settings_id) or _answer(self._work.settings_body(settings_id))

    def events(self, request: bytes) -> bytes:
        """Take events in."""
        ledger = self.ledger
        ledger.posts.append((time.perf_counter(), request))
        ledger.events += request.count(b'"messageId"')
        if ledger.events >= 2 * self._work.messages:
            self.finished.set()
        return EVENTS_TAKEN

    def provider(self, request: bytes) -> bytes:
        """Take a message in."""
        requests = self.ledger.requests
        requests.append((time.perf_counter(), request))
        return ACCEPTED % len(requests)

    def first(self, word: bytes) -> bytes:
        """Answer when the first message with this value of `via` came, or null."""
        requests, needle = self.ledger.requests, b'"via":"%b"' % word
        for number in range(self._searched.get(word, 0), len(requests)):
            at, request = requests[number]
            if needle in request:
                return _answer(b"%f" % at)
            self._searched[word] = number + 1
        return _answer(b"null")


def _answer(body: bytes) -> bytes:
    return HEAD % len(body) + body


class Door(asyncio.Protocol):
    """One connection: HTTP/1.1 with Content-Length, which is all that any subject speaks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._left = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._left:
            data = self._left + data
        while data:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                break
            size = end if data.startswith(b"GET") else end + _content_length(data[:end])
            if len(data) < size:
                break
            self._handle(data if len(data) == size else data[:size])
            data = data[size:]
        self._left = data

    def _handle(self, request: bytes) -> None:
        service, write = self._service, self._transport.write
        if request.startswith(b"POST /sms "):
            self._answer_after(service.latency, service.provider(request))
        elif request.startswith(b"POST /events "):
            self._answer_after(service.events_latency, service.events(request))
        elif request.startswith(b"GET /queue?take="):
            write(service.take(int(request[16 : request.index(b" ", 16)])))
        elif request.startswith(b"GET /settings/"):
            write(service.settings(int(request[14 : request.index(b" ", 14)])))
        elif request.startswith(b"GET /first?"):
            write(service.first(request[11 : request.index(b" ", 11)]))
        elif request.startswith(b"GET /finished "):
            asyncio.get_running_loop().create_task(self._when_finished())
        elif request.startswith(b"GET /report "):
            write(_answer(json.dumps(service.ledger.judge().as_json()).encode()))
        else:
            write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def _answer_after(self, seconds: float, answer: bytes) -> None:
        if seconds:
            asyncio.get_running_loop().call_later(seconds, self._transport.write, answer)
        else:
            self._transport.write(answer)

    async def _when_finished(self) -> None:
        await self._service.finished.wait()
        self._transport.write(EVENTS_TAKEN)


def _content_length(head: bytes) -> int:
    lowered = head.lower()
    place = lowered.find(b"\r\ncontent-length:")
    return 0 if place < 0 else int(lowered[place + 17 : lowered.find(b"\r\n", place + 2)])


async def _serve(work: Work, conditions: Conditions, port: int) -> None:
    service = Service(work, conditions)
    server = await asyncio.get_running_loop().create_server(
        lambda: Door(service), "127.0.0.1", port, backlog=4096
    )
    bound = server.sockets[0].getsockname()[1]
    print(json.dumps({"base_url": f"http://127.0.0.1:{bound}"}), flush=True)
    await server.serve_forever()


class World:
    """A world in a process of its own, for as long as the `with` lasts."""

    def __init__(self, work: Work, conditions: Conditions | None = None, core: int | None = None) -> None:
        self._work = work
        self._conditions = conditions or Conditions()
        self._core = core

    def __enter__(self) -> Self:
        work, conditions = self._work, self._conditions
        command = [
            sys.executable, str(Path(__file__)), f"--messages={work.messages}", f"--settings={work.settings}",
            f"--text-length={work.text_length}", f"--latency-ms={conditions.latency_ms}",
            f"--rate={conditions.rate}", f"--events-latency-ms={conditions.events_latency_ms}",
        ]  # fmt: skip
        with on_core(self._core):
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.base_url: str = json.loads(self._process.stdout.readline())["base_url"]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def cpu(self) -> float:
        """CPU seconds that the world has used so far."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def wait_until_finished(self, timeout: float) -> None:
        """Return when every message has its two events. Raises TimeoutError or URLError."""
        self._get("/finished", timeout)

    def report(self) -> Findings:
        """What became of the work so far."""
        return Findings(**json.loads(self._get("/report", 300.0)))

    def _get(self, path: str, timeout: float) -> bytes:
        with urllib.request.urlopen(self.base_url + path, timeout=timeout) as answer:  # noqa: S310
            body: bytes = answer.read()
        return body


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--settings", type=int, default=20, help="how many settings ids there are")
    parser.add_argument(
        "--text-length", type=int, default=0, help="least length of a template, in characters"
    )
    parser.add_argument("--latency-ms", type=float, default=0.0, help="of the provider")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="messages a second that the queue lets go; 0: all"
    )
    parser.add_argument("--events-latency-ms", type=float, default=0.0, help="of the service's /events")
    parser.add_argument("--port", type=int, default=0)
    chosen = parser.parse_args()
    work = Work(chosen.messages, chosen.settings, chosen.text_length)
    conditions = Conditions(chosen.latency_ms, chosen.rate, chosen.events_latency_ms)
    uvloop.run(_serve(work, conditions, chosen.port))


if __name__ == "__main__":
    main()
