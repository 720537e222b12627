"""The token of the status page's actions, at a real worker whose operators change the file."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.check_command import check, warned
from support.patience import PATIENCE
from support.terminal import command
from support.world import PAGE_TOKEN, World, get, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.take_orders()
        yield world


def url_of_a_worker(world: World) -> str:
    """Start a worker; return where its pages are once it takes messages."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.settimeout(PATIENCE)
        notified.bind(str(world.folder / "notify"))
        world.start(log="info", NOTIFY_SOCKET=str(world.folder / "notify"))
        while b"READY=1" not in notified.recv(1000):
            pass
    [listening] = [line for line in map(json.loads, world.log().splitlines()) if "listen" in line]
    return str(listening["listen"])


def order(url: str, action: str, token: str, **fields: str) -> httpx.Response:
    known = {"Authorization": f"Bearer {token}"}
    return httpx.post(f"{url}/actions/{action}", json=fields, headers=known, trust_env=False)


def test_a_file_that_is_gone_before_the_first_request_leaves_the_worker_alive(world: World) -> None:
    """The token is that of the start, until there is a file that can be used."""
    url = url_of_a_worker(world)
    (world.folder / "token").unlink()
    assert get(f"{url}/livez").status_code == 200
    assert order(url, "check", PAGE_TOKEN).status_code == 200


def test_ids_of_19_digits_can_be_paused(world: World) -> None:
    """The queue numbers messages and settings with up to 64 bits."""
    url = url_of_a_worker(world)
    for kind, key in (("message", "9223372036854775807"), ("settings", "-9223372036854775808")):
        assert order(url, "pause", PAGE_TOKEN, kind=kind, key=key).json() == {"done": [key], "skipped": {}}
    beyond = order(url, "pause", PAGE_TOKEN, kind="message", key="9223372036854775808").json()
    assert beyond["skipped"] == {"9223372036854775808": "its id is no integer of 64 bits"}


@pytest.mark.parametrize(("token", "problem"), [("short", "at least 16"), ("é" * 20, "ASCII")])
def test_a_token_that_no_header_has_or_that_can_be_guessed_is_a_problem(
    world: World, token: str, problem: str
) -> None:
    (world.folder / "token").write_text(token, encoding="utf-8")
    checked = command("check", "--offline", "--config", world.config)
    assert checked.status == 78
    assert f"admin.token_file: must have {problem} characters" in checked.out + checked.err


def test_a_token_that_would_cross_the_network_in_plain_text_is_told(world: World) -> None:
    """By `check` under its key, and in the worker's log: the image listens on every address."""
    world.change('listen = "127.0.0.1:0"', 'listen = "0.0.0.0:0"')
    assert "plain text" in warned(check(world, "--offline"))["admin.token_file"]
    world.run_until_idle()
    assert "server.unencrypted" in world.log()
