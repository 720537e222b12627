"""Receipts from providers: a running worker on real sockets, and the secrets of signatures."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import httpx
import pytest
from pydantic import ValidationError

from deliveryd.channels.signature_options import HmacSignature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Forged
from deliveryd.receipts.verification import open_verifier
from deliveryd.runtime import secret_file
from deliveryd.sandbox.faults import ApplyThenDelay
from support.messages import message, sms_settings
from support.patience import PATIENCE
from support.plain_http import NO_TLS
from support.world import World, open_world

pytestmark = pytest.mark.slow

SECRET = "shared-secret"
RECEIPT = """
receipt = { provider_id = "/id", status = "/status", delivered = ["delivered"], failed = ["failed"], \
reported_at = "/at", signature = { header = "X-Signature", secret_file = "receipts-secret" } }
"""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.change('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:0"')
        secret = tmp_path / "receipts-secret"
        secret.touch(mode=0o600)
        secret.write_text(SECRET)
        world.add(RECEIPT)
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings()
        world.state.receipt_secret = SECRET
        yield world


def start(world: World) -> tuple[Popen[bytes], str]:
    """A worker, and where it takes receipts of the channel sms."""
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    found = re.search(r'"listen": "(http://[^"]+)"', world.log())
    assert found is not None
    return worker, f"{found[1]}/receipts/sms"


def report(url: str, provider_id: str, status: str = "delivered", secret: str = SECRET) -> httpx.Response:
    body = json.dumps({"id": provider_id, "status": status, "at": "2026-01-02T03:04:05.000006Z"}).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return httpx.post(url, content=body, headers={"X-Signature": signature}, trust_env=False, verify=NO_TLS)


def sent_message(world: World, id_: int = 1) -> str:
    """Send a message; the id that the provider gave it."""
    world.state.enqueue(message(id_))
    world.state.wait_for(lambda state: state.statuses(id_) == ["dequeued", "sent"], PATIENCE)
    return next(received.provider_id for received in world.state.received if received.message_id == id_)


def test_a_receipt_is_reported_as_delivered_with_channel_and_reported_at(world: World) -> None:
    _, url = start(world)
    provider_id = sent_message(world)
    assert report(url, provider_id).status_code == 200
    world.state.wait_for(lambda state: state.statuses(1) == ["dequeued", "sent", "delivered"], PATIENCE)
    delivered = world.state.events_of(1)[-1]
    assert delivered["channel"] == "sms"
    assert delivered["reportedAt"] == "2026-01-02T03:04:05.000006Z"


def test_a_forged_receipt_is_refused_and_changes_nothing(world: World) -> None:
    worker, url = start(world)
    provider_id = sent_message(world)
    assert report(url, provider_id, secret="wrong").status_code == 401
    unsigned = httpx.post(
        url, json={"id": provider_id, "status": "delivered"}, trust_env=False, verify=NO_TLS
    )
    assert unsigned.status_code == 401
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert world.state.statuses(1) == ["dequeued", "sent"]
    assert world.log().count("receipt.forged") == 1  # once a minute at most, however many come


def test_a_replayed_receipt_is_answered_well_and_reported_once(world: World) -> None:
    worker, url = start(world)
    provider_id = sent_message(world)
    answers = [report(url, provider_id) for _ in range(3)]
    assert [(answer.status_code, answer.text) for answer in answers] == [(200, "")] * 3
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert world.state.statuses(1) == ["dequeued", "sent", "delivered"]


def test_an_early_receipt_waits_for_the_outcome_of_its_attempt(world: World) -> None:
    _, url = start(world)
    world.state.fail("provider.sms", ApplyThenDelay(1.0))
    world.state.enqueue(message(1))
    world.state.wait_for(lambda state: state.received, PATIENCE)
    assert report(url, world.state.received[0].provider_id).status_code == 200
    assert world.state.statuses(1) == ["dequeued"]
    world.state.wait_for(lambda state: len(state.statuses(1)) == 3, PATIENCE)
    assert world.state.statuses(1) == ["dequeued", "sent", "delivered"]


def test_an_unknown_receipt_is_kept_and_one_for_no_channel_is_refused(world: World) -> None:
    worker, url = start(world)
    assert report(url, "nobody").status_code == 200
    assert report(url.replace("/sms", "/email"), "nobody").status_code == 404
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert world.rows("SELECT provider_id FROM receipt WHERE message_id IS NULL") == [("nobody",)]


def test_a_failure_after_sent_ends_in_an_error_and_nothing_follows_a_delivery(world: World) -> None:
    worker, url = start(world)
    failing, delivered = sent_message(world, 1), sent_message(world, 2)
    assert report(url, failing, "failed").status_code == 200
    assert report(url, delivered, "delivered").status_code == 200
    assert report(url, delivered, "failed").status_code == 200
    assert report(url, delivered, "read").status_code == 200
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert world.state.statuses(1) == ["dequeued", "sent", "error"]
    assert world.state.events_of(1)[-1]["details"] == "sms: the provider reported failed"
    assert world.state.statuses(2) == ["dequeued", "sent", "delivered"]


def test_an_oversized_or_unreadable_report_is_refused_and_the_worker_goes_on(world: World) -> None:
    _, url = start(world)
    assert httpx.post(url, content=b"x" * 100_000, trust_env=False, verify=NO_TLS).status_code == 413
    body = b"not json"
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    refused = httpx.post(
        url, content=body, headers={"X-Signature": signature}, trust_env=False, verify=NO_TLS
    )
    assert refused.status_code == 400
    assert "JSON" in refused.text
    assert report(url, sent_message(world)).status_code == 200


def test_only_posts_and_gets_of_channels_are_reports(world: World) -> None:
    """Other methods and paths have answers of their own, and a report that breaks off leaves no line."""
    worker, url = start(world)
    assert httpx.put(url, trust_env=False, verify=NO_TLS).status_code == 405
    assert httpx.get(url, trust_env=False, verify=NO_TLS).status_code == 401
    assert httpx.post(f"{url}/more", trust_env=False, verify=NO_TLS).status_code == 404
    assert httpx.post(f"{url}/", trust_env=False, verify=NO_TLS).status_code == 401
    assert httpx.post(url.replace("/sms", "/%73ms"), trust_env=False, verify=NO_TLS).status_code == 401
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port or 0)) as line:
        line.sendall(b"POST /receipts/sms HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
    assert report(f"{url}/", sent_message(world)).status_code == 200
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    assert "library.message" not in world.log()


@pytest.mark.parametrize("forwarded", ["", "X-Forwarded-For: 203.0.113.9\r\n"])
def test_slow_bodies_shut_out_no_genuine_receipt(world: World, forwarded: str) -> None:
    """Two hundred and five requests that never end, straight from here or through the proxy of a stranger."""
    _, url = start(world)
    address = httpx.URL(url).host, httpx.URL(url).port or 0
    head = f"POST /receipts/sms HTTP/1.1\r\nHost: x\r\n{forwarded}Content-Length: 100\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(205):
            stack.enter_context(socket.create_connection(address)).sendall(f"{head}{{".encode())
        assert report(url, sent_message(world)).status_code == 200


def test_requests_that_are_no_reports_are_logged_seldom_and_counted(world: World) -> None:
    """A provider with a mistyped address is seen by the operator, who hears of a flood once a minute."""
    world.change('[admin]\nlisten = ""', '[admin]\nlisten = "127.0.0.1:0"')
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] >= 1, PATIENCE)
    admin, receipts = re.findall(r'"listen": "(http://[^"]+)"', world.log())
    url = f"{receipts}/receipts/sms"
    with httpx.Client(verify=NO_TLS, trust_env=False) as client:
        assert {client.post(f"{receipts}/receipts/smms{n}").status_code for n in range(5)} == {404}
        assert {client.put(f"{url}?token=s3cret").status_code for _ in range(4)} == {405}
        assert (
            client.post(url, content=b"\x0b\x01\x80", headers={"Content-Encoding": "br"}).status_code == 415
        )
        assert client.post(url, content=b"x" * 100_000).status_code == 413
        numbers = client.get(f"{admin}/metrics").text
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    counted = re.findall(r'deliveryd_receipts_total{.*result="turned_away".*} ([0-9.]+)', numbers)
    assert sum(map(float, counted)) == 11
    told = [line for line in map(json.loads, world.log().splitlines()) if "turned_away" in line["event"]]
    assert [(line["status"], line.get("channel"), line.get("path"), line["count"]) for line in told] == [
        (404, None, None, 1),
        (405, "sms", "/receipts/sms", 1),
        (415, "sms", "/receipts/sms", 1),
        (413, "sms", "/receipts/sms", 1),
    ]
    assert "smms" not in world.log()
    assert "s3cret" not in world.log()


def signed(secret: str) -> str:
    return hmac.new(secret.encode(), b"body", hashlib.sha256).hexdigest()


def test_while_a_secret_rotates_both_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one is added, the provider goes over to it, the old one is taken out: no report is refused.

    The list is part of the configuration; what stands in its files is read again without a restart.
    """
    monkeypatch.setattr(secret_file, "LOOK_EVERY", 0)
    for name in ("old", "new"):
        tmp_path.joinpath(name).touch(mode=0o600)
        tmp_path.joinpath(name).write_text(f"{name}-secret")
    signature = HmacSignature.model_validate(
        {"header": "X-S", "secret_file": ["old", "new"]}, context={"base_dir": tmp_path}
    )
    assert signature.model_dump()["secret_file"] == [str(tmp_path / "old"), str(tmp_path / "new")]
    verifier = open_verifier(signature)

    def is_accepted(secret: str) -> bool:
        request = ReceiptRequest("POST", "/", b"", [(b"x-s", signed(secret).encode())], b"body")
        try:
            verifier.verify(request, 0)
        except Forged:
            return False
        return True

    def accepted() -> list[str]:
        return [name for name in ("old-secret", "new-secret", "newest-secret", "") if is_accepted(name)]

    assert accepted() == ["old-secret", "new-secret"]
    tmp_path.joinpath("old").write_text("newest-secret")
    assert accepted() == ["new-secret", "newest-secret"]
    tmp_path.joinpath("old").write_text("")
    assert accepted() == ["new-secret", "newest-secret"]


@pytest.mark.parametrize("secrets", [[], [""], [7], {"file": "x"}, 7])
def test_what_is_no_list_of_secrets_is_told(secrets: object) -> None:
    """A signature needs one secret at least."""
    with pytest.raises(ValidationError, match="expected a path"):
        HmacSignature.model_validate({"header": "X-S", "secret_file": secrets})


def test_each_secret_of_a_list_is_checked(tmp_path: Path) -> None:
    """One that can't be used is named, though another could be."""
    good = tmp_path / "good"
    good.touch(mode=0o600)
    good.write_text(SECRET)
    signature = HmacSignature.model_validate(
        {"header": "X-S", "secret_file": [str(good), str(tmp_path / "missing")]}
    )
    [problem] = signature.problems
    assert str(tmp_path / "missing") in problem
