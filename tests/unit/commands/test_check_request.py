"""What `check` finds out about the service by a request: a wrong token, a mistyped address."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest

from deliveryd.sandbox.faults import FaultAnswer
from support.check_command import check, line
from support.listening import Listening, ThreadedServer
from support.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101", "email": "ann@example.com"}])
        yield world


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_token_is_found_out_with_a_real_request(world: World, status: int) -> None:
    """Status 1, as a command has that the service refuses: the worker goes on asking, too."""
    if status == 401:
        world.state.token = "right"
    else:
        world.state.fail_until_healed("settings", FaultAnswer(status))
    secret = world.folder / "token"
    secret.touch(mode=0o600)
    secret.write_text("wrong")
    world.change('timeout = "1m"', 'timeout = "1m"\nauth = { token_file = "token" }')
    answered = check(world)
    assert answered.status == 1
    assert f"the service answered {status}: the secret of service.auth isn't accepted" in line(
        answered, "service.auth"
    )
    assert "base_url" not in answered.out
    secret.write_text("right")
    world.state.heal("settings")
    assert check(world).status == 0
    assert world.state.requests["queue"] == 0


class Site(BaseHTTPRequestHandler):
    """A server that is no message service; `answer` is what it says to each path."""

    answer: Callable[[str], tuple[int, bytes]]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:  # the name is http.server's
        self.asked.append(self.path)
        status, body = type(self).answer(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Nothing."""


@contextmanager
def a_site(answer: Callable[[str], tuple[int, bytes]]) -> Iterator[tuple[str, list[str]]]:
    """Its address, and what it is asked for."""
    asked: list[str] = []
    kind = type("OneSite", (Site,), {"answer": staticmethod(answer), "asked": asked})
    with Listening(ThreadedServer(kind)) as listening:
        yield f"http://127.0.0.1:{listening.port}/base", asked


@pytest.mark.parametrize(
    ("answer", "level", "told"),
    [
        (lambda _: (404, b"<h1>Not Found</h1>"), "warning", "404 and no JSON: base_url may be wrong"),
        (lambda _: (404, b""), "warning", "404 and no JSON: base_url may be wrong"),
        (lambda _: (200, b"<html></html>"), "warning", "200 and no JSON: base_url may be wrong"),
        (lambda _: (404, b'{"e": 1}'), "warning", "404 like any address there: base_url may be"),
        (lambda path: (404, b"0" if "settings" in path else b"1"), "ok", "can be reached"),
        (lambda path: (404 if "settings" in path else 405, b"1"), "ok", "can be reached"),
        (lambda _: (200, b'{"content": {}}'), "ok", "can be reached"),
        (lambda _: (301, b""), "failed", "is answered with 301, a redirect, which isn't followed"),
        (lambda _: (503, b"{}"), "failed", "is answered with 503"),
    ],
)  # fmt: skip
def test_a_mistyped_base_url_is_told_by_what_answers_there(
    world: World, answer: Callable[[str], tuple[int, bytes]], level: str, told: str
) -> None:
    """Its queue isn't asked."""
    with a_site(answer) as (address, asked):
        world.change(f'base_url = "{world.sandbox.base_url}"', f'base_url = "{address}"')
        answered = check(world)
    assert line(answered, "service.base_url").startswith(level)
    assert told in line(answered, "service.base_url")
    assert answered.status == (1 if level == "failed" else 0)
    assert asked[0] == "/base/settings/0"
    assert re.fullmatch(r"/base/deliveryd-check-[0-9a-f]{8}", asked[1])
    assert len(asked) == 2
