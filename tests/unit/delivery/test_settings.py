"""Settings by id: one request however many ask, kept over restarts, and failures that stay their own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from trio.testing import MockClock

from deliveryd.admin.exposition import expose
from deliveryd.delivery import settings as room_module
from deliveryd.delivery import settings_memory
from deliveryd.delivery.backlog import Backlog
from deliveryd.delivery.settings import FLAWED_SECONDS, UNUSABLE_SECONDS, SettingsCache
from deliveryd.errors import (
    DeliverydError,
    ServiceRefused,
    ServiceUnavailable,
    ServiceUnreadable,
    SettingsUnusable,
)
from deliveryd.metrics import Metrics
from deliveryd.model import Settings
from deliveryd.rendering.content import CompiledSettings, compile_settings
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.service.client import ServiceClient
from support.logs import log_lines

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["virtual time", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Virtual time, which jumps while nobody but the test waits for anything; and asyncio as it is."""
    if request.param == "asyncio":
        return "asyncio", {}
    return "trio", {"clock": MockClock(autojump_threshold=0.001)}


in_virtual_time = pytest.mark.parametrize("anyio_backend", ["virtual time"], indirect=True)


def body(text: str = "Hi") -> bytes:
    return json.dumps({"content": {"en": {"sms": {"text": text}}}}).encode()


class Source:
    """The service: a body or an error per id; `gate`, if any, is waited for by every request."""

    def __init__(self) -> None:
        self.answers: dict[int, bytes | DeliverydError] = {}
        self.requests: list[int] = []
        self.asked = anyio.Event()
        self.gate: anyio.Event | None = None

    async def fetch_settings(self, settings_id: int) -> bytes:
        self.requests.append(settings_id)
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.get(settings_id, body())
        if isinstance(answer, DeliverydError):
            raise answer
        return answer

    def parse_settings(self, settings_id: int, body: bytes) -> Settings:
        return ServiceClient.parse_settings(settings_id, body)


class Rooms:
    """Rooms over one cache and one service: `open` is a start of the worker."""

    def __init__(self, folder: Path, tasks: TaskGroup) -> None:
        self.source = Source()
        self.tasks = tasks
        self.problems: list[str] = []
        self.cache = DiskCache(folder, 16 << 20, self.problems.append)
        self.metrics = Metrics([], "1")

    def open(self, ttl: float | None = None, stale_while_down: float = 86_400.0) -> SettingsCache:
        room = SettingsCache(
            self.source, self.cache, compile_settings, self.metrics, Backlog(1000),
            ttl=ttl,
            stale_while_down=stale_while_down,
        )  # fmt: skip
        self.tasks.start_soon(room.run)
        return room

    def grow_old(self, seconds: float) -> None:
        """Let so much time pass for what is on the disk."""
        with closing(sqlite3.connect(self.cache.folder / "cache.db")) as db, db:
            db.execute("UPDATE Cache SET tag = tag - ?", (seconds,))

    def counted(self, line: str) -> float:
        """A number of the metrics."""
        text = expose(self.metrics, "text/plain")[0].decode()
        [value] = [row.rsplit(" ", 1)[1] for row in text.splitlines() if row.startswith(f"deliveryd_{line}")]
        return float(value)


@pytest.fixture
async def rooms(tmp_path: Path, anyio_backend: object) -> AsyncIterator[Rooms]:
    async with anyio.create_task_group() as tasks:
        rooms = Rooms(tmp_path / "cache", tasks)
        yield rooms
        await rooms.cache.aclose()
        tasks.cancel_scope.cancel()


def text_of(compiled: CompiledSettings) -> str:
    """What an English text message says."""
    rendered = compiled.languages["en"].blocks["sms"].render({}, None)
    return rendered.fields["text"]  # type: ignore[union-attr]


async def failure_of(room: SettingsCache, settings_id: int = 1) -> DeliverydError:
    with pytest.raises((SettingsUnusable, ServiceUnavailable)) as caught:
        await room.get(settings_id)
    error: DeliverydError = caught.value
    return error


async def test_one_request_however_many_ask(rooms: Rooms) -> None:
    """A hundred at once and more later cost one request to the service; other ids don't wait for it."""
    room, rooms.source.gate = rooms.open(), anyio.Event()
    found: list[CompiledSettings] = []

    async def ask() -> None:
        found.append(await room.get(1))

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(ask)
        await rooms.source.asked.wait()
        rooms.source.gate.set()
    found.append(await room.get(1))
    assert rooms.source.requests == [1]
    assert len({id(settings) for settings in found}) == 1
    assert text_of(found[0]) == "Hi"
    assert rooms.counted('settings_requests_total{result="found"}') == 1
    assert rooms.counted('settings_cache_hits_total{cache="memory"}') == 100


async def test_an_id_that_hangs_holds_up_nobody_else(rooms: Rooms) -> None:
    """While one id waits for its answer, another one gets its own."""
    room, rooms.source.gate = rooms.open(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(room.get, 1)
        await rooms.source.asked.wait()
        gate, rooms.source.gate = rooms.source.gate, None
        assert (await room.get(2)).id == 2
        gate.set()
    assert rooms.source.requests == [1, 2]


async def test_who_waited_goes_on_when_the_one_who_asked_is_cancelled(rooms: Rooms) -> None:
    """The request goes on for the others."""
    room, rooms.source.gate = rooms.open(), anyio.Event()
    found: list[int] = []

    async def ask() -> None:
        found.append((await room.get(1)).id)

    async with anyio.create_task_group() as waiting:
        async with anyio.create_task_group() as first:
            first.start_soon(room.get, 1)
            await rooms.source.asked.wait()
            for _ in range(3):
                waiting.start_soon(ask)
            first.cancel_scope.cancel()
        rooms.source.gate.set()
    assert found == [1, 1, 1]
    assert rooms.source.requests == [1]


async def test_a_restart_needs_no_request(rooms: Rooms) -> None:
    """What was fetched once is found on the disk, also while the service is down."""
    rooms.source.answers[1] = body("from before")
    await rooms.open().get(1)
    rooms.source.answers[1] = ServiceUnavailable("down")
    assert text_of(await rooms.open().get(1)) == "from before"
    assert rooms.source.requests == [1]
    assert rooms.counted('settings_cache_hits_total{cache="disk"}') == 1


@in_virtual_time
async def test_without_an_age_settings_are_never_asked_for_again(rooms: Rooms) -> None:
    """The interface wants them from the service only where there is no local copy."""
    room = rooms.open()
    await room.get(1)
    await anyio.sleep(7 * 86_400)
    await room.get(1)
    assert rooms.source.requests == [1]


@in_virtual_time
async def test_forgotten_settings_are_fetched_anew(rooms: Rooms) -> None:
    """One id or all, usable or not; what the service can't give keeps its pause."""
    room = rooms.open()
    rooms.source.answers = {2: b"{", 3: ServiceUnavailable("503")}
    for settings_id in (1, 4):
        await room.get(settings_id)
    for settings_id in (2, 3):
        await failure_of(room, settings_id)
    for settings_id in (1, 4):
        await rooms.cache.delete(f"settings/{settings_id}")
    assert [room.forget(each) for each in (1, 2, 3, 5)] == [1, 1, 0, 0]
    rooms.source.answers = {1: body("corrected"), 2: body("corrected")}
    rooms.source.requests.clear()
    assert [text_of(await room.get(each)) for each in (1, 2, 4)] == ["corrected", "corrected", "Hi"]
    assert rooms.source.requests == [1, 2]
    assert room.forget(None) == 3


@in_virtual_time
async def test_settings_of_an_age_are_fetched_anew(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `settings.ttl` a change at the service is noticed after that time, and not before."""
    room = rooms.open(ttl=600.0)
    await room.get(1)
    rooms.source.answers[1] = body("new")
    await anyio.sleep(599)
    assert text_of(await room.get(1)) == "Hi"
    await anyio.sleep(2)
    assert text_of(await room.get(1)) == "new"
    assert rooms.source.requests == [1, 1]


@in_virtual_time
async def test_a_restart_makes_nothing_younger(rooms: Rooms) -> None:
    """Settings that were half their age on the disk are good for the other half only."""
    await rooms.cache.set("settings/1", body("half"))
    rooms.grow_old(300)
    room = rooms.open(ttl=600.0)
    assert text_of(await room.get(1)) == "half"
    await anyio.sleep(301)
    assert text_of(await room.get(1)) == "Hi"
    assert rooms.source.requests == [1]


async def test_an_age_shorter_than_the_disk_takes(rooms: Rooms) -> None:
    """However short the age, whoever asks gets an answer."""
    room = rooms.open(ttl=1e-9)
    for _ in range(3):
        assert text_of(await room.get(1)) == "Hi"


UNUSABLE: dict[str, bytes | DeliverydError] = {
    "404": ServiceRefused("the service answered 404", 404),
    "410": ServiceRefused("the service answered 410", 410),
    "400": ServiceRefused("the service answered 400", 400),
    "422": ServiceRefused("the service answered 422", 422),
    "larger than the bound": ServiceUnreadable("settings 1: larger than 2097152 bytes"),
    "no JSON": b"<html>",
    "no content": b"{}",
    "a strange expiry": b'{"content": {}, "delivery": {"expiresAt": "soon"}}',
}


@in_virtual_time
@pytest.mark.parametrize("case", UNUSABLE)
async def test_unusable_settings_are_remembered_for_a_while(rooms: Rooms, case: str) -> None:
    """Each of their messages ends in an error without a request; a correction is noticed after 30 seconds."""
    room = rooms.open()
    rooms.source.answers[1] = UNUSABLE[case]
    for _ in range(20):
        assert isinstance(await failure_of(room), SettingsUnusable)
        await anyio.sleep(1)
    assert rooms.source.requests == [1]
    assert (await room.get(2)).id == 2
    await anyio.sleep(UNUSABLE_SECONDS - 19)
    rooms.source.answers[1] = body("corrected")
    assert text_of(await room.get(1)) == "corrected"
    assert rooms.counted('settings_requests_total{result="unusable"}') == 1


async def test_unusable_settings_say_why(rooms: Rooms) -> None:
    """The reason names the settings and the mistake, since it becomes the details of events."""
    rooms.source.answers[7] = b'{"content": {"en": {"sms": {}}}}'
    assert str(await failure_of(rooms.open(), 7)) == "settings 7: content.en.sms.text: is missing"
    rooms.source.answers[8] = UNUSABLE["404"]
    assert str(await failure_of(rooms.open(), 8)) == "settings 8: the service answered 404"


FLAWED = b'{"content": {"en": {"sms": {"text": "Hi"}, "email": {"subject": "s"}}}}'


@in_virtual_time
async def test_settings_of_which_a_part_cannot_be_read_are_asked_for_again(rooms: Rooms) -> None:
    """What can be read is used meanwhile; a correction is noticed after ten minutes, and then kept."""
    room = rooms.open()
    rooms.source.answers[1] = FLAWED
    first = await room.get(1)
    assert text_of(first) == "Hi"
    assert first.unreadable == ("content.en.email.body: is missing",)
    rooms.source.answers[1] = body("corrected")
    await anyio.sleep(FLAWED_SECONDS - 1)
    assert await room.get(1) is first
    await anyio.sleep(2)
    assert text_of(await room.get(1)) == "corrected"
    await anyio.sleep(7 * 86_400)
    await room.get(1)
    assert rooms.source.requests == [1, 1]


@in_virtual_time
async def test_after_a_restart_they_are_kept_no_longer_than_before(rooms: Rooms) -> None:
    """The disk's copy has the same age; a shorter `settings.ttl` counts before it."""
    rooms.source.answers[1] = rooms.source.answers[2] = FLAWED
    for settings_id in (1, 2):
        await rooms.open().get(settings_id)
    rooms.grow_old(FLAWED_SECONDS / 2)
    assert text_of(await rooms.open().get(1)) == "Hi"
    await rooms.open(ttl=5.0).get(2)
    assert rooms.source.requests == [1, 2, 2]
    rooms.grow_old(FLAWED_SECONDS)
    await rooms.open().get(1)
    assert rooms.source.requests == [1, 2, 2, 1]


@in_virtual_time
async def test_an_old_copy_is_used_while_the_service_is_down(rooms: Rooms) -> None:
    """Beyond their age nothing waits; it is said once in each outage, counted, and requests go on."""
    room = rooms.open(ttl=600.0)
    for settings_id in (1, 2):
        await room.get(settings_id)
    with log_lines("info") as lines:
        for old, new in (("Hi", "new"), ("new", "newest")):
            rooms.source.answers = dict.fromkeys((1, 2), ServiceUnavailable("down"))
            await anyio.sleep(601)
            rooms.source.requests.clear()
            assert text_of(await room.get(1)) == old
            for _ in range(100):
                assert isinstance(room.at_hand(1), CompiledSettings)
                assert isinstance(room.at_hand(2), CompiledSettings)
                await anyio.sleep(10)
            assert rooms.source.requests.count(1) > 10
            rooms.source.answers = dict.fromkeys((1, 2), body(new))
            await anyio.sleep(61)
            room.at_hand(1)
            await anyio.sleep(1)
            assert text_of(await room.get(1)) == new
        told = [line for line in lines() if line["event"] in {"settings.old", "settings.current"}]
    assert [line["event"] for line in told] == ["settings.old", "settings.current"] * 2
    assert rooms.counted('settings_cache_hits_total{cache="old"}') > 400


@in_virtual_time
async def test_an_old_copy_is_used_after_a_restart_too(rooms: Rooms) -> None:
    """From the disk, after the one request that shows that the service is down."""
    await rooms.open().get(1)
    rooms.grow_old(3600)
    rooms.source.answers[1] = ServiceUnavailable("down")
    room = rooms.open(ttl=600.0)
    assert text_of(await room.get(1)) == "Hi"
    assert rooms.source.requests == [1, 1]


@in_virtual_time
async def test_an_old_copy_is_used_for_no_longer_than_configured(rooms: Rooms) -> None:
    """Then its messages wait; and with an answer that there are none, at once, they end in an error."""
    room = rooms.open(ttl=600.0, stale_while_down=3600.0)
    await room.get(1)
    rooms.source.answers[1] = ServiceUnavailable("down")
    await anyio.sleep(4199)
    assert text_of(await room.get(1)) == "Hi"
    await anyio.sleep(2)
    assert isinstance(await room.ask(1), ServiceUnavailable)
    rooms.source.answers[1] = UNUSABLE["404"]
    await anyio.sleep(61)
    assert isinstance(await failure_of(room), SettingsUnusable)


async def answered(room: SettingsCache) -> None:
    """Wait until no message waits for the settings in the journal."""
    while room.is_awaited(1):  # noqa: ASYNC110  # the disk is written in between, in real time
        await anyio.sleep(0.1)


@in_virtual_time
async def test_what_was_waited_for_is_fetched_anew_at_its_age(rooms: Rooms) -> None:
    """Settings that came after an outage are no younger than others; meanwhile those messages find them."""
    room = rooms.open(ttl=5.0)
    rooms.source.answers[1] = ServiceUnavailable("down")
    await failure_of(room)
    assert isinstance(await room.ask(1), ServiceUnavailable)
    rooms.source.answers[1] = body("before")
    await answered(room)
    rooms.source.answers[1] = body("after")
    await anyio.sleep(5)
    found = room.at_hand(1)
    assert isinstance(found, CompiledSettings)
    assert text_of(found) == "before"
    assert text_of(await room.get(1)) == "after"
    assert rooms.source.requests == [1, 1, 1]


@in_virtual_time
async def test_messages_find_what_they_waited_for_however_short_its_age(rooms: Rooms) -> None:
    """Where the age is over before they are back, and each request takes longer than they stay in memory."""
    room, rooms.source.gate = rooms.open(ttl=0.05), anyio.Event()
    assert isinstance(await room.ask(1), ServiceUnavailable)
    await rooms.source.asked.wait()
    gate, rooms.source.gate = rooms.source.gate, anyio.Event()
    gate.set()
    await answered(room)
    await anyio.sleep(1)
    assert isinstance(room.at_hand(1), CompiledSettings)


@in_virtual_time
async def test_a_changed_compiler_reads_old_copies_anew(rooms: Rooms) -> None:
    """From the disk; `forget` leaves none."""
    room = rooms.open(ttl=600.0)
    await room.get(1)
    rooms.source.answers[1] = ServiceUnavailable("down")
    await anyio.sleep(700)
    before = await room.get(1)
    room.adopt(compile_settings, 600.0, 86_400.0)
    after = await room.get(1)
    assert (text_of(after), after is before) == ("Hi", False)
    assert room.forget(1) == 1
    await rooms.cache.delete("settings/1")
    assert isinstance(await failure_of(room), ServiceUnavailable)


@pytest.mark.parametrize(("before", "after"), [(None, 600.0), (86_400.0, 600.0)])
async def test_a_shorter_ttl_counts_for_what_is_in_memory(
    rooms: Rooms, before: float | None, after: float
) -> None:
    """A template that was corrected is used soon after the reload; by the new age, not at once."""
    room = rooms.open(ttl=before)
    await room.get(1)
    rooms.source.answers[1] = body("new")
    room.adopt(None, after, 86_400.0)
    assert text_of(await room.get(1)) == "Hi"
    rooms.grow_old(700)
    room.adopt(None, after, 86_400.0)
    assert text_of(await room.get(1)) == "Hi"
    room.adopt(None, after - 1, 86_400.0)
    assert text_of(await room.get(1)) == "new"


async def test_a_longer_ttl_counts_for_what_is_in_memory(rooms: Rooms) -> None:
    """What was old before the reload isn't requested again after it."""
    room = rooms.open(ttl=0.0)
    await room.get(1)
    room.adopt(None, None, 86_400.0)
    await room.get(1)
    assert rooms.source.requests == [1]


async def test_a_ttl_that_changes_while_a_copy_is_written_counts_for_it(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy goes by the ttl of the reload, not by the one that its request began with."""
    room, write = rooms.open(ttl=None), rooms.cache.set

    async def change_meanwhile(key: str, value: bytes) -> None:
        await write(key, value)
        room.adopt(None, 0.0, 86_400.0)

    monkeypatch.setattr(rooms.cache, "set", change_meanwhile)
    await room.get(1)
    await room.get(1)
    assert rooms.source.requests == [1, 1]


@in_virtual_time
@pytest.mark.parametrize("changed", ["content", "content, without ttl", "service"])
async def test_a_reload_during_a_request_leaves_the_old_copies(rooms: Rooms, changed: str) -> None:
    """Whichever section it changes, and though the request that is under way fails after it."""
    room = rooms.open(ttl=600.0)
    await room.get(1)
    rooms.source.answers[1] = ServiceUnavailable("down")
    await anyio.sleep(700)
    await room.get(1)
    await anyio.sleep(60)
    rooms.source.gate, rooms.source.asked = anyio.Event(), anyio.Event()
    room.at_hand(1)
    await rooms.source.asked.wait()
    if changed != "service":
        room.adopt(compile_settings, 600.0 if changed == "content" else None, 86_400.0)
    else:
        room.ask_again()
    rooms.source.gate.set()
    assert text_of(await room.get(1)) == "Hi"
    assert isinstance(room.at_hand(1), CompiledSettings)


@pytest.mark.slow
@in_virtual_time
async def test_an_outage_is_asked_about_ever_more_rarely(rooms: Rooms) -> None:
    """Each failure says how long to wait, growing to a minute; nobody asks the service before that."""
    room = rooms.open()
    rooms.source.answers[1] = ServiceUnavailable("down")
    pauses: list[float] = []
    for number in range(1, 1200):  # most of a day
        error = await failure_of(room)
        assert isinstance(error, ServiceUnavailable)
        assert error.after is not None
        pauses.append(error.after)
        await anyio.sleep(error.after / 2)
        again = await failure_of(room)
        assert isinstance(again, ServiceUnavailable)
        assert again.after == pytest.approx(error.after / 2)
        assert len(rooms.source.requests) == number
        await anyio.sleep(error.after / 2 + 0.001)
    assert 0.7 <= pauses[0] <= 1.0
    assert all(earlier * 1.3 < later for earlier, later in pairwise(pauses[:6]))
    assert all(42 <= pause <= 60 for pause in pauses[7:])
    rooms.source.answers[1] = body()
    assert text_of(await room.get(1)) == "Hi"


@in_virtual_time
async def test_the_pause_that_the_service_asks_for_is_kept(rooms: Rooms) -> None:
    """A `Retry-After` longer than the own pause counts."""
    room = rooms.open()
    rooms.source.answers[1] = ServiceUnavailable("busy", 120.0)
    error = await failure_of(room)
    assert isinstance(error, ServiceUnavailable)
    assert error.after == pytest.approx(120)
    await anyio.sleep(119)
    rooms.source.answers[1] = body()
    assert isinstance(await failure_of(room), ServiceUnavailable)
    await anyio.sleep(2)
    assert text_of(await room.get(1)) == "Hi"


@pytest.mark.parametrize("status", [0, 301, 302, 401, 403, 405, 407])
async def test_a_refusal_that_is_not_about_the_settings_waits(rooms: Rooms, status: int) -> None:
    """Wrong credentials or a wrong address make no message fail: they wait until it is put right."""
    rooms.source.answers[1] = ServiceRefused(f"the service answered {status}", status)
    assert isinstance(await failure_of(rooms.open()), ServiceUnavailable)


async def test_a_failure_carries_nothing_of_earlier_ones(rooms: Rooms) -> None:
    """Whoever asks gets an exception of their own: a remembered one would hold on to everybody's frames."""
    room = rooms.open()
    rooms.source.answers[1] = UNUSABLE["404"]
    rooms.source.answers[2] = ServiceUnavailable("down")
    for settings_id in (1, 2):
        errors = [await failure_of(room, settings_id) for _ in range(3)]
        assert len({id(error) for error in errors}) == 3


@pytest.mark.parametrize("row", [b"", b"\xff", b"{}", b'{"content": {"en": 5}}'])
async def test_an_unreadable_row_of_the_cache_is_fetched_anew(rooms: Rooms, row: bytes) -> None:
    """What an earlier version left, or a disk spoiled, is replaced by what the service says."""
    await rooms.cache.set("settings/1", row)
    assert text_of(await rooms.open().get(1)) == "Hi"
    assert text_of(await rooms.open().get(1)) == "Hi"
    assert rooms.source.requests == [1]


async def test_a_cache_that_fails_is_bypassed(rooms: Rooms, tmp_path: Path) -> None:
    """Without a usable folder the settings come from the service, and stay in memory."""
    (tmp_path / "cache").write_text("in the way")
    room = rooms.open()
    for _ in range(3):
        assert text_of(await room.get(1)) == "Hi"
    assert rooms.source.requests == [1]
    assert rooms.problems


async def test_the_memory_is_bounded(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was used longest ago leaves the memory first, by bytes and by number; the disk has it still."""
    monkeypatch.setattr(settings_memory, "SETTINGS_MEMORY_BYTES", 5 * len(body()))
    monkeypatch.setattr(room_module, "PIECE_BYTES", 0)
    room = rooms.open()
    for settings_id in range(10):
        await room.get(settings_id)
        await room.get(0)
    assert list(room._known) == [6, 7, 8, 9, 0]
    assert room._known._size == 5 * len(body())
    monkeypatch.setattr(settings_memory, "MOST_KNOWN", 2)
    await room.get(3)
    assert list(room._known) == [0, 3]
    assert rooms.source.requests == list(range(10))


async def test_settings_larger_than_the_memory_are_used_all_the_same(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is never a reason not to have the ones just asked for."""
    monkeypatch.setattr(settings_memory, "SETTINGS_MEMORY_BYTES", 10)
    room = rooms.open()
    for settings_id in (1, 2, 1):
        assert (await room.get(settings_id)).id == settings_id
    assert rooms.source.requests == [1, 2]
