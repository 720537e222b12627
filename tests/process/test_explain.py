"""`deliveryd explain`: what an operator learns of one message, from journals that real workers wrote."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deliveryd.commands.common.tables import length, moment
from deliveryd.sandbox.faults import ApplyThenHangUp, FaultAnswer
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.ports import free_port
from support.terminal import Answered, command
from support.world import World, open_world

pytestmark = pytest.mark.slow

RECEIPT = """\
receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"], \
reported_at = "/at" }
"""
MESSENGER = """\
[channels.messenger]
adapter = "http"
url = "BASE_URL/messenger"
json = { to = "{customer.messenger}", text = "{content.text}" }
retry = { attempts = 2, base = "20ms", max = "20ms" }
"""
ANN = {"id": 1, "name": "Ann Whitfield", "language": "en", "phone": "+447700900101"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([ANN])
        world.state.settings[1] = sms_settings()
        yield world


def explain(world: World, message_id: int, *options: str) -> Answered:
    return command("explain", "--config", world.config, *options, message_id)


def whats(text: str) -> list[str]:
    """What happened, line by line, without times and further facts."""
    return re.findall(r"^20\S+Z +\+\S+ s  (.+)$", text, re.MULTILINE)


def test_a_message_that_was_retried_fell_back_and_was_delivered(world: World) -> None:
    """Its whole life is one list in the order of time, while the worker runs and after it."""
    port = free_port()
    world.change('[receipts]\nlisten = ""', f'[receipts]\nlisten = "127.0.0.1:{port}"')
    world.add(RECEIPT + MESSENGER)
    world.customers([{**ANN, "messenger": "down-ann"}])
    settings = sms_settings()
    settings["content"]["en"]["messenger"] = {"text": "{word}"}
    world.state.settings[1] = settings
    world.state.receipt_targets["sms"] = f"http://127.0.0.1:{port}/receipts/sms"
    world.state.enqueue(message(5, word="parcel 20417"))
    worker = world.start()
    world.state.wait_for(lambda state: "delivered" in state.statuses(5), PATIENCE)
    running = explain(world, 5)
    assert running.status == 0
    assert "attempt 3 on sms: accepted by the provider" in running.out
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0

    stopped = explain(world, 5)
    assert stopped.out.startswith("message 5: delivered; the provider confirmed it\n")
    assert "given up   messenger: provider answered 503 (tried 2 times)" in stopped.out
    told = whats(stopped.out)
    assert told[:10] == [
        "taken from the queue",
        "event dequeued: to be reported",
        "event dequeued: accepted by the service",
        "attempt 1 on messenger: begins",
        "attempt 1 on messenger: not accepted now: provider answered 503",
        "attempt 2 on messenger: begins",
        "attempt 2 on messenger: not accepted now: provider answered 503",
        "attempt 3 on sms: begins",
        "attempt 3 on sms: accepted by the provider",
        "event sent: to be reported",
    ]
    assert [what for what in told[10:] if "sent" not in what] == [
        "receipt from sms: delivered (delivered)",
        "event delivered: to be reported",
        "event delivered: accepted by the service",
    ]
    assert "event sent: accepted by the service" in told  # before or after the receipt: they race
    [sms] = world.state.accepted("sms")
    assert f"the provider's id {sms.provider_id}" in stopped.out
    assert f"key {sms.idempotency_key}\n" in stopped.out
    assert "reported as of" in stopped.out


def test_names_of_variables_are_shown_and_values_only_when_asked_for(world: World) -> None:
    world.change("[journal]\n", "[journal]\nkeep_variables = true\n")
    world.state.enqueue(message(5, word="parcel 20417"))
    world.run_until_idle()
    usual = explain(world, 5)
    assert "variables  word\n" in usual.out
    assert "parcel 20417" not in usual.out + explain(world, 5, "--json").out
    assert 'variables  word = "parcel 20417"' in explain(world, 5, "--show-variables").out
    data = explain(world, 5, "--json", "--show-variables").data
    assert data["message"]["variables"] == {"word": "parcel 20417"}


def test_the_reference_of_the_settings_is_that_of_the_cached_copy(world: World) -> None:
    """Nothing is fetched for it; without a copy the rest is shown."""
    world.state.settings[1] = sms_settings() | {"reference": "spring sale"}
    world.state.enqueue(message(5))
    world.run_until_idle()
    requests = world.state.requests["settings"]
    assert "\n  settings   1, reference spring sale\n" in explain(world, 5).out
    assert explain(world, 5, "--json").data["settings_reference"] == "spring sale"
    assert command("cache", "clear", "--config", world.config).status == 0
    assert "\n  settings   1\n" in explain(world, 5).out
    assert explain(world, 5, "--json").data["settings_reference"] is None
    assert world.state.requests["settings"] == requests


def test_for_programs_the_same_is_json(world: World) -> None:
    """Every instant stands there as in events, every event as it was sent."""
    world.state.enqueue(message(5))
    world.run_until_idle()
    data = explain(world, 5, "--json").data
    assert (data["id"], data["state"], data["message"]["lane"]) == (5, "sent", "sms")
    assert [event["body"] for event in data["events"]] == world.state.events_of(5)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", data["attempts"][0]["started_at"])


def test_a_message_with_missing_placeholders_says_which(world: World) -> None:
    world.state.enqueue({"id": 5, "settingsId": 1, "customerId": 1, "variables": {}})
    world.run_until_idle()
    told = explain(world, 5).out
    assert told.startswith("message 5: failed; it ended with an error event")
    assert "details: missing placeholders: word" in told
    assert "variables  none" in told


def test_a_waiting_message_says_until_when_and_for_what(world: World) -> None:
    world.change('base = "50ms", max = "200ms"', 'base = "1h", max = "2h"')
    world.state.fail_until_healed("provider.sms", FaultAnswer(503))
    world.state.enqueue(message(5))
    worker = world.start()
    world.state.wait_for(lambda state: state.requests["provider.sms"], PATIENCE)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    told = explain(world, 5).out
    assert told.startswith("message 5: waiting until it is due\n")
    assert "channel    sms, tries so far: 1" in told
    assert re.search(r"\+\S+  due: continues with sms then, or as soon as there is capacity$", told.strip())


def test_a_message_that_is_retried_by_order_is_due_at_once(world: World) -> None:
    world.state.enqueue({"id": 5, "settingsId": 1, "customerId": 1, "variables": {}})
    world.run_until_idle()
    assert command("failed", "retry", "5", "--config", world.config).status == 0
    assert explain(world, 5).out.strip().endswith("  due: continues as soon as there is capacity")
    data = explain(world, 5, "--json").data
    assert (data["state"], data["message"]["due_at"]) == ("waiting", None)


def test_a_message_that_waits_for_an_answer_says_for_which_one(world: World) -> None:
    world.state.fail_until_healed("settings", FaultAnswer(503))
    world.state.enqueue(message(5))
    worker = world.start()
    world.state.wait_for(lambda state: state.requests["settings"] > 2, PATIENCE)  # it waits meanwhile
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    told = explain(world, 5).out
    assert told.startswith("message 5: waiting for settings 1 from the service, or until it is due\n")


def test_an_attempt_in_doubt_that_is_held(world: World) -> None:
    """It is named with the key under which the provider may know it."""
    world.change('timeout = "60s"', 'timeout = "200ms"\non_in_doubt = "hold"')
    world.customers([{**ANN, "phone": "+15550102"}])
    world.state.enqueue(message(5))
    worker = world.start("--until-idle")
    assert worker.wait(PATIENCE) == 1
    told = explain(world, 5).out
    [attempt] = world.state.attempts
    assert told.startswith("message 5: in doubt and held for a decision: ")
    assert f"in doubt   {attempt.idempotency_key}: any repeat uses this key" in told
    assert "attempt 1 on sms: in doubt: the outcome is unknown: " in told


def test_a_message_that_was_tried_again_under_its_key(world: World) -> None:
    """Its doubt stays in sight, with its reason, beside the try that was accepted."""
    world.change('timeout = "60s"', 'timeout = "200ms"')
    world.customers([{**ANN, "phone": "+15550102"}])
    world.state.enqueue(message(5))
    world.run_until_idle()
    told = explain(world, 5).out
    assert [what for what in whats(told) if what.startswith("attempt")] == [
        "attempt 1 on sms: begins",
        "attempt 1 on sms: in doubt: the outcome is unknown: no whole answer within 0.2 s",
        "attempt 2 on sms: begins",
        "attempt 2 on sms: accepted by the provider",
    ]
    assert ", try 2 under it\n" in told
    assert told.startswith("message 5: sent; a channel accepted it\n")


def test_a_doubt_that_a_receipt_settled_stays_in_sight(world: World) -> None:
    """And that another receipt may follow is said only where the provider sends any."""
    port = free_port()
    world.change('[receipts]\nlisten = ""', f'[receipts]\nlisten = "127.0.0.1:{port}"')
    world.change('timeout = "60s"', 'timeout = "60s"\non_in_doubt = "hold"')
    clockless = RECEIPT.replace(', \\\nreported_at = "/at"', "").replace(
        'reported_at = "/at" ', 'reference = "/ref" '
    )
    world.add(clockless)
    world.state.fail("provider.sms", ApplyThenHangUp())
    world.state.enqueue(message(5), message(6))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: "sent" in state.statuses(5) + state.statuses(6), PATIENCE)
    held = 5 if "sent" in world.state.statuses(6) else 6
    report = {"id": "q1", "status": "delivered", "ref": str(held)}
    httpx.post(f"http://127.0.0.1:{port}/receipts/sms", json=report, trust_env=False)
    world.state.wait_for(lambda state: "delivered" in state.statuses(held), PATIENCE)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    told = explain(world, held).out
    attempts = [what for what in whats(told) if what.startswith("attempt")]
    assert attempts[0] == "attempt 1 on sms: begins"
    assert attempts[1].startswith("attempt 1 on sms: in doubt: the outcome is unknown: ")
    assert attempts[2:] == ["attempt 1 on sms: accepted by the provider: settled by the provider's receipt"]
    assert "reported as of" not in told
    [first, *_] = explain(world, 11 - held).out.splitlines()
    assert first.endswith("sent; a channel accepted it, and a provider's receipt may still follow")


def test_an_event_that_the_service_refused_says_why(world: World) -> None:
    world.state.reject_event = lambda event: event["status"] == "sent"
    world.state.enqueue(message(5))
    world.run_until_idle()
    assert "event sent: refused by the service: the service answered 400" in explain(world, 5).out


def test_an_event_that_the_service_has_not_accepted_yet(world: World) -> None:
    world.state.fail_until_healed("events", FaultAnswer(503))
    world.state.enqueue(message(5))
    worker = world.start()
    world.state.wait_for(lambda state: state.requests["events"], PATIENCE)
    told = explain(world, 5).out
    worker.kill()
    worker.wait()
    assert told.startswith("message 5: taken; nothing is sent before the service has accepted")
    assert "event dequeued: not yet accepted by the service" in told


def test_a_message_that_the_queue_gave_twice(world: World) -> None:
    """What was reported again is told apart from what happened."""
    world.state.enqueue(message(5))
    world.run_until_idle()
    world.state.enqueue(message(5))
    world.run_until_idle()
    told = explain(world, 5).out
    again = "reported again, since the queue delivered the message again: accepted by the service"
    assert f"event dequeued {again}" in told
    assert f"event sent {again}" in told
    assert told.count("event sent: to be reported") == 1


def test_a_malformed_element_is_told_without_what_it_held(world: World) -> None:
    world.state.enqueue(
        '{"id": 6, "settingsId": "x", "customerId": 1, "variables": {"word": "parcel 20417"}}'
    )
    world.run_until_idle()
    told = explain(world, 6)
    assert told.status == 0
    assert "a malformed element with this id was set aside: settingsId: " in told.out
    assert "parcel 20417" not in told.out + explain(world, 6, "--json").out
    assert "parcel 20417" in explain(world, 6, "--show-variables").out


def test_an_id_beyond_64_bits_is_told_to_the_service_and_explained(world: World) -> None:
    """The worker goes on; the service receives `dequeued` and one `error` with the id as it wrote it."""
    huge = 2**63
    world.state.enqueue(message(5), message(huge), message(6))
    world.run_until_idle()
    assert world.state.statuses(huge) == ["dequeued", "error"]
    assert world.state.statuses(6)[-1] == "sent"
    told = explain(world, huge)
    assert told.status == 0
    assert told.out.startswith(f"message {huge}: failed")
    assert f'"id": {huge}' in explain(world, huge, "--json").out
    assert f"message {huge + 1} isn't in the journal" in explain(world, huge + 1).err


def test_a_forgotten_message_is_told_by_what_is_kept(world: World) -> None:
    world.change('url = "sqlite:///journal.db"', 'url = "sqlite:///journal.db"\nretention = "1ms"')
    world.state.enqueue(message(5))
    world.run_until_idle()
    world.state.enqueue(message(6))
    worker = world.start(log="info")
    world.state.wait_for(lambda state: "sent" in state.statuses(6), PATIENCE)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    told = explain(world, 5)
    assert told.status == 0
    assert told.out.startswith("message 5: pruned; it ended longer ago than journal.retention")
    assert "event sent: accepted by the service" in told.out


def test_an_id_that_the_journal_does_not_know_ends_with_1(world: World) -> None:
    world.state.enqueue(message(5))
    world.run_until_idle()
    answered = explain(world, 99)
    assert (answered.status, answered.out) == (1, "")
    assert answered.err.startswith("deliveryd: message 99 isn't in the journal ")


def test_without_a_journal_it_says_so_and_makes_none(world: World) -> None:
    answered = explain(world, 5)
    assert answered.status == 1
    assert "deliveryd hasn't run with it yet" in answered.err
    assert not (world.folder / "journal.db").exists()


def test_an_unreadable_configuration_ends_with_78(world: World) -> None:
    world.change("[journal]", "[journal]\nretain = 1")
    answered = explain(world, 5)
    assert answered.status == 78
    assert "journal.retain: unknown key" in answered.err


def test_a_message_id_that_is_no_number_is_a_mistake_in_use(world: World) -> None:
    assert command("explain", "--config", world.config, "five").status == 2


def test_lengths_and_instants_are_written_for_people() -> None:
    assert [length(us) for us in (0, 1_500, 59_999_000, 61_000_000, 90_061_000_000)] == [
        "0.000 s", "0.001 s", "59.999 s", "0:01:01", "1 d 1:01:01",
    ]  # fmt: skip
    assert moment(0) == "1970-01-01T00:00:00.000Z"
