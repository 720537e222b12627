"""Messages followed through the code: the functions that they pass are those that the document names."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
import trio

import deliveryd
from deliveryd.channels.base import Accepted, Dispatch, Refused, Verdict
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.receipts.request import ReceiptRequest
from support.places import ROOT
from support.virtual import VirtualSupervisor, VirtualWorld, live

SOURCE = Path(deliveryd.__file__).parent
DOCUMENT = ROOT / "docs" / "explanation" / "calls-in-order.md"
ROOMS = (
    "control/handlers.py", "delivery", "journal/journal.py", "journal/rules", "journal/sql/operations.py",
    "journal/sql/orders.py", "journal/sql/receipt_match.py", "receipts", "service/client.py",
    "transitions.py",
)  # fmt: skip
"""Where a message passes; what only counts, waits, signals or looks there is left out of the lists."""

ASIDE = {
    "Backlog", "Delivery", "DispatchQueue", "Failures", "InFlightLimit", "LineClock", "OutboxSignals",
    "Memory", "ReadyMessages", "Refusals", "SettingsMemory",
}  # fmt: skip
LOOKS = {
    "Admission.begin", "Admission.end", "Admission.reserve", "Journal.counts", "Journal.has_room",
    "Journal.misplaced", "Journal.older_workers", "Journal.overdue", "Journal.renew", "Journal.resume",
    "Matching.are_kept", "Operations.overdue", "Operations.resume", "PassedTime.stepped", "Pauses.at",
    "Pausing.end_those_over",
    "Pausing.next_end", "TakeSize.came_whole", "Waiting.fetch_overdue",
    "Waiting.fetch_waiting_for", "by_the_clock", "is_expired",
}  # fmt: skip
SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {word}"}}}})
RECEIPTS = """
provider_id = "/id"
receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"], \
reference = "/reference" }
"""


class Passed(NamedTuple):
    """A function that was called, and the file that it is in."""

    function: str
    file: str


class Tracer:
    """Notes the public functions of these rooms in the order in which they are called."""

    def __init__(self) -> None:
        self.passed: list[Passed] = []
        self.is_noting = False
        self._frames: dict[int, FrameType] = {}  # kept, since a coroutine's frame is entered more than once

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        found = passed_by(frame) if event == "call" and id(frame) not in self._frames else None
        if found is not None:
            self._frames[id(frame)] = frame
            if self.is_noting:
                self.passed.append(found)

    def between(self, first: str, last: str) -> list[Passed]:
        """What was passed from the first call of a function to the last call of another one."""
        names = [each.function for each in self.passed]
        return self.passed[names.index(first) : len(names) - names[::-1].index(last)]


def passed_by(frame: FrameType) -> Passed | None:
    """The function and its file, if it belongs on a list."""
    qualified = frame.f_code.co_qualname
    if qualified == "VirtualChannel.send":
        return Passed("Channel.send", "channels/base.py")
    owner, _, name = qualified.rpartition(".")
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(SOURCE) or re.search(r"(^|\.)[_<]", qualified) or owner in ASIDE:
        return None
    within = path.relative_to(SOURCE).as_posix()
    if not within.startswith(ROOMS) or qualified in LOOKS:
        return None
    if isinstance(getattr(type(frame.f_locals.get("self")), name, None), property):
        return None
    return Passed(qualified if owner else f"{path.stem}.{name}", within)


class Case(NamedTuple):
    """A section of the document, and what is followed: from the call of a function to that of another."""

    section: str
    first: str
    last: str
    begin: Callable[[VirtualWorld, VirtualSupervisor], Awaitable[object]]
    """Called after 61 seconds, when the first message has been sent or refused."""

    is_refused: bool = False


async def enqueue_second(world: VirtualWorld, _worker: VirtualSupervisor) -> None:
    """The second message of a worker: for the first one settings are fetched."""
    enqueue(world, 2)


async def report_first(world: VirtualWorld, worker: VirtualSupervisor) -> None:
    """The provider confirms the first message."""
    assert worker.parts.receipts is not None
    (_, dispatch), *_ = world.channels["sms"].attempts
    body = json.dumps({"id": "q1", "status": "delivered", "reference": dispatch.key}).encode()
    await worker.parts.receipts.take_in("sms", ReceiptRequest("POST", "/receipts/sms", b"", [], body))


async def retry_first(world: VirtualWorld, worker: VirtualSupervisor) -> None:
    """An operator has the first message sent again, after the provider refused it."""
    order = Order(Action.BEGIN_ANEW, ItemKind.MESSAGE, ("1",))
    await worker._orders.carry_out(order, "ann")


CASES = [
    Case("One message, followed", "ServiceClient.take", "Operations.accept", enqueue_second),
    Case("One receipt, followed", "Receipts.take_in", "Operations.accept", report_first),
    Case("One order, followed", "OrderHandler.carry_out", "Dispatcher.offer", retry_first, is_refused=True),
]


def enqueue(world: VirtualWorld, id_: int) -> None:
    world.service.enqueue({"id": id_, "settingsId": 1, "customerId": 1, "variables": {"word": "w"}})


def followed(case: Case, folder: Path) -> list[Passed]:
    world = VirtualWorld(folder)
    world.write(world.path.read_text(encoding="utf-8").replace('[receipts]\nlisten = ""', ""))
    world.add(RECEIPTS)
    world.service.settings[1] = SMS
    tracer = Tracer()

    def verdict(dispatch: Dispatch) -> Verdict:
        return Refused("no") if case.is_refused and not tracer.is_noting else Accepted(dispatch.key)

    world.channels["sms"].verdict = verdict

    async def run() -> None:
        worker = world.supervisor()
        async with trio.open_nursery() as nursery:
            sys.setprofile(tracer)
            try:
                nursery.start_soon(worker.run)
                enqueue(world, 1)
                await trio.sleep_until(61.0)
                tracer.is_noting = True
                await case.begin(world, worker)
                await trio.sleep_until(95.0)  # the queue is asked every 30 seconds at least
            finally:
                sys.setprofile(None)
            worker.stop()

    live(run)
    return tracer.between(case.first, case.last)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.section)
def test_the_document_names_each_function_that_is_passed_in_order(case: Case, tmp_path: Path) -> None:
    """A message from the queue to its last event, a receipt to its event, an order to a queued message."""
    _, _, text = DOCUMENT.read_text(encoding="utf-8").partition(f"## {case.section}\n")
    text, _, _ = text.partition("\n## ")
    named = re.findall(r"^\d+\. `([\w.]+)` \(`([\w/.]+)`\)", text, re.MULTILINE)
    assert named == followed(case, tmp_path)
