"""The remote service: its queue, its events and its settings (interface 4)."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import accumulate, islice

import anyio

from deliveryd.http.wire import Headers, Target, WireResponse
from simulation.ledger import Handed, Polled, Posted, Taken, read_event
from simulation.plan import Message, Offers, Step, Template, Trouble
from simulation.wire import Request
from simulation.world import START, World

ABOUT_THE_EVENTS = frozenset({400, 409, 413, 422})
ABOUT_THE_SETTINGS = frozenset({200, 400, 404, 410, 422})

_NUMBER = re.compile(r"\d+(\.\d+)?")
_STEPS = {
    "queue": (Step.QUEUE_ASKED, Step.QUEUE_ANSWERED),
    "events": (Step.EVENTS_POSTED, Step.EVENTS_NOTED),
}


class Service:
    """Hands out messages, takes events, gives settings."""

    def __init__(self, world: World) -> None:
        self._world = world
        plan = world.plan
        first = len(plan.malformed) if plan.offers is Offers.UNTIL_DEQUEUED else 1
        elements = map(_element, plan.messages)
        self.queue = deque([*plan.malformed[:first], *elements, *plan.malformed[first:]])
        self._again = sorted(
            ((after, _element(message)) for message in plan.messages for after in message.again),
        )
        self._takes = 0
        self._refused = {
            (message.id, status): message.pardon for message in plan.messages for status in message.refused
        }
        self._templates = {id_: _body(template) for id_, template in plan.templates.items()}

    @property
    def gives_more(self) -> bool:
        """Whether it will hand out again what it handed out."""
        return bool(self._again)

    def endpoint(self, target: Target) -> str:
        """By the first word of the path."""
        return re.split(r"[/?]", target.path.decode())[1]

    def provider(self, _target: Target) -> str | None:
        """It is none."""
        return None

    def steps(self, endpoint: str) -> tuple[Step, Step] | None:
        """Nothing of note happens while settings are fetched."""
        return _STEPS.get(endpoint)

    def arrives(self, request: Request) -> None:
        """Note when the queue is asked, and at which events the service fails that come alone."""
        if request.endpoint == "events" and request.trouble is not None:
            bodies = _events(request.body)
            if len(bodies) == 1:
                self._world.ledger.failed_events.add(bodies[0])
        if request.endpoint == "queue":
            ledger = self._world.ledger
            ledger.polled.append(
                Polled(ledger.number(), request.life, request.number, request.trouble, anyio.current_time())
            )

    def work(self, request: Request) -> WireResponse:
        """Do what is asked."""
        if request.endpoint == "queue":
            return self._take(request)
        if request.endpoint == "events":
            return self._post(request)
        body = self._templates.get(_settings_id(request))
        if body is None:
            self.spoiled(request, 404)
            return WireResponse(404, {}, b"")
        return WireResponse(200, {}, body)

    def spoiled(self, request: Request, status: int) -> None:
        """Remember what the worker has to believe after such an answer."""
        if request.endpoint == "settings" and status in ABOUT_THE_SETTINGS:
            self._world.ledger.unusable_settings.add(_settings_id(request))
        if request.endpoint == "events" and status in ABOUT_THE_EVENTS:
            bodies = _events(request.body)
            if len(bodies) == 1:
                self._world.ledger.refused_events.add(bodies[0])

    def rejection(self, _target: Target, headers: Headers, _body: bytes) -> Trouble | None:
        """The service looks at tokens, and at no content."""
        return None if self._world.issuer.accepts("service", headers) else Trouble.UNAUTHORIZED

    def hang(self, request: Request) -> str | None:
        """Settings can hang, each id for itself."""
        return f"settings {_settings_id(request)}" if request.endpoint == "settings" else None

    def lost(self, request: Request, received: bytes) -> None:
        """What was in the lost part of an answer is handed out again, if this queue does so."""
        taken = self._world.ledger.taken.get(request.number)
        if taken is None:
            return
        whole = _whole_in(taken.raws, received)
        self._world.ledger.taken[request.number] = taken._replace(whole=whole)
        if self._world.plan.offers is Offers.AGAIN:
            self.queue.extendleft(reversed(taken.raws[whole:]))

    def hand_out_again(self, raws: Iterable[str]) -> None:
        """Hand out once more what a worker that died had not recorded."""
        self.queue.extend(raws)

    def _take(self, request: Request) -> WireResponse:
        self._takes += 1
        while self._again and self._again[0][0] <= self._takes:
            self.queue.append(self._again.pop(0)[1])
        self._give_forgotten_again()
        count = int(request.path.rpartition("=")[2])
        ledger = self._world.ledger
        raws = tuple(islice(self.queue, min(count, self._world.plan.handed_at_once or count)))
        if self._world.plan.offers is not Offers.UNTIL_DEQUEUED:
            for _ in raws:
                self.queue.popleft()
        ledger.taken[request.number] = Taken(request.life, request.number, raws, len(raws), request.trouble)
        at = anyio.current_time()
        for raw in raws:
            ledger.handed.append(Handed(ledger.number(), request.life, request.number, raw, id_of(raw), at))
        return WireResponse(200, {}, f"[{','.join(raws)}]".encode())

    def _give_forgotten_again(self) -> None:
        forgotten = self._world.forgotten
        elements = {message.id: _element(message) for message in self._world.plan.messages if forgotten}
        self.queue.extend(elements[id_] for id_ in forgotten if id_ in elements)
        forgotten.clear()

    def _post(self, request: Request) -> WireResponse:
        bodies = _events(request.body)
        if len(bodies) > self._world.plan.most_events:
            return WireResponse(413, {}, b"")
        refused = [key for body in bodies if (key := read_event(body)[:2]) in self._refused]
        if refused:
            status = 409 if refused[0][0] % 2 else 422
            self.spoiled(request, status)
            if len(bodies) == 1:
                self._refuse(refused[0])
            return WireResponse(status, {}, b"")
        ledger = self._world.ledger
        at = anyio.current_time()
        ledger.posted.append(Posted(ledger.number(), request.life, request.number, tuple(bodies), at))
        if self._world.plan.offers is Offers.UNTIL_DEQUEUED:
            self._offer_no_more(bodies)
        return WireResponse(204, {}, b"")

    def _offer_no_more(self, bodies: Iterable[str]) -> None:
        dequeued = {event.message_id for event in map(read_event, bodies) if event.status == "dequeued"}
        if dequeued:
            self.queue = deque(raw for raw in self.queue if id_of(raw) not in dequeued)

    def _refuse(self, key: tuple[int, str]) -> None:
        """Refuse an event that came alone; after so many times that is over."""
        self._refused[key] -= 1
        if not self._refused[key]:
            del self._refused[key]


def _events(body: bytes) -> list[str]:
    return [json.dumps(event) for event in json.loads(body)]


def _settings_id(request: Request) -> int:
    return int(request.path.rpartition("/")[2])


def id_of(raw: str) -> int | None:
    """The id of an element of the queue, if it has one."""
    element = json.loads(raw)
    id_ = element.get("id") if isinstance(element, dict) else None
    return int(id_) if isinstance(id_, int | float) else None


def _whole_in(raws: Iterable[str], received: bytes) -> int:
    """How many of a batch's elements stand whole in the first part of its answer.

    A word or a number is whole when something comes behind it.
    """
    ends = accumulate(len(raw.encode()) + 1 for raw in raws)
    return sum(end + (raw[-1] not in '"]}') <= len(received) for end, raw in zip(ends, raws, strict=True))


def _element(message: Message) -> str:
    """A message as the queue writes it; a value that looks like a number is one, in its own spelling."""
    variables = ",".join(
        f"{json.dumps(name)}:{value if _NUMBER.fullmatch(value) else json.dumps(value)}"
        for name, value in message.variables.items()
    )
    return (
        f'{{"id":{message.id},"settingsId":{message.settings_id},"customerId":{message.customer_id},'
        f'"variables":{{{variables}}}}}'
    )


def _body(template: Template) -> bytes:
    content = {
        language: {block: _nested(fields) for block, fields in blocks.items()}
        for language, blocks in template.content.items()
    }
    settings: dict[str, object] = {"content": content}
    if template.expires is not None:
        settings["delivery"] = {"expiresAt": iso(START + int(template.expires * 1_000_000))}
    return json.dumps(settings).encode()


def _nested(fields: Mapping[str, str]) -> dict[str, object]:
    nested: dict[str, object] = {}
    for name, text in fields.items():
        outer, _, inner = name.partition(".")
        if inner:
            below = nested.setdefault(outer, {})
            assert isinstance(below, dict)
            below[inner] = text
        else:
            nested[name] = text
    return nested


def iso(instant: int) -> str:
    """An instant as the interface writes it (interface 6)."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def instant_of(text: str) -> int:
    """What `iso` wrote."""
    moment = datetime.fromisoformat(text)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
