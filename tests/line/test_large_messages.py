"""Large messages don't hold the event loop: what grows with a text is done beside it, or in slices."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
import trio
from anyio.abc import TaskGroup

from deliveryd.channels.base import Accepted, Dispatch, Verdict
from deliveryd.channels.http.request import HttpRequest, PartsWriter
from deliveryd.channels.mail import mime, writer
from deliveryd.delivery.dispatcher import MOST_BEGUN
from deliveryd.delivery.preparation import MOST_FILLED, Preparer
from deliveryd.delivery.routing import Route
from deliveryd.directory.base import Terms
from deliveryd.directory.http import open_http_source
from deliveryd.directory.http_options import HttpDirectoryOptions
from deliveryd.model import Customer, Entry
from deliveryd.runtime.threads import Aside
from deliveryd.service.batch import read_batch
from deliveryd.testing.gateway import Reply, open_gateway
from deliveryd.testing.samples import dispatch, opened
from support.mail_server import open_mail_server
from support.messages import message, sms_settings
from support.smtp_letters import mail_to, options_for
from support.virtual import CONFIG, VirtualChannel, VirtualWorld, live

MOST_CALLS = 10_000
"""Calls of functions in one turn of the event loop at most: some milliseconds of work."""

_COUNTED = re.compile(r"/deliveryd/(?!testing/)|/email/|/json/|/urllib/")


@pytest.fixture
def anyio_backend() -> str:
    """Turns are counted where Python runs them."""
    return "asyncio"


class Turns:
    """A stopwatch that counts calls in the worker's own code and the mail library, since seconds vary.

    A turn is all that is ready together: many short steps take as long as a long one.
    """

    def __init__(self) -> None:
        self.longest = 0
        self._calls = 0

    def count(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event in {"call", "c_call"} and _COUNTED.search(frame.f_code.co_filename):
            self._calls += 1
            self.longest = max(self.longest, self._calls)

    def begin(self) -> None:
        self._calls = 0


@contextmanager
def turns_counted() -> Iterator[Turns]:
    """Count the calls in each turn of this thread's event loop."""
    turns, run = Turns(), asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]  # it is private

    def counted(loop: asyncio.BaseEventLoop) -> None:
        turns.begin()
        run(loop)

    with patch.object(asyncio.BaseEventLoop, "_run_once", counted):
        sys.setprofile(turns.count)
        try:
            yield turns
        finally:
            sys.setprofile(None)


def _html(size: int) -> str:
    line = '<p>Your order <b>no. 17</b> &amp; parcel: <a href="https://example.org/t">caf\u00e9</a>.</p>\n'
    return f"<html><body>{line * (size // len(line))}</body></html>"


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_large_mail_is_composed_beside_the_loop() -> None:
    """1 MiB of HTML is sent whole, and no turn of the loop makes more than some thousand calls."""
    async with (
        open_mail_server() as server,
        opened("smtp", options_for(server), block="email") as channel,
    ):
        mail = mail_to("ada@example.com", {"subject": "s", "body": _html(1 << 20), "format": "html"})
        with turns_counted() as turns:
            verdict = await channel.send(mail)
        assert isinstance(verdict, Accepted)
        assert len(server.mails[0].content or b"") > 1 << 20
    assert turns.longest < MOST_CALLS


@pytest.mark.slow
@pytest.mark.anyio
async def test_many_mails_are_composed_beside_the_loop() -> None:
    """Of thirty HTML mails that begin together, none is composed in the loop, whatever its size."""
    async with (
        open_mail_server() as server,
        opened("smtp", options_for(server), block="email") as channel,
    ):
        fields = {"subject": "s", "body": _html(20 << 10), "format": "html"}
        mails = [mail_to("ada@example.com", fields, key=f"a-{number}") for number in range(30)]
        with turns_counted() as turns:
            verdicts = await asyncio.gather(*map(channel.send, mails))
        assert all(isinstance(verdict, Accepted) for verdict in verdicts)
        assert len(server.mails) == 30
    assert turns.longest < MOST_CALLS


@pytest.mark.slow
@pytest.mark.anyio
async def test_large_mails_do_not_hold_up_another_provider() -> None:
    """A large SMS that comes after twenty mails is written after one of them, and not after all."""
    order: list[str] = []
    compose, write = mime.compose, PartsWriter.write

    def composed(letter: mime.Letter) -> mime.Mail:
        order.append("mail")
        return compose(letter)

    def written(writer: PartsWriter, message: Dispatch) -> HttpRequest:
        order.append("sms")
        return write(writer, message)

    with patch.object(writer, "compose", composed), patch.object(PartsWriter, "write", written):
        async with (
            open_mail_server() as server,
            open_gateway() as gateway,
            opened("smtp", options_for(server), block="email") as mails,
            opened("http", {"url": gateway.url, "form": {"text": "{content.text}"}}, block="sms") as texts,
        ):
            fields = {"subject": "s", "body": _html(100 << 10), "format": "html"}
            attempts = [mails.send(mail_to("ada@example.com", fields)) for _ in range(20)]
            text = dispatch("sms", {"text": "x" * 100_000}, customer=Customer(7, {}))
            verdicts = await asyncio.gather(*attempts, texts.send(text))
    assert all(isinstance(verdict, Accepted) for verdict in verdicts)
    assert order == ["mail", "sms", *["mail"] * 19]


@pytest.mark.anyio
async def test_a_large_text_is_written_into_a_request_beside_the_loop() -> None:
    """1 MiB in a form, and counted in parts."""
    options = {"form": {"text": "{content.text}", "parts": "{content.parts}"}}
    async with (
        open_gateway() as gateway,
        opened("http", {"url": gateway.url, **options}, block="sms") as channel,
    ):
        text = "\u20ac caf\u00e9 " * (1 << 17)
        with turns_counted() as turns:
            verdict = await channel.send(dispatch("sms", {"text": text}, customer=Customer(7, {})))
        assert isinstance(verdict, Accepted)
        assert len(gateway.seen[0].body) > 1 << 20
    assert turns.longest < MOST_CALLS


@pytest.mark.anyio
async def test_a_large_answer_of_the_queue_is_read_beside_the_loop() -> None:
    """1 MiB of small messages, one of which is malformed, so that each is looked at."""
    elements = [
        {"id": id_, "settingsId": 1, "customerId": 1, "variables": {"a": "b"}} for id_ in range(18_000)
    ]
    body = json.dumps([*elements, 17]).encode()
    assert len(body) > 1 << 20
    with turns_counted() as turns:
        batch = await read_batch(Aside(), body, 20_000)
    assert (len(batch.messages), len(batch.malformed)) == (18_000, 1)
    assert turns.longest < MOST_CALLS


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_batch_of_nothing_but_malformed_elements_is_read_in_slices() -> None:
    """Ten thousand elements in 30 KiB, none of which is a message."""
    body = b"[" + b"{}," * 9_999 + b"{}]"
    with turns_counted() as turns:
        batch = await read_batch(Aside(), body, 100)
    assert len(batch.malformed) == 10_000
    assert turns.longest < MOST_CALLS


@pytest.mark.anyio
async def test_an_answer_of_many_customers_is_read_beside_the_loop() -> None:
    """A thousand customers that one request asked for."""
    names = ("phone", "email", "name", "language", "city")
    customers = [{"id": id_, **dict.fromkeys(names, str(id_))} for id_ in range(1000)]
    async with open_gateway() as gateway:
        gateway.respond = lambda _request: Reply(body=json.dumps(customers).encode())
        options = HttpDirectoryOptions.model_validate(
            {
                "url": f"{gateway.url}/{{customerId}}",
                "batch_url": f"{gateway.url}/?ids={{customerIds}}",
                "fields": {name: f"/{name}" for name in ("id", *names)},
                "batch_size": 1000,
            }
        )
        source = open_http_source(options, Terms(60.0, 60.0, 1))
        with turns_counted() as turns:
            found = await source.look_up(range(1000))
        await source.aclose()
    assert len(found) == 1000
    assert turns.longest < MOST_CALLS


def test_large_messages_are_filled_in_slices(tmp_path: Path) -> None:
    """A hundred of 300 KiB that are ready together: each turn fills a few, and all are sent."""
    world = VirtualWorld(tmp_path)
    size = 300 << 10
    world.service.settings[1] = json.dumps(sms_settings("x" * size))
    world.service.enqueue(*(message(id_) for id_ in range(100)))
    turns: list[int] = []
    prepare = Preparer.prepare

    def counted(self: Preparer, entries: Sequence[Entry], tasks: TaskGroup) -> Sequence[Route]:
        prepared = prepare(self, entries, tasks)
        turns.append(len(prepared))
        return prepared

    with patch.object(Preparer, "prepare", counted):
        live(world.run_until_idle)
    assert len({made.entry.id for _, made in world.channels["sms"].attempts}) == 100
    assert 0 < max(turns) <= MOST_FILLED // size + 1


def test_attempts_that_are_ready_together_begin_in_slices(tmp_path: Path) -> None:
    """Two hundred of 4 KiB each: in one turn of the loop a few attempts begin, and all are made."""
    world = VirtualWorld(tmp_path)
    world.write(CONFIG + "concurrency = 200\n[queue]\nbatch_size = 200\n")
    world.service.settings[1] = json.dumps(sms_settings("x" * 4000))
    world.service.enqueue(*(message(id_) for id_ in range(200)))
    begun: Counter[int] = Counter()
    send, turns = VirtualChannel.send, LoopTurns()

    async def counted(channel: VirtualChannel, attempt: Dispatch) -> Verdict:
        begun[turns.count] += 1
        return await send(channel, attempt)

    async def run() -> None:
        trio.lowlevel.add_instrument(turns)
        await world.run_until_idle()

    with patch.object(VirtualChannel, "send", counted):
        live(run)
    assert begun.total() == len(world.channels["sms"].attempts) == 200
    assert max(begun.values()) <= 3 * MOST_BEGUN // 4000  # trio runs what is ready in any order


class LoopTurns(trio.abc.Instrument):
    """Counts the turns of trio's loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1
