"""The process from outside: what systemd hears, signals, the drain, its servers, and how it dies."""

from __future__ import annotations

import re
import resource
import secrets
import signal
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import httpx
import pytest

from deliveryd.journal.reader import file_reader
from deliveryd.sandbox.faults import ApplyThenDelay, FaultAnswer, Hang, HangUp, Pass
from deliveryd.sandbox.state import SandboxState
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import World, get, open_world

pytestmark = pytest.mark.slow

ADMIN = '[admin]\nlisten = "127.0.0.1:0"'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        yield world


def taking(state: SandboxState) -> bool:
    return state.requests["queue"] >= 1


def at_the_provider(state: SandboxState) -> bool:
    return state.requests["provider.sms"] >= 1


def keys(world: World) -> list[str]:
    """The idempotency keys that the provider saw, in order."""
    return [seen.headers["idempotency-key"] for seen in world.state.seen if seen.endpoint == "provider.sms"]


def hanging(world: World, *options: str, log: str = "warning") -> Popen[bytes]:
    """A worker whose one message is at a provider that doesn't answer."""
    world.state.fail("provider.sms", Hang())
    world.state.enqueue(message(1))
    worker = world.start(*options, log=log)
    world.state.wait_for(at_the_provider, PATIENCE)
    return worker


def test_the_pages_are_shown_by_the_names_of_the_configuration(world: World) -> None:
    """By address, by the name that is listened on, by an allowed one; a web page's own name isn't one."""
    allowed = '[admin]\nlisten = "localhost:0"\nallowed_hosts = ["worker.internal"]'
    world.change('[admin]\nlisten = ""', allowed)
    world.start(log="info")
    world.state.wait_for(taking, PATIENCE)
    found = re.search(r'"listen": "(http://[^"]+)"', world.log())
    assert found is not None
    statuses = {
        host: httpx.get(f"{found[1]}/status", headers={"Host": host}, trust_env=False).status_code
        for host in ("127.0.0.1", "localhost", "worker.internal:9470", "page.example")
    }
    assert list(statuses.values()) == [200, 200, 200, 421]


# systemd


@pytest.fixture
def manager() -> Iterator[tuple[socket.socket, str]]:
    """A listening stand-in for systemd, and its address in the abstract namespace."""
    name = f"deliveryd-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(PATIENCE)
        yield listener, f"@{name}"


def hear(listener: socket.socket, last: Callable[[list[str]], bool]) -> list[str]:
    heard: list[str] = []
    while not last(heard):
        heard.append(listener.recv(1000).decode())
    return heard


def test_systemd_hears_of_the_start_of_life_and_of_the_end(
    world: World, manager: tuple[socket.socket, str]
) -> None:
    """READY once, a beat twice in each stretch of its patience, sentences for people, then STOPPING."""
    listener, address = manager
    world.state.enqueue(message(1))
    worker = world.start(NOTIFY_SOCKET=address, WATCHDOG_USEC="400000")
    heard = hear(listener, lambda heard: "READY=1" in heard and heard.count("WATCHDOG=1") >= 4)
    assert heard.count("READY=1") == 1
    sentences = [line.removeprefix("STATUS=") for line in heard if line.startswith("STATUS=")]
    pattern = r"Taking messages: \d+ in flight, \d+ waiting, \d+ in doubt, \d+ events to report"
    assert sentences
    assert all(re.fullmatch(pattern, sentence) for sentence in sentences)
    worker.terminate()
    heard = hear(listener, lambda heard: "STATUS=Finishing work in progress" in heard)
    assert re.fullmatch(r"STOPPING=1\nEXTEND_TIMEOUT_USEC=[1-9]\d{7}", heard[-2])
    assert worker.wait(PATIENCE) == 0


def test_systemd_hears_how_long_an_answer_that_was_asked_for_is_waited_for(
    world: World, manager: tuple[socket.socket, str]
) -> None:
    """A slow service's batch isn't lost to TimeoutStopSec; a reload doesn't shorten what was asked before."""
    listener, address = manager
    world.state.fail("queue", Hang())
    worker = world.start(NOTIFY_SOCKET=address, log="info")
    world.state.wait_for(taking, PATIENCE)
    world.change('timeout = "1m"', 'timeout = "2s"')
    worker.send_signal(signal.SIGHUP)
    while "config.reloaded" not in world.log():
        listener.recv(1000)
    worker.terminate()
    heard = hear(listener, lambda heard: any(each.startswith("STOPPING=1") for each in heard))
    seconds = int(heard[-1].rpartition("=")[2]) / 1_000_000
    assert 30 < seconds <= 70
    worker.terminate()
    assert worker.wait(PATIENCE) == 1


def test_the_watchdog_is_fed_while_the_end_takes_its_time(
    world: World, manager: tuple[socket.socket, str]
) -> None:
    """systemd must not kill a worker that waits for its last attempt."""
    listener, address = manager
    world.state.fail("provider.sms", ApplyThenDelay(2.0))
    world.state.enqueue(message(1))
    worker = world.start(NOTIFY_SOCKET=address, WATCHDOG_USEC="200000")
    world.state.wait_for(at_the_provider, PATIENCE)
    worker.terminate()
    hear(listener, lambda heard: any(each.startswith("STOPPING=1") for each in heard))
    hear(listener, lambda heard: heard.count("WATCHDOG=1") >= 3)
    assert worker.wait(PATIENCE) == 0
    assert world.state.statuses(1) == ["dequeued", "sent"]


# Signals and the drain


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_either_signal_ends_an_idle_worker_well_and_no_server_was_opened(world: World, number: int) -> None:
    """Status 0, and a log that tells of the whole life; an empty `listen` opens nothing."""
    worker = world.start(log="info")
    world.state.wait_for(taking, PATIENCE)
    worker.send_signal(number)
    assert worker.wait(PATIENCE) == 0
    events = re.findall(r'"event": "(worker\.\w+)"', world.log())
    assert events == ["worker.started", "worker.ready", "worker.draining", "worker.stopped"]
    assert f'"signal": "{signal.Signals(number).name}"' in world.log()
    assert "server.listening" not in world.log()


def test_a_second_signal_ends_at_once_and_the_next_start_repeats_the_attempt_under_its_key(
    world: World,
) -> None:
    """Status 1 though a provider hangs; nobody knows whether it has the message, so the key stays."""
    worker = hanging(world)
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(PATIENCE) == 1
    world.run_until_idle()
    assert "the worker ended before the outcome was known" in world.log()
    assert len(keys(world)) == 2
    assert len(set(keys(world))) == 1
    assert world.state.statuses(1) == ["dequeued", "sent"]


def test_the_drain_timeout_cuts_off_what_hangs_and_the_next_start_sends_it_again(world: World) -> None:
    """Status 0 within the time, a warning that counts what was cut off, and the same key afterwards."""
    world.add('[run]\ndrain_timeout = "300ms"\n')
    worker = hanging(world)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert re.search(r'"event": "worker.cut_off", "in_flight": 1, "seconds": 0.3', world.log())
    world.run_until_idle()
    assert len(keys(world)) == 2
    assert len(set(keys(world))) == 1
    assert world.state.statuses(1) == ["dequeued", "sent"]


def test_with_hold_the_next_start_leaves_it_and_until_idle_says_how_many_are_held(world: World) -> None:
    """Status 1, so that a script notices; the message isn't sent again, and the others are."""
    world.change('timeout = "60s"', 'timeout = "60s"\non_in_doubt = "hold"')
    world.change('timeout = "1m"', 'timeout = "1m"\n[run]\ndrain_timeout = "300ms"')
    world.state.fail("provider.sms", Hang())
    world.state.enqueue(message(1))
    worker = world.start()
    world.state.wait_for(at_the_provider, PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    world.state.enqueue(message(2))
    assert world.start("--until-idle").wait(PATIENCE) == 1
    assert (
        world.log().splitlines()[-1] == "deliveryd: messages held in doubt, to be settled by an operator: 1"
    )
    assert world.state.statuses(1) == ["dequeued"]
    assert world.state.statuses(2) == ["dequeued", "sent"]
    assert len(keys(world)) == 2


def test_until_idle_that_a_signal_stops_says_what_is_left_for_the_next_run(world: World) -> None:
    """Status 1: what is to happen when all is done, as moving the journal away, must not happen."""
    world.add('[run]\ndrain_timeout = "300ms"\n')
    worker = hanging(world, "--until-idle")
    worker.terminate()
    assert worker.wait(PATIENCE) == 1
    assert (
        world.log().splitlines()[-1] == "deliveryd: messages not at their end, the next run continues them: 1"
    )
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "sent"]


def test_until_idle_that_a_signal_stops_before_the_queue_was_empty_says_so(world: World) -> None:
    """Nothing is in the journal, and yet it isn't done."""
    world.state.fail("queue", *[FaultAnswer(503)] * 100)
    world.state.enqueue(message(1))
    worker = world.start("--until-idle")
    world.state.wait_for(taking, PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 1
    assert (
        world.log().splitlines()[-1]
        == "deliveryd: stopped before all was done: the queue and the journal may hold messages"
    )


def test_until_idle_says_how_many_events_the_next_run_has_to_report(world: World) -> None:
    world.add('[run]\ndrain_timeout = "300ms"\n')
    world.state.fail("events", Pass(), *[FaultAnswer(503)] * 100)
    world.state.enqueue(message(1))
    worker = world.start("--until-idle")
    world.state.wait_for(lambda state: state.requests["events"] >= 2, PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 1
    last = world.log().splitlines()[-1]
    assert last == "deliveryd: events not accepted yet, the next run reports them: 1"


def test_what_is_under_way_is_finished_and_reported_before_the_end(world: World) -> None:
    """After SIGTERM the attempt gets its outcome, and the service hears of it: nothing is left in doubt."""
    world.state.fail("provider.sms", ApplyThenDelay(1.0))
    world.state.enqueue(message(1))
    worker = world.start()
    world.state.wait_for(at_the_provider, PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert world.state.statuses(1) == ["dequeued", "sent"]
    assert world.rows("SELECT state FROM message") == [(6,)]


def test_a_take_under_way_reaches_the_journal_before_the_end(world: World) -> None:
    """The queue has given the message away; the worker waits for the answer and records it."""
    world.state.fail("queue", ApplyThenDelay(1.0))
    world.state.enqueue(message(1))
    worker = world.start()
    world.state.wait_for(lambda state: state.taken, PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert world.rows("SELECT id FROM message") == [(1,)]
    assert world.state.statuses(1) == ["dequeued"]


def test_an_answer_of_the_queue_that_comes_after_the_drain_is_waited_for(world: World) -> None:
    """Fifty messages that the service handed out are recorded, and the next start sends them."""
    world.add('[run]\ndrain_timeout = "300ms"\n')
    world.state.fail("queue", ApplyThenDelay(3.0))
    world.state.enqueue(*map(message, range(1, 51)))
    worker = world.start()
    world.state.wait_for(lambda state: state.taken, PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert "worker.cut_off" in world.log()
    assert world.rows("SELECT count(*) FROM message") == [(50,)]
    assert "queue.batch_lost" not in world.log()


def test_an_answer_of_the_queue_that_never_comes_is_told_at_the_end(world: World) -> None:
    """Nobody knows whether the service handed a batch out: the log and the journal's account say so."""
    world.change('timeout = "1m"', 'timeout = "2s"')
    world.add('[run]\ndrain_timeout = "300ms"\n')
    world.state.fail("queue", Hang())
    worker = world.start()
    world.state.wait_for(taking, PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert "queue.batch_lost" in world.log()
    assert file_reader(world.folder / "journal.db").audit().lost.batches == 1


def test_a_second_signal_tells_of_the_batch_that_it_costs(world: World) -> None:
    """The answer that was asked for isn't waited for: status 1, and the log says what it may have held."""
    world.state.fail("queue", Hang())
    worker = world.start()
    world.state.wait_for(taking, PATIENCE)
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(PATIENCE) == 1
    assert "queue.batch_lost" in world.log()


@pytest.mark.parametrize("fault", [HangUp(), Hang()], ids=["hangs up", "hangs"])
def test_a_service_that_is_down_does_not_keep_the_worker_from_ending(
    world: World, fault: HangUp | Hang
) -> None:
    """Within the drain's time and with status 0; the event stays in the journal for the next start."""
    world.change('timeout = "1m"', 'timeout = "2s"')
    world.add('[run]\ndrain_timeout = "1s"\n')
    world.state.fail_until_healed("events", fault)
    world.state.enqueue(message(1))
    worker = world.start()
    world.state.wait_for(lambda state: state.requests["events"] >= 1, PATIENCE)
    world.state.fail_until_healed("queue", fault)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert world.rows("SELECT status FROM event WHERE seq > (SELECT settled FROM log)") == [("dequeued",)]
    world.state.heal("events")
    world.state.heal("queue")
    world.run_until_idle()
    assert world.state.statuses(1)[-1] == "sent"


# Death


def drop_tables(world: World, _worker: Popen[bytes]) -> None:
    connection = sqlite3.connect(world.folder / "journal.db", timeout=PATIENCE)
    connection.execute("DROP TABLE event")
    connection.close()


def forbid_growth(_world: World, worker: Popen[bytes]) -> None:
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (4096, 4096))


@pytest.mark.parametrize(
    "spoil", [drop_tables, forbid_growth], ids=["without its tables", "on a broken disk"]
)
def test_a_worker_that_cannot_write_its_journal_dies_whole_and_says_why(
    world: World, spoil: Callable[[World, Popen[bytes]], None]
) -> None:
    """Status 1 and one last line; its server is gone with it, so that nobody takes it for alive."""
    world.change('[admin]\nlisten = ""', ADMIN)
    worker = world.start()
    world.state.wait_for(taking, PATIENCE)
    spoil(world, worker)
    world.state.enqueue(message(1))
    assert worker.wait(PATIENCE) == 1
    last = world.log().splitlines()[-1]
    assert last.startswith("deliveryd: the journal can't be used any more: ")
    assert "Traceback" not in world.log()
    assert not world.state.received


def test_after_a_broken_disk_the_next_start_sends_what_was_taken_before(world: World) -> None:
    """The message was in the journal; its outcome couldn't be written, so its attempt is repeated."""
    worker = hanging(world)
    forbid_growth(world, worker)
    world.state.enqueue(message(2))
    assert worker.wait(PATIENCE) == 1
    world.state.redeliver_after = 0.0
    world.run_until_idle()
    assert [world.state.statuses(id_)[-1] for id_ in (1, 2)] == ["sent", "sent"]
    assert len(set(keys(world))) == 2


# Servers


def admin(world: World) -> str:
    """Where the administrative pages are, as the log tells."""
    found = re.search(r'"server": "admin", "listen": "(http://[^"]+)"', world.log())
    assert found is not None
    return found[1]


def test_the_pages_answer_on_any_free_port_which_the_log_names(world: World) -> None:
    """Port 0 is a real port, told in the log; each page answers for a worker that sends."""
    world.change('[admin]\nlisten = ""', ADMIN)
    world.state.enqueue(*(message(id_) for id_ in range(1, 6)))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.statuses(5) == ["dequeued", "sent"], PATIENCE)
    url = admin(world)
    assert get(f"{url}/livez").text.startswith("alive\n")
    assert get(f"{url}/readyz").text == "ready\ntaking messages\n"
    assert (
        'deliveryd_attempts_total{channel="sms",provider="sms",verdict="accepted"} 5.0'
        in get(f"{url}/metrics").text
    )
    status = get(f"{url}/status").json()
    assert status["pid"] == worker.pid
    assert status["lanes"] == {"sms": {"queued": 0, "under_way": 0, "open": False, "refused_settings": []}}
    assert {"intake", "reporting", "delivery", "due", "availability", "settling", "dispatcher sms"} == status[
        "loops"
    ].keys()
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    with pytest.raises(httpx.ConnectError):
        get(f"{url}/livez")


def test_readiness_follows_the_queue_and_life_does_not(world: World) -> None:
    """While the queue fails, /readyz says so with 503 and /livez stays 200; both are well afterwards."""
    world.change('[admin]\nlisten = ""', ADMIN)
    world.start(log="info")
    world.state.wait_for(lambda state: len(state.takes) >= 1, PATIENCE)
    url = admin(world)
    assert get(f"{url}/readyz").status_code == 200
    world.state.fail_until_healed("queue", FaultAnswer(503))
    before = world.state.requests["queue"]
    world.state.wait_for(lambda state: state.requests["queue"] >= before + 5, PATIENCE)
    answer = get(f"{url}/readyz")
    assert (answer.status_code, answer.text.splitlines()[0]) == (503, "not ready")
    assert "queue" in answer.text
    assert get(f"{url}/livez").status_code == 200
    world.state.heal("queue")
    takes = len(world.state.takes)
    world.state.wait_for(lambda state: len(state.takes) >= takes + 2, PATIENCE)
    assert get(f"{url}/readyz").status_code == 200


@pytest.mark.parametrize("server", ["admin", "receipts"])
def test_an_address_in_use_names_its_key_and_may_become_free(world: World, server: str) -> None:
    """Status 1, after which systemd tries again; nothing was taken."""
    world.add('receipt = { provider_id = "/id", status = "/s", delivered = ["yes"], failed = ["no"] }')
    world.change('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"')
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        address = f"127.0.0.1:{occupied.getsockname()[1]}"
        text = world.config.read_text(encoding="utf-8")
        world.write_config(
            re.sub(rf'\[{server}\]\nlisten = "[^"]*"', f'[{server}]\nlisten = "{address}"', text)
        )
        assert world.start().wait(PATIENCE) == 1
    last = world.log().splitlines()[-1]
    assert last == f"deliveryd: {server}.listen: can't listen on '{address}': Address already in use"
    assert not world.state.takes
