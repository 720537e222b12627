"""Secrets that are replaced while the worker runs: what is used, and what the log says."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.runtime import secret_file
from deliveryd.runtime.secret_file import RenewedValue, SecretFile
from deliveryd.sandbox.faults import FaultAnswer
from support.logs import log_text
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        yield world


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What was logged so far."""
    with log_text("info") as stream:
        yield stream


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_text("one")
    return path


def secret_in(file: Path) -> RenewedValue[str]:
    return RenewedValue([file], SecretFile(file).read)


def replace(file: Path, text: str) -> None:
    """As who knows how to: another file takes the name."""
    new = file.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(file)


def lines(log: io.StringIO) -> list[tuple[str, str]]:
    return [(line["event"], line.get("reason", "")) for line in map(json.loads, log.getvalue().splitlines())]


def test_a_replaced_file_is_seen_at_the_next_look(
    file: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart and before anything was refused."""
    monkeypatch.setattr(secret_file, "LOOK_EVERY", 0)
    secret = secret_in(file)
    replace(file, "two")
    assert secret.current() == "two"
    file.write_text("three")
    assert secret.current() == "three"
    assert [event for event, _ in lines(log)] == ["secret.renewed"] * 2
    assert "two" not in log.getvalue()


def test_files_are_not_looked_at_for_every_message(file: Path) -> None:
    """Within a second of the last look the value is at hand; a refusal has them looked at in any case."""
    secret = secret_in(file)
    replace(file, "two")
    assert secret.current() == "one"
    assert secret.renew()
    assert secret.current() == "two"
    assert not secret.renew()


@pytest.mark.parametrize("spoiled", ["", "two\nlines", None], ids=["empty", "half of something", "gone"])
def test_a_file_that_cannot_be_used_keeps_the_old_secret_and_is_told_once(
    file: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch, spoiled: str | None
) -> None:
    """Such as one that is just being written. When it is whole, it is used."""
    monkeypatch.setattr(secret_file, "LOOK_EVERY", 0)
    secret = secret_in(file)
    if spoiled is None:
        file.unlink()
    else:
        file.write_text(spoiled)
    for _ in range(5):
        assert secret.current() == "one"
        assert not secret.renew()
    [(event, reason)] = lines(log)
    assert event == "secret.unusable"
    assert str(file) in reason
    replace(file, "new")
    assert secret.current() == "new"


def test_a_file_that_everybody_could_have_replaced_keeps_the_old_secret(
    file: Path, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder was opened to all users while the worker runs: the new one may be of any of them."""
    monkeypatch.setattr(secret_file, "LOOK_EVERY", 0)
    secret = secret_in(file)
    file.parent.chmod(0o777)
    replace(file, "two")
    assert secret.current() == "one"
    reason = f"{file.parent}: all users may change it; run: chmod o-w {file.parent}"
    assert lines(log) == [("secret.unusable", reason)]
    file.parent.chmod(0o700)
    assert secret.current() == "two"


def test_a_secret_that_cannot_be_used_at_the_start_is_an_error(file: Path) -> None:
    """There is none before it that could be kept."""
    file.write_text("")
    with pytest.raises(ValueError, match="is empty"):
        secret_in(file)


@pytest.mark.slow
def test_a_worker_whose_provider_wants_a_new_secret_sends_with_it(world: World, file: Path) -> None:
    """No restart, no pause and no second message: the provider saw one key, first with the old secret."""
    world.add(f'headers = {{ Authorization = "Bearer {{secret.token}}" }}\nsecrets = {{ token = "{file}" }}')
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    replace(file, "two")
    world.state.fail("provider.sms", FaultAnswer(401))
    world.state.enqueue(message(1))
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    asked = [seen.headers for seen in world.state.seen if seen.endpoint == "provider.sms"]
    assert [headers["authorization"] for headers in asked][-1] == "Bearer two"
    assert len({headers["idempotency-key"] for headers in asked}) == 1
    assert len(asked) == 2
