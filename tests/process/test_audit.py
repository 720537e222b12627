"""`deliveryd audit`: a journal that real workers wrote is balanced, and one that was tampered with isn't."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.journal.attention import SHOWN
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sql.audit import CHECKS
from deliveryd.sandbox.faults import ApplyThenHangUp, FaultAnswer
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import Answered, command
from support.world import World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        yield world


def audit(world: World, *options: str) -> Answered:
    return command("audit", "--config", world.config, *options)


def do_everything(world: World) -> None:
    """Leave messages in most of the states that there are: 30 sent, and one of each other kind."""
    world.add('on_in_doubt = "hold"\n')
    world.state.reject_event = lambda event: event["messageId"] == 32 and event["status"] == "dequeued"
    world.state.fail("provider.sms", ApplyThenHangUp(), FaultAnswer(503))
    world.state.enqueue(
        *(message(id_) for id_ in range(1, 32)),
        message(32),
        {"id": 33},
        message(34, settings_id=99),
        {**message(35), "variables": {}},
    )
    assert world.start("--until-idle").wait(PATIENCE) == 1


def test_the_journal_of_a_worker_is_balanced(world: World) -> None:
    do_everything(world)
    answered = audit(world)
    assert answered.status == 0, answered.out
    sums = dict(re.findall(r"^[ =+]*([a-z, ']+?) {2,}(\d+)$", answered.out, re.MULTILINE))
    assert sums == {
        "taken": "35", "ended": "33", "waiting": "0", "in progress": "0", "in doubt": "1",
        "set aside": "1", "pruned, ids kept": "0", "forgotten": "0", "missing": "0",
    }  # fmt: skip
    assert "the journal is balanced" in answered.out
    assert audit(world, "--json").data["balanced"] is True


def wait_for_messages(world: World, number: int) -> None:
    """Until so many have been sent."""
    world.state.wait_for(lambda state: len(state.received) >= number, PATIENCE)


def test_it_is_balanced_while_a_worker_writes_to_it(world: World) -> None:
    """An audit is one read transaction: the sums are right between any two transitions."""
    worker = world.start()
    for begin in range(1, 400, 100):
        world.state.enqueue(*(message(id_) for id_ in range(begin, begin + 100)))
        wait_for_messages(world, begin)
        answered = audit(world)
        assert answered.status == 0, answered.out
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


def test_it_is_balanced_after_a_kill_and_after_the_next_run(world: World) -> None:
    world.state.enqueue(*(message(id_) for id_ in range(1, 201)))
    worker = world.start()
    wait_for_messages(world, 50)
    worker.kill()
    worker.wait()
    assert audit(world).status == 0
    world.run_until_idle()
    result = audit(world, "--json").data
    assert (result["taken"], result["sums"]["ended"]) == (200, 200)


def test_a_worker_logs_the_account_at_its_start_and_its_end(world: World) -> None:
    world.state.enqueue(*(message(id_) for id_ in range(1, 11)))
    world.run_until_idle(log="info")
    first, last = (line for line in world.log().splitlines() if "journal.account" in line)
    assert '"taken": 0' in first
    assert '"taken": 10, "sent": 10, "delivered": 0, "failed": 0, "set_aside": 0, "waiting": 0' in last
    assert "journal.gap" not in world.log()


def test_a_run_until_idle_prints_what_became_of_the_messages(world: World) -> None:
    """Failed messages are counted apart from sent ones, and the exit status is 0 nevertheless."""
    world.customers([{"id": 1, "phone": "+15550111"}])
    world.state.enqueue(*(message(id_) for id_ in range(1, 8)), *(message(id_, 1, 2) for id_ in (11, 12, 13)))
    world.run_until_idle()
    assert world.log().splitlines()[-1] == (
        "deliveryd: of 10 messages ever taken: 7 sent, 0 delivered, 3 failed, 0 in doubt, 0 set aside,"
        " 0 not at their end, 0 pruned, 0 forgotten"
    )


def tampered(world: World, script: str) -> Answered:
    """The audit of the journal after somebody changed it."""
    db = sqlite3.connect(world.folder / "journal.db")
    db.executescript(script)
    db.close()
    return audit(world)


def test_a_lost_message_is_reported_by_audit_and_by_the_next_run(world: World) -> None:
    do_everything(world)
    answered = tampered(world, "DELETE FROM message WHERE id = 5")
    assert answered.status == 1
    assert re.search(r"^missing +1$", answered.out, re.MULTILINE)
    assert "an event belongs to a message or a tombstone: messages 5" in answered.out
    world.start("--until-idle").wait(PATIENCE)
    assert '"event": "journal.gap", "gap": 1' in world.log()


def test_of_many_ids_the_first_ones_and_the_number_of_the_others_are_shown(world: World) -> None:
    do_everything(world)
    answered = tampered(world, "UPDATE message SET accepted_at = NULL")
    [line] = [line for line in answered.out.splitlines() if "has an accepted attempt" in line]
    shown = line.partition(": messages ")[2]
    assert len(re.findall(r"\d+", shown.partition(" and ")[0])) == SHOWN
    assert shown.endswith(" and 10 more")


BREAKS = {
    "every state is known": "UPDATE message SET state = 12 WHERE id = 2",
    "only an ended message has an end time": "UPDATE message SET ended_at = NULL WHERE id = 2",
    "only a waiting message has a due time": "UPDATE message SET due_at = 5 WHERE id = 2",
    "a message that was handed to a provider names it": "UPDATE message SET provider = '' WHERE id = 2",
    "a message in doubt may have arrived": "UPDATE message SET doubt = 0, content = NULL WHERE state = 5",
    "an attempt in doubt has the message's present stay": "UPDATE message SET stay = 2 WHERE state = 5",
    "content is stored only while it may be repeated": "UPDATE message SET content = '[]' WHERE id = 2",
    "dequeued is the first event": "DELETE FROM event WHERE message_id = 2 AND status = 'dequeued'",
    "a taken message has an unsettled dequeued event": (
        "UPDATE message SET state = 1, ended_at = NULL WHERE id = 2"
    ),
    "dequeued was accepted before the message moved on": (
        "UPDATE event SET seq = seq + 1000 WHERE message_id = 2"
    ),
    "a message set aside has a refused dequeued event": "UPDATE event SET refused = NULL",
    "a sent message has one sent event for each acceptance, and an error for each new generation": (
        "DELETE FROM event WHERE message_id = 2 AND status = 'sent'"
    ),
    "a delivered message has one sent event for each acceptance and one delivered event": (
        "UPDATE message SET state = 7 WHERE id = 2"
    ),
    "a failed message has one error event for each generation": "UPDATE message SET state = 8 WHERE id = 2",
    "no generation is used again": "INSERT INTO generation (id, count) VALUES (2, 1)",
    "a message that hasn't ended has no final event": (
        "UPDATE message SET state = 3, ended_at = NULL, due_at = 5 WHERE id = 2"
    ),
    "sent comes before delivered": (
        "UPDATE message SET state = 7 WHERE id = 2;"
        "INSERT INTO event (message_id, seq, status, body) VALUES (2, -1, 'delivered', '{}')"
    ),
    "a sent or delivered message has an accepted attempt": (
        "UPDATE message SET accepted_at = NULL WHERE id = 2"
    ),
    "a message that wasn't sent has no accepted attempt": (
        "UPDATE message SET accepted_at = 1 WHERE state = 5"
    ),
    "a message that wasn't confirmed in time has its accepted attempt": (
        "UPDATE message SET sent_by = 'email' WHERE id = 2"
    ),
    "only a sent message has a receipt deadline": "UPDATE message SET confirm_by = 1 WHERE state = 8",
    "tries are numbered without a gap": "UPDATE message SET stay_tries = 7 WHERE id = 2",
    "stays are numbered without a gap": "UPDATE message SET stay = 7 WHERE id = 2",
    "a message being sent has one attempt without an outcome": (
        "UPDATE message SET state = 4, ended_at = NULL WHERE id = 2"
    ),
    "no other message has an attempt without an outcome": (
        "UPDATE unaccepted SET verdict = NULL WHERE message_id = (SELECT id FROM message WHERE state = 5)"
    ),
    "an attempt belongs to a message": "DELETE FROM message WHERE state = 5",
    "an event belongs to a message or a tombstone": "DELETE FROM message WHERE id = 2",
    "a refused event is settled": "UPDATE event SET refused_at = NULL",
    "a settled event was refused, or accepted in a post": "DELETE FROM post WHERE first = 1",
    "a matched receipt belongs to a message": (
        "INSERT INTO receipt (provider, provider_id, delivered, status, reported_at, received_at, message_id)"
        " VALUES ('sms', 'p', 1, 'ok', 1, 1, 999)"
    ),
    "no message has a tombstone": "INSERT INTO tombstone (id) VALUES (2)",
}


def test_each_check_finds_its_violation(world: World, tmp_path: Path) -> None:
    """Each check names the message in a journal that was changed to violate it."""
    assert set(BREAKS) == set(CHECKS)
    do_everything(world)
    sound = world.folder / "journal.db"
    assert file_reader(sound).audit().is_balanced
    for check, script in BREAKS.items():
        broken = tmp_path / "broken.db"
        shutil.copy(sound, broken)
        db = sqlite3.connect(broken)
        db.executescript(script)
        db.close()
        result = file_reader(broken).audit()
        assert check in {finding.check for finding in result.findings}, check
        assert not result.is_balanced


def test_an_absent_journal_has_no_account(world: World) -> None:
    answered = audit(world)
    assert answered.status == 1
    assert "there is no journal" in answered.err
