"""One message followed through the code: the functions that it passes are those that the document names."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import FrameType

import trio

import deliveryd
from deliveryd.channels.base import Accepted
from support.places import ROOT
from support.virtual import VirtualWorld, live

SOURCE = Path(deliveryd.__file__).parent
DOCUMENT = ROOT / "docs" / "explanation" / "architecture.md"
ROOMS = ("delivery", "transitions.py", "journal/journal.py", "journal/sql/operations.py", "service/client.py")
"""Where a message passes; what only counts, waits, signals or looks there is left out of the list."""

ASIDE = {
    "Backlog", "DispatchQueue", "Failures", "InFlightLimit", "AttemptParts", "OutboxSignals",
    "Memory", "ReadyMessages", "Refusals", "StepWatch",
}  # fmt: skip
LOOKS = {
    "Journal.misplaced", "Journal.has_room", "Journal.counts", "Journal.renew",
    "Admission.begin", "Admission.end", "TakeSize.came_whole",
}  # fmt: skip
SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {word}"}}}})


class Tracer:
    """Notes the public functions of these rooms in the order in which they are called."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.is_noting = False
        self._frames: dict[int, FrameType] = {}  # kept, since a coroutine's frame is entered more than once

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        name = name_of(frame) if event == "call" and id(frame) not in self._frames else None
        if name is not None:
            self._frames[id(frame)] = frame
            if self.is_noting:
                self.passed.append(name)


def name_of(frame: FrameType) -> str | None:
    """The name of a function that belongs on the list."""
    qualified = frame.f_code.co_qualname
    if qualified == "VirtualChannel.send":
        return "Channel.send"
    owner, _, name = qualified.rpartition(".")
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(SOURCE) or re.search(r"(^|\.)[_<]", qualified) or owner in ASIDE:
        return None
    within = path.relative_to(SOURCE).as_posix()
    if not within.startswith(ROOMS) or qualified in LOOKS or qualified == "is_expired":
        return None
    if isinstance(getattr(type(frame.f_locals.get("self")), name, None), property):
        return None
    return qualified if owner else f"{path.stem}.{name}"


def followed(folder: Path) -> list[str]:
    """What the second message of a worker passes: for the first one settings are fetched."""
    world = VirtualWorld(folder)
    world.service.settings[1] = SMS
    world.channels["sms"].verdict = lambda dispatch: Accepted(dispatch.key)
    tracer = Tracer()

    def enqueue(id_: int) -> None:
        world.service.enqueue({"id": id_, "settingsId": 1, "customerId": 1, "variables": {"word": "w"}})

    async def run() -> None:
        worker = world.supervisor()
        async with trio.open_nursery() as nursery:
            sys.setprofile(tracer)
            try:
                nursery.start_soon(worker.run)
                enqueue(1)
                await trio.sleep_until(61.0)
                enqueue(2)
                tracer.is_noting = True
                await trio.sleep_until(95.0)  # the queue is asked every 30 seconds at least
            finally:
                sys.setprofile(None)
            worker.stop()

    live(run)
    taken, passed = tracer.passed.index("Recorder.take"), tracer.passed[::-1]
    return tracer.passed[taken - 1 : len(passed) - passed.index("Operations.accept")]


def test_the_document_names_each_function_that_a_message_passes_in_order(tmp_path: Path) -> None:
    """The architecture page, "One message, followed": from the queue to the provider to its last event."""
    text = DOCUMENT.read_text(encoding="utf-8").partition("## One message, followed")[2].partition("\n## ")[0]
    assert re.findall(r"^\d+\. `([\w./]+)`", text, re.MULTILINE) == followed(tmp_path)
