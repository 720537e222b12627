"""A proxy or a portal answers with pages in the service's place: everything waits, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import httpx
import pytest

from support.messages import message
from support.virtual import VirtualWorld, live

SETTINGS = json.dumps({"content": {"en": {"sms": {"text": "hi"}}}})
PAGE = "<!DOCTYPE html><html><body>Please log in</body></html>"


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    """Ten messages with the same settings."""
    made = VirtualWorld(tmp_path)
    made.service.settings[1] = SETTINGS
    for id_ in range(1, 11):
        made.service.enqueue(message(id_))
    return made


def page_until(world: VirtualWorld, seconds: float, status: int, path: str = "/") -> None:
    """Let pages come in place of all answers below a path, for so long."""

    def trouble(request: httpx.Request) -> httpx.Response | None:
        is_in_place = anyio.current_time() < seconds and request.url.path.startswith(path)
        return httpx.Response(status, html=PAGE) if is_in_place else None

    world.service.trouble = trouble


@pytest.mark.parametrize("path", ["/", "/queue", "/events", "/settings"])
@pytest.mark.parametrize("status", [200, 404])
def test_pages_in_the_place_of_the_service_are_waited_out(
    world: VirtualWorld, status: int, path: str
) -> None:
    """No message fails, no event is taken for accepted, and no batch counts as lost."""
    page_until(world, 120, status, path)
    live(world.run_until_idle)
    assert [world.service.statuses(id_) for id_ in range(1, 11)] == [["dequeued", "sent"]] * 10
    assert len(world.channels["sms"].attempts) == 10
    assert not world.journal_rows("SELECT lost FROM log WHERE lost > 0")


@pytest.mark.slow
@pytest.mark.parametrize("status", [200, 404])
def test_pages_leave_old_copies_of_settings_in_use(world: VirtualWorld, status: int) -> None:
    """As in any outage: what was fetched before is used for `settings.stale_while_down`, and kept."""
    world.write(world.path.read_text().replace('cache_dir = "cache"', 'cache_dir = "cache"\nttl = "1m"'))
    later, takes = list(range(11, 21)), []

    def trouble(request: httpx.Request) -> httpx.Response | None:
        if anyio.current_time() < 600:
            takes.append(request.url.path == "/queue")
            return httpx.Response(503) if takes[-1] and sum(takes) > 1 else None
        while later:
            world.service.enqueue(message(later.pop()))
        return httpx.Response(status, html=PAGE) if request.url.path.startswith("/settings") else None

    world.service.trouble = trouble
    assert live(world.run_until_idle) < 900
    assert [world.service.statuses(id_) for id_ in range(11, 21)] == [["dequeued", "sent"]] * 10
