"""`deliveryd health`: the question that a container's health check asks."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import deliveryd
from deliveryd.commands.watch import health
from deliveryd.sandbox.faults import FaultAnswer
from support.patience import PATIENCE
from support.ports import free_port
from support.terminal import command
from support.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


@pytest.fixture
def port(world: World) -> int:
    """The port that the worker's admin server shall have."""
    port = free_port()
    world.change('[admin]\nlisten = ""', f'[admin]\nlisten = "127.0.0.1:{port}"')
    return port


def checked(ask: Callable[[], Any], status: str = "status") -> Any:
    """The answer of a check that finds a worker well: like a container's, it is repeated where it is slow."""
    ends = time.monotonic() + PATIENCE
    while getattr(answer := ask(), status) and time.monotonic() < ends:
        continue
    return answer


@pytest.mark.slow
def test_a_running_worker_is_well_by_configuration_and_by_address(
    world: World, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stands in the option, in the environment's variable, or in its usual place."""
    world.start()
    world.state.wait_for(lambda state: state.requests["queue"], PATIENCE)
    by_config = checked(lambda: command("health", "--config", world.config))
    assert (by_config.status, by_config.err) == (0, "")
    assert checked(lambda: command("health", "--url", f"http://127.0.0.1:{port}")).status == 0
    monkeypatch.setattr(health, "USUAL_CONFIG", world.config)
    assert checked(lambda: command("health")).status == 0
    monkeypatch.setattr(health, "USUAL_CONFIG", world.folder / "absent.toml")
    monkeypatch.setattr(health, "USUAL_URL", f"http://127.0.0.1:{port}")
    assert checked(lambda: command("health")).status == 0
    by_process = checked(lambda: world.command("health", "--config", str(world.config)), "returncode")
    assert by_process.stdout.startswith("alive\n")
    by_variable = checked(lambda: world.command("health", DELIVERYD_CONFIG=str(world.config)), "returncode")
    assert by_variable.returncode == 0


LIGHT = """
import sys
from deliveryd.__main__ import main
try:
    main()
finally:
    print(sorted(each for each in sys.modules if each.partition(".")[0] not in sys.stdlib_module_names))
    print(len(sys.modules))
"""


@pytest.mark.slow
def test_a_health_check_loads_nothing_but_a_few_lines(world: World, port: int) -> None:
    """It is asked each 30 s: of the program it loads a few small modules, of Python less than a client."""
    program = [sys.executable, "-S", "-c", LIGHT, "health", "--config", str(world.config)]
    source = str(Path(deliveryd.__file__).parent.parent)
    answered = subprocess.run(
        program, capture_output=True, text=True, check=False, env={"PYTHONPATH": source}
    )
    modules, count = answered.stdout.splitlines()
    assert set(ast.literal_eval(modules)) - {"__main__"} == {
        "deliveryd", "deliveryd.__main__", "deliveryd.commands",
        "deliveryd.commands.common", "deliveryd.commands.common.conventions",
        "deliveryd.commands.common.printable", "deliveryd.commands.watch",
        "deliveryd.commands.watch.quick_health", "deliveryd.errors", "deliveryd.http",
        "deliveryd.http.addresses",
    }  # fmt: skip
    assert int(count) < 120
    assert f"no answer from http://127.0.0.1:{port}" in answered.stderr
    assert answered.returncode == 1


def test_without_a_worker_it_says_where_it_asked_and_ends_with_1(world: World, port: int) -> None:
    answered = command("health", "--config", world.config)
    assert (answered.status, answered.out) == (1, "")
    assert f"no answer from http://127.0.0.1:{port}" in answered.err


def test_what_answers_and_is_not_deliveryd_is_told(world: World) -> None:
    """Another program on that port isn't a worker that is well, whatever it answers."""
    world.state.fail_until_healed("queue", FaultAnswer(200, b"fine"))
    for url in (world.state.base_url, f"{world.state.base_url}/queue?"):
        answered = command("health", "--url", url)
        assert (answered.status, answered.out) == (1, "")
        assert (
            f"the server at {url} isn't deliveryd's admin server: GET /livez was answered with"
            in answered.err
        )


@pytest.mark.slow
def test_health_as_json(world: World, port: int) -> None:
    """Whether it is well, where it was asked, and what it answered."""
    url = f"http://127.0.0.1:{port}"
    silent = command("health", "--config", world.config, "--json")
    assert (silent.status, silent.data["alive"], silent.data["url"]) == (1, False, url)
    world.start()
    world.state.wait_for(lambda state: state.requests["queue"], PATIENCE)
    told = checked(lambda: command("health", "--config", world.config, "--json"))
    assert (told.status, told.data["alive"], told.data["answer"][0]) == (0, True, "alive")


@pytest.mark.parametrize(("listen", "reason"), [("", "turned off"), ("127.0.0.1:0", "any free port")])
def test_a_configuration_that_does_not_say_where_ends_with_78(world: World, listen: str, reason: str) -> None:
    world.change('[admin]\nlisten = ""', f'[admin]\nlisten = "{listen}"')
    answered = command("health", "--config", world.config)
    assert answered.status == 78
    assert answered.err.startswith(f"{world.config}:admin.listen: ")
    assert reason in answered.err
    assert "--url" in answered.err


def test_a_mistake_elsewhere_in_the_file_does_not_matter(world: World, port: int) -> None:
    """Only admin.listen is read: a healthy worker isn't called ill for a value that a reload would refuse."""
    world.change("[service]", "[service]\nunknown = 7")
    answered = command("health", "--config", world.config)
    assert (answered.status, f"no answer from http://127.0.0.1:{port}" in answered.err) == (1, True)


@pytest.mark.parametrize("url", ["127.0.0.1:9470", "https://127.0.0.1:9470", "http://", "http://h:99999"])
def test_an_address_that_is_none_is_a_mistake_in_use(url: str) -> None:
    answered = command("health", "--url", url)
    assert answered.status == 2
    assert "http://127.0.0.1:9470, with a port up to 65535" in answered.err
