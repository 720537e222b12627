"""What the world saw of a subject, and whether each message fared as it should."""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import asdict, dataclass, field
from typing import Any

from work import Work

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_KEY = re.compile(rb"\r\nidempotency-key: *([^\r]+)\r\n", re.IGNORECASE)
_ORDER = ("dequeued", "sent", "delivered", None)
SHOWN = 5


@dataclass(slots=True)
class Findings:
    """What a run came to; a run with flaws has no figures. Times are seconds of the world's clock."""

    messages: int
    flaws: list[str] = field(default_factory=list)
    seconds: float = 0.0
    first_take: float = 0.0
    first_delivery: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    takes: int = 0
    polls: int = 0
    settings_requests: int = 0
    event_posts: int = 0
    delivered: int = 0

    def as_json(self) -> dict[str, Any]:
        """As it goes over the wire."""
        return asdict(self)


class Ledger:
    """Keeps what comes in as cheaply as it can; reads it when all is over."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.polls = 0
        self.settings_requests = 0
        self.takes: list[tuple[float, int, int]] = []  # when answered, from which message, to before which
        self.requests: list[tuple[float, bytes]] = []
        self.posts: list[tuple[float, bytes]] = []
        self.events = 0

    def judge(self) -> Findings:
        """Compare everything that came in with what had to come."""
        found = Findings(self.work.messages)
        found.polls, found.settings_requests = self.polls, self.settings_requests
        found.takes, found.event_posts = len(self.takes), len(self.posts)
        doors = self._judge_requests(found)
        self._judge_events(found, doors)
        if self.takes and self.requests and self.posts:
            found.first_take, found.first_delivery = self.takes[0][0], self.requests[0][0]
            found.seconds = max(self.posts[-1][0], self.requests[-1][0]) - found.first_take
            found.p50_ms, found.p99_ms = self._latencies(doors)
        return found

    def _judge_requests(self, found: Findings) -> array[float]:
        """Check each provider request; return when each message came to the door, 0 for never."""
        doors = array("d", bytes(8 * (self.work.messages + 1)))
        doubled, misrendered, keyless, keys = [], [], 0, set()
        for at, request in self.requests:
            head, _, body = request.partition(b"\r\n\r\n")
            sent = json.loads(body)
            id_ = int(sent["reference"])
            if doors[id_]:
                doubled.append(id_)
                continue
            doors[id_] = at
            if (sent["to"], sent["text"]) != self.work.expected(id_):
                misrendered.append(id_)
            if key := _KEY.search(head + b"\r\n"):
                keys.add(key[1])
            else:
                keyless += 1
        lost = [id_ for id_ in range(1, self.work.messages + 1) if not doors[id_]]
        _note(found, "messages lost", lost)
        _note(found, "messages sent twice", doubled)
        _note(found, "texts wrong", misrendered)
        if keyless or len(keys) != self.work.messages - len(lost):
            found.flaws.append(
                f"idempotency keys missing or shared: {keyless} missing, {len(keys)} different"
            )
        return doors

    def _judge_events(self, found: Findings, doors: array[float]) -> None:
        """Each message has `dequeued`, `sent` after it was at the provider's door, perhaps `delivered`."""
        statuses = bytearray(self.work.messages + 1)
        wrong: list[int] = []
        for at, post in self.posts:
            for event in json.loads(post.partition(b"\r\n\r\n")[2]):
                id_, status = event["messageId"], event["status"]
                in_order = status == _ORDER[statuses[id_]] and (status != "sent" or 0 < doors[id_] <= at)
                if not in_order or not _INSTANT.fullmatch(event["timestamp"]):
                    wrong.append(id_)
                found.delivered += status == "delivered"
                statuses[id_] = min(statuses[id_] + 1, len(_ORDER) - 1)
        missing = [id_ for id_ in range(1, self.work.messages + 1) if statuses[id_] < 2]
        _note(found, "messages with events missing", missing)
        _note(found, "events out of order, doubled or wrong", wrong)

    def _latencies(self, doors: array[float]) -> tuple[float, float]:
        """The median and the 99th percentile from the queue's answer to the provider's door, in ms."""
        waits = sorted(
            doors[id_] - at for at, start, stop in self.takes for id_ in range(start, stop) if doors[id_]
        )
        if not waits:
            return 0.0, 0.0
        return tuple(waits[int(share * (len(waits) - 1))] * 1000 for share in (0.5, 0.99))  # type: ignore[return-value]


def _note(found: Findings, what: str, ids: list[int]) -> None:
    if ids:
        found.flaws.append(f"{what}: {len(ids)}, such as {ids[:SHOWN]}")
