"""The line as its users see it: a worker as a process, the service and the providers on real sockets."""

from __future__ import annotations

import json
import math
import signal
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.sandbox.faults import CutInHalf, FaultAnswer
from deliveryd.sandbox.state import SandboxState
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.world import World, open_world

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


def fill(world: World, count: int, settings: int = 7) -> None:
    """Messages over a few settings, for customers of two languages."""
    world.customers(
        [
            {
                "id": number,
                "name": f"N{number}",
                "language": ("en", "de")[number % 2],
                "phone": f"+4470{number:06}",
            }
            for number in range(1, 51)
        ]
    )
    for number in range(1, settings + 1):
        world.state.settings[number] = sms_settings()
    world.state.enqueue(
        *(message(id_, id_ % settings + 1, id_ % 50 + 1, word=f"w{id_}") for id_ in range(1, count + 1))
    )


def test_two_thousand_messages_are_each_dequeued_sent_once_and_reported_in_order(world: World) -> None:
    fill(world, 2000)
    world.run_until_idle()
    state = world.state
    assert all(state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 2001))
    assert Counter(received.message_id for received in state.received) == dict.fromkeys(range(1, 2001), 1)
    assert state.settings_requests == dict.fromkeys(range(1, 8), 1)
    assert max(state.takes) == 100
    assert state.takes.count(100) >= 20
    assert len(state.event_batches) < 400
    assert max(state.event_batches) <= 500
    texts = {received.message_id: received.payload["text"] for received in state.received}
    assert texts[1] == "en N2 w1"
    assert texts[2] == "de N3 w2"


def test_dequeued_is_accepted_before_a_message_is_sent(world: World) -> None:
    fill(world, 20)
    world.state.fail_until_healed("events", FaultAnswer(503))
    worker = world.start("--until-idle")
    world.state.wait_for(lambda state: state.requests["events"] >= 2, PATIENCE)
    assert not world.state.attempts
    world.state.heal("events")
    assert worker.wait(PATIENCE) == 0
    assert len(world.state.received) == 20


def test_a_second_start_asks_for_no_settings_and_a_message_offered_again_is_not_sent_again(
    world: World,
) -> None:
    fill(world, 50)
    world.run_until_idle()
    asked = dict(world.state.settings_requests)
    world.state.enqueue(message(1, 2, 2), message(51, 3, 3))
    world.run_until_idle()
    assert dict(world.state.settings_requests) == asked
    sent = Counter(received.message_id for received in world.state.received)
    assert sent[1] == 1
    assert sent[51] == 1
    assert world.state.statuses(1) == ["dequeued", "sent", "dequeued", "sent"]


def test_one_malformed_element_does_not_hold_up_the_other_nine(world: World) -> None:
    fill(world, 0)
    good = [json.dumps(message(id_, 1, 1)) for id_ in range(1, 10)]
    world.state.enqueue(
        *good[:4], '{"id": 77, "settingsId": null, "customerId": 1, "variables": {}}', *good[4:]
    )
    world.run_until_idle()
    assert all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 10))
    assert world.state.statuses(77) == ["dequeued", "error"]
    assert "settingsId" in world.state.events_of(77)[1]["details"]
    assert [json.loads(raw)["id"] for (raw,) in world.rows("SELECT raw FROM malformed")] == [77]


def test_a_batch_of_many_megabytes_that_is_handed_out_once_is_sent(world: World) -> None:
    """1,000 messages of 5 KB are one answer, which is no larger than the worker reads."""
    fill(world, 0)
    world.change("[queue]", "[queue]\nbatch_size = 1000")
    world.state.redeliver_after = math.inf
    world.state.enqueue(*(message(id_, 1, 1, word="w", more="x" * 5000) for id_ in range(1, 1001)))
    world.run_until_idle()
    assert world.state.takes[0] == 1000
    assert all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 1001))


def test_what_was_whole_of_a_batch_that_breaks_off_is_sent_and_the_rest_is_told(world: World) -> None:
    """The log and the audit say that messages may be lost, and the queue isn't emptied by asking again."""
    fill(world, 60)
    world.state.redeliver_after = math.inf
    world.state.fail("queue", CutInHalf())
    world.run_until_idle()
    sent = [id_ for id_ in range(1, 61) if world.state.statuses(id_) == ["dequeued", "sent"]]
    assert sent == list(range(1, len(sent) + 1))
    assert 25 <= len(sent) <= 30
    [line] = [json.loads(line) for line in world.log().splitlines() if "queue.batch_lost" in line]
    assert (line["level"], line["asked"], line["kept"]) == ("error", 100, len(sent))
    audited = world.command("audit", "--config", str(world.config))
    assert audited.returncode == 0
    assert "queue: 1 batch may be lost, partly or entirely, most recently at 20" in audited.stdout
    counted = json.loads(world.command("audit", "--json", "--config", str(world.config)).stdout)
    assert counted["batches_lost"]["count"] == 1


def test_malformed_messages_do_not_keep_those_behind_them_in_the_queue(world: World) -> None:
    """A queue that offers each message until its `dequeued` hears that of malformed ones, too.

    It offers some again before it hears it, where all is slow.
    """
    fill(world, 0)
    world.change("[queue]", "[queue]\nbatch_size = 10")
    world.state.redeliver_after = 0.05
    malformed = [f'{{"id": {id_}, "settingsId": "x", "customerId": 1}}' for id_ in range(1, 11)]
    world.state.enqueue(*malformed, *(message(id_, 1, 1) for id_ in range(101, 121)))
    world.run_until_idle()
    for id_ in range(1, 11):
        assert list(dict.fromkeys(world.state.statuses(id_)))[:2] == ["dequeued", "error"]
    for id_ in range(101, 121):
        assert list(dict.fromkeys(world.state.statuses(id_)))[:2] == ["dequeued", "sent"]


def test_one_event_refused_is_set_aside_and_the_others_are_accepted(world: World) -> None:
    fill(world, 40)
    world.state.reject_event = lambda event: event["messageId"] == 17 and event["status"] == "sent"
    world.run_until_idle()
    assert world.state.statuses(17) == ["dequeued"]
    assert all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 41) if id_ != 17)
    assert world.rows("SELECT message_id, status FROM event WHERE refused IS NOT NULL") == [(17, "sent")]
    explained = world.command("explain", "--config", str(world.config), "17")
    assert "refused" in explained.stdout


def test_no_placeholder_reaches_a_customer_however_it_is_spaced(world: World) -> None:
    world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
    world.state.settings[1] = sms_settings(
        "{ greeting } {customer.name\u00a0}, {a\u200b}{ first name }{x: y}"
    )
    full = {**message(1), "variables": {"a": 1, "first name": "b"}}
    world.state.enqueue(full, message(2))
    world.run_until_idle()
    assert [received.payload["text"] for received in world.state.received] == ["en Ann Ann, 1b{x: y}"]
    assert world.state.statuses(2) == ["dequeued", "error"]
    assert world.state.events_of(2)[1]["details"] == "missing placeholders: a, first name"


EMAIL = """
[channels.email]
adapter = "smtp"
host = "127.0.0.1"
port = SMTP_PORT
tls = "none"
sender = "club@example.com"
"""


def test_a_provider_that_refuses_for_good_gives_way_to_the_next_channel(world: World) -> None:
    world.add(EMAIL)
    world.customers([{"id": 1, "phone": "+15550100", "email": "a@example.com"}])
    settings = sms_settings("hello")
    settings["content"]["en"]["email"] = {"subject": "s", "body": "b"}
    world.state.settings[1] = settings
    world.state.enqueue(message(1))
    world.run_until_idle()
    assert [received.channel for received in world.state.received] == ["email"]
    assert world.state.statuses(1) == ["dequeued", "sent"]


def test_the_last_channel_refusing_ends_in_one_error_with_the_reason(world: World) -> None:
    world.customers([{"id": 1, "phone": "+15550100"}])
    world.state.settings[1] = sms_settings("hello")
    world.state.enqueue(message(1))
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "error"]
    assert world.state.events_of(1)[1]["details"] == "sms: provider answered 400"


def test_a_provider_that_fails_for_a_while_is_tried_again(world: World) -> None:
    world.customers([{"id": 1, "phone": "+15550101"}])
    world.state.settings[1] = sms_settings("hello")
    world.state.enqueue(message(1))
    world.run_until_idle()
    assert [attempt.status for attempt in world.state.attempts] == [503, 503, 200]
    assert world.state.statuses(1) == ["dequeued", "sent"]


def test_a_restart_in_the_middle_of_the_waits_keeps_them(world: World) -> None:
    world.change('base = "50ms", max = "200ms"', 'base = "2s", max = "2s"')
    world.customers([{"id": 1, "phone": "+15550101"}])
    world.state.settings[1] = sms_settings("hello")
    world.state.enqueue(message(1))
    worker = world.start()
    world.state.wait_for(lambda state: len(state.attempts) == 1, PATIENCE)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    ((state, due_at, tries),) = world.rows("SELECT state, due_at, counted_tries FROM message")
    assert (state, tries) == (3, 1)
    assert due_at is not None
    world.run_until_idle()
    assert world.state.statuses(1) == ["dequeued", "sent"]
    assert len(world.state.attempts) == 3


def in_the_middle(state: SandboxState, done: int) -> bool:
    return len(state.received) >= done


def test_killed_ten_times_among_a_thousand_messages_none_is_lost_and_repeats_keep_their_key(
    world: World,
) -> None:
    fill(world, 1000)
    world.state.redeliver_after = 1.0
    for round_ in range(1, 11):
        worker = world.start()
        wanted = round_ * 90
        world.state.wait_for(lambda state, wanted=wanted: in_the_middle(state, wanted), PATIENCE)  # type: ignore[misc]
        worker.kill()
        worker.wait()
    world.state.redeliver_after = 0.0  # what was taken and never recorded is the queue's to give again
    world.run_until_idle()
    state = world.state
    for id_ in range(1, 1001):
        statuses = state.statuses(id_)
        assert statuses[-1] == "sent"
        assert sorted(set(statuses)) == ["dequeued", "sent"]
        assert statuses.index("dequeued") < statuses.index("sent")
    keys = defaultdict(set)
    for received in state.received:
        keys[received.message_id].add(received.idempotency_key)
    assert keys.keys() == set(range(1, 1001))
    assert all(len(of_one) == 1 for of_one in keys.values())


def test_sigterm_in_the_middle_ends_with_0_leaves_nothing_in_doubt_and_the_next_start_goes_on(
    world: World,
) -> None:
    fill(world, 1000)
    worker = world.start()
    world.state.wait_for(lambda state: in_the_middle(state, 200), PATIENCE)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(25) == 0
    assert len(world.state.received) < 1000
    assert world.rows("SELECT count(*) FROM message WHERE state IN (4, 5)") == [(0,)]
    assert world.rows("SELECT max(seq) - (SELECT settled FROM log) FROM event") == [(0,)]
    world.run_until_idle()
    assert Counter(received.message_id for received in world.state.received) == dict.fromkeys(
        range(1, 1001), 1
    )


def test_a_second_worker_on_the_same_journal_is_refused_with_the_pid_of_the_first(world: World) -> None:
    first = world.start()
    world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    second = subprocess.run(first.args, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert second.returncode == 1
    assert f"process {first.pid}" in second.stderr
    first.terminate()
    assert first.wait(PATIENCE) == 0


def test_canary_words_appear_in_no_log_line_at_debug_level(world: World) -> None:
    canaries = [
        "Canaryname",
        "canary-text",
        "canaryvariable",
        "+15550199777",
        "canary@example.com",
        "canarytoken",
    ]
    token = world.folder / "token"
    token.touch(mode=0o600)
    token.write_text("canarytoken")
    world.state.token = "canarytoken"
    world.change('timeout = "1m"', f'timeout = "1m"\nauth = {{ token_file = "{token}" }}')
    world.add(EMAIL)
    world.customers(
        [
            {"id": 1, "name": "Canaryname", "phone": "+15550199777", "email": "canary@example.com"},
            {"id": 2, "name": "Canaryname", "email": "permerror+canary@example.com"},
        ]
    )
    settings = sms_settings("canary-text {greeting} {word}")
    settings["content"]["en"]["email"] = {"subject": "canary-text", "body": "canary-text {greeting} {gone}"}
    world.state.settings[1] = settings
    world.state.settings[2] = {"content": {"en": {"sms": {"canary-text": "canary-text"}}}}
    world.state.fail("provider.sms", FaultAnswer(500, b"canary-text"), FaultAnswer(400, b"canaryvariable"))
    world.state.enqueue(
        *(message(id_, 1, id_ % 2 + 1, word="canaryvariable") for id_ in range(1, 8)),
        message(8, 2, 1, word="canaryvariable"),
        '{"id": 9, "settingsId": 1, "customerId": "canaryvariable", "variables": {"canaryvariable": true}}',
        '["canaryvariable"]',
    )
    world.run_until_idle(log="debug")
    log = world.log()
    assert '"event": "queue.taken"' in log
    assert "message_id" in log
    assert {canary for canary in canaries if canary.lower() in log.lower()} == set()
