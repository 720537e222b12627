"""The providers behind the channels: they honour idempotency keys, and say later what became of messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import anyio

from deliveryd.channels.devices import device_key
from deliveryd.http.wire import Headers, Target, WireResponse
from simulation.ledger import Accepted, Asked, LookedUp, channel_served_by
from simulation.plan import Report, Step, Trouble
from simulation.wire import Request
from simulation.world import World

LOOKUP = b"/lookup"
"""Where a provider is asked about messages."""


def host_of(provider: str) -> str:
    """The host at which a provider takes messages."""
    return provider.replace("/", ".")


def provider_at(host: str) -> str:
    """The provider that takes messages at a host."""
    return host.replace(".", "/")


def _key_asked_for(request: Request) -> str:
    return request.path.rpartition("=")[2]


class Sent(NamedTuple):
    """A message whose provider will report."""

    provider: str
    message_id: int
    key: str
    provider_id: str
    reports: tuple[Report, ...]


class Providers:
    """All providers, each at a host of its own. `on_sent` is called with what will be reported."""

    def __init__(self, world: World, on_sent: Callable[[Sent], None]) -> None:
        self._world = world
        self._on_sent = on_sent
        self._by_key: dict[str, Accepted] = {}
        self._ids = count(1)
        self._settings = {message.id: message.settings_id for message in world.plan.messages}
        self._reports = {message.id: message.reports for message in world.plan.messages}

    def endpoint(self, target: Target) -> str:
        """All share one schedule of troubles, and another one for questions about messages in doubt."""
        return "lookup" if target.path.startswith(LOOKUP) else "provider"

    def provider(self, target: Target) -> str | None:
        """Each can be down for itself."""
        return provider_at(target.host)

    def steps(self, endpoint: str) -> tuple[Step, Step] | None:
        """Before and after a provider took the message."""
        return (Step.SENDING, Step.SENT) if endpoint == "provider" else None

    def arrives(self, request: Request) -> None:
        """Record the attempt, and whether the journal's file knows of it already; or the question."""
        if request.endpoint == "lookup":
            self._note_question(request)
            return
        content = json.loads(request.body)
        message_id = int(content.pop("reference"))
        key = next(value.decode() for name, value in request.headers if name == b"Idempotency-Key")
        world = self._world
        provider = provider_at(request.host)
        intended = [intent.key(message_id, provider) for intent in world.kept.intents(message_id, provider)]
        if world.plan.sends_to_devices(channel_served_by(provider)):
            intended += [device_key(each, content["to"]) for each in intended]
        world.ledger.asked.append(
            Asked(
                world.ledger.number(),
                request.life,
                request.number,
                request.trouble,
                provider,
                message_id,
                key,
                content,
                world.wall.at(anyio.current_time()),
                anyio.current_time(),
                key in intended,
            )
        )

    def _note_question(self, request: Request) -> None:
        world, key = self._world, _key_asked_for(request)
        world.ledger.looked_up.append(
            LookedUp(
                world.ledger.number(),
                request.life,
                request.number,
                provider_at(request.host),
                int(key.split("-")[1]),
                key,
                key in self._by_key,
                request.trouble,
                anyio.current_time(),
            )
        )

    def _answer(self, request: Request) -> WireResponse:
        known = self._by_key.get(_key_asked_for(request))
        found = {"found": "no"} if known is None else {"found": "yes", "id": known.provider_id}
        return WireResponse(200, {}, json.dumps(found).encode())

    def work(self, request: Request) -> WireResponse:
        """Take the message, once per key; or say whether it is there."""
        if request.endpoint == "lookup":
            return self._answer(request)
        asked = next(asked for asked in reversed(self._world.ledger.asked) if asked.request == request.number)
        known = self._by_key.get(asked.key)
        if known is None:
            ledger = self._world.ledger
            provider_id = f"{asked.provider}-{next(self._ids)}"
            known = Accepted(ledger.number(), asked.provider, asked.message_id, asked.key, provider_id)
            self._by_key[asked.key] = known
            ledger.accepted.append(known)
            if not self._world.plan.sends_to_devices(asked.channel):  # of which none reports
                reports = self._reports[asked.message_id]
                self._on_sent(Sent(asked.provider, asked.message_id, asked.key, provider_id, reports))
        return WireResponse(200, {}, json.dumps({"id": known.provider_id}).encode())

    def spoiled(self, request: Request, status: int) -> None:
        """Nothing to note: the attempt's record knows its trouble."""

    def lost(self, request: Request, received: bytes) -> None:
        """Nothing to note: the attempt's record knows its trouble."""

    def rejection(self, target: Target, headers: Headers, body: bytes) -> Trouble | None:
        """A request without a good token; a message, or the template of it, that no provider accepts yet."""
        if not self._world.issuer.accepts(provider_at(target.host), headers):
            return Trouble.UNAUTHORIZED
        rejections = self._world.plan.rejections
        if (
            rejections is None
            or self.endpoint(target) != "provider"
            or anyio.current_time() >= rejections.until
        ):
            return None
        message_id = int(json.loads(body)["reference"])
        if message_id in rejections.messages:
            return Trouble.UNAUTHORIZED
        return Trouble.BAD_REQUEST if self._settings[message_id] in rejections.settings else None

    def hang(self, request: Request) -> str | None:
        """No provider gives no answer for long, but for what single requests suffer."""
        return None
