"""Two providers of one channel that a test takes down."""

from __future__ import annotations

import json
from pathlib import Path

from deliveryd.channels.base import (
    Accepted,
    Dispatch,
    TryAgain,
)
from support.messages import message
from support.virtual import CONFIG, VirtualChannel, VirtualWorld

BUSY = TryAgain("provider answered 503")


SMS = {"content": {"en": {"sms": {"text": "hello"}}}}


BOTH = {"content": {"en": {"sms": {"text": "hello"}, "email": {"subject": "s", "body": "b"}}}}


A, B = "sms/a", "sms/b"


EMAIL = """\
[channels.email]
adapter = "http"
url = "http://mail/"
json = { text = "{content.body}" }
"""


# the line


class Provider(VirtualChannel):
    """A provider that a test takes down; `reachable` says whether connections to it can be made."""

    def __init__(self) -> None:
        super().__init__()
        self.reachable = True
        self.connections = 0

    async def probe(self) -> str | None:
        self.connections += 1
        return None if self.reachable else "no connection"

    def accepted(self) -> list[int]:
        return [dispatch.entry.id for _, dispatch in self.attempts if self.verdict(dispatch) == ACCEPTED]


ACCEPTED = Accepted()


def sent_by(world: VirtualWorld, name: str) -> list[tuple[float, Dispatch]]:
    """The attempts at a provider."""
    return world.channels[name].attempts


def ids_of(attempts: list[tuple[float, Dispatch]]) -> set[int]:
    return {dispatch.entry.id for _, dispatch in attempts}


def all_sent(world: VirtualWorld, count: int) -> bool:
    return all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, count + 1))


def enqueue(world: VirtualWorld, count: int) -> None:
    world.service.enqueue(*(message(id_) for id_ in range(1, count + 1)))


def world_of_two(folder: Path) -> VirtualWorld:
    """Two providers of the channel sms: a with 80 of 100 messages, b with 20."""
    world = VirtualWorld(folder)
    head = CONFIG[: CONFIG.index("[channels.sms]")]
    tables = (
        f'[channels.sms.providers.{name}]\nadapter = "http"\nurl = "http://{name}/"\n'
        f'json = {{ text = "{{content.text}}" }}\nweight = {weight}\nbreaker.failures = 5\n'
        for name, weight in (("a", 80), ("b", 20))
    )
    queue = '[queue]\npoll_interval = "100ms"\nmax_poll_interval = "1s"\n'
    world.path.write_text("".join((head, queue, *tables)))
    world.service.settings[1] = json.dumps(SMS)
    for name in (A, B):
        world.channels[name] = Provider()
        world.channels[name].verdict = lambda _: ACCEPTED
    return world
