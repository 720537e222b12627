"""What the http adapter sends on a real socket: variants, Basic authentication, phone numbers, validity."""

from __future__ import annotations

import hmac
import json
from base64 import b64decode, b64encode
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest
from pydantic import ValidationError

from deliveryd.channels.base import Accepted, Dispatch, Refused
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.http.signing import read_key, signed_headers
from deliveryd.channels.mapping import customer_fields
from deliveryd.errors import ConfigError
from deliveryd.model import SECOND, Customer, WallClock
from deliveryd.testing.gateway import Gateway, open_gateway
from deliveryd.testing.samples import dispatch, opened

pytestmark = pytest.mark.anyio

HI = dispatch("sms", {"text": "Hi"})


class At:
    """A clock that stands still."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now(self) -> int:
        return self._now


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text("s3cr\u00e9t\n", "utf-8")
    path.chmod(0o600)
    return str(path)


async def sent(gateway: Gateway, options: dict[str, Any], sample: Dispatch, block: str) -> str:
    """Send one message and return the request line that arrived."""
    async with opened("http", {"url": f"{gateway.url}/text", **options}, block=block) as channel:
        assert await channel.send(sample) == Accepted(None)
    return f"{gateway.seen[-1].method} {gateway.seen[-1].target}"


async def test_basic_authentication(token: str) -> None:
    """User name and password go out together in base64, as UTF-8; a preview masks both."""
    options = {
        "basic": {"username": "AC01", "password": "{secret.token}"},
        "form": {"to": "{customer.phone}"},
        "secrets": {"token": token},
    }
    async with open_gateway() as gateway:
        await sent(gateway, options, HI, "sms")
        [seen] = gateway.seen
        expected = b64encode("AC01:s3cr\u00e9t".encode()).decode()
        assert seen.headers["authorization"] == f"Basic {expected}"
        async with opened("http", {"url": gateway.url, **options}, block="sms") as channel:
            assert "Authorization: Basic ***\n" in channel.preview(HI)


KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_a_signature_of_standard_webhooks() -> None:
    """The test vector of the scheme's own libraries."""
    clock = At(1614265330 * SECOND)
    sample = dispatch("sms", {}, key="msg_p5jXN8AQM9LWM0D4loKWxJek", clock=clock)
    assert signed_headers([read_key(KEY)], sample, b'{"test": 2432232314}') == [
        (b"webhook-id", b"msg_p5jXN8AQM9LWM0D4loKWxJek"),
        (b"webhook-timestamp", b"1614265330"),
        (b"webhook-signature", b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
    ]


@pytest.mark.parametrize("is_list_of_names", [True, False])
async def test_a_signed_request(tmp_path: Path, is_list_of_names: bool) -> None:
    """The bytes that are sent are signed, by each key while one rotates; a preview masks the signature."""
    for name, secret in (("new", "whsec_" + b64encode(b"n" * 32).decode()), ("old", KEY)):
        (tmp_path / name).write_text(secret)
        (tmp_path / name).chmod(0o600)
    files = [str(tmp_path / "new"), str(tmp_path / "old")]
    options = {
        "json": {"id": "{message.key}", "text": "{content.text}"},
        "secrets": {"new": files[0], "old": files[1]} if is_list_of_names else {"key": files},
        "sign": {"secret": ["new", "old"] if is_list_of_names else "key"},
    }
    sample = dispatch("sms", {"text": "Привіт"}, clock=At(1_795_286_400 * SECOND))
    async with open_gateway() as gateway:
        await sent(gateway, options, sample, "sms")
        [seen] = gateway.seen
        signed = b"a-1.1795286400." + seen.body
        keys = (b"n" * 32, b64decode(KEY.removeprefix("whsec_")))
        digests = [b64encode(hmac.digest(key, signed, "sha256")).decode() for key in keys]
        assert seen.headers["webhook-id"] == seen.headers["idempotency-key"] == "a-1"
        assert seen.headers["webhook-timestamp"] == "1795286400"
        assert seen.headers["webhook-signature"] == " ".join(f"v1,{digest}" for digest in digests)
        async with opened("http", {"url": gateway.url, **options}, block="sms") as channel:
            assert "webhook-signature: v1,***\n" in channel.preview(sample)


async def test_of_several_files_of_a_secret_the_first_is_sent(tmp_path: Path) -> None:
    """While a secret rotates, requests carry the new one."""
    for name in ("new", "old"):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o600)
    files = [str(tmp_path / "new"), str(tmp_path / "old")]
    options = {"json": {"id": "{message.id}", "token": "{secret.t}"}, "secrets": {"t": files}}
    async with open_gateway() as gateway:
        await sent(gateway, options, HI, "sms")
        assert gateway.json() == {"id": 42, "token": "new"}


async def test_a_key_that_cannot_sign_is_named(tmp_path: Path) -> None:
    """A secret that is no key of the scheme is a configuration error."""
    (tmp_path / "key").write_text("hunter2")
    (tmp_path / "key").chmod(0o600)
    options = {
        "url": "http://127.0.0.1:1/",
        "json": {"id": "{message.key}"},
        "secrets": {"key": str(tmp_path / "key")},
        "sign": {"secret": "key"},
    }
    with pytest.raises(ConfigError, match=r"secrets\.key: a key of Standard Webhooks must have 16"):
        async with opened("http", options, block="sms"):
            pass


PICTURE: dict[str, Any] = {
    "json": {"chat_id": "{customer.phone}", "text": "{content.text}"},
    "variants": [
        {
            "when": [{"at": "{content.image}", "present": True}],
            "json": {"chat_id": "{customer.phone}", "photo": "{content.image}", "caption": "{content.text}"},
        }
    ],
}


@pytest.mark.parametrize(
    ("fields", "line", "body"),
    [
        ({"text": "Hi"}, "POST /text", {"chat_id": "+15550111", "text": "Hi"}),
        ({"text": "Hi", "image": ""}, "POST /text", {"chat_id": "+15550111", "text": "Hi"}),
        (
            {"text": "Hi", "image": "https://x/y"},
            "POST /photo",
            {"chat_id": "+15550111", "photo": "https://x/y", "caption": "Hi"},
        ),
    ],
)
async def test_a_picture_goes_to_another_address(
    fields: dict[str, str], line: str, body: dict[str, str]
) -> None:
    """The variant's address and body take the place of the channel's where its condition holds."""
    async with open_gateway() as gateway:
        [variant] = PICTURE["variants"]
        options = {**PICTURE, "variants": [{**variant, "url": f"{gateway.url}/photo"}]}
        assert await sent(gateway, options, dispatch("messenger", fields), "messenger") == line
        assert gateway.json() == body


@pytest.mark.parametrize("variables", [{}, {"order": ""}], ids=["absent", "empty"])
async def test_a_complete_variant_is_not_sent_without_a_value(variables: dict[str, str]) -> None:
    options = {
        "json": {"text": "{content.text}"},
        "variants": [
            {
                "when": [{"at": "{content.text}", "present": True}],
                "json": {"text": "{content.text}", "button": [{"order": "no. {variables.order}"}]},
                "complete": True,
            }
        ],
    }
    async with (
        open_gateway() as gateway,
        opened("http", {"url": gateway.url, **options}, block="messenger") as channel,
    ):
        without = HI._replace(entry=HI.entry._replace(variables=variables))
        assert await channel.send(without) == Refused("{variables.order} has no value", unsent=True)
        assert gateway.seen == []
        given = HI._replace(entry=HI.entry._replace(variables={"order": "A7"}))
        assert await channel.send(given) == Accepted(None)
        assert gateway.json() == {"text": "Hi", "button": [{"order": "no. A7"}]}


@pytest.mark.parametrize(("text", "type_"), [("Hi", "text"), ("Привіт", "unicode")])
async def test_a_coding_goes_to_another_field(text: str, type_: str) -> None:
    """A provider that must be told about UCS-2 is told by a variant."""
    form = {"to": "{customer.phone|e164|digits}", "text": "{content.text}", "type": "text"}
    options = {
        "form": form,
        "variants": [
            {"when": [{"at": "{content.coding}", "is": ["ucs2"]}], "form": {**form, "type": "unicode"}}
        ],
    }
    async with open_gateway() as gateway:
        await sent(gateway, options, dispatch("sms", {"text": text}), "sms")
        body = parse_qs(gateway.seen[0].body.decode("ascii"))
        assert body == {"to": ["15550111"], "text": [text], "type": [type_]}


async def test_the_first_variant_that_fits_is_sent() -> None:
    """All conditions of a variant must hold; numbers are compared as text; GET drops the body."""
    options: dict[str, Any] = {
        "json": {"n": "{message.id}"},
        "variants": [
            {
                "when": [{"at": "{content.parts}", "is": [1]}, {"at": "{variables.vip}", "present": True}],
                "json": {"first": "{message.id}"},
            },
            {"when": [{"at": "{content.parts}", "is": [1]}], "method": "GET", "query": {"s": "{message.id}"}},
            {"when": [{"at": "{message.id}", "present": True}], "json": {"third": "{message.id}"}},
        ],
    }
    async with open_gateway() as gateway:
        assert await sent(gateway, options, HI, "sms") == "GET /text?s=42"
        assert gateway.seen[0].body == b""
        vip = HI._replace(entry=HI.entry._replace(variables={"vip": "yes"}))
        assert await sent(gateway, options, vip, "sms") == "POST /text"
        assert gateway.json() == {"first": 42}
        long = dispatch("sms", {"text": "a" * 200})
        assert await sent(gateway, options, long, "sms") == "POST /text"
        assert gateway.json() == {"third": 42}


async def test_a_preview_shows_the_variant_that_would_be_sent() -> None:
    """`deliveryd render` shows the request of this message, not that of others."""
    [variant] = PICTURE["variants"]
    options = {**PICTURE, "url": "http://h/text", "variants": [{**variant, "url": "http://h/photo"}]}
    async with opened("http", options, block="messenger") as channel:
        assert channel.preview(dispatch("messenger", {"text": "Hi"})).startswith("POST http://h/text\n")
        shown = channel.preview(dispatch("messenger", {"text": "Hi", "image": "http://x"}))
        assert shown.startswith("POST http://h/photo\n")


MAIL = {
    "json": {"raw": "{message.mime|base64}", "tag": "{message.key}"},
    "mail": {
        "sender": '"Caf\u00e9" <shop@example.com>',
        "reply_to": "help@example.com",
        "headers": {"List-Unsubscribe": "<mailto:stop@example.com>"},
    },
}


async def test_a_whole_mail_is_sent() -> None:
    """A provider that takes MIME gets it byte for byte the same in a repeat; a preview shows it readably."""
    html = dispatch("email", {"subject": "Gr\u00fc\u00dfe", "body": "<p>Hi</p>\n.\n", "format": "html"})
    async with open_gateway() as gateway:
        await sent(gateway, MAIL, html, "email")
        await sent(gateway, MAIL, html, "email")
        first, second = (json.loads(seen.body) for seen in gateway.seen)
        async with opened("http", {"url": gateway.url, **MAIL}, block="email") as channel:
            shown = channel.preview(html)
    assert first == second
    mail = message_from_bytes(b64decode(first["raw"]), policy=policy.SMTP)
    assert {name: mail[name] for name in ("From", "To", "Subject", "Reply-To", "List-Unsubscribe")} == {
        "From": "Caf\u00e9 <shop@example.com>",
        "To": "ada@example.com",
        "Subject": "Gr\u00fc\u00dfe",
        "Reply-To": "help@example.com",
        "List-Unsubscribe": "<mailto:stop@example.com>",
    }
    texts = {part.get_content_type(): part.get_payload(decode=True) for part in mail.walk()}
    assert texts["text/plain"] == b"Hi\r\n\r\n.\r\n"
    assert texts["text/html"] == b"<p>Hi</p>\r\n.\r\n"
    assert "Subject: =?utf-8?" not in shown
    assert "--- text/html\n<p>Hi</p>" in shown


@pytest.mark.parametrize(
    ("subject", "email", "reason"),
    [
        ("a\nb", "ada@example.com", "the subject contains a line break or control characters"),
        ("Hi", "ada@@example.com", "the mail address isn't valid"),
    ],
)
async def test_a_mail_that_cannot_be_composed_is_refused(subject: str, email: str, reason: str) -> None:
    """Nothing is sent, and the reason quotes nothing of the message."""
    sample = dispatch("email", {"subject": subject, "body": "x"}, customer=Customer(7, {"email": email}))
    async with open_gateway() as gateway:
        async with opened("http", {"url": gateway.url, **MAIL}, block="email") as channel:
            assert await channel.send(sample) == Refused(reason, unsent=True)
            assert channel.preview(sample) == f"nothing would be sent: {reason}"
        assert gateway.seen == []


async def test_only_an_email_is_a_mail() -> None:
    """Another block has no subject and no body."""
    with pytest.raises(ConfigError, match=r"channels\.test\.mail: the block sms isn't an e-mail"):
        async with opened("http", {"url": "http://127.0.0.1:1", **MAIL}, block="sms"):
            pass


async def test_a_number_of_the_country() -> None:
    """A number without a country code is one of the provider's country."""
    options = {"country": "GB", "json": {"to": "{customer.phone|e164}", "ttl": "{message.validity}"}}
    async with open_gateway() as gateway:
        sample = dispatch("sms", {}, customer=Customer(7, {"phone": "07700 900123"}))
        await sent(gateway, options, sample, "sms")
        assert gateway.json() == {"to": "+447700900123"}


@pytest.mark.parametrize(
    ("fields", "reached"),
    [
        ({"phone": "07700 900123"}, True),
        ({"phone": "+1 202 555 0111"}, True),
        ({"phone": "n/a"}, False),
        ({}, False),
    ],
)
async def test_a_number_that_cannot_be_read_reaches_nobody(fields: dict[str, str], reached: bool) -> None:
    """A customer whose number can't be read isn't reached on this channel; nothing is sent."""
    customer = Customer(7, fields)
    async with open_gateway() as gateway:
        options = {"url": gateway.url, "country": "GB", "json": {"to": "{customer.phone|e164}"}}
        async with opened("http", options, block="sms") as channel:
            assert channel.reaches(customer) is reached
            verdict = await channel.send(dispatch("sms", {}, customer=customer))
        assert isinstance(verdict, Accepted if reached else Refused)
        assert len(gateway.seen) == reached


async def test_validity_is_computed_anew_for_each_try() -> None:
    """A repeat carries the seconds that are left then, at least the provider's minimum."""
    clock = WallClock()
    options: dict[str, Any] = {
        "validity_min": "5s",
        "validity_max": "60s",
        "json": {"ttl": "{message.validity}"},
    }
    async with open_gateway() as gateway:
        for seconds, expected in ((30, {29, 30}), (2, {5}), (3600, {60})):
            sample = dispatch("sms", {}, expires_at=clock.now() + seconds * SECOND, clock=clock)
            await sent(gateway, options, sample, "sms")
            assert gateway.json() in [{"ttl": ttl} for ttl in expected]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"basic": {"username": "a", "password": "hunter2"}},
            "password: put it into a file",
        ),
        ({"basic": {"username": "a:b", "password": "{secret.t}"}}, "username: must not contain a colon"),
        (
            {"basic": {"username": "{customer.id}", "password": "{secret.t}"}},
            "username: only {secret.NAME} is allowed",
        ),
        (
            {"basic": {"username": "a", "password": "{secret.u}"}},
            "password: {secret.u} isn't defined",
        ),
        (
            {"basic": {"username": "a", "password": "{secret.t}"}, "headers": {"authorization": "x"}},
            "basic sets the header Authorization: remove that header",
        ),
        ({"variants": [{"when": [], "url": "http://h"}]}, "at least 1 item"),
        ({"variants": [{"when": [{"at": "{content.image}"}]}]}, "set either present or is"),
        (
            {"variants": [{"when": [{"at": "{content.image}", "present": True, "is": ["x"]}]}]},
            "set either present or is",
        ),
        (
            {"variants": [{"when": [{"at": "{customer.phone}", "present": True}]}]},
            "expected one placeholder of content, variables or message",
        ),
        (
            {"variants": [{"when": [{"at": "{message.idd}", "present": True}]}]},
            "0.when: unknown placeholder {message.idd}",
        ),
        (
            {"variants": [{"when": [{"at": "{message.id}", "present": True}], "json": {"a": "{secret.x}"}}]},
            "0.json: a: {secret.x} isn't defined in secrets",
        ),
        (
            {"variants": [{"when": [{"at": "{message.id}", "present": True}], "method": "GET"}]},
            "variants.0: the request wouldn't contain the message",
        ),
        ({"sign": {"secret": ["t", "t"], "scheme": "jwt"}}, "secret: a token is signed by one key"),
        ({"sign": {"secret": "t", "claims": {"a": "b"}}}, 'claims needs scheme = "jwt"'),
        (
            {"sign": {"secret": "t", "scheme": "jwt"}, "headers": {"authorization": "{secret.t}"}},
            "sign sets the header Authorization: remove basic and that header",
        ),
        *(
            ({"auth": {"token_file": "token"}, **other}, problem)
            for other, problem in (
                ({"basic": {"username": "a", "password": "{secret.t}"}}, "keep one of auth, basic and sign"),
                ({"sign": {"secret": "t", "scheme": "jwt"}}, "keep one of auth, basic and sign"),
                ({"headers": {"authorization": "{secret.t}"}}, "headers.authorization: auth sets"),
                ({"probe": {"url": "http://h", "headers": {"Authorization": "x"}}}, "probe.headers.Authoriz"),
                (
                    {"probe": {"url": "http://h", "basic": {"username": "a", "password": "{secret.t}"}}},
                    "probe.basic: auth sets",
                ),
            )
        ),
        (
            {"auth": {"header": "X-Key", "value_file": "v"}, "headers": {"x-key": "{secret.t}"}},
            "headers.x-key: auth sets this header",
        ),
        ({"json": {"raw": "{message.mime}"}}, "{message.mime} needs the mail's sender: set mail ="),
        ({"mail": {"sender": "a@x.org"}}, "mail has no effect: no request has {message.mime}"),
        ({**MAIL, "mail": {"sender": "a b"}}, "the mail address isn't valid"),
        ({"sign": {"secret": "tt"}}, "secret: 'tt' isn't defined in secrets; did you mean t?"),
        ({"country": "UK"}, "'UK' isn't a country"),
        ({"validity_min": "60s", "validity_max": "5s"}, "validity_max must not be shorter than validity_min"),
        ({"json": {"a": "{customer.phone|e164|unix}"}}, "the filter unix doesn't apply to this value"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], problem: str, token: str) -> None:
    """Mistakes of variants, credentials and filters are found when the configuration is read."""
    given = {"url": "http://h", "json": {"to": "{customer.phone}"}, "secrets": {"t": token}, **options}
    with pytest.raises(ValidationError) as caught:
        HttpChannelOptions.model_validate(given)
    assert problem in str(caught.value)


def test_what_a_variant_sends_counts_with_the_rest(token: str) -> None:
    """The customer's fields, the block's fields and secrets in plain text are checked in variants, too."""
    options = HttpChannelOptions.model_validate(
        {
            "url": "https://h",
            "json": {"to": "{customer.phone}"},
            "secrets": {"t": token},
            "variants": [
                {
                    "when": [{"at": "{content.coding}", "is": ["ucs2"]}],
                    "url": "http://sms.example.com",
                    "json": {"to": "{customer.msisdn}", "key": "{secret.t}", "x": "{content.image}"},
                }
            ],
        }
    )
    content, plain_text = options.problems("sms")
    assert content == "variants.0.json.x: the block sms has no field 'image'"
    assert plain_text.startswith("url: the secret t would be sent to sms.example.com unencrypted: ")
    assert customer_fields(options.mapped()) == {"phone", "msisdn"}


STEERING = [
    "../admin/users", "..", ".", "...", "..;/admin", "a/b", "a\\b", "a%2fb", "%2e%2e", "a;jsessionid=1",
    "a\nb", "a\x7fb", "\uff0e\uff0e", "\u2025", "a\uff0fadmin", "a\uff3cb", "\uff05" + "2e", ". .",
]  # fmt: skip


@pytest.mark.parametrize("handle", STEERING)
@pytest.mark.parametrize("path", ["/users/{customer.handle}/messages", "/users/u-{customer.handle}"])
async def test_a_customers_field_steers_no_request_to_another_address(path: str, handle: str) -> None:
    """This customer can't be reached, which is known before any request, and none is made."""
    customer = Customer(7, {"handle": handle})
    async with open_gateway() as gateway:
        options = {"url": gateway.url + path, "json": {"text": "{content.text}"}}
        async with opened("http", options, block="sms") as channel:
            assert not channel.reaches(customer)
            assert channel.unreached(customer) == "a value can't be part of the address"
            verdict = await channel.send(dispatch("sms", {"text": "Hi"}, customer=customer))
    assert isinstance(verdict, Refused)
    assert gateway.seen == []


@pytest.mark.parametrize(
    "handle", ["ann", "ann.lee", "+447700900101", "a@b.example", "J\u00fcrgen", "a b", "..a", "a:b"]
)
async def test_other_fields_are_one_segment_of_the_path(handle: str) -> None:
    """As they are after the server decoded them once."""
    customer = Customer(7, {"handle": handle})
    async with open_gateway() as gateway:
        options = {"url": f"{gateway.url}/users/{{customer.handle}}/x", "json": {"text": "{content.text}"}}
        async with opened("http", options, block="sms") as channel:
            assert channel.reaches(customer)
            await channel.send(dispatch("sms", {"text": "Hi"}, customer=customer))
        assert [unquote(part) for part in gateway.seen[0].target.split("/")] == ["", "users", handle, "x"]
