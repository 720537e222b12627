"""The status page of a real worker, in a real browser: an operator pauses and resumes, and it is done."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from support.messages import message
from support.patience import PATIENCE
from support.world import PAGE_TOKEN, World, get, open_world

CHROMIUM = shutil.which("chromium")
SMS = {"content": {"en": {"sms": {"text": "Hello"}}}}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium (apt-get install chromium)"),
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.take_orders()
        world.state.settings[1] = SMS
        world.customers([{"id": 1, "language": "en", "phone": "+491234567"}])
        yield world


def start(world: World) -> tuple[subprocess.Popen[bytes], str]:
    """A worker that takes messages, and where its pages are."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.settimeout(PATIENCE)
        notified.bind(str(world.folder / "notify"))
        worker = world.start(log="info", NOTIFY_SOCKET=str(world.folder / "notify"))
        while b"READY=1" not in notified.recv(1000):
            pass
    [listening] = [line for line in map(json.loads, world.log().splitlines()) if "listen" in line]
    return worker, str(listening["listen"])


def test_an_operator_pauses_a_channel_and_resumes_it_on_the_page(world: World) -> None:
    """What is paused waits and isn't sent; the journal knows that the page ordered it, and why."""
    worker, url = start(world)
    order = {"kind": "channel", "key": "sms"}
    assert httpx.post(f"{url}/actions/pause", json=order, trust_env=False).status_code == 401
    known = {"Authorization": f"Bearer {PAGE_TOKEN}"}
    mistyped = httpx.post(f"{url}/actions/pause", json={**order, "key": "sm"}, headers=known, trust_env=False)
    assert (mistyped.status_code, mistyped.json()) == (
        409,
        {"error": "there is no channel sm; there are sms"},
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        page = browser.new_page()
        page.goto(url)
        page.get_by_role("button", name="Unlock actions").click()
        page.get_by_label("Token").fill(PAGE_TOKEN)
        page.get_by_role("button", name="Unlock", exact=True).click()
        page.get_by_role("button", name="Pause channel sms").click()
        page.locator("#pause-dialog").get_by_label("Reason").fill("wrong price")
        page.locator("#pause-dialog").get_by_role("button", name="Pause").click()
        expect(page.locator("#paused li")).to_contain_text("by status page: wrong price")
        world.state.enqueue(*(json.dumps(message(id_)) for id_ in range(1, 11)))
        world.state.wait_for(lambda state: len(state.events) >= 10)
        expect(page.locator("#paused li")).to_contain_text("10 messages wait", timeout=20_000)
        assert not world.state.received
        page.locator("#paused li button").click()
        page.locator("#resume-dialog").get_by_role("button", name="Resume").click()
        expect(page.locator("#paused")).to_have_text("Nothing is paused.")
        world.state.wait_for(lambda state: len(state.received) == 10, timeout=20)
        page.get_by_role("button", name="Reload").click()
        expect(page.locator("#outcome")).to_have_text("Configuration: unchanged.")
        browser.close()
    assert get(f"{url}/status").json()["paused"] == []
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    decisions = world.rows("SELECT verb, kind, key, user, caller, reason FROM decision ORDER BY seq")
    assert decisions == [
        ("pause", "channel", "sms", None, "status page", "wrong price"),
        ("resume", "channel", "sms", None, "status page", None),
    ]
