"""The http adapter against a real socket: what it sends, and what it makes of every answer."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
import trustme
from pydantic import ValidationError

from deliveryd import __version__
from deliveryd.channels.base import Accepted, InDoubt, Misconfigured, Refused, Stopped, TryAgain, Verdict
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.errors import ConfigError
from deliveryd.model import Customer
from deliveryd.runtime import secret_file
from deliveryd.testing.gateway import Disconnect, Gateway, Reply, Stall, closed_port, open_gateway
from deliveryd.testing.samples import ADA, dispatch, opened
from support.patience import PATIENCE
from support.verdicts import nameless

pytestmark = pytest.mark.anyio

SMS = {"to": "{customer.phone}", "text": "{content.text}", "reference": "{message.id}"}
HI = dispatch("sms", {"text": "Привіт, Ada 🎁"})


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no file is looked at but after a refusal."""
    monkeypatch.setattr(secret_file, "LOOK_EVERY", PATIENCE)


async def send(gateway: Gateway, options: dict[str, Any], sample: Any = HI, block: str = "sms") -> Verdict:
    async with opened("http", {"url": f"{gateway.url}/sms", **options}, block=block) as channel:
        return await channel.send(sample)


async def test_a_json_request(token: Path) -> None:
    """The gateway gets the mapping as JSON, the id as a number, the secret in its header, and the key."""
    async with open_gateway() as gateway:
        verdict = await send(
            gateway,
            {
                "json": {**SMS, "image": "{content.image}"},
                "headers": {"Authorization": "Bearer {secret.token}", "X-Ref": "m-{message.id}"},
                "secrets": {"token": str(token)},
                "provider_id": "/id",
            },
            dispatch("messenger", {"text": "Привіт, Ada 🎁"}),
            block="messenger",
        )
        assert verdict == Accepted("p-1")
        assert gateway.json() == {"to": "+15550111", "text": "Привіт, Ada 🎁", "reference": 42}
        [seen] = gateway.seen
        assert (seen.method, seen.target) == ("POST", "/sms")
        expected = {
            "authorization": "Bearer s3cret",
            "x-ref": "m-42",
            "idempotency-key": "a-1",
            "content-type": "application/json",
            "user-agent": f"deliveryd/{__version__}",
        }
        assert expected.items() <= seen.headers.items()


async def test_a_form_request() -> None:
    """A form is encoded as browsers do, value by value."""
    async with open_gateway() as gateway:
        await send(gateway, {"form": {**SMS, "flag": True, "tag": ["a", "b&c"]}, "method": "PUT"})
        [seen] = gateway.seen
        assert seen.method == "PUT"
        assert seen.headers["content-type"] == "application/x-www-form-urlencoded"
        assert parse_qs(seen.body.decode("ascii"), strict_parsing=True) == {
            "to": ["+15550111"],
            "text": ["Привіт, Ada 🎁"],
            "reference": ["42"],
            "flag": ["true"],
            "tag": ["a", "b&c"],
        }


async def test_a_get_request() -> None:
    """A GET carries everything in its query, has no body, and carries its idempotency key as well."""
    async with open_gateway() as gateway:
        await send(gateway, {"method": "GET", "query": SMS})
        [seen] = gateway.seen
        assert (seen.method, seen.body, seen.headers["idempotency-key"]) == ("GET", b"", "a-1")
        assert "content-type" not in seen.headers
        assert parse_qs(urlsplit(seen.target).query)["text"] == ["Привіт, Ada 🎁"]


async def test_an_own_content_type_counts() -> None:
    """A header of the configuration replaces the adapter's."""
    async with open_gateway() as gateway:
        await send(gateway, {"json": SMS, "headers": {"content-type": "application/vnd.api+json"}})
        assert gateway.seen[0].headers["content-type"] == "application/vnd.api+json"


async def test_a_plain_text_id() -> None:
    """From an answer in plain text a regular expression takes the provider's id."""
    async with open_gateway() as gateway:
        gateway.script.append(Reply(202, b"OK id=ab12\n"))
        assert await send(gateway, {"json": SMS, "provider_id": r"id=(\w+)"}) == Accepted("ab12")


async def test_an_answer_without_the_id_is_an_acceptance_nevertheless() -> None:
    """A 2xx whose id can't be found must not lead to a second message."""
    async with open_gateway() as gateway:
        gateway.script.append(Reply(200, b'{"ok": true}'))
        assert await send(gateway, {"json": SMS, "provider_id": "/id"}) == Accepted(None, lacks_id=True)


async def test_a_page_instead_of_the_json_with_the_id_is_in_doubt() -> None:
    """A proxy or a portal may have written it, and the provider may never have seen the message."""
    async with open_gateway() as gateway:
        gateway.script.append(Reply(200, b"<html>thanks</html>"))
        verdict = await send(gateway, {"json": SMS, "provider_id": "/id"})
        assert verdict == InDoubt("provider answered 200 without JSON", unreadable=True)


STATUSES: list[tuple[int, Verdict]] = [
    (200, Accepted(None)),
    (204, Accepted(None)),
    (301, Misconfigured("provider answered 301")),
    (307, Misconfigured("provider answered 307")),
    (400, Refused("provider answered 400")),
    (401, Misconfigured("provider answered 401")),
    (403, Misconfigured("provider answered 403")),
    (404, Refused("provider answered 404")),
    (405, Misconfigured("provider answered 405")),
    (407, Misconfigured("provider answered 407")),
    (408, InDoubt("provider answered 408")),
    (409, InDoubt("provider answered 409")),
    (422, Refused("provider answered 422")),
    (425, TryAgain("provider answered 425")),
    (429, TryAgain("provider answered 429")),
    (500, InDoubt("provider answered 500")),
    (501, InDoubt("provider answered 501")),
    (502, InDoubt("provider answered 502")),
    (503, TryAgain("provider answered 503", may_have_arrived=True)),
    (504, InDoubt("provider answered 504")),
    (599, InDoubt("provider answered 599")),
]


@pytest.mark.parametrize(("status", "verdict"), STATUSES)
async def test_statuses(status: int, verdict: Verdict) -> None:
    """Each status has its verdict, and nothing of the body gets into the reason."""
    async with open_gateway() as gateway:
        body = b"" if status == 204 else b"no such number +15550111"
        gateway.script.append(Reply(status, body))
        assert nameless(await send(gateway, {"json": SMS})) == verdict


@pytest.mark.parametrize("status", [307, 400, 401, 404, 422])
async def test_a_status_that_rejects_is_told_with_its_host(status: int) -> None:
    """The log names who said so; with what we refuse ourselves, nobody did."""
    async with open_gateway() as gateway:
        gateway.script.append(Reply(status))
        verdict = await send(gateway, {"json": SMS})
        assert isinstance(verdict, Refused | Misconfigured)
        assert verdict.by == urlsplit(gateway.url).netloc
        unfit = await send(gateway, {"json": SMS}, dispatch("sms", {"text": "\ud800"}))
        assert isinstance(unfit, Refused)
        assert unfit.by is None


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("86400", 3600.0), ("-1", None), ("soon", None), ("Fri, 31 Foo", None)]
)
async def test_retry_after_in_seconds(value: str, seconds: float | None) -> None:
    """A provider's wish to be left alone counts, up to an hour."""
    async with open_gateway() as gateway:
        gateway.script.append(Reply(429, headers=(("Retry-After", value),)))
        assert await send(gateway, {"json": SMS}) == TryAgain("provider answered 429", seconds)


async def test_retry_after_as_a_date() -> None:
    """It counts as a date, too."""
    moment = datetime.now(UTC) + timedelta(seconds=100)
    async with open_gateway() as gateway:
        gateway.script.append(Reply(503, headers=(("Retry-After", format_datetime(moment, usegmt=True)),)))
        verdict = await send(gateway, {"json": SMS})
        assert isinstance(verdict, TryAgain)
        assert verdict.after == pytest.approx(100, abs=5)


async def test_a_table_decides_before_statuses() -> None:
    """The body says what the answer means, and a row of a table ends the channel for the message."""
    answers = [
        {"status": [200], "where": [{"at": "/status", "is": [0]}], "verdict": "accepted"},
        {"status": [403], "where": [{"at": "/error", "matches": "^blocked"}], "verdict": "stopped"},
        {"status": ["2xx"], "verdict": "in_doubt"},
    ]
    async with open_gateway() as gateway:
        options = {"json": SMS, "provider_id": "/id", "answers": answers}
        gateway.script += [
            Reply(200, b'{"id": "x", "status": 0}'),
            Reply(200, b'{"id": "x", "status": 1}'),
            Reply(403, b'{"error": "blocked by the user"}'),
            Reply(403, b"{}"),
        ]
        assert [await send(gateway, options) for _ in range(4)] == [
            Accepted("x"),
            InDoubt(
                "provider answered 200 without saying whether it accepted:"
                " no row of answers fits (1: /status)",
                provider_id="x",
            ),
            Stopped("provider answered 403"),
            Misconfigured("provider answered 403", urlsplit(gateway.url).netloc),
        ]


@pytest.mark.parametrize(
    "act",
    [
        Disconnect(),
        Disconnect(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf"),
        Disconnect(b"220 mail ESMTP\r\n"),
    ],
)
async def test_a_lost_answer_is_in_doubt(act: Disconnect) -> None:
    """When the request left and no whole answer came back, nobody knows."""
    async with open_gateway() as gateway:
        gateway.script.append(act)
        assert isinstance(await send(gateway, {"json": SMS}), InDoubt)


@pytest.mark.parametrize("status", [407, 401, 403, 400, 404, 429, 503, 502, 302])
@pytest.mark.parametrize(
    "head", ["HTTP/1.1 {} No\r\nContent-Length: 50\r\n\r\nhalf", "HTTP/1.0 {} No\r\n\r\nhalf"]
)
async def test_a_refusal_counts_by_its_status_though_its_body_broke_off(head: str, status: int) -> None:
    """As if the answer had come whole: a proxy's 407 is for operators to mend, and nothing is in doubt."""
    async with open_gateway() as gateway:
        gateway.script += [Disconnect(head.format(status).encode() + b"\r\n\r\nhalf"), Reply(status)]
        async with opened("http", {"url": gateway.url, "json": SMS}, block="sms") as channel:
            assert await channel.send(HI) == await channel.send(HI)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (407, Misconfigured("the proxy answered 407")),
        (403, Misconfigured("the proxy answered 403")),
        (302, Misconfigured("the proxy answered 302")),
        (429, TryAgain("the proxy answered 429")),
        (502, TryAgain("the proxy answered 502")),
    ],
)
async def test_a_proxy_that_makes_no_tunnel(status: int, verdict: Verdict) -> None:
    """Nothing was sent; what only an operator can mend uses up no tries."""
    async with open_gateway() as proxy:
        proxy.script.append(Reply(status))
        options = {"url": "https://provider.invalid/sms", "json": SMS, "proxy": proxy.url}
        async with opened("http", options, block="sms") as channel:
            assert await channel.send(HI) == verdict


async def test_a_proxy_that_is_silent_about_a_tunnel_leaves_nothing_in_doubt() -> None:
    """The time-out comes before the request could be written."""
    async with open_gateway() as proxy:
        proxy.script.append(Stall())
        options = {"url": "https://provider.invalid/sms", "json": SMS, "proxy": proxy.url}
        async with opened("http", options, block="sms", timeout=0.3) as channel:
            assert isinstance(await channel.send(HI), TryAgain)


async def test_a_slow_answer_is_in_doubt() -> None:
    """The time-out bounds the attempt as a whole."""
    async with open_gateway() as gateway:
        gateway.script.append(Stall())
        async with opened("http", {"url": gateway.url, "json": SMS}, block="sms", timeout=0.1) as channel:
            assert isinstance(await channel.send(HI), InDoubt)


async def test_a_provider_that_is_down_gets_it_later() -> None:
    """Without a connection nothing was sent."""
    options = {"url": f"http://127.0.0.1:{await closed_port()}/", "json": SMS}
    async with opened("http", options, block="sms") as channel:
        assert isinstance(await channel.send(HI), TryAgain)
        problem = await channel.probe()
        assert problem is not None
        assert problem.startswith("no connection to 127.0.0.1:")


async def test_many_at_the_same_time() -> None:
    """A channel sends many messages at once; each gets its own id."""
    async with (
        open_gateway() as gateway,
        opened("http", {"url": gateway.url, "json": SMS}, block="sms") as channel,
    ):
        async with anyio.create_task_group() as group:
            for index in range(50):
                group.start_soon(channel.send, dispatch("sms", {"text": "x"}, key=f"a-{index}"))
        assert {seen.headers["idempotency-key"] for seen in gateway.seen} == {
            f"a-{index}" for index in range(50)
        }


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param(
            {"json": SMS, "headers": {"X-T": "{content.text}"}}, "a\r\nX-Evil: 1", id="a header ended"
        ),
        pytest.param({"json": SMS, "headers": {"X-T": "{content.text}"}}, "a\0", id="a NUL in a header"),
        pytest.param({"json": SMS, "headers": {"X-T": "{content.text}"}}, "ünï", id="a header beyond ASCII"),
        pytest.param({"json": SMS}, "\ud800", id="half a character in JSON"),
        pytest.param({"form": SMS}, "\ud800", id="half a character in a form"),
        pytest.param({"query": SMS}, "\ud800", id="half a character in a query"),
    ],
)
async def test_values_that_cannot_be_sent(options: dict[str, Any], text: str) -> None:
    """Such a message is refused before anything leaves, with a reason that doesn't quote it."""
    async with open_gateway() as gateway:
        verdict = await send(gateway, options, dispatch("sms", {"text": text}))
        assert isinstance(verdict, Refused)
        assert text not in verdict.reason
        assert gateway.seen == []


async def test_whom_a_channel_reaches() -> None:
    """A channel reaches whoever has all that its mappings ask for; without such a field, everybody."""
    options = {"url": "http://127.0.0.1:9/{customer.device}", "json": SMS}
    async with opened("http", options, block="sms") as channel:
        assert channel.reaches(Customer(1, {"phone": "1", "device": "d"}))
        assert not channel.reaches(ADA)
        assert not channel.reaches(None)
        assert isinstance(await channel.send(HI), Refused)
    async with opened(
        "http", {"url": "http://127.0.0.1:9/", "json": {"t": "{content.text}"}}, block="sms"
    ) as wall:
        assert wall.reaches(None)


async def test_a_preview_shows_all_but_secrets(token: Path) -> None:
    """A preview is what would be sent, with every secret masked; nothing is sent."""
    options = {
        "url": "http://127.0.0.1:9/{secret.token}/sms?k={secret.token}",
        "form": {"text": "{content.text}", "key": "{secret.token}"},
        "headers": {"Authorization": "Bearer {secret.token}"},
        "secrets": {"token": str(token)},
    }
    async with opened("http", options, block="sms") as channel:
        shown = channel.preview(dispatch("sms", {"text": "hello"}))
    assert "s3cret" not in shown
    assert shown.splitlines()[0] == "POST http://127.0.0.1:9/***/sms?k=***"
    assert "Authorization: Bearer ***" in shown
    assert shown.endswith("text=hello&key=***")


async def test_whom_https_trusts(tmp_path: Path) -> None:
    """With the authority's certificate the provider is trusted; without it nothing is ever sent."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with open_gateway(context) as gateway:
        trusting = {"url": gateway.url, "json": SMS, "tls": {"ca_file": tmp_path / "ca.pem"}}
        async with opened("http", trusting, block="sms") as channel:
            assert await channel.probe() is None
            assert await channel.send(HI) == Accepted(None)
        async with opened("http", {"url": gateway.url, "json": SMS}, block="sms") as channel:
            assert isinstance(await channel.send(HI), TryAgain)
            problem = await channel.probe()
            assert problem is not None
            place = gateway.url.removeprefix("https://").partition("/")[0]
            assert problem.startswith(f"the certificate of {place} isn't trusted: ")
            assert problem.endswith("; name the authority that issued it in channels.test.tls.ca_file")
            assert await channel.send(HI) == TryAgain(problem)
        assert len(gateway.seen) == 1


async def test_a_probe_makes_no_request() -> None:
    """A probe connects and hangs up."""
    async with (
        open_gateway() as gateway,
        opened("http", {"url": gateway.url, "json": SMS}, block="sms") as channel,
    ):
        assert await channel.probe() is None
        assert gateway.seen == []


def problems_of(options: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        HttpChannelOptions.model_validate({"url": "http://h/", **options})
    return "\n".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in caught.value.errors())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "the request wouldn't contain the message"),
        ({"json": {}, "form": {}}, "json and form can't be combined"),
        ({"json": SMS, "method": "GET"}, "needs query"),
        ({"json": {"to": "{customer}"}}, "to: {customer} needs a field"),
        ({"url": "http://h/{secret.key}", "json": SMS}, "url: Value error, {secret.key} isn't defined in"),
        (
            {"json": SMS, "headers": {"A": "{secret.key}"}},
            "headers: Value error, A: {secret.key} isn't defined in",
        ),
        ({"json": SMS, "headers": {"Idempotency-Key": "1"}}, "set by the adapter"),
        ({"json": SMS, "headers": {"X": "a\nb"}}, "printable ASCII"),
        ({"json": SMS, "headers": {"X Y": "a"}}, "isn't a header name"),
        ({"json": SMS, "headers": {"X": "a", "x": "b"}}, "given twice"),
        ({"json": {"at": datetime(2024, 1, 1, tzinfo=UTC)}}, "must be a string in quotes"),
        ({"json": SMS, "provider_id": "("}, "no JSON Pointer, and not a regular expression"),
        ({"json": SMS, "proxy": "http://u:p@h"}, "without a user name"),
        ({"json": SMS, "proxy": "http://h:65536"}, "the port of an address must be between 1 and 65535"),
        ({"json": SMS, "tls": {"key_file": "k"}}, "key_file needs cert_file"),
        (
            {"json": SMS, "receipt": {"provider_id": "id", "status": "/s", "delivered": ["d"]}},
            'must start with "/"',
        ),
        (
            {"json": SMS, "receipt": {"provider_id": "/i", "status": "/s", "delivered": ["d"]}},
            "needs provider_id",
        ),
        ({"json": SMS, "jsn": {}}, "Extra inputs are not permitted"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], problem: str) -> None:
    """Each mistake is found before a message is sent, and named by its key."""
    assert problem in problems_of(options)


async def test_files_and_fields_are_checked_at_opening(tmp_path: Path) -> None:
    """A secret that everybody may read, an unusable certificate, a field that no SMS has: all at once."""
    loose = tmp_path / "loose"
    loose.write_text("x")
    loose.chmod(0o644)
    options = {
        "url": "http://h/",
        "json": {"text": "{content.txt}"},
        "secrets": {"key": str(loose)},
        "tls": {"ca_file": str(loose)},
    }
    with pytest.raises(ConfigError) as caught:
        async with opened("http", options, block="sms"):
            pass
    said = [problem.split(": ")[0] for problem in caught.value.problems]
    assert said == ["channels.test.json.text", "channels.test.secrets.key", "channels.test.tls.ca_file"]


SECRET = {"json": SMS, "headers": {"Authorization": "Bearer {secret.token}"}}


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.usefixtures("no_look")
async def test_a_replaced_secret_is_used_at_once_after_a_refusal(token: Path, status: int) -> None:
    """The message is repeated with it, once and under its key, so nothing waits for a restart."""
    async with open_gateway() as gateway:
        options = {"url": f"{gateway.url}/sms", "secrets": {"token": str(token)}, **SECRET}
        async with opened("http", options, block="sms") as channel:
            await anyio.Path(token).write_text("n3w")
            gateway.script += [Reply(status), Reply(200)]
            assert await channel.send(HI) == Accepted()
            assert await channel.send(HI) == Accepted()
        shown = [(seen.headers["authorization"], seen.headers["idempotency-key"]) for seen in gateway.seen]
        assert shown == [("Bearer s3cret", "a-1"), ("Bearer n3w", "a-1"), ("Bearer n3w", "a-1")]


@pytest.mark.parametrize("content", ["s3cret\n", ""], ids=["the same", "empty"])
@pytest.mark.usefixtures("no_look")
async def test_without_a_new_secret_a_refusal_is_not_repeated(token: Path, content: str) -> None:
    """Nor is one that the new secret meets as well."""
    async with open_gateway() as gateway:
        options = {"url": f"{gateway.url}/sms", "secrets": {"token": str(token)}, **SECRET}
        async with opened("http", options, block="sms") as channel:
            await anyio.Path(token).write_text(content)
            gateway.script += [Reply(401), Reply(401), Reply(401)]
            assert nameless(await channel.send(HI)) == Misconfigured("provider answered 401")
            assert len(gateway.seen) == 1
            await anyio.Path(token).write_text("n3w")
            assert nameless(await channel.send(HI)) == Misconfigured("provider answered 401")
            assert len(gateway.seen) == 3


async def test_a_replaced_secret_is_used_before_the_old_one_is_refused(
    token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are valid for a while when one is rotated: whoever changes in time is never refused."""
    monkeypatch.setattr(secret_file, "LOOK_EVERY", 0)
    async with open_gateway() as gateway:
        options = {"url": f"{gateway.url}/sms", "secrets": {"token": str(token)}, **SECRET}
        async with opened("http", options, block="sms") as channel:
            await channel.send(HI)
            await anyio.Path(token).write_text("n3w")
            await channel.send(HI)
        assert [seen.headers["authorization"] for seen in gateway.seen] == ["Bearer s3cret", "Bearer n3w"]
