"""The configuration that `deliveryd sandbox` writes, and a worker that runs with it beside the sandbox."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from deliveryd.commands.sandbox.sandbox_files import configuration
from deliveryd.sandbox.scenario import demo_scenario
from support.patience import PATIENCE
from support.places import ROOT
from support.ports import free_port
from support.terminal import command

TUTORIAL = ROOT / "docs" / "tutorial" / "first-messages.md"
QUICK = {
    f"DELIVERYD_CHANNELS__{channel}__RETRY__BASE": "50ms"
    for channel in ("SMS", "MESSENGER", "INAPP", "EMAIL")
}


class Beside(NamedTuple):
    """A sandbox that runs as a process, and the configuration that it wrote."""

    config: Path
    url: str


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """`deliveryd sandbox --folder`, and the worker run against it until there is nothing more to do."""
    folder = tmp_path_factory.mktemp("own") / "try"
    options = [
        "--port",
        "0",
        "--smtp-port",
        "0",
        "--receipts-port",
        str(free_port()),
        "--folder",
        str(folder),
    ]
    started = subprocess.Popen(
        [sys.executable, "-m", "deliveryd", "sandbox", *options], stdout=subprocess.PIPE, text=True
    )
    with started as process:
        try:
            assert process.stdout is not None
            told = dict(process.stdout.readline().split(maxsplit=1) for _ in range(5))
            beside = Beside(Path(told["config"].strip()), told["service"].strip())
            yield beside
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0


@pytest.fixture(scope="module")
def cards(beside: Beside) -> dict[int, Any]:
    """What the sandbox has of each message when a worker with its configuration has run."""
    ran = subprocess.run(
        [sys.executable, "-m", "deliveryd", "run", "--until-idle", "--config", beside.config],
        env={**os.environ, **QUICK, "DELIVERYD_ADMIN__LISTEN": "", "DELIVERYD_LOG__LEVEL": "error"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    answer = httpx.get(f"{beside.url}/inbox.json", trust_env=False, timeout=PATIENCE).json()
    return {card["id"]: card for card in answer["cards"]}


def test_the_tutorial_shows_the_very_configuration_that_the_sandbox_writes() -> None:
    """With the ports that it takes when none are named."""
    (shown,) = re.findall(
        r"^```toml\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert shown == configuration("http://127.0.0.1:8080", "127.0.0.1", 8025, 9471)


@pytest.mark.slow
def test_a_worker_with_that_configuration_brings_all_messages_to_the_end_that_the_demo_shows(
    cards: dict[int, Any],
) -> None:
    """42 messages: 22 delivered, 8 sent, 12 errors, one of them after the provider's receipt."""
    assert set(cards) == {exhibit.id for exhibit in demo_scenario().exhibits}
    assert Counter(card["events"][-1]["status"] for card in cards.values()) == {
        "delivered": 22, "sent": 8, "error": 12
    }  # fmt: skip
    assert cards[1001]["content"]["text"].startswith("Hello Ann Whitfield, 120 points")


@pytest.mark.slow
@pytest.mark.usefixtures("cards")
def test_the_sandbox_answers_the_customer_data_area_for_its_customers(beside: Beside) -> None:
    """Groups over several pages, with their configurations; a customer who isn't in the story is refused."""
    told = command("customers", "all", 1, "--with-config", "--config", beside.config)
    assert (told.status, told.err) == (0, "")
    assert {group: len(listed) for group, listed in told.data.items()} == {
        "merchants": 7, "offers": 4, "privileges": 2, "rewards": 3, "regions": 2, "benefits": 1
    }  # fmt: skip
    assert told.data["merchants"][0]["config"]["marketName"] == "Linden Market"
    assert command("customers", "all", 4711, "--config", beside.config).status == 1


@pytest.mark.slow
def test_the_sandbox_asks_for_the_token_that_it_wrote(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a wrong one is found out here, and not beside the real service."""
    wrong = beside.config.with_name("wrong-token")
    wrong.touch(mode=0o600)
    wrong.write_text("another")
    monkeypatch.setenv("DELIVERYD_SERVICE__AUTH__TOKEN_FILE", str(wrong))
    answered = command("check", "--config", beside.config)
    assert answered.status == 1
    assert "the secret of service.auth isn't accepted" in answered.out


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    tmp_path.joinpath("try").touch()
    answered = command("sandbox", "--port", "0", "--smtp-port", "0", "--folder", tmp_path / "try")
    assert answered.status == 1
    assert answered.err == f"deliveryd: {tmp_path}/try can't be used: File exists; choose another --folder\n"


@pytest.mark.slow
def test_where_it_listens_as_json() -> None:
    """One object, as soon as it listens."""
    options = ["--port", "0", "--smtp-port", "0", "--empty", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "deliveryd", "sandbox", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert told["inbox"] == f"{told['service']}/"


@pytest.mark.slow
def test_files_that_are_there_are_left_as_they_are(tmp_path: Path) -> None:
    """A second sandbox in the same folder changes nothing, and says that the messages were sent before."""
    tmp_path.joinpath("config.toml").write_text("# mine\n", encoding="utf-8")
    tmp_path.joinpath("journal.db").touch()
    options = ["--port", "0", "--smtp-port", "0", "--folder", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "deliveryd", "sandbox", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = dict(process.stdout.readline().split(maxsplit=1) for _ in range(6))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert told["config"] == f"{tmp_path / 'config.toml'}, unchanged\n"
    assert "won't be sent again" in told["note"]
    assert tmp_path.joinpath("config.toml").read_text(encoding="utf-8") == "# mine\n"
    assert tmp_path.joinpath("service-token").stat().st_mode & 0o777 == 0o600
