"""Messages for a customer whose devices fail and die as they are drawn, at workers that are cut off."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from deliveryd.channels import devices as several
from deliveryd.channels.base import AtDevices, OneVerdict, Refused
from deliveryd.delivery import devices
from deliveryd.model import SECOND, format_instant
from deliveryd.states import State
from support.devices_world import OPTIONS, Devices, DevicesWorld
from support.messages import message
from support.virtual import START

GOOD, DEAD, REFUSED, BUSY, CUT, LOST = "200", "404", "400", "503", "cut off", "accepted, and the answer lost"
OPEN = frozenset({BUSY, CUT, LOST})
"""Answers after which a device may take the message later, or may have it."""

PLANS = 40
MOST_PLANS = 60


class Lives(NamedTuple):
    """What happens: each device's answers for each message, by turns, and when workers are cut off."""

    answers: dict[str, list[str]]
    messages: int
    attempts: int
    holds: bool
    expires: float | None
    cuts: list[float]


def drawn(seed: int) -> Lives:
    """The lives of a seed."""
    choose = random.Random(f"devices {seed}")
    names = [f"d{number}" for number in range(choose.choice((1, 2, 3, 5, 12)))]
    beginnings = (GOOD, GOOD, BUSY, BUSY, CUT, LOST)
    return Lives(
        {
            name: [*choose.choices(beginnings, k=choose.choice((0, 0, 1, 2))),
                   choose.choice((GOOD, GOOD, GOOD, DEAD, REFUSED, BUSY, CUT))]
            for name in names
        },
        choose.choice((1, 1, 2, 3)),
        choose.choice((1, 2, 4)),
        choose.random() < 0.3,
        choose.choice((None, None, 15.0, 40.0)),
        [choose.uniform(0.01, 0.06) for _ in range(choose.choice((0, 0, 1, 2)))],
    )  # fmt: skip


class Story(DevicesWorld):
    """The lives of a plan, and what devices were asked and answered, in order."""

    def __init__(self, folder: Path, lives: Lives) -> None:
        super().__init__(folder)
        self.lives = lives
        self.given: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
        self.directory = Devices(*lives.answers)
        text = self.path.read_text(encoding="utf-8").replace("attempts = 3", f"attempts = {lives.attempts}")
        assert OPTIONS.partition("retry")[0] in text
        self.write(text + ('on_in_doubt = "hold"\n' if lives.holds else ""))
        if lives.expires is not None:
            expires = format_instant(START + int(lives.expires * SECOND))
            content = {"en": {"sms": {"text": "hello"}}}
            self.service.settings[1] = json.dumps({"delivery": {"expiresAt": expires}, "content": content})
        for id_ in range(2, lives.messages + 1):
            self.service.enqueue(message(id_))

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        answered = self.given[int(body["ref"].split("-")[1]), body["token"]]
        planned = self.lives.answers[body["token"]]
        answer = planned[min(len(answered), len(planned) - 1)]
        answered.append(answer)
        if answer in (CUT, LOST):
            raise httpx.ReadError(answer)
        return httpx.Response(int(answer), json={"id": f"id-{body['token']}"})

    def go(self) -> None:
        """Live them all."""
        for seconds in self.lives.cuts:
            with suppress(BaseExceptionGroup):
                self.run(seconds)
        self.run()

    def violations(self) -> Iterator[str]:
        """Every promise that isn't kept."""
        try:
            self.check()
        except AssertionError as error:
            yield f"the journal, or keys: {error}"
        rows = self.journal_rows("SELECT id, state FROM message")
        states = {int(str(id_)): State(int(str(state))) for id_, state in rows}
        if len(states) < self.lives.messages and not self.lives.cuts:  # a cut may come before the record
            yield f"messages are lost: {states}"
        for id_, state in states.items():
            yield from (f"message {id_}: {text}" for text in self._of_message(id_, state))
        dead = {device for (_, device), answers in self.given.items() if DEAD in answers}
        if self.stopped() != len(dead):
            yield f"{self.stopped()} devices are suppressed, of {len(dead)} dead ones"

    def _of_message(self, id_: int, state: State) -> Iterator[str]:
        statuses = Counter(self.service.statuses(id_))
        ends = statuses.keys() & {"sent", "error"}
        if state is State.SENT and ends != {"sent"}:
            yield f"it is sent, and {sorted(ends)} was reported"
        if state is State.FAILED and ends != {"error"}:
            yield f"it failed, and {sorted(ends)} was reported"
        if state not in {State.SENT, State.FAILED, State.IN_DOUBT}:
            yield f"it never ended (state {state})"
        answers = {device: self.given[id_, device] for device in self.lives.answers}
        took = {device for device, given in answers.items() if GOOD in given}
        if state is State.FAILED and took:
            yield f"it failed, and {sorted(took)} took it"
        if state is State.SENT and not took:
            yield "it is sent, and no device took it"
        gone = {device for (other, device), given in self.given.items() if DEAD in given and other != id_}
        for device, given in answers.items():
            if not given and device not in gone and self.lives.expires is None:
                yield f"{device} was never asked"
            yield from self._of_device(device, given, state, is_gone=device in gone)

    def _of_device(self, device: str, given: list[str], state: State, *, is_gone: bool) -> Iterator[str]:
        cuts, attempts = len(self.lives.cuts), self.lives.attempts
        # What a repeat is refused for may be that it came before.
        for final, again in ((GOOD, cuts), (DEAD, cuts * attempts)):
            if final in given and len(given) - given.index(final) - 1 > again:
                yield f"{device} was asked again after {final}: {given}"
        is_open = bool(given) and given[-1] in OPEN and not is_gone
        had_time = self.lives.expires is None and not self.lives.holds  # then a rest isn't repeated
        if is_open and had_time and state is not State.IN_DOUBT and len(given) < attempts:
            yield f"{device} was asked {len(given)} times of {attempts}, and may take it: {given}"
        if len(given) > attempts + cuts:
            yield f"{device} was asked {len(given)} times of {attempts}: {given}"


def broken(folder: Path, seeds: range) -> Iterator[str]:
    """The violations of the lives of some seeds."""
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir()
        story = Story(place, drawn(seed))
        story.go()
        yield from (f"{seed}: {text} {story.lives}" for text in story.violations())


@pytest.mark.slow
def test_whatever_becomes_of_devices_all_promises_are_kept(tmp_path: Path) -> None:
    assert list(broken(tmp_path, range(PLANS))) == []


# deliberate breaks


def all_devices_are_repeated(patch: pytest.MonkeyPatch) -> None:
    """Also those that have the message."""
    patch.setattr(devices, "to_repeat", lambda found: [each.device for each in found.each])


def the_rest_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Nothing is repeated once a device has the message."""
    patch.setattr(devices, "to_repeat", lambda _found: [])


def one_refusal_refuses_all(patch: pytest.MonkeyPatch) -> None:
    """A message that one device refuses is refused, whatever others may do."""
    common = devices.common

    def of_the_worst(found: AtDevices, reason: str) -> OneVerdict:
        refused = [each.verdict for each in found.each if isinstance(each.verdict, Refused)]
        return refused[0] if refused else common(found, reason)

    patch.setattr(devices, "common", of_the_worst)


def one_key_for_all_devices(patch: pytest.MonkeyPatch) -> None:
    """Each device gets the message's own key."""
    patch.setattr(several, "device_key", lambda key, _device: key)


def dead_devices_are_asked_on(patch: pytest.MonkeyPatch) -> None:
    """None is suppressed."""
    patch.setattr(devices, "unreachable", lambda _found: ())


def no_device_is_accepted(patch: pytest.MonkeyPatch) -> None:
    """A message is sent only when all devices have it."""
    first = devices.first_accepted
    patch.setattr(
        devices, "first_accepted", lambda found: first(found) if not devices.to_repeat(found) else None
    )


BREAKS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    all_devices_are_repeated,
    the_rest_is_forgotten,
    one_refusal_refuses_all,
    one_key_for_all_devices,
    dead_devices_are_asked_on,
    no_device_is_accepted,
)


@pytest.mark.slow
@pytest.mark.parametrize("break_", BREAKS, ids=lambda each: each.__name__)
def test_what_is_broken_on_purpose_is_found_out(
    break_: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_(monkeypatch)
    assert next(broken(tmp_path, range(MOST_PLANS)), None) is not None
