"""The sandbox's providers: what they accept and refuse, their receipts, and their mail server."""

from __future__ import annotations

import hmac
import http.server
import json
import queue
import smtplib
import threading
from collections.abc import Iterator
from email.message import EmailMessage

import httpx
import pytest

from deliveryd.sandbox.server import Sandbox
from deliveryd.sandbox.state import SandboxState
from support.patience import PATIENCE
from support.plain_http import NO_TLS
from support.sandboxes import open_sandbox


@pytest.fixture
def now() -> list[float]:
    """The sandbox's clock, moved by hand."""
    return [1000.0]


@pytest.fixture
def sandbox(now: list[float]) -> Iterator[Sandbox]:
    with open_sandbox(Sandbox(state=SandboxState(clock=lambda: now[0]))) as opened:
        yield opened


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[httpx.Client]:
    with httpx.Client(verify=NO_TLS, base_url=sandbox.base_url, trust_env=False, timeout=PATIENCE) as opened:
        yield opened


# -- providers


def test_a_provider_answers_an_idempotency_key_once(sandbox: Sandbox, client: httpx.Client) -> None:
    body = {"to": "+4912345", "text": "hi", "reference": 42}
    first = client.post("/sms", json=body, headers={"Idempotency-Key": "k1"}).json()
    again = client.post("/sms", json=body, headers={"Idempotency-Key": "k1"}).json()
    other = client.post("/sms", json=body, headers={"Idempotency-Key": "k2"}).json()
    assert first == again
    assert first != other
    messages = sandbox.state.received
    assert [each.duplicate_of for each in messages] == [None, messages[0].seq, None]
    assert [each.message_id for each in sandbox.state.accepted("sms")] == [42, 42]


def test_providers_take_json_forms_and_queries(sandbox: Sandbox, client: httpx.Client) -> None:
    client.post("/messenger", json={"to": "ann", "text": "a & b", "button": {"text": "t", "url": "u"}})
    client.post("/sms", data={"to": "+49 123", "text": "a & b"})
    client.get("/inApp", params={"to": "device", "text": "a & b"})
    assert [(each.channel, each.to) for each in sandbox.state.received] == [
        ("messenger", "ann"),
        ("sms", "+49 123"),
        ("inApp", "device"),
    ]
    assert {each.payload["text"] for each in sandbox.state.received} == {"a & b"}
    assert sandbox.state.received[0].payload["button"] == {"text": "t", "url": "u"}


def test_the_plain_gateway_answers_in_plain_text(sandbox: Sandbox, client: httpx.Client) -> None:
    answer = client.post("/plain/sms", json={"to": "+49123", "text": "x"})
    assert answer.text == f"OK id={sandbox.state.received[0].provider_id}"
    assert client.post("/plain/sms", json={"to": "+15550100"}).text == "ERROR invalid recipient"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"text": "x"}', b'{"to": ""}', b'{"to": null}'])
def test_a_provider_refuses_an_order_without_recipient(client: httpx.Client, body: bytes) -> None:
    assert client.post("/sms", content=body).status_code == 400


@pytest.mark.parametrize(
    ("path", "to", "statuses"),
    [
        ("/sms", "+15550100", [400, 400, 400, 400]),
        ("/sms", "+1 555 0101", [503, 503, 200, 200]),
        ("/sms", "+15550103", [200, 200, 200, 200]),
        ("/sms", "+15550104", [503, 503, 503, 503]),
        ("/messenger", "permerror-x", [400, 400, 400, 400]),
        ("/messenger", "temperror-x", [503, 503, 200, 200]),
        ("/inApp", "down-x", [503, 503, 503, 503]),
    ],
)
def test_some_recipients_misbehave_by_their_address(
    sandbox: Sandbox, client: httpx.Client, path: str, to: str, statuses: list[int]
) -> None:
    answers = [client.post(path, json={"to": to, "reference": "1"}).status_code for _ in statuses]
    assert answers == statuses
    assert [each.status for each in sandbox.state.attempts] == statuses


def test_a_temporary_refusal_is_counted_for_each_message(client: httpx.Client) -> None:
    for reference in ("1", "2"):
        body = {"to": "+15550101", "reference": reference}
        assert [client.post("/sms", json=body).status_code for _ in range(3)] == [503, 503, 200]


@pytest.mark.parametrize(("path", "to"), [("/sms", "+15550102"), ("/inApp", "timeout-1")])
def test_a_recipient_that_times_out_is_well_the_second_time(
    sandbox: Sandbox, client: httpx.Client, path: str, to: str
) -> None:
    with pytest.raises(httpx.ReadTimeout):
        client.post(path, json={"to": to, "reference": "1"}, timeout=0.2)
    assert client.post(path, json={"to": to, "reference": "1"}).status_code == 200
    assert len(sandbox.state.accepted()) == 1


# -- receipts


class ReceiptServer(http.server.ThreadingHTTPServer):
    """Takes receipts, answering each with the next of `answers`, and 200 when there are none left."""

    def __init__(self) -> None:
        self.inbox: queue.Queue[tuple[bytes, str]] = queue.Queue()
        self.answers: list[int] = []
        super().__init__(("127.0.0.1", 0), _ReceiptHandler)


class _ReceiptHandler(http.server.BaseHTTPRequestHandler):
    server: ReceiptServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.server.answers.pop(0) if self.server.answers else 200)
        self.send_header("content-length", "0")
        self.end_headers()
        self.server.inbox.put((body, self.headers["X-Signature"]))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        """Print nothing."""


@pytest.fixture
def endpoint() -> Iterator[ReceiptServer]:
    with ReceiptServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("to", "status"), [("+49123", "delivered"), ("+15550103", "failed")])
def test_an_accepted_message_is_followed_by_a_signed_receipt(
    sandbox: Sandbox, client: httpx.Client, endpoint: ReceiptServer, to: str, status: str
) -> None:
    sandbox.state.receipt_targets["sms"] = f"http://127.0.0.1:{endpoint.server_port}/receipts/sms"
    sandbox.state.receipt_delay = 0.01
    sandbox.state.receipt_secret = "hush"
    provider_id = client.post("/sms", json={"to": to, "text": "x"}).json()["id"]
    body, signed = endpoint.inbox.get(timeout=PATIENCE)
    receipt = json.loads(body)
    assert (receipt["id"], receipt["status"]) == (provider_id, status)
    assert receipt["at"].endswith("Z")
    assert signed == hmac.new(b"hush", body, "sha256").hexdigest()
    sandbox.state.wait_for(lambda state: [each.answered for each in state.receipts] == [200])


def test_a_receipt_that_meets_an_outage_is_sent_again(
    sandbox: Sandbox, client: httpx.Client, endpoint: ReceiptServer
) -> None:
    endpoint.answers = [503]
    sandbox.state.receipt_targets["inApp"] = f"http://127.0.0.1:{endpoint.server_port}/"
    client.post("/inApp", json={"to": "device"})
    assert endpoint.inbox.get(timeout=PATIENCE)[0] == endpoint.inbox.get(timeout=PATIENCE)[0]
    sandbox.state.wait_for(lambda state: [each.answered for each in state.receipts] == [503, 200])


def test_a_duplicate_earns_no_second_receipt(
    sandbox: Sandbox, client: httpx.Client, endpoint: ReceiptServer
) -> None:
    sandbox.state.receipt_targets["sms"] = f"http://127.0.0.1:{endpoint.server_port}/"
    for key in ("a", "a", "b"):
        client.post("/sms", json={"to": "+49123"}, headers={"idempotency-key": key})
    sandbox.state.wait_for(lambda state: len(state.receipts) == 2)
    assert len({json.loads(endpoint.inbox.get(timeout=PATIENCE)[0])["id"] for _ in range(2)}) == 2


# -- mail


def letter(to: str, mail_id: str = "<1@example.com>") -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = "shop@example.com"
    mail["To"] = to
    mail["Subject"] = "Grüße"
    mail["Message-ID"] = mail_id
    mail["X-Deliveryd-Message"] = "77"
    mail.set_content("Hallo\n")
    mail.add_alternative("<p>Hallo</p>\n", subtype="html")
    return mail


def test_mail_is_read(sandbox: Sandbox) -> None:
    with smtplib.SMTP("127.0.0.1", sandbox.smtp_port) as smtp:
        smtp.send_message(letter("ann@example.com"))
    (mail,) = sandbox.state.accepted("email")
    assert mail.payload == {"subject": "Grüße", "text": "Hallo\n", "html": "<p>Hallo</p>\n"}
    assert (mail.provider_id, mail.headers["from"]) == ("<1@example.com>", "shop@example.com")
    assert (mail.to, mail.message_id) == ("ann@example.com", 77)


def test_mailboxes_misbehave_by_their_name(sandbox: Sandbox) -> None:
    with smtplib.SMTP("127.0.0.1", sandbox.smtp_port) as smtp:
        with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
            smtp.send_message(letter("permerror@example.com"))
        assert refused.value.recipients["permerror@example.com"][0] == 550
        for mail_id in ("<1@x>", "<2@x>"):
            for _ in range(2):
                with pytest.raises(smtplib.SMTPDataError) as later:
                    smtp.send_message(letter("temperror@example.com", mail_id))
                assert later.value.smtp_code == 451
            smtp.send_message(letter("temperror@example.com", mail_id))
    assert [mail.provider_id for mail in sandbox.state.accepted("email")] == ["<1@x>", "<2@x>"]


def test_a_mailbox_that_times_out_is_well_the_second_time(sandbox: Sandbox) -> None:
    with (
        smtplib.SMTP("127.0.0.1", sandbox.smtp_port, timeout=0.2) as smtp,
        pytest.raises(smtplib.SMTPServerDisconnected, match="timed out"),
    ):
        smtp.send_message(letter("timeout@example.com"))
    with smtplib.SMTP("127.0.0.1", sandbox.smtp_port) as smtp:
        smtp.send_message(letter("timeout@example.com"))
    assert len(sandbox.state.accepted("email")) == 1
