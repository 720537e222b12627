"""Operators' orders about dead letters and messages in doubt, with a real worker running and without one."""

from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deliveryd.commands.run import reload as reload_command
from support.messages import message, sms_settings
from support.ordering import ANN, audited, end, hold, order, running
from support.patience import PATIENCE
from support.terminal import command
from support.world import World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([ANN])
        world.state.settings[1] = sms_settings()
        world.add('on_in_doubt = "hold"\n')
        yield world


# in doubt


def test_what_is_held_is_listed_with_its_key_and_its_reason(world: World) -> None:
    hold(world, 1)
    listed = order(world, "in-doubt", "list", "--json").data
    assert [(each["message_id"], each["channel"], each["tries"]) for each in listed] == [(1, "sms", 1)]
    assert listed[0]["key"] == world.state.received[0].idempotency_key
    assert "1 held in doubt" in order(world, "in-doubt", "list").out
    assert order(world, "in-doubt", "list", "--json", "--older-than", "1h").data == []


def test_a_running_worker_takes_a_resent_message_at_once_under_its_key(world: World) -> None:
    hold(world, 1)
    worker = running(world)
    answered = order(world, "in-doubt", "resend", 1)
    assert (answered.status, answered.out) == (0, "resend: 1\n  message:1\n")
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    first, repeat = world.state.received
    assert repeat.idempotency_key == first.idempotency_key
    assert order(world, "in-doubt", "list", "--json").data == []
    end(worker)
    told = command("explain", "--config", world.config, 1).out
    assert "operator's order: resend" in told
    assert f"key {first.idempotency_key}, try 2 under it" in told
    assert '"event": "desk.decided"' in world.log()
    audited(world)


def test_what_is_held_is_logged_once_and_keeps_its_reason_and_time_at_later_starts(world: World) -> None:
    hold(world, 1)
    before = order(world, "in-doubt", "list", "--json").data
    for _ in range(2):
        assert world.start("--until-idle").wait(PATIENCE) == 1
    assert order(world, "in-doubt", "list", "--json").data == before
    assert world.log().count('"event": "message.in_doubt"') == 1
    world.change('on_in_doubt = "hold"', 'on_in_doubt = "resend"')
    world.run_until_idle()
    told = command("explain", "--config", world.config, 1).out
    assert f"in doubt: the outcome is unknown: {before[0]['reason']}" in told
    assert world.state.statuses(1) == ["dequeued", "sent"]


def test_a_new_key_is_said_to_double_before_anything_is_done(world: World) -> None:
    """In the help, and on standard error with and without --dry-run; the message then has another key."""
    help_text = " ".join(order(world, "in-doubt", "resend", "--help").out.split())
    assert "gets it twice" in help_text
    hold(world, 1)
    tried = order(world, "in-doubt", "resend", "--new-key", "--dry-run", 1)
    assert (tried.status, tried.out) == (0, "would resend under a new key: 1\n  message:1\n")
    ordered = order(world, "in-doubt", "resend", "--new-key", 1)
    assert ordered.out == "resend under a new key: 1\n  message:1\n"
    assert all("gets it twice" in answered.err for answered in (tried, ordered))
    world.run_until_idle()
    keys = [received.idempotency_key or "" for received in world.state.received]
    assert len(keys) == len(set(keys)) == 2
    assert world.state.statuses(1) == ["dequeued", "sent"]
    audited(world)


def test_without_a_worker_the_decision_waits_in_the_journal_for_the_next(world: World) -> None:
    hold(world, 1)
    assert order(world, "in-doubt", "resend", 1).status == 0
    assert len(world.state.received) == 1
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "sent"]


@pytest.mark.parametrize("with_worker", [True, False], ids=["worker runs", "no worker"])
def test_settled_as_sent_or_failed_is_reported_and_not_sent_again(world: World, with_worker: bool) -> None:
    hold(world, 1, 2)
    worker = running(world) if with_worker else None
    assert order(world, "in-doubt", "settle", "--as", "sent", 1).status == 0
    assert order(world, "in-doubt", "settle", "--as", "failed", 2).status == 0
    if worker is None:
        world.run_until_idle()
    world.state.wait_for(lambda state: len(state.statuses(1)) == len(state.statuses(2)) == 2, PATIENCE)
    if worker is not None:
        end(worker)
    assert [world.state.statuses(id_) for id_ in (1, 2)] == [["dequeued", "sent"], ["dequeued", "error"]]
    assert world.state.events_of(2)[-1]["details"] == (
        "sms: the outcome was unknown; settled by an operator as failed"
    )
    assert len(world.state.received) == 2
    assert "settled by an operator" in command("explain", "--config", world.config, 1).out
    audited(world)


def test_all_of_a_channel_are_decided_together_after_a_look_at_what_that_means(world: World) -> None:
    hold(world, 1, 2)
    would = order(world, "in-doubt", "settle", "--as", "sent", "--all", "--channel", "sms", "--dry-run")
    assert would.out == "would settle as sent: 2\n  message:1\n  message:2\n"
    assert len(order(world, "in-doubt", "list", "--json").data) == 2
    done = order(world, "in-doubt", "settle", "--as", "sent", "--all", "--channel", "sms", "--json")
    assert done.data == {"what": "settle as sent", "done": ["message:1", "message:2"], "skipped": {}}


def test_what_isnt_in_doubt_is_skipped_and_said(world: World) -> None:
    hold(world, 1)
    answered = order(world, "in-doubt", "resend", 1, 99)
    assert answered.status == 1
    assert answered.out.endswith("skipped: 1\n  message:99: it isn't held in doubt\n")
    assert order(world, "in-doubt", "resend", 1).status == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("in-doubt", "list", "--older-than", "soon"), "'--older-than': expected a string such as"),
        (("in-doubt", "resend", "--all", "--older-than", "9999999d"), "'--older-than': must be at most 100"),
        (("dead", "list", "--since", "2 days"), "'--since': '2 days' is neither an instant"),
        (("dead", "drop", "--all", "--since", "2026-13-01"), "'--since': '2026-13-01' is neither"),
    ],
)
def test_a_time_that_is_none_is_told_with_its_option(
    world: World, arguments: tuple[str, ...], said: str
) -> None:
    group, verb, *options = arguments
    answered = order(world, group, verb, *options)
    assert (answered.status, answered.out) == (2, "")
    assert f"Invalid value for {said}" in answered.err


@pytest.mark.parametrize("id_", [2**63, -(2**63) - 1, 10**30])
def test_an_id_that_no_message_can_have_is_skipped_and_the_others_are_not(world: World, id_: int) -> None:
    hold(world, 1)
    reason = f"  message:{id_}: its id is no integer of 64 bits\n"
    answered = order(world, "dead", "retry", f"message:{id_}")
    assert (answered.status, answered.out.endswith(reason)) == (1, True)
    answered = order(world, "in-doubt", "resend", 1, "--", id_)
    assert (answered.status, answered.out.endswith(reason)) == (1, True)
    assert order(world, "in-doubt", "list", "--json").data == []


def test_without_names_and_without_all_nothing_is_done(world: World) -> None:
    hold(world, 1)
    for arguments in ([], [1, "--all"]):
        assert order(world, "in-doubt", "resend", *arguments).status == 2
    assert order(world, "in-doubt", "settle", "--as", "maybe", 1).status == 2
    assert len(order(world, "in-doubt", "list", "--json").data) == 1


def test_a_message_whose_channel_is_gone_cannot_be_resent(world: World) -> None:
    hold(world, 1)
    world.change("[channels.sms]", '[channels.messenger]\nblock = "sms"')
    answered = order(world, "in-doubt", "resend", 1)
    assert "its provider sms isn't configured" in answered.out
    assert order(world, "in-doubt", "settle", "--as", "sent", 1).status == 0


@pytest.mark.parametrize("verb", ["list", "resend", "settle"])
def test_a_channel_that_there_never_was_is_a_mistake_and_named_so(world: World, verb: str) -> None:
    hold(world, 1)
    options = {"list": (), "resend": ("--all",), "settle": ("--all", "--as", "sent")}[verb]
    answered = order(world, "in-doubt", verb, *options, "--channel", "smss")
    assert (answered.status, answered.out) == (2, "")
    assert "--channel: there is no channel 'smss'; did you mean sms?" in answered.err
    assert len(order(world, "in-doubt", "list", "--json").data) == 1


def test_of_a_channel_that_is_gone_all_is_listed_that_is_in_doubt(world: World) -> None:
    """One that is configured and has nothing in doubt is no mistake either."""
    hold(world, 1)
    world.change("[channels.sms]", '[channels.messenger]\nblock = "sms"')
    listed = order(world, "in-doubt", "list", "--json", "--channel", "sms").data
    assert [each["message_id"] for each in listed] == [1]
    assert order(world, "in-doubt", "list", "--json", "--channel", "sms", "--older-than", "1h").data == []
    assert order(world, "in-doubt", "list", "--json", "--channel", "messenger").data == []
    assert order(world, "in-doubt", "settle", "--as", "sent", "--all", "--channel", "sms").status == 0
    assert order(world, "in-doubt", "list", "--channel", "sms").status == 2


# what was refused, and what fits nothing


def refused(world: World, status: str, *elements: object) -> None:
    """Send messages, while the service refuses their events of one status."""
    world.state.reject_event = lambda event: event["status"] == status
    world.state.enqueue(*elements)  # type: ignore[arg-type]
    world.run_until_idle()
    world.state.reject_event = lambda _event: False


def names(world: World, *options: object) -> list[str]:
    """The dead letters, by name."""
    return [each["name"] for each in order(world, "dead", "list", "--json", *options).data]


@pytest.mark.parametrize("with_worker", [True, False], ids=["worker runs", "no worker"])
def test_a_message_that_was_set_aside_begins_anew(world: World, with_worker: bool) -> None:
    refused(world, "dequeued", message(1))
    [listed] = order(world, "dead", "list", "--json").data
    assert (listed["name"], listed["what"]) == ("message:1", "set aside")
    worker = running(world) if with_worker else None
    assert order(world, "dead", "retry", "message:1").status == 0
    if worker is None:
        world.run_until_idle()
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    if worker is not None:
        end(worker)
    assert names(world) == []
    audited(world)


@pytest.mark.parametrize("with_worker", [True, False], ids=["worker runs", "no worker"])
def test_a_refused_event_is_reported_again(world: World, with_worker: bool) -> None:
    refused(world, "sent", message(1))
    [name] = names(world)
    shown = order(world, "dead", "show", name, "--json").data
    assert json.loads(shown["body"])["status"] == "sent"
    assert "400" in shown["reason"]
    worker = running(world) if with_worker else None
    assert order(world, "dead", "retry", name).status == 0
    if worker is None:
        world.run_until_idle()
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    if worker is not None:
        end(worker)
    assert names(world) == []
    audited(world)


def test_what_is_dropped_is_asked_about_no_more_and_stays_on_record(world: World) -> None:
    refused(world, "sent", message(1), {"id": 2})
    refused(world, "dequeued", message(3))
    by_kind = {name.partition(":")[0]: name for name in names(world)}
    assert sorted(by_kind) == ["event", "malformed", "message"]
    assert names(world, "--kind", "event") == [by_kind["event"]]
    assert names(world, "--since", "2100-01-01T00:00:00Z") == []
    assert names(world, "--matching", "settingsid") == [by_kind["malformed"]]
    assert '{"id": 2}' in order(world, "dead", "show", by_kind["malformed"]).out
    would = order(world, "dead", "drop", "--all", "--dry-run", "--json").data
    assert sorted(would["done"]) == sorted(by_kind.values())
    assert order(world, "dead", "drop", "--all").status == 0
    assert names(world) == []
    assert order(world, "dead", "drop", *by_kind.values()).status == 1
    told = command("explain", "--config", world.config, 1).out
    assert "refused by the service" in told
    assert f"operator's order: drop event {by_kind['event'].partition(':')[2]}" in told
    assert "set aside" in command("explain", "--config", world.config, 3).out
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued"]
    audited(world)


def test_what_was_malformed_once_cannot_be_retried(world: World) -> None:
    world.state.enqueue('{"id": "x"}')
    world.run_until_idle()
    [name] = names(world)
    reason = "a malformed element can't be retried: it would be malformed again; drop it instead"
    for said, options in (("retry", ()), ("would retry", ("--dry-run",))):
        answered = order(world, "dead", "retry", name, *options)
        assert (answered.status, answered.out) == (1, f"{said}: 0\nskipped: 1\n  {name}: {reason}\n")
    assert order(world, "dead", "retry", "--all").out == "retry: 0\n"


@pytest.mark.parametrize("name", ["event:", "5", "letter:5", "event:x", "event:99", "malformed:ff"])
def test_a_name_that_names_nothing_is_told_apart(world: World, name: str) -> None:
    world.run_until_idle()
    assert order(world, "dead", "drop", name).status in (1, 2)
    assert order(world, "dead", "show", name).status in (1, 2)


# the socket


def send_line(world: World, line: bytes) -> dict[str, object]:
    """Send a line to the worker's socket that no command would send; return the reply."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(world.folder / "journal.db.sock"))
        connection.sendall(line)
        with connection.makefile("rb") as answers:
            answer: dict[str, object] = json.loads(answers.readline())
    return answer


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[" * 50_000 + b"\n",
        b'{"request": "order", "verb": "sell", "kind": "message", "keys": ["1"]}\n',
        b'{"request": "order", "verb": "drop", "kind": "message", "keys": [1]}\n',
        b'{"request": "order", "verb": "drop", "kind": "malformed", "keys": ["\\ud800"]}\n',
    ],
    ids=["nothing", "HTTP", "nested", "unknown verb", "numbers", "surrogate"],
)
def test_what_is_no_order_is_refused_and_the_worker_goes_on(world: World, line: bytes) -> None:
    hold(world, 1)
    worker = running(world)
    assert "unknown request" in str(send_line(world, line))
    assert order(world, "in-doubt", "resend", 1).status == 0
    end(worker)


def test_keys_of_any_size_and_shape_are_skipped(world: World) -> None:
    worker = running(world)
    keys = ["9" * 19, "9" * 5000, "-1", "", "\u0000", "1.5"]
    for kind in ("message", "event", "receipt", "malformed"):
        line = json.dumps({"request": "order", "verb": "drop", "kind": kind, "keys": keys}).encode()
        answer = send_line(world, line + b"\n")
        assert answer["done"] == []
        assert len(answer["skipped"]) == len(keys)  # type: ignore[arg-type]
    end(worker)


def test_commands_that_come_all_at_once_are_all_answered(world: World) -> None:
    """A script may start dozens side by side, while the worker is busy."""
    worker = running(world)
    worker.send_signal(signal.SIGSTOP)
    with ExitStack() as connections:
        waiting = []
        for _ in range(60):
            connection = connections.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(PATIENCE)
            connection.connect(str(world.folder / "journal.db.sock"))
            connection.sendall(b'{"request": "status"}\n')
            waiting.append(connection)
        worker.send_signal(signal.SIGCONT)
        for connection in waiting:
            assert connection.makefile("rb").readline().startswith(b'{"status": ')
    end(worker)


def test_a_reload_without_an_answer_is_said_to_be_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker stands still, and applies the configuration when it goes on."""
    worker = running(world)
    world.change("[queue]", "[queue]\nbatch_size = 7")
    worker.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(reload_command, "RELOAD_TIMEOUT", 0.1)
    answered = command("reload", "--config", world.config)
    assert answered.status == 1
    assert answered.err == (
        "deliveryd: no answer from the worker: it may have applied the configuration, or may do so yet; when"
        " it answers again, deliveryd status shows its last reload\n"
    )
    worker.send_signal(signal.SIGCONT)
    status = command("status", "--config", world.config, "--json").data
    while status["last_reload"] is None:
        status = command("status", "--config", world.config, "--json").data
    assert status["last_reload"]["changes"] == ["queue.batch_size"]
    end(worker)


def test_only_the_owner_may_open_it_and_it_is_gone_with_the_worker(world: World) -> None:
    worker = running(world)
    place = world.folder / "journal.db.sock"
    assert stat.S_ISSOCK(place.stat().st_mode)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    end(worker)
    assert not place.exists()


def test_a_socket_that_a_killed_worker_left_is_in_nobodys_way(world: World) -> None:
    hold(world, 1)
    worker = running(world)
    worker.kill()
    worker.wait()
    assert (world.folder / "journal.db.sock").exists()
    assert order(world, "in-doubt", "settle", "--as", "sent", 1).status == 0
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "sent"]


def test_a_worker_takes_orders_for_a_journal_with_a_long_path(world: World) -> None:
    """The address of a socket is limited to about 100 bytes, the path of a journal isn't."""
    deep = "/".join(["folder-of-some-length"] * 8)
    world.change("sqlite:///journal.db", f"sqlite:///{deep}/journal.db")
    hold(world, 1)
    worker = running(world)
    assert order(world, "in-doubt", "resend", 1).status == 0
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent"], PATIENCE)
    end(worker)


def test_where_no_socket_can_be_the_worker_works_and_the_command_says_why(
    world: World,
) -> None:
    hold(world, 1)
    (world.folder / "journal.db.sock").mkdir()
    worker = running(world)
    answered = order(world, "in-doubt", "resend", 1)
    assert answered.status == 1
    place = world.folder / "journal.db.sock"
    assert answered.err == f"deliveryd: can't send the order: {place} isn't a socket: remove it\n"
    assert '"event": "desk.closed"' in world.log()
    end(worker)


# who may give orders


ANOTHER_USER = """
import os, socket
from deliveryd.control.server import _user_of
if os.geteuid() == 0:
    os.setuid(65534)
ours, _theirs = socket.socketpair()
print(_user_of(ours) == os.geteuid())
os.geteuid = lambda: 12345
print(_user_of(ours) == os.geteuid())
"""


def test_orders_of_another_user_are_known_as_such() -> None:
    """The kernel says who is on the other side, whatever the file's mode was when they connected."""
    answered = subprocess.run(
        [sys.executable, "-c", ANOTHER_USER], capture_output=True, text=True, check=True
    )
    assert answered.stdout.split() == ["True", "False"]
