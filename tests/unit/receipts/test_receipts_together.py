"""Receipts that come in side by side: they share a commit, and none is answered before it is durable."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from deliveryd.errors import JournalError
from deliveryd.journal.base import MatchedReceipt
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.model import OptOut, Receipt, StopChange, parse_instant
from deliveryd.receipts.batcher import ReceiptBatcher
from support.line import recorder_on
from support.patience import PATIENCE
from support.world import World, open_world

COUNT = 200
SENDERS = 20
NOW = parse_instant("2026-06-01T00:00:00Z")
RECEIPT = """
receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"] }
"""


def receipt(number: int) -> Receipt:
    return Receipt("sms", f"p{number}", True, "delivered", NOW, NOW)


def only(results: Sequence[str] | None) -> str | None:
    return None if results is None else results[0]


class Watched:
    """A journal that tells how many receipts it was handed at a time, and may fail or have no room."""

    is_shared = False

    def __init__(self, journal: SqliteJournal) -> None:
        self._journal = journal
        self.handed: list[int] = []
        self.stop_key, self.kept_clock, self.last_at = journal.stop_key, "", 0
        self.looks = 0
        self.failure: Exception | None = None

    def has_room(self) -> bool:
        self.looks += 1
        return True

    async def receive(
        self, receipts: Sequence[Receipt], stops: Sequence[StopChange] = ()
    ) -> list[MatchedReceipt]:
        self.handed.append(len(receipts))
        if self.failure is not None:
            raise self.failure
        return await self._journal.receive(receipts, stops)


@pytest.mark.anyio
async def test_receipts_side_by_side_share_an_operation_and_each_has_its_own_result(tmp_path: Path) -> None:
    """Two hundred at a time, some of them twice, are one operation and one commit; the disk is asked once."""
    commits: list[int] = []
    results: defaultdict[int, list[str | None]] = defaultdict(list)
    path = tmp_path / "journal.db"
    async with open_journal_file(
        path, observe=lambda _seconds, operations: commits.append(operations)
    ) as journal:
        watched = Watched(journal)
        recorder = ReceiptBatcher(recorder_on(watched))  # type: ignore[arg-type]

        async def report(number: int) -> None:
            results[number].append(only(await recorder.record([receipt(number)])))

        async with anyio.create_task_group() as tasks:
            for place in range(COUNT):
                tasks.start_soon(report, place % 150)
        assert [sorted(map(str, results[number])) for number in range(50)] == [["repeated", "unmatched"]] * 50
        assert [results[number] for number in range(50, 150)] == [["unmatched"]] * 100
        assert (watched.handed, watched.looks, commits) == ([COUNT], 1, [1])
        assert await recorder.record([receipt(0)]) == ["repeated"]


@pytest.mark.anyio
async def test_opt_outs_have_results_of_their_own(tmp_path: Path) -> None:
    """Requests side by side: each has the results of its reports, then those of its opt-outs."""
    results: dict[int, Sequence[str] | None] = {}
    async with open_journal_file(tmp_path / "journal.db") as journal:
        recorder = ReceiptBatcher(recorder_on(journal))

        async def report(number: int) -> None:
            opt_outs = [OptOut("sms", f"+4477009001{number % 2:02}", True, NOW, NOW)] if number else []
            results[number] = await recorder.record([receipt(number)] if number != 1 else [], opt_outs)

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(report, number)
        assert {number: list(found or ()) for number, found in results.items()} in (
            {0: ["unmatched"], 1: ["matched"], 2: ["unmatched", "matched"], 3: ["unmatched", "repeated"]},
            {0: ["unmatched"], 1: ["repeated"], 2: ["unmatched", "matched"], 3: ["unmatched", "matched"]},
        )
        assert await journal.stopped() != []


@pytest.mark.anyio
async def test_when_the_journal_fails_all_are_told_and_the_next_ones_are_recorded(tmp_path: Path) -> None:
    """A failure is for those that came together; nobody waits for ever, and nothing of it stays."""
    results: list[str | None] = []
    async with open_journal_file(tmp_path / "journal.db") as journal:
        watched = Watched(journal)
        watched.failure = JournalError("the disk failed")
        recorder = ReceiptBatcher(recorder_on(watched))  # type: ignore[arg-type]

        async def report(number: int) -> None:
            results.append(only(await recorder.record([receipt(number)])))

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(report, number)
        assert results == [None] * 10
        watched.failure = None
        assert await recorder.record([receipt(1)]) == ["unmatched"]


@pytest.mark.anyio
async def test_a_report_that_is_given_up_leaves_nobody_waiting(tmp_path: Path) -> None:
    """When the one that sees to the recording of all is cancelled, the others are told to report again."""
    results: list[str | None] = []
    async with open_journal_file(tmp_path / "journal.db") as journal:
        recorder = ReceiptBatcher(recorder_on(journal))
        given_up = anyio.CancelScope()

        async def report(number: int) -> None:
            results.append(only(await recorder.record([receipt(number)])))

        async def give_up() -> None:
            with given_up:
                await report(0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            tasks.start_soon(report, 1)
            tasks.start_soon(report, 2)
            given_up.cancel()
        assert [result for result in results if result is None] in ([], [None, None])
        assert await recorder.record([receipt(3)]) == ["unmatched"]


def post_all(
    address: tuple[str, int], numbers: Sequence[int], answered: list[str], many: threading.Event
) -> None:
    """Report over one connection for as long as there is somebody, and note what was answered with 2xx."""
    try:
        with socket.create_connection(address) as line:
            answers = line.makefile("rb")
            for number in numbers:
                body = json.dumps({"id": f"p{number}", "status": "delivered"}).encode()
                line.sendall(
                    b"POST /receipts/sms HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
                    % (len(body), body)
                )
                status, length = answers.readline(), 0
                while (header := answers.readline()) not in (b"\r\n", b""):
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                if status.startswith(b"HTTP/1.1 200") and len(answers.read(length)) == length:
                    answered.append(f"p{number}")
                if len(answered) >= COUNT:
                    many.set()
    except OSError:
        return


@pytest.mark.slow
def test_kill_9_loses_no_receipt_that_was_answered(tmp_path: Path) -> None:
    """Twenty connections report without a pause, and the worker is killed when many answers are there."""
    for world in open_world(tmp_path):
        world.change('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"')
        world.add(RECEIPT)
        worker = world.start(log="info")
        world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
        address = receipts_address(world)
        answered: list[str] = []
        many = threading.Event()
        senders = [
            threading.Thread(target=post_all, args=(address, range(first, first + 10_000), answered, many))
            for first in range(0, SENDERS * 10_000, 10_000)
        ]
        for sender in senders:
            sender.start()
        assert many.wait(PATIENCE)
        worker.send_signal(signal.SIGKILL)
        worker.wait(PATIENCE)
        for sender in senders:
            sender.join()
        kept = {provider_id for (provider_id,) in world.rows("SELECT provider_id FROM receipt")}
        assert set(answered) <= kept


def receipts_address(world: World) -> tuple[str, int]:
    """Where the worker takes receipts, by its own log."""
    (listen,) = [
        line["listen"]
        for line in map(json.loads, world.log().splitlines())
        if line["event"] == "server.listening" and line["server"] == "receipts"
    ]
    address = urlsplit(listen)
    return address.hostname or "", address.port or 0
