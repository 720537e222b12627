"""`failed`, `forget`, `find` and `decisions`, with a real worker running and without one."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from deliveryd.commands.orders.failed import grouped
from deliveryd.journal.selection import FoundMessage
from deliveryd.sandbox.faults import ApplyThenHangUp
from deliveryd.states import State
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.terminal import Answered, command
from support.world import World, open_world

pytestmark = pytest.mark.slow

ANN = {"id": 1, "name": "Ann", "phone": "+447700900101"}
BOB = {"id": 2, "name": "Bob", "phone": "+447700900102"}

UNKNOWN_RECIPIENT = """\
[[channels.sms.answers]]
status = [404]
verdict = "refused"
only_this = true
"""
"""As for a gateway that answers 404 to an unknown recipient: a mistyped path fails message by message."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([ANN, BOB])
        world.state.settings[1] = sms_settings()
        world.state.settings[2] = sms_settings("{missing}")
        world.add(UNKNOWN_RECIPIENT)
        yield world


def of(world: World, *words: object) -> Answered:
    """Run a command; its words may be followed by options."""
    first, *rest = words
    group = [rest.pop(0)] if first in {"failed", "dead", "in-doubt"} else []
    return command(first, *group, "--config", world.config, *rest)


def mistype(world: World) -> None:
    world.change('/sms"', '/smss"')


def mend(world: World) -> None:
    world.change('/smss"', '/sms"')


def fail_all(world: World, *ids: int) -> None:
    """Have messages fail by a mistyped path, which is mended afterwards."""
    mistype(world)
    world.state.enqueue(*(message(id_) for id_ in ids))
    world.run_until_idle()
    mend(world)


def running(world: World) -> Popen[bytes]:
    asked = world.state.requests["queue"]
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] > asked, PATIENCE)
    return worker


def end(worker: Popen[bytes]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


def audited(world: World) -> None:
    answered = of(world, "audit")
    assert answered.status == 0, answered.out


def test_500_messages_that_a_wrong_address_failed_are_found_retried_and_sent(world: World) -> None:
    """Found, listed by reason, retried through a running worker, sent once each under a new key.

    The service receives `dequeued`, `error` and `sent`, in this order.
    """
    world.state.enqueue(message(900, settings_id=2))
    fail_all(world, *range(1, 501))
    worker = running(world)

    groups = of(world, "failed", "list", "--json").data
    assert [(each["count"], each["channels"], each["settings"], each["reason"]) for each in groups] == [
        (500, ["sms"], 1, "sms: provider answered 404"),
        (1, [], 2, "missing placeholders: missing"),
    ]
    listed = of(world, "failed", "list").out.splitlines()
    assert listed[0].split() == ["COUNT", "CHANNEL", "SETTINGS", "FIRST", "LAST", "REASON"]
    assert listed[-1] == "501 failed"

    choice = ("failed", "retry", "--all", "--matching", "answered 404")
    assert of(world, *choice, "--dry-run").out == "would begin again: 500 messages\n"
    retried = of(world, *choice, "--reason", "the gateway's address was mistyped")
    assert (retried.status, retried.out) == (0, "begun again: 500 messages\n")

    world.state.wait_for(lambda state: len(state.received) == 500, PATIENCE)
    world.state.wait_for(
        lambda state: all(state.statuses(id_)[-1] == "sent" for id_ in range(1, 501)), PATIENCE
    )
    assert {tuple(world.state.statuses(id_)) for id_ in range(1, 501)} == {("dequeued", "error", "sent")}
    assert world.state.statuses(900) == ["dequeued", "error"]
    assert len({each.idempotency_key for each in world.state.received}) == 500
    told = of(world, "explain", 7).out
    assert "attempt 1 on sms: refused for good: provider answered 404" in told
    assert "operator's order: begin anew" in told
    assert "reason: the gateway's address was mistyped" in told
    assert "attempt 2 on sms: accepted by the provider" in told
    end(worker)
    audited(world)


def test_codes_of_providers_are_told_apart_and_numbers_of_people_are_not() -> None:
    """WhatsApp's codes have six digits, telephone numbers have more."""
    reasons = ["failed/131026", "failed/131050", "no +447700900123", "no +447700900124"]
    found = [
        FoundMessage(id_, State.FAILED, 1, 1, ("sms",), 1, 1, 1, reason, may_have_arrived=False, told_as=id_)
        for id_, reason in enumerate(reasons)
    ]
    counts = {group.kind.reason: group.messages for group in grouped(found)}
    assert counts == {"failed/131026": 1, "failed/131050": 1, "no +#": 2}


def test_without_a_worker_the_next_start_sends_what_was_retried(world: World) -> None:
    fail_all(world, 1, 2, 3)
    assert of(world, "failed", "retry", 1, 3).out == "begun again: 2 messages\n"
    world.run_until_idle()
    assert [world.state.statuses(id_)[-1] for id_ in (1, 2, 3)] == ["sent", "error", "sent"]
    assert [each["id"] for each in of(world, "failed", "list", "--ids", "--json").data] == [2]
    audited(world)


def test_what_failed_is_selected_by_each_thing_that_is_known_of_it(world: World) -> None:
    fail_all(world, 1)
    world.state.enqueue(message(2, settings_id=2, customer_id=2))
    world.run_until_idle()

    def ids(*options: object) -> list[int]:
        return [each["id"] for each in of(world, "failed", "list", "--ids", "--json", *options).data]

    assert ids() == [1, 2]
    assert ids("--matching", "PLACEHOLDERS") == [2]
    assert ids("--settings", 1) == [1]
    assert ids("--customer", 2) == [2]
    assert ids("--channel", "sms") == [1]
    assert ids("--provider", "sms/sms") == [1]
    assert ids("--since", "2h") == [1, 2]
    assert ids("--until", "2h") == []
    assert ids("--since", "2100-01-01T00:00:00Z") == []
    assert ids(2, 7) == [2]
    assert [
        json.loads(line)["id"] for line in of(world, "failed", "list", "--ids", "--jsonl").out.splitlines()
    ] == [1, 2]
    unknown = of(world, "failed", "list", "--channel", "smss")
    assert (unknown.status, "did you mean" in unknown.err) == (2, True), unknown.err


def test_a_retried_message_that_expired_meanwhile_fails_again_and_is_not_sent(world: World) -> None:
    world.state.settings[1] = {**sms_settings(), "delivery": {"expiresAt": "2020-01-01T00:00:00Z"}}
    world.state.enqueue(message(1))
    world.run_until_idle()
    for _ in range(2):
        assert of(world, "failed", "retry", 1).status == 0
        world.run_until_idle()
    assert world.state.received == []
    assert world.state.statuses(1) == ["dequeued", "error", "error", "error"]
    assert of(world, "failed", "show", 1, "--json").data["beginning"] == 3
    audited(world)


def test_what_may_have_arrived_is_refused_unless_duplicates_are_accepted(world: World) -> None:
    """The gateway took it and hung up, and its tries are used up."""
    world.change("retry = { attempts = 5", "retry = { attempts = 1")
    world.state.fail("provider.sms", ApplyThenHangUp())
    world.state.enqueue(message(1))
    world.run_until_idle()
    for verb in (("failed", "retry"), ("forget",)):
        would = of(world, *verb, 1, "--dry-run")
        refused = of(world, *verb, 1)
        assert would.status == refused.status == 1
        assert "refused: 1 message\n  1  an attempt of it may have arrived" in refused.out
        assert would.out.splitlines()[1:] == refused.out.splitlines()[1:]
    assert "may have arrived" in of(world, "failed", "show", 1).out
    accepted = of(world, "failed", "retry", 1, "--accept-duplicates")
    assert (accepted.status, accepted.out) == (0, "begun again: 1 message\n")
    assert "might get it twice" in accepted.err
    world.run_until_idle()
    first, second = world.state.received
    assert first.idempotency_key != second.idempotency_key
    assert world.state.statuses(1) == ["dequeued", "error", "sent"]
    audited(world)


def test_a_forgotten_message_is_taken_anew_and_sent_under_a_key_of_its_own(world: World) -> None:
    """Through a running worker; `decisions` still has the order."""
    world.state.enqueue(message(1))
    world.run_until_idle()
    assert "it was sent" in of(world, "forget", 1).out
    worker = running(world)
    assert of(world, "forget", 1, 7, "--accept-duplicates", "--reason", "lost by them").status == 1
    assert of(world, "explain", 1).status == 1
    world.state.enqueue(message(1))
    world.state.wait_for(lambda state: state.statuses(1)[2:] == ["dequeued", "sent"], PATIENCE)
    first, second = world.state.received
    assert first.idempotency_key != second.idempotency_key
    end(worker)
    [decision] = of(world, "decisions", "--message", 1, "--json").data
    assert (decision["verb"], decision["reason"]) == ("forget, duplicates accepted", "lost by them")
    assert "operator's order: forget" in of(world, "explain", 1).out
    audited(world)


def test_an_export_has_all_but_what_could_identify_a_customer(world: World) -> None:
    mistype(world)
    world.state.enqueue(message(1, word="Rosebud"))
    world.run_until_idle()
    exported = of(world, "failed", "export").out
    assert "Rosebud" not in exported
    assert "7700900101" not in exported
    [record] = [json.loads(line) for line in exported.splitlines()]
    assert record["variables"] == {"word": None}
    assert [each["verdict"] for each in record["attempts"]] == ["refused"]
    assert [each["status"] for each in record["events"]] == ["dequeued", "error"]
    whole = of(world, "failed", "export", "--with-variables").out
    assert json.loads(whole)["variables"] == {"word": "Rosebud"}


def test_messages_are_found_by_state_customer_and_range_of_ids(world: World) -> None:
    world.state.enqueue(*(message(id_, customer_id=1 + id_ % 2) for id_ in range(1, 8)))
    world.state.enqueue(message(8, settings_id=2))
    world.run_until_idle()

    def ids(*options: object) -> list[int]:
        return [each["id"] for each in of(world, "find", "--json", *options).data]

    assert ids() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert ids("--customer", 2) == [1, 3, 5, 7]
    assert ids("--state", "failed") == [8]
    assert ids("--state", "in-doubt", "--state", "waiting") == []
    assert ids("--id-range", "3..4") == [3, 4]
    assert ids("--id-range", "7..") == [7, 8]
    assert ids("--channel", "sms", "--id-range", "..2") == [1, 2]
    assert ids("--settings", 2) == [8]
    assert ids(2, 9) == [2]
    table = of(world, "find", "--customer", 2).out.splitlines()
    assert table[0].split() == ["ID", "STATE", "CHANNEL", "SETTINGS", "CUSTOMER", "TAKEN", "ENDED", "REASON"]
    assert table[1].split()[:5] == ["1", "sent", "sms", "1", "2"]
    assert table[-1] == "4 found"
    assert of(world, "find", "--state", "sending-off").status == 2
    assert of(world, "find", "--id-range", "9..3").status == 2
    assert of(world, "find", "--json", "--jsonl").status == 2


def test_decisions_are_listed_with_who_made_them_when_and_why(world: World) -> None:
    fail_all(world, 1, 2)
    assert of(world, "failed", "retry", 1, "--reason", "first").status == 0
    assert of(world, "failed", "retry", 2, "--reason", "second").status == 0
    listed = of(world, "decisions", "--json").data
    assert [(each["verb"], each["key"], each["reason"]) for each in listed] == [
        ("begin anew", "1", "first"),
        ("begin anew", "2", "second"),
    ]
    [user] = {each["user"] for each in listed}
    assert [each["key"] for each in of(world, "decisions", "--message", 2, "--json").data] == ["2"]
    assert len(of(world, "decisions", "--user", user, "--since", "1h", "--jsonl").out.splitlines()) == 2
    assert of(world, "decisions", "--user", "somebody else", "--json").data == []
    assert of(world, "decisions", "--verb", "erase", "--json").data == []
    assert of(world, "decisions").out.splitlines()[-1] == "2 decisions"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("failed", "retry"), "give message ids, or --all\n"),
        (("failed", "retry", "1", "--all"), "give message ids, or --all, but not both\n"),
        (("dead", "drop"), "give names of dead letters, or --all\n"),
        (("in-doubt", "resend"), "give message ids, or --all\n"),
        (("failed", "retry", "1", "--channel", "sms"), "go with --all"),
        (("failed", "retry", "one"), "isn't an integer"),
        (("failed", "list", "--since", "yesterday"), "--since"),
        (("find", "--since", "2026-11-22"), "nor a duration such as 2h"),
        (("failed", "list", "--provider", "sms/other"), "there is no provider"),
        (("find", "--id-range", ".."), "isn't a range"),
        (("decisions", "--verb", "resent"), "there is no order"),
    ],
)
def test_a_choice_that_cannot_be_meant_is_a_usage_error(
    world: World, words: tuple[str, ...], problem: str
) -> None:
    world.run_until_idle()
    answered = of(world, *words)
    assert (answered.status, problem in answered.err) == (2, True), answered.err


def test_the_sums_stay_balanced_whatever_begins_anew_and_is_forgotten(world: World) -> None:
    """`audit` finds no gap, and no contradiction, at any time."""
    fail_all(world, *range(1, 7))
    assert of(world, "failed", "retry", 1, 2).status == 0
    assert of(world, "forget", 3, 4).status == 0
    audited(world)
    world.state.enqueue(message(3), message(1))
    world.run_until_idle()
    assert of(world, "forget", 3, "--accept-duplicates").status == 0
    audited(world)
    ends = Counter(world.state.statuses(id_)[-1] for id_ in range(1, 7))
    assert ends == {"sent": 3, "error": 3}
