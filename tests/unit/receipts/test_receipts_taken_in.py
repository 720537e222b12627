"""The room of receipts on a real journal: what is told, answered and fetched, and what a request leaves."""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from test_signature_keys import (
    CERTIFICATE,
    CONFIRM,
    NOTIFICATION,
    ROOT,
    SIGNED_NOTIFICATION,
    SNS_NOW,
    TOPIC,
    amazon,
    enveloped,
)

from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.journal.journal import Journal
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.journal.sqlite.journal import SqliteJournal, open_journal_file
from deliveryd.metrics import Metrics
from deliveryd.model import SECOND, SteadyClock
from deliveryd.receipts import pages, reading
from deliveryd.receipts.app import Receipts
from deliveryd.receipts.inlet import Inlet, Inlets
from deliveryd.receipts.pages import FETCHES_AT_ONCE, MOST_WAITING
from deliveryd.receipts.reading import MOST_UNREADABLE, READ_AT_ONCE
from deliveryd.receipts.request import ReceiptRequest
from journal.samples import accept_all, deliver_to_sent, waiting_events
from support.amazon_certificates import ISSUER, START, YEARS, Authority
from support.line import recorder_on
from support.postgres import new_database

pytestmark = pytest.mark.anyio
__all__ = ["amazon"]

TABLE = {
    "each": "/results",
    "provider_id": "/id",
    "status": "/status",
    "delivered": ["delivered"],
    "failed": ["failed"],
    "intermediate": {"accepted": ["queued"], "sending": ["routed"]},
    "stopped": ["failed", "stop"],
    "resumed": ["start"],
    "recipient": "/to",
}


class StandingClock:
    """Stands at the time of the samples, or so many seconds later."""

    def __init__(self, later: int = 0) -> None:
        self._now = SNS_NOW + later * SECOND

    def now(self) -> int:
        return self._now

    def elapsed(self) -> int:
        return 0


class Host:
    """A provider's host that has one page at each address, or none; keeps the addresses that are fetched."""

    def __init__(self, page: bytes | None, fetched: list[str]) -> None:
        self._page = page
        self._fetched = fetched

    async def fetch(self, url: str) -> bytes | None:
        self._fetched.append(url)
        return self._page


@asynccontextmanager
async def room(
    path: Path, table: dict[str, Any], page: bytes | None = None, fetched: list[str] | None = None
) -> AsyncIterator[tuple[Receipts, SqliteJournal]]:
    """A room of receipts for one provider, whose host has this page, and its journal."""
    host = Host(page, [] if fetched is None else fetched)
    async with open_journal_file(path / "journal.db") as journal:
        yield room_on(journal, table, host, StandingClock()), journal


def room_on(journal: Journal, table: dict[str, Any], host: Host, clock: SteadyClock) -> Receipts:
    """The same room, by this clock."""
    recorder = recorder_on(journal, clock)
    recorder.open()
    inlet = Inlet(ReceiptOptions.model_validate(table), 65536)
    inlets = Inlets({"sms": inlet}, {"/receipts/sms": "sms"}, intermediate=["accepted"])
    return Receipts(inlets, recorder, clock, Metrics([], "1"), fetch=host.fetch)


def results(*items: dict[str, object]) -> ReceiptRequest:
    return ReceiptRequest("POST", "/receipts/sms", b"", [], json.dumps({"results": items}).encode())


async def test_a_request_tells_of_messages_and_recipients(tmp_path: Path) -> None:
    """Progress that events.intermediate names, an end, two words about recipients, one report unreadable."""
    async with room(tmp_path, TABLE) as (receipts, journal):
        for number in (1, 2, 3):
            await deliver_to_sent(journal, number, f"p{number}")
        await accept_all(journal)
        request = results(
            {"id": "p1", "status": "queued"},
            {"id": "p2", "status": "routed"},
            {"id": "p3", "status": "failed", "to": "+447700900103"},
            {"status": "stop", "to": "+447700900104"},
            {"id": "p1"},
        )
        reply = await receipts.take_in("sms", request)
        assert (reply.status, reply.text) == (200, "")
        assert sorted(reply.results) == ["matched", "matched", "matched", "told", "unread"]
        assert await waiting_events(journal) == [(1, "accepted"), (3, "error")]
        assert len(await journal.stopped()) == 2
        reply = await receipts.take_in("sms", results({"status": "start", "to": "+447700900104"}))
        assert reply.results == ["matched"]
        assert len(await journal.stopped()) == 1


def mentioned(folder: Path, text: bytes) -> bool:
    """Whether a text stands in a journal's files."""
    return any(text in each.read_bytes() for each in folder.glob("journal.db*"))


SHARED: dict[str, Any] = {
    "provider_id": "/id",
    "reference": "/ref",
    "status": "/status",
    "delivered": ["delivered"],
    "failed": ["bounced", "dropped"],
    "stopped": ["complained", "dropped", "unsubscribed"],
    "resumed": ["resubscribed"],
    "recipient": "/to",
    "each": "/results",
    "intermediate": {"accepted": ["queued"]},
}


async def test_signed_reports_of_other_senders_are_answered_and_nothing_of_them_is_kept(
    tmp_path: Path,
) -> None:
    """An account reports on all that is sent by it. What names no message at all is about the recipient."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("TOKEN-0123456789")
    table = {**SHARED, "signature": {"scheme": "token", "at": "query:token", "secret_file": str(token)}}
    theirs: list[dict[str, object]] = [
        {"status": "delivered", "to": "a@theirs.example"},
        {"status": "bounced", "id": "t1", "to": "a@theirs.example"},
        {"status": "dropped", "ref": "their-ref", "to": "b@theirs.example"},
        {"status": "dropped", "to": "c@theirs.example"},
        {"status": "complained", "id": "t2", "to": "d@theirs.example"},
        {"status": "resubscribed", "id": "t2", "to": "e@theirs.example"},
        {"status": "queued", "id": "t3"},
        {"status": "opened", "id": "t4"},
    ]
    async with room(tmp_path, table) as (receipts, journal):
        for number in (1, 2):
            await deliver_to_sent(journal, number, f"p{number}")
        await accept_all(journal)

        def signed(*items: dict[str, object]) -> ReceiptRequest:
            body = json.dumps({"results": items}).encode()
            return ReceiptRequest("POST", "/receipts/sms", b"token=TOKEN-0123456789", [], body)

        for items in (theirs, *([item] for item in theirs)):
            reply = await receipts.take_in("sms", signed(*items))
            assert (reply.status, reply.text) == (200, "")
            assert set(reply.results) <= {"not_ours", "noted"}
        assert (await journal.counts()).receipts_unmatched == 0
        assert await journal.stopped() == []
        assert not mentioned(tmp_path, b"theirs")
        ours: list[dict[str, object]] = [
            {"status": "delivered", "id": "p1"},
            {"status": "dropped", "id": "p2", "to": "p2@ours.example"},
            {"status": "complained", "id": "p1", "to": "p1@ours.example"},
            {"status": "unsubscribed", "to": "anybody@example.com"},
        ]
        reply = await receipts.take_in("sms", signed(*ours, *theirs))
        assert (reply.status, len(await journal.stopped())) == (200, 3)
        assert sorted(await waiting_events(journal)) == [(1, "delivered"), (2, "error")]


async def test_reports_that_nobody_signed_are_kept_until_a_message_fits(tmp_path: Path) -> None:
    """Without a signature, what names nothing is a mistake of the configuration."""
    async with room(tmp_path, SHARED) as (receipts, journal):
        assert (await receipts.take_in("sms", results({"status": "delivered"}))).status == 400
        reply = await receipts.take_in("sms", results({"status": "delivered", "id": "t1"}))
        assert (reply.status, reply.results) == (200, ["unmatched"])
        assert (await journal.counts()).receipts_unmatched == 1


async def turns_beside(receipts: Receipts, requests: Sequence[ReceiptRequest]) -> tuple[list[int], int]:
    """Take in requests side by side; return the answers, and the turns of another task meanwhile."""
    turns = 0
    statuses: list[int] = []

    async def turn() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async def take_in(request: ReceiptRequest) -> None:
        statuses.append((await receipts.take_in("sms", request)).status)

    async with anyio.create_task_group() as others:
        others.start_soon(turn)
        async with anyio.create_task_group() as tasks:
            for request in requests:
                tasks.start_soon(take_in, request)
        others.cancel_scope.cancel()
    return statuses, turns


@pytest.mark.parametrize("item", [{}, 1, {"id": "p1", "status": "unheard of"}])
async def test_a_long_list_is_read_slice_by_slice(tmp_path: Path, item: object) -> None:
    """While 10,000 items are read, others have hundreds of turns; whether they are read or can't be."""
    good = {"id": "p1", "status": "delivered"}
    async with room(tmp_path, TABLE) as (receipts, _journal):
        long = ReceiptRequest(
            "POST", "/receipts/sms", b"", [], json.dumps({"results": [item] * 9_999 + [good]}).encode()
        )
        statuses, turns = await turns_beside(receipts, [long])
        assert statuses == [200]
        assert turns >= 10_000 // READ_AT_ONCE


async def test_many_lists_are_read_one_at_a_time(tmp_path: Path) -> None:
    """However many come at once, others have a turn after each slice."""
    body = b'{"results":[' + b",".join([b"{}"] * 1_250) + b"]}"
    async with room(tmp_path, TABLE) as (receipts, _journal):
        requests = [ReceiptRequest("POST", "/receipts/sms", b"", [], body) for _ in range(40)]
        statuses, turns = await turns_beside(receipts, requests)
        assert statuses == [400] * 40
        assert turns >= 39 * 1_250 // READ_AT_ONCE


async def test_long_forged_requests_are_verified_one_at_a_time(tmp_path: Path) -> None:
    """However many come at once, others have a turn in between; also if only what was sent is long."""
    secret = tmp_path / "key"
    secret.touch(mode=0o600)
    secret.write_text("key123")
    signature = {"scheme": "mailgun", "secret_file": str(secret)}
    body = b'{"text": "' + b"\\x" * 20_000 + b'"}'
    requests = [ReceiptRequest("POST", "/receipts/sms", b"", [], body) for _ in range(20)]
    requests += [ReceiptRequest("POST", "/receipts/sms", b"", [], b"{}", sent=body) for _ in range(20)]
    async with room(tmp_path, TABLE | {"signature": signature}) as (receipts, _journal):
        statuses, turns = await turns_beside(receipts, requests)
        assert statuses == [401] * 40
        assert turns >= 39


@pytest.mark.parametrize("second", [{}, 1, {"ids": [8], "status": "delivered"}])
async def test_a_request_has_a_bounded_number_of_reports(
    tmp_path: Path, second: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted with what can't be read; more are refused as a whole."""
    monkeypatch.setattr(reading, "MOST_REPORTS", 1)
    good = {"ids": [7], "status": "delivered"}
    async with room(tmp_path, TABLE | {"provider_id": "/ids/*"}) as (receipts, _journal):
        answers = []
        for items in ([good], [good, second], [good | {"ids": [7, 8]}]):
            body = json.dumps({"results": items}).encode()
            reply = await receipts.take_in("sms", ReceiptRequest("POST", "/receipts/sms", b"", [], body))
            answers.append((reply.status, reply.text))
    assert answers == [(200, "")] + [(400, "there are more than 1 reports")] * 2


async def test_few_of_the_reports_that_cannot_be_read_are_kept(tmp_path: Path) -> None:
    """The others are counted: a mistaken table must not fill the journal."""
    async with room(tmp_path, TABLE) as (receipts, _journal):
        unreadable: list[dict[str, object]] = [{"id": "p1"}] * 300
        reply = await receipts.take_in("sms", results({"id": "p1", "status": "delivered"}, *unreadable))
        assert list(reply.results).count("unread") == MOST_UNREADABLE


async def test_all_reports_of_a_long_list_are_recorded(tmp_path: Path) -> None:
    """In several transactions; the answer comes after the last."""
    async with room(tmp_path, TABLE) as (receipts, journal):
        for number in (1, 2, 3):
            await deliver_to_sent(journal, number, f"p{number}")
        await accept_all(journal)
        others: list[dict[str, object]] = [
            {"id": f"q{number}", "status": "delivered"} for number in range(600)
        ]
        told: list[dict[str, object]] = [{"id": f"p{number}", "status": "delivered"} for number in (1, 2, 3)]
        reply = await receipts.take_in("sms", results(*others[:300], *told, *others[300:]))
        assert [list(reply.results).count(each) for each in ("unmatched", "matched")] == [600, 3]


async def test_a_stop_in_the_future_can_be_lifted(tmp_path: Path) -> None:
    """The provider's clock is ahead, or its times are of another zone: the word after it counts."""
    async with room(tmp_path, TABLE | {"reported_at": "/at"}) as (receipts, journal):
        stop: dict[str, object] = {"status": "stop", "to": "+447700900104", "at": "2099-01-01T00:00:00Z"}
        await receipts.take_in("sms", results(stop))
        assert len(await journal.stopped()) == 1
        await receipts.take_in("sms", results({"status": "start", "to": "+447700900104"}))
        assert await journal.stopped() == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [["stop", "start"], ["start", "stop"]])
async def test_of_words_without_an_instant_the_last_counts_whichever_worker_hears_it(
    words: list[str],
) -> None:
    """Both go by the database's clock."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    source = JournalDatabase(url)
    async with open_shared_journal(source) as one, open_shared_journal(source) as other:
        for word, journal in zip(words, (one, other), strict=True):
            await journal.recover(SNS_NOW, ["sms"])
            assert journal.common_clock is not None
            receipts = room_on(journal, TABLE, Host(None, []), journal.common_clock)
            reply = await receipts.take_in("sms", results({"status": word, "to": "+447700900104"}))
            assert reply.status == 200
        assert bool(await one.stopped()) is (words[-1] == "stop")


async def test_a_failure_that_names_no_recipient_is_a_failure(tmp_path: Path) -> None:
    """WhatsApp leaves out the number of people with user names."""
    async with room(tmp_path, TABLE) as (receipts, journal):
        await deliver_to_sent(journal, 1, "p1")
        await accept_all(journal)
        reply = await receipts.take_in("sms", results({"id": "p1", "status": "failed"}))
        assert (reply.status, list(reply.results)) == (200, ["matched"])
        assert await waiting_events(journal) == [(1, "error")]
        assert await journal.stopped() == []
        assert (await receipts.take_in("sms", results({"id": "p1", "status": "stop"}))).status == 400


@pytest.mark.parametrize("certificate", [True, False])
async def test_a_certificate_is_fetched_once_and_a_subscription_confirmed(
    tmp_path: Path, amazon: tuple[rsa.RSAPrivateKey, bytes], certificate: bool
) -> None:
    """What can't be fetched now is 503, so that Amazon repeats it."""
    key, pem = amazon
    fetched: list[str] = []
    table = {
        "provider_id": "/mail/messageId", "status": "/eventType", "delivered": ["Delivery"],
        "signature": {"scheme": "sns", "topics": [TOPIC]},
    }  # fmt: skip
    async with room(tmp_path, table, pem if certificate else None, fetched) as (receipts, _journal):
        message = '{"eventType":"Delivery","mail":{"messageId":"m9"}}'
        signed = SIGNED_NOTIFICATION.replace('{"eventType":"Delivery"}', message)
        sent = enveloped(key, signed, Message=message)
        if not certificate:
            assert (await receipts.take_in("sms", sent)).status == 503
            return
        answers = [await receipts.take_in("sms", sent) for _ in range(2)]
        assert [answer.results for answer in answers] == [["unmatched"], ["repeated"]]
        lines = (
            f"Message\nx\nMessageId\nm1\nSubscribeURL\n{CONFIRM}\nTimestamp\n{NOTIFICATION['Timestamp']}\n"
            f"Token\nt1\nTopicArn\n{TOPIC}\nType\nSubscriptionConfirmation\n"
        )
        subscription = enveloped(
            key, lines, Type="SubscriptionConfirmation", Message="x", Token="t1", SubscribeURL=CONFIRM
        )
        assert (await receipts.take_in("sms", subscription)).status == 200
        assert fetched == [CERTIFICATE, CONFIRM]
        assert (await receipts.take_in("sms", enveloped(key, signed))).status == 401


def sns_table() -> dict[str, Any]:
    return {
        "provider_id": "/mail/messageId", "status": "/eventType", "delivered": ["Delivery"],
        "signature": {"scheme": "sns", "topics": [TOPIC]},
    }  # fmt: skip


@pytest.mark.slow
async def test_requests_that_anybody_sends_provoke_few_fetches(
    tmp_path: Path, amazon: tuple[rsa.RSAPrivateKey, bytes]
) -> None:
    """An address that gives nothing is asked once, different ones at a rate, for what can't fit none."""
    fetched: list[str] = []
    host = "https://sns.eu-west-1.amazonaws.com"
    async with room(tmp_path, sns_table(), fetched=fetched) as (receipts, _journal):
        for _ in range(20):
            sent = enveloped(amazon[0], SIGNED_NOTIFICATION)
            assert (await receipts.take_in("sms", sent)).status == 503
        assert fetched == [CERTIFICATE]
        for changes in (
            {"Timestamp": "2020-01-01T00:00:00.000Z"},
            {"SignatureVersion": "3"},
            {"SigningCertURL": "https://evil.example/SimpleNotificationService-1.pem"},
        ):
            sent = enveloped(amazon[0], SIGNED_NOTIFICATION, **changes)
            assert (await receipts.take_in("sms", sent)).status == 401
        assert fetched == [CERTIFICATE]
        for number in range(1000):
            url = f"{host}/SimpleNotificationService-{number}.pem"
            sent = enveloped(amazon[0], SIGNED_NOTIFICATION, SigningCertURL=url)
            assert (await receipts.take_in("sms", sent)).status == 503
        assert len(fetched) in (FETCHES_AT_ONCE, FETCHES_AT_ONCE + 1)


def from_peer(sent: ReceiptRequest, peer: str) -> ReceiptRequest:
    return ReceiptRequest(sent.method, sent.path, sent.query, [], sent.body, peer=lambda: peer)


async def test_made_up_certificates_keep_no_genuine_one_away(
    tmp_path: Path, amazon: tuple[rsa.RSAPrivateKey, bytes]
) -> None:
    """Nor do they have a known one forgotten: after it was replaced, the new one is fetched at once."""
    key, pem = amazon
    host = HostWithPages(pem, {CERTIFICATE, CERTIFICATE.replace("7ff5", "0001")})
    async with open_journal_file(tmp_path / "journal.db") as journal:
        receipts = room_on(journal, sns_table(), host, StandingClock())

        async def report(name: str, peer: str, signed: str = SIGNED_NOTIFICATION) -> int:
            url = CERTIFICATE.replace("7ff5", name)
            sent = from_peer(enveloped(key, signed, SigningCertURL=url), peer)
            return (await receipts.take_in("sms", sent)).status

        assert await report("7ff5", "amazon") == 200  # genuine, and about no message of ours
        for number in range(50):
            assert await report(f"made{number}", "somebody") == 503
        assert await report("7ff5", "amazon") == 200
        assert await report("0001", "amazon") == 200
        assert len(host.fetched) == FETCHES_AT_ONCE + 2
        host.pages |= {CERTIFICATE.replace("7ff5", f"old{number}") for number in range(20)}
        for number in range(20):
            assert await report(f"old{number}", f"peer-{number}", "another") == 401
        assert [await report(name, "amazon") for name in ("7ff5", "0001")] == [200, 200]
        assert len(host.fetched) == FETCHES_AT_ONCE + 2 + 20


class HostWithPages(Host):
    """Has one page at some addresses, and nothing at others."""

    def __init__(self, page: bytes, pages: set[str]) -> None:
        self.fetched: list[str] = []
        self.pages = pages
        super().__init__(page, self.fetched)

    async def fetch(self, url: str) -> bytes | None:
        page = await super().fetch(url)
        return page if url in self.pages else None


class HangingHost(Host):
    """Answers one address never; tells when it is asked."""

    def __init__(self, page: bytes, hangs: str) -> None:
        super().__init__(page, [])
        self._hangs = hangs
        self.asked = anyio.Event()

    async def fetch(self, url: str) -> bytes | None:
        if url == self._hangs:
            self.asked.set()
            await anyio.sleep_forever()
        return await super().fetch(url)


async def test_a_fetch_that_hangs_holds_up_no_other_provider(
    tmp_path: Path, amazon: tuple[rsa.RSAPrivateKey, bytes]
) -> None:
    """Nor many requests: of those of its provider that wait, the further ones are to come again."""
    key, pem = amazon
    slow = CERTIFICATE.replace("7ff5", "0000")
    host = HangingHost(pem, slow)
    statuses: list[int] = []
    async with open_journal_file(tmp_path / "journal.db") as journal:
        receipts = room_on(journal, sns_table(), host, StandingClock())
        inlets = {name: Inlet(ReceiptOptions.model_validate(sns_table())) for name in ("sms", "email")}
        receipts.adopt(Inlets(inlets, {}))

        async def report(provider: str, **changes: str) -> None:
            sent = enveloped(key, SIGNED_NOTIFICATION, **changes)
            statuses.append((await receipts.take_in(provider, sent)).status)

        async with anyio.create_task_group() as tasks:
            for _ in range(MOST_WAITING + 3):
                tasks.start_soon(partial(report, "sms", SigningCertURL=slow))
            await host.asked.wait()
            await anyio.wait_all_tasks_blocked()
            assert statuses == [503, 503]
            await report("email")
            assert statuses == [503, 503, 200]  # genuine, and it names no message
            tasks.cancel_scope.cancel()


async def test_what_is_no_certificate_is_not_fetched_again(
    tmp_path: Path, amazon: tuple[rsa.RSAPrivateKey, bytes]
) -> None:
    fetched: list[str] = []
    async with room(tmp_path, sns_table(), b"<html>", fetched) as (receipts, _journal):
        sent = enveloped(amazon[0], SIGNED_NOTIFICATION)
        statuses = [(await receipts.take_in("sms", sent)).status for _ in range(3)]
    assert statuses == [503, 503, 503]
    assert fetched == [CERTIFICATE]


class HostOfAmazon(Host):
    """Has the certificate of SNS, and at the issuer's address one page after the other."""

    def __init__(self, leaf: bytes, issuers: Sequence[bytes]) -> None:
        super().__init__(leaf, [])
        self._issuers = iter(issuers)

    async def fetch(self, url: str) -> bytes | None:
        return next(self._issuers) if url == ISSUER else await super().fetch(url)


@pytest.mark.usefixtures("amazon")
@pytest.mark.parametrize("wrong", ["another authority", "no longer valid", "no certificate"])
async def test_a_wrong_page_of_the_issuer_is_fetched_again(
    tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes without TLS. A genuine report is 503, so that Amazon repeats it; later ones are taken in."""
    monkeypatch.setattr(pages, "MISSING_FOR", 0.0)
    name = "Amazon RSA 2048 M01"
    between, key = Authority(name, ROOT), rsa.generate_private_key(65537, 2048)
    issuers = {
        "another authority": Authority(name).page,
        "no longer valid": Authority(name, ROOT, between.key, START - YEARS).page,
        "no certificate": b"<html>",
    }
    host = HostOfAmazon(
        between.issue(key, ["sns.amazonaws.com"], issuer=ISSUER), [issuers[wrong], between.page]
    )
    sent = enveloped(key, SIGNED_NOTIFICATION)
    async with open_journal_file(tmp_path / "journal.db") as journal:
        receipts = room_on(journal, sns_table(), host, StandingClock())
        assert [(await receipts.take_in("sms", sent)).status for _ in range(3)] == [503, 200, 200]


@pytest.mark.usefixtures("amazon")
async def test_a_certificate_that_is_none_of_sns_has_no_issuer_fetched(tmp_path: Path) -> None:
    """It is refused by its own name and dates; that of its issuer stays in use."""
    between, key = Authority("Amazon RSA 2048 M01", ROOT), rsa.generate_private_key(65537, 2048)
    host = HostOfAmazon(between.issue(key, ["s3.amazonaws.com"], issuer=ISSUER), [])
    async with open_journal_file(tmp_path / "journal.db") as journal:
        receipts = room_on(journal, sns_table(), host, StandingClock())
        assert (await receipts.take_in("sms", enveloped(key, SIGNED_NOTIFICATION))).status == 401


async def test_a_token_of_mailgun_counts_for_one_report_also_after_a_restart(tmp_path: Path) -> None:
    """The same report may come again. Another one under its token is forged, and so at another address."""
    secret = tmp_path / "key"
    secret.touch(mode=0o600)
    secret.write_text("key123")
    table = {
        "reference": "/event-data/ref", "status": "/event-data/event",
        "delivered": ["delivered"], "failed": ["failed"],
        "signature": {"scheme": "mailgun", "secret_file": str(secret)},
    }  # fmt: skip

    def report(event: str) -> ReceiptRequest:
        told = {"signature": signature, "event-data": {"event": event, "ref": "1"}}
        return ReceiptRequest("POST", "/receipts/sms", b"", [], json.dumps(told).encode())

    stamp = str(SNS_NOW // SECOND)
    made = hmac.digest(b"key123", f"{stamp}tok1".encode(), "sha256").hex()
    signature = {"timestamp": stamp, "token": "tok1", "signature": made}
    statuses = []
    for _run in range(2):
        async with room(tmp_path, table) as (receipts, _journal):
            answers = [await receipts.take_in("sms", report(event)) for event in ("delivered", "failed")]
            statuses += [answer.status for answer in answers]
    assert statuses == [200, 401, 200, 401]
