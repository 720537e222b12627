"""The stations of the line: nothing is assigned to one from outside, and none is handed a method."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest
import trio

from deliveryd import control, delivery, receipts
from deliveryd.channels.base import Accepted, Dispatch, Refused, TryAgain
from deliveryd.delivery.pipeline import Stations
from support.virtual import VirtualWorld, live

BOTH = json.dumps({"content": {"en": {"sms": {"text": "hi"}, "email": {"subject": "s", "body": "b"}}}})
EMAIL = """
[channels.email]
adapter = "http"
url = "http://provider/email"
json = { text = "{content.body}" }
"""


def parts() -> list[type]:
    """The classes of the line, of receipts and of control, values aside."""
    found = []
    for room in (delivery, receipts, control):
        for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            for _, part in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
                own = part.__module__ == module.name and not part.__name__.startswith("_")
                if own and not issubclass(part, tuple | Exception) and "__init__" in vars(part):
                    found.append(part)
    return found


def verdict(dispatch: Dispatch) -> Accepted | Refused | TryAgain:
    match dispatch.entry.id % 3:
        case 0:
            return Refused("no such number", "sms.example.com")
        case 1 if dispatch.entry.stay_tries < 3:
            return TryAgain("busy", after=2.0)
        case _:
            return Accepted(dispatch.key)


def test_nothing_of_a_station_is_assigned_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the life of a worker: each assignment is made by a method of the object itself."""
    foreign: set[str] = set()

    def watched(self: object, name: str, value: object) -> None:
        caller = sys._getframe(1)
        if caller.f_locals.get("self") is not self:
            foreign.add(f"{type(self).__name__}.{name} in {caller.f_code.co_qualname}")
        object.__setattr__(self, name, value)

    for part in parts():
        monkeypatch.setattr(part, "__setattr__", watched, raising=False)
    world = VirtualWorld(tmp_path)
    world.add(f'[events]\nintermediate = ["sending"]\n{EMAIL}')
    world.service.settings[1] = BOTH
    world.service.enqueue(
        *({"id": id_, "settingsId": 1 + id_ % 2, "customerId": 1, "variables": {}} for id_ in range(1, 100))
    )
    world.channels["sms"].verdict = verdict

    async def run() -> None:
        with trio.move_on_after(5):  # a crash in the middle; then another life
            await world.supervisor().run()
        await world.run_until_idle()

    live(run)
    assert world.service.events
    assert foreign == set()


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.__name__)
def test_no_part_of_the_line_is_handed_a_callback(part: Any) -> None:
    """What a constructor takes are parts and values; functions, only those that are named here."""
    hints = get_type_hints(part.__init__)
    callbacks = {name for name, hint in hints.items() if get_origin(hint) is Callable}
    assert callbacks == FUNCTIONS.get(part.__name__, set())


FUNCTIONS = {
    "SettingsCache": {"compile_settings"},  # pure: makes a value
    "Receipts": {"fetch"},  # reads a page of a provider
    "Pages": {"fetch"},
    "ViewHandler": {"open_tail", "overview"},  # what is shown: reads only
    "ReceiptRequest": {"peer"},  # pure: reads headers, which few requests need
    "ReceiptEndpoint": {
        "take_in",
        "turned_away",
        "is_started",
    },  # of Receipts, whose shell towards ASGI it is
}


def test_the_stations_are_known_by_the_pipeline_alone() -> None:
    """Which knows the order; no module of a station imports that of another one."""
    modules = {
        hint.__module__
        for hint in get_type_hints(Stations).values()
        if getattr(hint, "__module__", "").startswith("deliveryd.delivery.")
    }
    shared = {"deliveryd.delivery.outcomes", "deliveryd.delivery.policy"}  # lower than the dispatchers
    for module in modules:
        source = inspect.getsource(importlib.import_module(module))
        assert not [other for other in modules - {module} - shared if f"from {other} import" in source], (
            module
        )
