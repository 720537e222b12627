"""The smtp adapter against a real mail server: what arrives, and what it makes of every failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTPUTF8
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from pydantic import ValidationError

from deliveryd.channels.base import Accepted, InDoubt, Misconfigured, Refused, TryAgain, Verdict
from deliveryd.channels.mail.html_text import html_to_text
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.errors import ConfigError
from deliveryd.model import Customer
from deliveryd.testing.gateway import closed_port
from deliveryd.testing.samples import opened
from support.mail_server import HANG_UP, STALL, MailServer, open_mail_server
from support.smtp_letters import NAME, TEXT, mail_to, options_for, send
from support.verdicts import nameless

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """The adapter runs on asyncio only: on its own loop, and on the one of production."""
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture
async def server() -> AsyncIterator[MailServer]:
    async with open_mail_server() as mail_server:
        yield mail_server


def received(server: MailServer, index: int = -1) -> EmailMessage:
    content = server.mails[index].content
    assert isinstance(content, bytes)
    message = message_from_bytes(content, policy=SMTPUTF8)
    assert isinstance(message, EmailMessage)
    assert not message.defects
    return message


async def test_a_text_mail(server: MailServer) -> None:
    """Subject and text arrive as they were, beyond ASCII and with lines of dots."""
    verdict = await send(server, reply_to="help@shop.example", headers={"List-Id": "<news.shop.example>"})
    assert verdict == Accepted(NAME)
    assert (server.mails[0].mail_from, server.mails[0].rcpt_tos) == ("news@shop.example", ["ada@example.com"])
    message = received(server)
    assert message.get_content().replace("\r\n", "\n") == TEXT["body"] + "\n"
    assert message.get_content_type() == "text/plain"
    shown = {name: message[name] for name in ("From", "To", "Subject", "Message-ID", "Reply-To", "List-Id")}
    assert shown == {
        "From": "Shop <news@shop.example>",
        "To": "ada@example.com",
        "Subject": TEXT["subject"],
        "Message-ID": NAME,
        "Reply-To": "help@shop.example",
        "List-Id": "<news.shop.example>",
    }
    assert (message["X-Deliveryd-Message"], message["Auto-Submitted"]) == ("42", "auto-generated")
    assert message["Date"].datetime is not None


async def test_an_html_mail_has_a_text_that_says_the_same(server: MailServer) -> None:
    """HTML arrives unchanged, with a text alternative before it."""
    html = "<style>p{color:red}</style><p>Grüß dich, <b>Ada</b> &amp; Tom<br>bye</p><a href='https://x.example/y'>Go</a>"
    await send(server, {"subject": "s", "body": html, "format": "html"})
    plain, rich = received(server).iter_parts()
    assert isinstance(plain, EmailMessage)
    assert isinstance(rich, EmailMessage)
    assert (plain.get_content_type(), rich.get_content_type()) == ("text/plain", "text/html")
    assert rich.get_content().rstrip() == html
    assert " ".join(plain.get_content().split()) == "Grüß dich, Ada & Tom bye Go (https://x.example/y)"


@pytest.mark.parametrize(
    ("body", "kind"), [("<p>x</p>", "multipart/alternative"), ("1 < 2 > 0", "text/plain")]
)
async def test_without_a_format_the_body_tells(server: MailServer, body: str, kind: str) -> None:
    """A block without a format is HTML when it reads as HTML."""
    await send(server, {"subject": "s", "body": body})
    assert received(server).get_content_type() == kind


async def test_what_is_repeated_is_the_same_mail(server: MailServer) -> None:
    """Byte for byte, with the date of the first try under its key, so that a receiver can tell."""
    for _ in range(2):
        await send(server, {"subject": "s", "body": "<p>x</p>", "format": "html"})
    first, repeat = (mail.content for mail in server.mails)
    assert isinstance(first, bytes)
    assert first == repeat
    assert f"Message-ID: {NAME}\r\nDate: ".encode() not in first
    assert b"Date: Tue, 14 Nov 2023 22:13:20 +0000\r\n" in first


async def test_a_long_message_id_is_not_broken(server: MailServer) -> None:
    """Also a name longer than a header line stays as it is."""
    domain = f"{'very-long-name.' * 6}shop.example"
    await send(server, sender=f"news@{domain}")
    content = server.mails[0].content
    assert isinstance(content, bytes)
    assert f"<a-1@{domain}>".encode() in content.replace(b"\r\n ", b"")
    assert received(server)["Message-ID"] == f"<a-1@{domain}>"


async def test_addresses_with_names_and_from_all_over_the_world(server: MailServer) -> None:
    """Display names are shown, domain names travel in ASCII, and the rest in UTF-8 where the server can."""
    assert await send(server, to='"Ádá, Countess" <ada@bücher.example>') == Accepted(NAME)
    assert server.mails[-1].rcpt_tos == ["ada@xn--bcher-kva.example"]
    assert received(server)["To"].addresses[0].display_name == "Ádá, Countess"
    assert await send(server, to="пошта@bücher.example") == Accepted(NAME)
    assert server.mails[-1].rcpt_tos == ["пошта@xn--bcher-kva.example"]


async def test_an_address_that_the_server_cannot_take() -> None:
    """Without SMTPUTF8 such an address is refused; nothing was sent."""
    async with open_mail_server(enable_SMTPUTF8=False) as server:
        verdict = await send(server, to="пошта@example.com")
        assert isinstance(verdict, Refused)
        assert server.data_seen == []


@pytest.mark.parametrize(
    "address",
    [
        "ada@example.com\r\nRCPT TO:<evil@example.com>",
        "ada@example.com\nBcc: evil@example.com",
        "ada@exam\0ple.com",
        "Ada\r\nBcc: evil@example.com <ada@example.com>",
        "ada@example.com, evil@example.com",
        "ada@example.com> <evil@example.com",
        "ada",
        "@example.com",
        "ada@exa mple.com",
    ],
)
async def test_an_address_can_name_nobody_else(server: MailServer, address: str) -> None:
    """What isn't exactly one address is refused before the server hears of it, and isn't quoted."""
    verdict = await send(server, to=address)
    assert isinstance(verdict, Refused)
    assert "ada" not in verdict.reason
    assert server.connections == []


@pytest.mark.parametrize(
    "subject", ["a\r\nBcc: evil@example.com", "a\nb", "a\rb", "a\0", "a\u2028b", "a\x85b", "\ud800"]
)
async def test_a_subject_starts_no_header(server: MailServer, subject: str) -> None:
    """A subject that isn't one line of text is refused."""
    verdict = await send(server, {**TEXT, "subject": subject})
    assert isinstance(verdict, Refused)
    assert server.connections == []


async def test_half_a_character_in_the_body_is_refused(server: MailServer) -> None:
    """Text that no encoding can carry isn't sent half."""
    assert isinstance(await send(server, {**TEXT, "body": "\ud800"}), Refused)


@pytest.mark.parametrize("reply", ["500 what?", "502 not here", "550 no"])
async def test_a_server_without_ehlo_is_greeted_with_helo(server: MailServer, reply: str) -> None:
    """Also where it answers in another way that it doesn't know EHLO; then without any extension."""
    server.plan("EHLO", reply)
    assert await send(server) == Accepted(NAME)
    assert server.mails[0].mail_options == []


async def test_without_ehlo_there_is_no_starttls_and_no_login(server: MailServer, tmp_path: Path) -> None:
    """What the configuration needs isn't left out because the server can't do it."""
    server.plan("EHLO", "502 not here", "502 not here")
    assert isinstance(await send(server, tls="starttls"), Misconfigured)
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("p")
    login: dict[str, Any] = {"username": "u", "password_file": str(tmp_path / "password")}
    assert isinstance(await send(server, **login), Misconfigured)
    assert server.mails == []


async def test_a_server_that_closes_at_ehlo_is_asked_later(server: MailServer) -> None:
    """A passing failure isn't a server without EHLO."""
    server.plan("EHLO", "421 too many connections")
    assert nameless(await send(server)) == TryAgain("421 at EHLO")


@pytest.mark.parametrize("body", ["a\0b", "\x1b[0m", "x" * 3000, "<p>a\0" + "y" * 3000])
async def test_a_body_that_no_line_can_carry_is_encoded(server: MailServer, body: str) -> None:
    """Neither NUL and other controls nor lines of more than 998 octets go over the wire (RFC 5321 4.5.2)."""
    assert await send(server, {"subject": "s", "body": body}) == Accepted(NAME)
    content = server.mails[0].content
    assert isinstance(content, bytes)
    assert max(map(len, content.split(b"\r\n"))) <= 998
    assert not set(content) & {0, 27}
    part = received(server).get_body(("html", "plain"))
    assert part is not None
    assert part.get_content().rstrip("\r\n") == body


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "reply", "verdict"),
    [
        ("RCPT", "550 ada@example.com: no such user", Refused("550 at RCPT TO")),
        ("RCPT", "451 later", TryAgain("451 at RCPT TO", only_this=True)),
        ("RCPT", "421 closing", TryAgain("421 at RCPT TO")),
        ("RCPT", "530 log in first", Misconfigured("530 at RCPT TO")),
        ("MAIL", "550 we don't know you", Misconfigured("550 at MAIL FROM")),
        ("MAIL", "552 too large", Refused("552 at MAIL FROM")),
        ("MAIL", "452 full", TryAgain("452 at MAIL FROM")),
        ("DATA", "554 spam", Refused("554 at end of data")),
        ("DATA", "451 greylisted", TryAgain("451 at end of data", only_this=True)),
        ("DATA", "251 fine", Accepted(NAME)),
        ("DATA", "whatever", InDoubt("unexpected reply at end of data")),
        ("RCPT", "whatever", TryAgain("unexpected reply at RCPT TO")),
        ("MAIL", HANG_UP, TryAgain("the connection failed at MAIL FROM")),
        ("RCPT", HANG_UP, TryAgain("the connection failed at RCPT TO")),
        ("DATA", HANG_UP, InDoubt("the connection broke at end of data")),
        ("RCPT", STALL, TryAgain("no answer at RCPT TO within 1 s")),
        ("DATA", STALL, InDoubt("no answer at end of data within 1 s")),
    ],
)
async def test_what_a_server_may_do(server: MailServer, stage: str, reply: str, verdict: Verdict) -> None:
    """Each reply has its verdict, named by code and stage, never by the server's words."""
    server.plan(stage, reply)
    timeout = 1.0 if reply == STALL else 5.0
    async with opened("smtp", options_for(server), block="email", timeout=timeout) as channel:
        assert nameless(await channel.send(mail_to("ada@example.com"))) == verdict


@pytest.mark.parametrize(
    ("stage", "reply", "host"),
    [
        ("RCPT", "550 no such user", None),
        ("RCPT", "550 5.1.1 no such user", None),
        ("RCPT", "554 5.7.1 Relay access denied", "127.0.0.1"),
        ("MAIL", "552 too large", "127.0.0.1"),
        ("DATA", "554 spam", "127.0.0.1"),
        ("RCPT", "530 log in first", "127.0.0.1"),
    ],
)
async def test_a_refusal_names_the_server_unless_it_is_about_the_recipient(
    server: MailServer, stage: str, reply: str, host: str | None
) -> None:
    """Only those that name it are counted against the template, or tell of a set-up that is wrong."""
    server.plan(stage, reply)
    verdict = await send(server)
    assert isinstance(verdict, Refused | Misconfigured)
    assert verdict.by == host


async def test_a_server_that_is_down(server: MailServer) -> None:
    """Without a connection nothing was sent."""
    closed = await closed_port()
    reason = f"no connection to 127.0.0.1:{closed}: connection refused"
    assert await send(closed) == TryAgain(reason)


async def test_connections_are_reused(server: MailServer) -> None:
    """One mail after another takes one connection, also after a refusal; those at once take several."""
    async with opened("smtp", options_for(server, connections=2), block="email") as channel:
        for index in range(3):
            assert await channel.send(mail_to("ada@example.com", key=f"a-{index}"))
        server.plan("RCPT", "550 no")
        assert isinstance(await channel.send(mail_to("bob@example.com")), Refused)
        assert isinstance(await channel.send(mail_to("ada@example.com")), Accepted)
        assert len(server.connections) == 1
        server.gate.clear()
        server.on_recipient = lambda: server.gate.set() if len(server.connections) == 4 else None
        async with anyio.create_task_group() as group:
            for index in range(4):
                group.start_soon(channel.send, mail_to("ada@example.com", key=f"b-{index}"))
        assert len(server.connections) == 4
    assert len(server.mails) == 8
    assert [mail.rcpt_tos for mail in server.mails] == [["ada@example.com"]] * 8


async def test_a_connection_that_the_server_closed_meanwhile(server: MailServer) -> None:
    """A kept connection that turns out to be gone is replaced, since nothing was sent on it."""
    async with opened("smtp", options_for(server), block="email") as channel:
        assert isinstance(await channel.send(mail_to("ada@example.com")), Accepted)
        server.plan("MAIL", HANG_UP)
        assert isinstance(await channel.send(mail_to("ada@example.com")), Accepted)
        server.plan("MAIL", "421 too many")
        assert isinstance(await channel.send(mail_to("ada@example.com")), Accepted)
        assert len(server.connections) == 3


@pytest.mark.parametrize("reply", ["452 4.4.5 too many messages", "450 try again", "550 5.7.0 too many"])
async def test_a_connection_that_has_had_its_mails_is_given_up(server: MailServer, reply: str) -> None:
    """A server takes some mails on each connection, and doesn't close it: the next mail opens another."""
    async with opened("smtp", options_for(server), block="email") as channel:
        assert isinstance(await channel.send(mail_to("ada@example.com")), Accepted)
        server.plan("MAIL", reply)
        for _ in range(2):
            assert isinstance(await channel.send(mail_to("ada@example.com")), Accepted)
        assert len(server.connections) == 2


async def test_a_connection_that_was_idle_for_too_long_is_not_used(server: MailServer) -> None:
    """After its idle time-out a connection is given up."""
    async with opened("smtp", options_for(server, idle_timeout="0s"), block="email") as channel:
        for _ in range(2):
            assert isinstance(await channel.send(mail_to("ada@example.com")), Accepted)
        assert len(server.connections) == 2


async def test_a_cancelled_attempt_leaves_no_connection_behind(server: MailServer) -> None:
    """Whoever is cancelled in the middle of a mail drops its connection, and the next one starts anew."""
    server.plan("DATA", STALL)
    async with opened("smtp", options_for(server), block="email") as channel:
        async with anyio.create_task_group() as group:
            group.start_soon(channel.send, mail_to("ada@example.com"))
            await server.arrived.wait()
            group.cancel_scope.cancel()
        assert isinstance(await channel.send(mail_to("ada@example.com")), Accepted)
        assert len(server.connections) == 2


@pytest.mark.slow
async def test_a_large_mail_arrives_whole(server: MailServer) -> None:
    """A mail far larger than the socket's buffer arrives unchanged."""
    body = "\n".join(f"line {number} " + "x" * 60 for number in range(100_000))
    async with open_mail_server(data_size_limit=None) as roomy:
        assert isinstance(await send(roomy, {**TEXT, "body": body}), Accepted)
        assert received(roomy).get_content().replace("\r\n", "\n") == body + "\n"


@pytest.mark.slow
async def test_a_connection_that_breaks_before_the_end_of_a_mail() -> None:
    """A server that goes away in the middle of the content can't have the mail: it may go again."""

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for reply in ("220 hello", "250 mail.example.com", "250 OK", "250 OK", "354 go on"):
            writer.write(f"{reply}\r\n".encode())
            await reader.readline()
        writer.transport.abort()

    async with await asyncio.start_server(break_off, "127.0.0.1", 0) as breaking:
        port = breaking.sockets[0].getsockname()[1]
        verdict = await send(port, {**TEXT, "body": "x" * 30_000_000})
    assert verdict == TryAgain("the connection failed at content")


async def test_a_mail_that_is_too_large_is_refused_by_its_size() -> None:
    """A server that names its limit hears the size first, so nothing is sent in vain."""
    async with open_mail_server(data_size_limit=1000) as small:
        assert await send(small, {**TEXT, "body": "x" * 2000}) == Refused("552 at MAIL FROM", "127.0.0.1")
        assert small.data_seen == []


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


async def test_a_preview_is_readable_and_a_probe_sends_nothing(server: MailServer) -> None:
    """A preview shows envelope, headers and bodies decoded; neither it nor a probe sends a mail."""
    async with opened("smtp", options_for(server), block="email") as channel:
        shown = channel.preview(mail_to("ada@example.com"))
        assert await channel.probe() is None
    for part in ("RCPT TO:<ada@example.com>", "Subject: Grüße, Ada", "Привіт!"):
        assert part in shown
    assert server.data_seen == []
    async with opened("smtp", options_for(await closed_port()), block="email") as channel:
        assert "connection refused" in (await channel.probe() or "")


async def test_whom_the_channel_reaches() -> None:
    """Whoever has something in the field that `to` names."""
    async with opened("smtp", options_for(1, to="{customer.work mail}"), block="email") as channel:
        assert channel.reaches(Customer(1, {"work mail": "a@b.example"}))
        assert not channel.reaches(Customer(1, {"email": "a@b.example"}))
        assert not channel.reaches(None)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sender": "nobody"}, "the mail address isn't valid"),
        ({"sender": "новини@shop.example"}, "must be ASCII"),
        ({"username": "u"}, "must be given together"),
        ({"to": "{content.text}"}, "String should match"),
        ({"headers": {"Bcc": "a@b.example"}}, "set by the adapter"),
        ({"headers": {"Content-Type": "a"}}, "set by the adapter"),
        ({"headers": {"X": "a\r\nb"}}, "printable ASCII"),
        ({"headers": {"X": f"<https://example.com/{'a' * 1000}>"}}, "longer than 900 characters"),
        ({"key_file": "k"}, "key_file needs cert_file"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], problem: str) -> None:
    """Each mistake is found before a mail is sent."""
    with pytest.raises(ValidationError) as caught:
        SmtpOptions.model_validate({"host": "127.0.0.1", "sender": "a@b.example", **options})
    assert problem in str(caught.value)


async def test_smtp_is_for_the_email_block_and_for_good_files(tmp_path: Path) -> None:
    """A wrong block, a password that isn't there and an unusable certificate are named at opening."""
    options = options_for(
        1, tls="tls", username="u", password_file=tmp_path / "none", ca_file=tmp_path / "none"
    )
    with pytest.raises(ConfigError) as caught:
        async with opened("smtp", options, block="sms"):
            pass
    keys = [problem.split(": ")[0] for problem in caught.value.problems]
    assert keys == ["channels.test.block", "channels.test.password_file", "channels.test.ca_file"]


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>One</p><p>Two</p>", "One\n\nTwo"),
        ("a<br>b<br/>c", "a\nb\nc"),
        ("<ul><li>x</li><li>y <b>z</b></li></ul>", "- x\n- y z"),
        ("<ol><li>x<li>y</ol>", "1. x\n2. y"),
        ("<a href='https://e.example/?a=1&amp;b=2'>here</a>", "here (https://e.example/?a=1&b=2)"),
        ("<a href='https://e.example'>https://e.example</a>", "https://e.example"),
        ("<a href='mailto:a@b.example'>a@b.example</a> <a href='#top'>up</a>", "a@b.example up"),
        ("<img src=x alt='a cat'> <img src=y>", "a cat"),
        ("<head><title>t</title><style>p{}</style></head><body>x</body>", "x"),
        ("<script>alert(1)</script>x", "x"),
        ("5 &lt; 6 &amp; 7&nbsp;&gt; 2", "5 < 6 & 7 > 2"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>", "a b\nc"),
        ("<!--[if mso]><p>no</p><![endif]--><![if !mso]>yes<![endif]>", "yes"),
        ("<![what ever]>still <b>here</b>", "still here"),
        ("<a title='a > b' href=/x>y</a> <p title=it's>z", "y (/x)\n\nz"),
        ("a <3 b", "a <3 b"),
        ("a\n  b\t c", "a b c"),
        ("<<<>>><p", "<<<>>><p"),
        ("", ""),
    ],
)
def test_text_from_html(html: str, text: str) -> None:
    """Links, lists and line breaks survive; what isn't shown doesn't."""
    assert html_to_text(html) == text


@pytest.mark.parametrize(
    "piece", ["<a ", "<a href=", "<!--", "</", "<a x='>", "<a href='x'>", '"<a', "<ul>", "&#"]
)
def test_broken_markup_takes_no_longer_than_good_and_hides_nothing_around_it(piece: str) -> None:
    """A broken template holds up nothing else: half a megabyte of it is read at once.

    With the time growing by the square of the length, this would take from minutes to hours.
    """
    broken = piece * (500_000 // len(piece))
    started = time.thread_time()
    text = html_to_text(f"<p>Dear Ann</p>{broken}'\"--><p>See you</p>")
    assert time.thread_time() - started < 20
    assert text.startswith("Dear Ann\n")
    assert text.endswith("\nSee you")
