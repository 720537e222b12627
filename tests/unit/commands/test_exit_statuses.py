"""One exit status for one cause, whichever command meets it; what waiting mends keeps no unit down."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from deliveryd.commands.common.conventions import CONFIGURATION, FAILED
from support.forked import run_deliveryd
from support.places import ROOT
from support.ports import free_port
from support.somebody import as_nobody
from support.terminal import Answered, command
from support.world import World, open_world

Cause = Callable[[World, ExitStack], None]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


def mistyped_key(world: World, _held: ExitStack) -> None:
    world.change("[queue]", "[queue]\nbatch_sise = 5")


def no_secret(world: World, _held: ExitStack) -> None:
    world.change('timeout = "1m"', 'timeout = "1m"\nauth = { token_file = "absent" }')


def no_certificates(world: World, _held: ExitStack) -> None:
    world.change("[queue]", '[service.tls]\nca_file = "absent.pem"\n[queue]')


def plain_text(world: World, _held: ExitStack) -> None:
    world.folder.joinpath("token").touch(mode=0o600)
    world.folder.joinpath("token").write_text("s3cret")
    world.change('timeout = "1m"', 'timeout = "1m"\nauth = { token_file = "token" }')
    world.change(f'base_url = "{world.sandbox.base_url}"', 'base_url = "http://queue.example.com"')


def shared_folder(world: World, _held: ExitStack) -> None:
    world.folder.joinpath("state").mkdir()
    world.folder.joinpath("state").chmod(0o777)
    world.change("sqlite:///journal.db", "sqlite:///state/journal.db")


def foreign_database(world: World, _held: ExitStack) -> None:
    with closing(sqlite3.connect(world.folder / "journal.db")) as db:
        db.execute("CREATE TABLE guests (name TEXT)")


def no_database(world: World, _held: ExitStack) -> None:
    world.folder.joinpath("journal.db").write_bytes(b"x" * 5000)


def folder_for_a_journal(world: World, _held: ExitStack) -> None:
    world.folder.joinpath("journal.db").mkdir()


def journal_below_a_file(world: World, _held: ExitStack) -> None:
    world.folder.joinpath("file").touch()
    world.change("sqlite:///journal.db", "sqlite:///file/journal.db")


def no_right_to_write(world: World, held: ExitStack) -> None:
    """Its folder may be read only. Root may do everything, so somebody else asks."""
    state = world.folder / "state"
    state.mkdir()
    world.change("sqlite:///journal.db", "sqlite:///state/journal.db")
    for words in (RUN, CHECK):  # what they load may be closed to others than root
        assert command(*words, "--config", world.config).status == 0
    state.chmod(0o555)
    held.enter_context(as_nobody(world))


def config_of_another_user(world: World, held: ExitStack) -> None:
    for words in OF_CONFIG:  # as above
        command(*words, "--config", world.config)
    held.enter_context(as_nobody(world))
    world.config.chmod(0)


def no_config(world: World, _held: ExitStack) -> None:
    world.config.unlink()


def folder_for_a_config(world: World, _held: ExitStack) -> None:
    world.config.unlink()
    world.config.mkdir()


def port_in_use(world: World, held: ExitStack) -> None:
    server = held.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = server.getsockname()[1]
    world.change('[admin]\nlisten = ""', f'[admin]\nlisten = "127.0.0.1:{port}"')


def address_of_another_machine(world: World, _held: ExitStack) -> None:
    world.change('[admin]\nlisten = ""', '[admin]\nlisten = "192.0.2.1:9470"')


def service_away(world: World, _held: ExitStack) -> None:
    world.change(f'base_url = "{world.sandbox.base_url}"', f'base_url = "http://127.0.0.1:{free_port()}"')


def wrong_token(world: World, _held: ExitStack) -> None:
    world.state.token = "right"


def broken_customer_file(world: World, _held: ExitStack) -> None:
    world.folder.joinpath("customers.jsonl").write_text('{"id": "Ann"}\n')


CHECK, RUN, STATUS = ("check",), ("run", "--until-idle"), ("status",)
OF_CONFIG = (CHECK, RUN, STATUS, ("health",), ("lint", "--cached"), ("channels", "list"))
EXPLAIN, RENDER, AUDIT = ("explain", "1"), ("render", "--settings", "1", "--customer", "1"), ("audit",)

TABLE: list[tuple[Cause, int, tuple[tuple[str, ...], ...]]] = [
    (config_of_another_user, CONFIGURATION, OF_CONFIG),
    (no_config, CONFIGURATION, OF_CONFIG),
    (folder_for_a_config, CONFIGURATION, OF_CONFIG),
    (mistyped_key, CONFIGURATION, (CHECK, RUN, RENDER)),
    (no_secret, CONFIGURATION, (CHECK, RUN, RENDER)),
    (no_certificates, CONFIGURATION, (CHECK, RUN, RENDER)),
    (plain_text, CONFIGURATION, (CHECK, RUN, RENDER)),
    (shared_folder, CONFIGURATION, (CHECK, RUN, EXPLAIN, RENDER, AUDIT)),
    (broken_customer_file, CONFIGURATION, (CHECK, RUN)),
    (foreign_database, CONFIGURATION, (CHECK, RUN, EXPLAIN, AUDIT)),
    (no_database, CONFIGURATION, (CHECK, RUN, EXPLAIN, AUDIT)),
    (folder_for_a_journal, CONFIGURATION, (CHECK, RUN, EXPLAIN, AUDIT)),
    (journal_below_a_file, CONFIGURATION, (CHECK, RUN, EXPLAIN, AUDIT)),
    (no_right_to_write, CONFIGURATION, (CHECK, RUN)),
    (port_in_use, FAILED, (CHECK, RUN)),
    (address_of_another_machine, FAILED, (CHECK, RUN)),
    (service_away, FAILED, (CHECK, RENDER)),
    (wrong_token, FAILED, (CHECK, RENDER)),
]
"""By cause: its status, and the commands that meet it."""


@pytest.mark.parametrize(("cause", "status", "commands"), TABLE, ids=[cause.__name__ for cause, *_ in TABLE])
def test_a_cause_has_the_same_exit_status_in_every_command(
    world: World, cause: Cause, status: int, commands: tuple[tuple[str, ...], ...]
) -> None:
    with ExitStack() as held:
        cause(world, held)
        answered = {words[0]: command(*words, "--config", world.config) for words in commands}
    assert {name: answer.status for name, answer in answered.items()} == dict.fromkeys(answered, status)
    assert all(has_no_unexpected_error(answer) for answer in answered.values())


def has_no_unexpected_error(answered: Answered) -> bool:
    return "unexpected error" not in answered.err and "Traceback" not in answered.err


@pytest.mark.parametrize("unit", ["deliveryd.service", "deliveryd@.service"])
def test_what_waiting_mends_never_keeps_a_unit_down(unit: str) -> None:
    """systemd tries again after 1, and not after 2 and 78."""
    text = ROOT.joinpath("systemd", unit).read_text(encoding="utf-8")
    [prevented] = [line for line in text.splitlines() if line.startswith("RestartPreventExitStatus=")]
    statuses = {int(status) for status in prevented.partition("=")[2].split()}
    assert CONFIGURATION in statuses
    assert FAILED not in statuses


@pytest.mark.slow
def test_a_sandbox_whose_port_is_in_use_names_the_option(world: World) -> None:
    for option, port in (("--port", world.sandbox.port), ("--smtp-port", world.sandbox.smtp_port)):
        ports = {"--port": "0", "--smtp-port": "0", option: str(port)}
        ended = run_deliveryd("sandbox", *(word for pair in ports.items() for word in pair))
        assert (ended.returncode, ended.stdout) == (FAILED, "")
        told = f"can't listen on 127.0.0.1 port {port}: Address already in use"
        mend = f"choose another with {option} (0: any free port) or --host"
        assert ended.stderr == f"deliveryd: {told}; {mend}\n"
