"""What a worker told the outside, as claims that its journal must be able to stand for from then on."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from deliveryd.model import message_key
from power.tracing import Sent, Step


class Claim(NamedTuple):
    """Something that the outside may rely on; `number`: at least so many times."""

    kind: str
    key: str
    number: int = 1


class Told(NamedTuple):
    """A claim, and the number of the step with which it began to leave."""

    at: int
    claim: Claim


class Outside(NamedTuple):
    """Who is who: the port where receipts come in, and the ids of those, in the order of their coming."""

    receipts_ports: Sequence[int]
    receipts: Sequence[str]


class _Message(NamedTuple):
    """An HTTP message that left, and the step with which it began."""

    at: int
    port: int
    first_line: str
    headers: dict[str, str]
    body: bytes


def claims_of(steps: Sequence[Step], outside: Outside) -> list[Told]:
    """All that was told, in the order of the telling."""
    told: list[Told] = []
    repeats: Counter[str] = Counter()
    answers = 0
    for message in sorted(_messages(steps), key=lambda each: each.at):
        if message.port in outside.receipts_ports and " 20" in message.first_line:
            told.append(Told(message.at, Claim("receipt", outside.receipts[answers])))
            answers += 1
        elif message.first_line.startswith("POST /events "):
            told += (Told(message.at, claim) for claim in _of_events(json.loads(message.body)))
        elif (key := message.headers.get("idempotency-key")) is not None:
            repeats[key] += 1
            told.append(Told(message.at, Claim("intent", key, repeats[key])))
    return told + list(_decisions(steps))


def _of_events(events: Sequence[dict[str, object]]) -> Iterator[Claim]:
    for event in events:
        yield Claim("event", _event_key(event))
        if event["status"] == "sent":
            yield Claim("outcome", str(event["messageId"]))


def _event_key(event: dict[str, object]) -> str:
    return f"{event['messageId']} {event['status']} {event['timestamp']}"


def _decisions(steps: Sequence[Step]) -> Iterator[Told]:
    for at, step in enumerate(steps):
        if isinstance(step, Sent) and step.connection.startswith("UNIX") and b'"done"' in step.data:
            yield from (Told(at, Claim("decision", key)) for key in json.loads(step.data)["done"])


def _messages(steps: Sequence[Step]) -> Iterator[_Message]:
    """HTTP messages, put together from the writes of each connection."""
    streams: dict[str, tuple[int, bytes]] = {}
    for at, step in enumerate(steps):
        if not isinstance(step, Sent) or not step.connection.startswith("TCP"):
            continue
        began, data = streams.pop(step.connection, (at, b""))
        data += step.data
        while (whole := _first_message(began, step.connection, data)) is not None:
            message, data = whole
            yield message
            began = at
        if data:
            streams[step.connection] = (began, data)


def _first_message(at: int, connection: str, data: bytes) -> tuple[_Message, bytes] | None:
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        return None
    first_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    size = int(headers.get("content-length", "0"))
    if len(rest) < size:
        return None
    port = int(connection.partition("->")[0].rpartition(":")[2])
    return _Message(at, port, first_line, headers, rest[:size]), rest[size:]


def facts_of(journal: Path) -> Counter[tuple[str, str]]:
    """What a journal can stand for: by kind and key, how many times."""
    with closing(sqlite3.connect(journal)) as db:
        (namespace,) = db.execute("SELECT value FROM meta WHERE key = 'namespace'").fetchone()
        facts: Counter[tuple[str, str]] = Counter()
        tries = (
            "SELECT message_id, provider, generation, max(stay_tries), sum(verdict IS 'accepted')"
            " FROM attempt GROUP BY message_id, stay"
        )
        for id_, provider, generation, number, accepted in db.execute(tries):
            facts["intent", message_key(namespace, id_, provider, generation)] = number
            facts["outcome", str(id_)] += accepted
        for (body,) in db.execute("SELECT body FROM event"):
            facts["event", _event_key(json.loads(body))] += 1
        for (provider_id,) in db.execute("SELECT provider_id FROM receipt"):
            facts["receipt", provider_id] += 1
        for (key,) in db.execute("SELECT key FROM decision"):
            facts["decision", key] += 1
    return facts


def broken(claims: Sequence[Claim], facts: Counter[tuple[str, str]]) -> list[Claim]:
    """The claims that a journal doesn't stand for."""
    return [claim for claim in claims if facts[claim.kind, claim.key] < claim.number]
