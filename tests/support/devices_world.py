"""The line in virtual time with messages for a customer with devices."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import trio

from deliveryd.commands.messages.explanation import life_lines
from deliveryd.directory.base import NoDirectory
from deliveryd.journal.opening import open_reader
from deliveryd.journal.sql.audit import CHECKS
from deliveryd.model import Customer
from deliveryd.states import State
from support.http_world import HttpWorld
from support.messages import message
from support.virtual import live

OPTIONS = """\
recipient = "{customer.tokens}"
devices = true
provider_id = "/id"
answers = [{ status = [404], verdict = "stopped" }, { status = [400], verdict = "refused" }]
retry = { attempts = 3, base = "10s", max = "10s" }
breaker = { failures = 0 }
"""


class Devices(NoDirectory):
    """Every customer has these devices."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = json.dumps(tokens)

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Any]:
        return {id_: Customer(id_, {"tokens": self.tokens}) for id_ in ids}


class DevicesWorld(HttpWorld):
    """One message for a customer with devices, each of which answers as `devices` has it, by turns."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.devices: dict[str, list[int | str]] = {}
        self.provider.answer = self.answer
        self.service.settings[1] = json.dumps({"content": {"en": {"sms": {"text": "hello"}}}})
        self.service.enqueue(message(1))
        text = self.path.read_text(encoding="utf-8")
        mapped = 'json = { token = "{customer.tokens}", text = "{content.text}", ref = "{message.key}" }'
        self.write(text.replace('json = { text = "{content.text}" }', mapped) + OPTIONS)

    def have(self, **answers: list[int | str]) -> None:
        """Let the customer have devices, with their answers: the last one again and again."""
        self.devices = answers
        self.directory = Devices(*answers)

    def answer(self, request: httpx.Request) -> httpx.Response:
        token = json.loads(request.content)["token"]
        answers = self.devices[token]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, str):
            raise httpx.ReadError(answer)
        return httpx.Response(answer, json={"id": f"id-{token}"})

    @property
    def asked(self) -> Counter[str]:
        """How many requests each device had."""
        return Counter(json.loads(request.content)["token"] for request in self.provider.requests)

    @property
    def keys(self) -> Mapping[str, set[str]]:
        """The keys of each device's requests."""
        found: dict[str, set[str]] = {}
        for request in self.provider.requests:
            key = request.headers["Idempotency-Key"]
            assert json.loads(request.content)["ref"] == key
            found.setdefault(json.loads(request.content)["token"], set()).add(key)
        return found

    def run(self, seconds: float = float("inf")) -> None:
        """Run a worker until there is nothing to do, or for so many seconds."""

        async def story() -> None:
            with trio.move_on_after(seconds):
                await self.run_until_idle()

        live(story)

    @property
    def state(self) -> State:
        """The state of the message."""
        [(state,)] = self.journal_rows("SELECT state FROM message")
        assert isinstance(state, int)
        return State(state)

    def explained(self) -> Sequence[str]:
        """What `explain` prints of the message."""
        [life] = open_reader(self.config().journal.place).lives([1])
        return life_lines(life, ())

    @property
    def kept(self) -> object:
        """What is kept for a repeat."""
        [(content,)] = self.journal_rows("SELECT content FROM message")
        return content

    def stopped(self) -> int:
        """How many recipients are suppressed."""
        return len(open_reader(self.config().journal.place).stopped(None))

    def check(self) -> None:
        """No check of the audit is violated, and each device had one key for each message."""
        assert {name: found for name, sql in CHECKS.items() if (found := self.journal_rows(sql))} == {}
        messages = len({key.split("-")[1] for keys in self.keys.values() for key in keys})
        assert [token for token, keys in self.keys.items() if len(keys) > messages] == []
        assert len(set().union(*self.keys.values())) == sum(map(len, self.keys.values()))
