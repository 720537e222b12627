"""A receipt that comes to another worker than the sender, in all orders relative to the outcome's commit."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from deliveryd.sandbox.faults import ApplyThenDelay
from deliveryd.sandbox.state import PlannedReceipt, ReceivedMessage, SandboxState, now_text
from deliveryd.states import State
from fleet.boundaries import change_name, commit_name
from fleet.faults import IS_OVER
from fleet.gate import Gate, first_passed, open_gated_fleet
from fleet.oracle import POSTS, WORKER
from fleet.rest import come_to_rest
from fleet.stage import Fleet, FleetWorker, process_name
from fleet.watch import HOLD

Word = Literal["delivered", "failed"]
"""What a receipt says."""

WORDS: tuple[Word, ...] = ("delivered", "failed")
LAST: Mapping[Word, str] = {"delivered": "delivered", "failed": "error"}
"""What the service hears last."""

ANSWERED = "HttpChannel.send/after"
OUTCOME = f"{commit_name(change_name(State.SENDING, State.SENT))}/before"
RECEIPT = f"{commit_name('receive')}/before"
REPORT = "ServiceClient.report/before"

_DELAY = 1.0
"""Seconds for which a provider's answer is held back."""

_LOOK = 0.2
_PATIENCE = 60.0
_UNMATCHED = "SELECT count(*) FROM main.receipt WHERE message_id IS NULL"


class When(Enum):
    """When the receipt comes."""

    UNANSWERED = "before the request's answer"
    ANSWERED = "between the answer and its transaction"
    UNCOMMITTED = "during the outcome's transaction"
    RECEIPT_FIRST = "side by side, the receipt commits first"
    OUTCOME_FIRST = "side by side, the outcome commits first"
    TOGETHER = "side by side, both commit together"
    UNREPORTED = "after the outcome's commit, before it is reported"
    REPORTED = "after it is reported"


class Fate(Enum):
    """What happens to the sender at that moment."""

    GOES_ON = "goes on"
    STOPPED = "stopped for longer than its lease"
    KILLED = "killed"


SIDE_BY_SIDE = frozenset({When.RECEIPT_FIRST, When.OUTCOME_FIRST, When.TOGETHER})


class Case(NamedTuple):
    """One order, one kind of receipt, one fate."""

    when: When
    word: Word
    fate: Fate

    def __str__(self) -> str:
        return f"{self.word} {self.when.value}; the sender {self.fate.value}"


class Matched(NamedTuple):
    """A case and the seconds until the service heard of the receipt, from when nothing was held any more."""

    case: Case
    seconds: float


class Received(NamedTuple):
    """What all cases came to."""

    matched: Sequence[Matched]
    violations: Sequence[str]

    def slowest(self, *fates: Fate) -> float:
        """The longest time of the cases in which the sender had one of these fates."""
        return max((each.seconds for each in self.matched if each.case.fate in fates), default=0.0)


def cases() -> list[Case]:
    """All of them. Where the sender goes no further, only one of both can commit: one order is enough."""
    return [
        Case(when, word, fate)
        for when, word, fate in product(When, WORDS, Fate)
        if fate is Fate.GOES_ON or when not in SIDE_BY_SIDE or when is When.RECEIPT_FIRST
    ]


def receive_elsewhere(
    folder: Path, plan: Sequence[Case], note: Callable[[str], None] = lambda _line: None
) -> Received:
    """Have each case happen to a message of its own, one after the other. Raises NoPostgres."""
    matched: list[Matched] = []
    violations: list[str] = []
    with open_gated_fleet(folder) as (fleet, gates):
        fleet.state.receipt_targets.clear()  # they are posted from here
        fleet.open()
        for case in plan:
            fleet.await_ready()
            scene = _Scene(fleet, gates)
            try:
                matched.append(Matched(case, _play(scene, case)))
                note(f"{case}: {matched[-1].seconds:.2f} s")
            except TimeoutError as error:  # what comes after it would only wait as long
                fleet.kill()
                return Received(matched, [*violations, f"message {scene.id}, {case}: {error}"])
            finally:
                scene.leave()
            violations += [f"message {scene.id}, {case}: {each}" for each in _faults(scene, case)]
        rest = come_to_rest(fleet)
        if unmatched := fleet.query(_UNMATCHED)[0][0]:
            violations.append(f"{unmatched} receipts were never matched")
        return Received(matched, [*violations, *rest.violations])


class _Scene:
    """One message, who sends it, and who receives the receipt."""

    def __init__(self, fleet: Fleet, gates: Mapping[FleetWorker, Gate]) -> None:
        self.fleet = fleet
        self.gates = gates
        self.id = fleet.enqueued + 1
        self._posting: threading.Thread | None = None

    @property
    def statuses(self) -> list[str]:
        """What the service heard of the message."""
        return self.fleet.state.statuses(self.id)

    @property
    def sent(self) -> ReceivedMessage:
        """The message as the provider received it first."""
        return next(each for each in self.fleet.state.accepted() if each.message_id == self.id)

    @property
    def sender(self) -> FleetWorker:
        """Who sent it."""
        return self.fleet.workers[int(self.sent.headers[WORKER]) - 1]

    @property
    def receiver(self) -> FleetWorker:
        """The other one."""
        return next(worker for worker in self.fleet.workers if worker is not self.sender)

    def hold_sender(self, boundary: str) -> None:
        """Put the message into the queue, and hold whoever sends it at a boundary."""
        gates = list(self.gates.values())
        for gate in gates:
            gate.order({boundary: HOLD})
        self.fleet.enqueue(1)
        if first_passed(gates, _PATIENCE) is None:
            raise TimeoutError(f"nobody came to {boundary}")

    def hold(self, worker: FleetWorker, boundary: str, begin: Callable[[], None]) -> None:
        """Hold a worker at a boundary to which something leads."""
        gate = self.gates[worker]
        gate.order({boundary: HOLD})
        begin()
        if first_passed([gate], _PATIENCE) is None:
            raise TimeoutError(f"the worker in {worker.folder.name} didn't come to {boundary}")

    def await_status(self, status: str) -> None:
        """Wait until the service heard this of the message."""
        self.fleet.state.wait_for(lambda state: status in state.statuses(self.id), _PATIENCE)

    def begin_post(self, word: Word) -> None:
        """Post the receipt to the receiver, until it is accepted."""
        self._posting = threading.Thread(target=_post, args=(self, word), daemon=True)
        self._posting.start()

    def end_post(self) -> None:
        """Wait until the receipt is accepted."""
        assert self._posting is not None
        self._posting.join(_PATIENCE)
        if self._posting.is_alive():
            raise TimeoutError("the receipt wasn't accepted")

    def leave(self) -> None:
        """Hold nobody any more."""
        for gate in self.gates.values():
            gate.disarm()
            gate.go()


def _play(scene: _Scene, case: Case) -> float:
    """Bring a message to its moment, let the receipt come, and return how long it took to be told."""
    _SCENES[case.when](scene)
    sender = scene.sender
    process = sender.process
    if case.fate is Fate.STOPPED:
        sender.signal(signal.SIGSTOP)
    elif case.fate is Fate.KILLED:
        sender.signal(signal.SIGKILL)
    began = time.monotonic()
    if case.when in SIDE_BY_SIDE:
        _commit_side_by_side(scene, case)
    else:
        scene.begin_post(case.word)
        scene.end_post()
    if case.fate is Fate.GOES_ON:
        began = time.monotonic()
    elif case.fate is Fate.STOPPED and process is not None:
        try:
            scene.fleet.wait_until(IS_OVER, process_name(process.pid))
        finally:
            sender.signal(signal.SIGCONT)
    scene.leave()
    scene.await_status(LAST[case.word])
    took = time.monotonic() - began
    if case.fate is not Fate.GOES_ON:
        scene.fleet.await_tended(lambda: sender.process is not process)
    return took


def _unanswered(scene: _Scene) -> None:
    state = scene.fleet.state
    state.fail("provider.sms", ApplyThenDelay(_DELAY))
    scene.fleet.enqueue(1)
    state.wait_for(partial(_has_received, scene.id), _PATIENCE)


def _has_received(id_: int, state: SandboxState) -> bool:
    return any(message.message_id == id_ for message in state.received)


def _unreported(scene: _Scene) -> None:
    scene.hold_sender(OUTCOME)
    scene.hold(scene.sender, REPORT, scene.gates[scene.sender].go)


def _reported(scene: _Scene) -> None:
    scene.fleet.enqueue(1)
    scene.await_status("sent")


_SCENES: Mapping[When, Callable[[_Scene], None]] = {
    When.UNANSWERED: _unanswered,
    When.ANSWERED: lambda scene: scene.hold_sender(ANSWERED),
    **dict.fromkeys((When.UNCOMMITTED, *SIDE_BY_SIDE), lambda scene: scene.hold_sender(OUTCOME)),
    When.UNREPORTED: _unreported,
    When.REPORTED: _reported,
}
"""What brings a message to the moment at which the receipt comes."""


def _commit_side_by_side(scene: _Scene, case: Case) -> None:
    """Have the receipt's transaction open beside the outcome's, and let both commit in this order."""
    scene.hold(scene.receiver, RECEIPT, partial(scene.begin_post, case.word))
    receipts, outcomes = scene.gates[scene.receiver], scene.gates[scene.sender]
    if case.when is When.OUTCOME_FIRST:
        outcomes.go()
        scene.await_status("sent")
    receipts.go()
    if case.when is When.TOGETHER:
        outcomes.go()
    scene.end_post()


def _faults(scene: _Scene, case: Case) -> Iterator[str]:
    """What isn't told once, and last."""
    told = scene.statuses
    if list(dict.fromkeys(told)) != ["dequeued", "sent", LAST[case.word]]:
        yield f"the service heard {told}"
    elif case.fate is Fate.GOES_ON and len(told) != len(set(told)):
        yield f"the service heard {told}, some of it again"


def _post(scene: _Scene, word: Word) -> None:
    """Post the receipt until it is accepted, as a provider does."""
    sent, port = scene.sent, scene.receiver.backend.port
    body = json.dumps({"id": sent.provider_id, "status": word, "at": now_text()})
    waiting = threading.Event()
    for _ in range(POSTS):
        answered = _posted(port, body)
        receipt = PlannedReceipt("sms", sent.provider_id, word, now_text(), answered)
        scene.fleet.state.record_receipt(receipt)
        if answered is not None and answered < 300:
            return
        waiting.wait(_LOOK)


def _posted(port: int, body: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    try:
        connection.request("POST", "/receipts/sms", body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
