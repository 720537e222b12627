"""Web Push: the conformance table over TLS, the example of the RFC, and no way into the network."""

from __future__ import annotations

import json
import ssl
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDH,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    derive_private_key,
    generate_private_key,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from deliveryd.channels.base import Accepted, Refused, Stopped, TryAgain, Verdict
from deliveryd.channels.mapping import Unfit
from deliveryd.channels.webpush.encryption import MOST_BYTES, PushSubscription, encrypted, read_subscription
from deliveryd.channels.webpush.vapid import VAPID_LIFETIME, Vapid, read_vapid_key
from deliveryd.errors import ConfigError
from deliveryd.model import SECOND, Customer
from deliveryd.testing.adapters import AdapterConformance, GatewayProvider, ScriptedProvider, SettableClock
from deliveryd.testing.gateway import Gateway, Reply, closed_port, open_gateway
from deliveryd.testing.samples import opened

LOOPBACK = ["127.0.0.0/8", "::1/128"]


def encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def point(key: EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


class Browser:
    """A browser with one subscription, which decrypts what it gets by the steps of RFC 8291, 3.4."""

    def __init__(self) -> None:
        self.key = generate_private_key(SECP256R1())
        self.auth = b"0123456789abcdef"

    def subscription(self, endpoint: str) -> str:
        keys = {"p256dh": encoded(point(self.key)), "auth": encoded(self.auth)}
        return json.dumps({"endpoint": endpoint, "expirationTime": None, "keys": keys})

    def read(self, body: bytes) -> bytes:
        salt, size, length = body[:16], int.from_bytes(body[16:20], "big"), body[20]
        sender, record = body[21 : 21 + length], body[21 + length :]
        assert size >= len(record)
        shared = self.key.exchange(ECDH(), EllipticCurvePublicKey.from_encoded_point(SECP256R1(), sender))
        info = b"WebPush: info\x00" + point(self.key) + sender
        secret = HKDF(SHA256(), 32, self.auth, info).derive(shared)
        content_key = HKDF(SHA256(), 16, salt, b"Content-Encoding: aes128gcm\x00").derive(secret)
        nonce = HKDF(SHA256(), 12, salt, b"Content-Encoding: nonce\x00").derive(secret)
        text = AESGCM(content_key).decrypt(nonce, record, None)
        assert text.endswith(b"\x02")
        return text[:-1]


class PushService(GatewayProvider):
    """Answers as a push service does: 201 with the message's address."""

    moved: Callable[[int], None]

    def accept(self) -> None:
        self.gateway.script.append(self.created())

    def created(self) -> Reply:
        return Reply(201, b"", (("Location", f"https://localhost:{self.gateway.port}/m/1"),))

    def block(self) -> None:
        self.gateway.script.append(Reply(410))

    async def disappear(self) -> None:
        port = await closed_port()
        self.options["allowed_hosts"] = [f"localhost:{port}"]
        self.moved(port)

    def keys(self) -> list[str]:
        return [request.headers["topic"] for request in self.gateway.seen]


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    file = tmp_path / "vapid"
    file.touch(mode=0o600)
    key = generate_private_key(SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(pem)
    return str(file)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    async with open_gateway(context) as gateway:
        yield gateway


@pytest.fixture
def options(key_file: str, tmp_path: Path) -> dict[str, Any]:
    return {
        "key_file": key_file,
        "subject": "mailto:ops@example.com",
        "allowed_hosts": ["push.example.org"],
        "networks": LOOPBACK,
        "tls": {"ca_file": str(tmp_path / "ca.pem")},
    }


class TestWebPush(AdapterConformance):
    adapter = "webpush"
    block = "inApp"

    @pytest.fixture
    def browser(self) -> Browser:
        return Browser()

    @pytest.fixture
    async def provider(self, gateway: Gateway, options: dict[str, Any], browser: Browser) -> PushService:
        def moved(port: int) -> None:
            first, *others = (
                browser.subscription(f"https://localhost:{port}/push/{each}")
                for each in ("abc", "def", "ghi")
            )
            self.customer = Customer(7, {"subscriptions": first})  # type: ignore[misc]  # its port is known here
            self.devices = (first, *others)  # type: ignore[misc]

        service = PushService(gateway, options)
        options["allowed_hosts"] = [f"localhost:{gateway.port}"]
        service.moved = moved
        gateway.respond = lambda _request: service.created()
        moved(gateway.port)
        return service

    async def test_unreachable_provider(self, provider: ScriptedProvider) -> None:
        """Without a connection nothing was sent; `probe` only looks names up, since hosts differ."""
        await provider.disappear()
        async with opened(self.adapter, provider.options, block=self.block) as channel:
            assert isinstance(await channel.send(self.dispatch()), TryAgain)
            assert await channel.probe() is None

    async def test_a_browser_reads_what_was_sent(self, provider: PushService, browser: Browser) -> None:
        """With the headers that push services need, and a token that the public key verifies."""
        clock = SettableClock()
        clock.instant = 1_800_000_000 * SECOND
        async with opened(self.adapter, provider.options, block=self.block) as channel:
            verdict = await channel.send(self.dispatch(expires_at=clock.instant + 600 * SECOND, clock=clock))
        assert isinstance(verdict, Accepted)
        [request] = provider.gateway.seen
        assert (request.method, request.target) == ("POST", "/push/abc")
        assert json.loads(browser.read(request.body))["id"] == self.dispatch().entry.id
        headers = request.headers
        assert (headers["ttl"], headers["urgency"], headers["content-encoding"]) == (
            "600",
            "high",
            "aes128gcm",
        )
        assert len(headers["topic"]) == 32
        token, public = headers["authorization"].removeprefix("vapid t=").split(", k=")
        key = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), decoded(public))
        origin = f"https://localhost:{provider.gateway.port}"
        claims = jwt.decode(token, key, ["ES256"], audience=origin, options={"verify_exp": False})
        assert claims["sub"] == "mailto:ops@example.com"
        assert 0 < claims["exp"] - 1_800_000_000 <= 24 * 3600

    @pytest.mark.parametrize(
        ("status", "verdict"),
        [(404, Stopped), (410, Stopped), (413, Refused), (429, TryAgain), (503, TryAgain)],
    )
    async def test_answers(self, provider: PushService, status: int, verdict: type[Verdict]) -> None:
        provider.gateway.script.append(Reply(status, b"", (("Retry-After", "30"),)))
        async with opened(self.adapter, provider.options, block=self.block) as channel:
            given = await channel.send(self.dispatch())
        assert type(given) is verdict
        assert not isinstance(given, TryAgain) or given.after == 30

    @pytest.mark.parametrize(
        ("endpoint", "reason"),
        [
            ("http://localhost/x", "must be https"),
            ("https://127.0.0.1/x", "name a host"),
            ("https://169.254.169.254/latest", "name a host"),
            ("https://[::1]/x", "name a host"),
            ("https://localhost/x", "isn't in allowed_hosts"),
            ("https://localhost:22/x", "isn't in allowed_hosts"),
            ("https://LOCALHOST/x", "name a host"),
            ("https://.push.example.org/x", "name a host"),
            (f"https://{'a.' * 200}push.example.org/x", "name a host"),
            (f"https://localhost/{'x' * 2000}", "isn't an address"),
            ("https://localhost\\@push.example.org/x", "isn't an address"),
            ("https://push.example.net/x", "isn't in allowed_hosts"),
            ("https://localhost.example.net/x", "isn't in allowed_hosts"),
            ("ftp://localhost/x", "isn't an address"),
            ("https://user@localhost/x", "isn't an address"),
        ],
    )
    async def test_a_subscription_leads_nowhere_else(
        self, provider: PushService, browser: Browser, endpoint: str, reason: str
    ) -> None:
        """It comes from a customer's browser: nothing is sent, and no reason quotes it."""
        customer = Customer(7, {"subscriptions": browser.subscription(endpoint)})
        async with opened(self.adapter, provider.options, block=self.block) as channel:
            given = await channel.send(self.dispatch(customer=customer))
        assert isinstance(given, Refused)
        assert given.unsent
        assert reason in given.reason
        assert provider.gateway.seen == []

    async def test_a_name_that_leads_inside_is_refused(self, provider: PushService) -> None:
        async with opened(self.adapter, {**provider.options, "networks": []}, block=self.block) as channel:
            given = await channel.send(self.dispatch())
        assert isinstance(given, Refused)
        assert "loopback address" in given.reason
        assert provider.gateway.seen == []


def test_the_example_of_the_rfc() -> None:
    """RFC 8291, 5: with its keys and its salt."""
    browser, sender = (
        derive_private_key(int.from_bytes(decoded(text), "big"), SECP256R1())
        for text in (
            "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94",
            "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw",
        )
    )
    to = PushSubscription("", point(browser), decoded("BTBZMqHH6r4Tts7J_aSIgg"))
    text = b"When I grow up, I want to be a watermelon"
    assert encoded(encrypted(text, to, sender, decoded("DGv6ra1nlYgDCS1FRnbzlw"))) == (
        "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6"
        "PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN"
    )


def test_a_message_that_is_too_large_is_refused_before_it_is_sent() -> None:
    browser = Browser()
    to = read_subscription(browser.subscription("https://push.example.com/1"))
    assert browser.read(encrypted(b"x" * MOST_BYTES, to)) == b"x" * MOST_BYTES
    assert len(encrypted(b"x" * MOST_BYTES, to)) == 4096
    with pytest.raises(Unfit, match="has 3994 bytes"):
        encrypted(b"x" * (MOST_BYTES + 1), to)


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "7", "[]", "{}", '{"endpoint": "x"}',
        '{"endpoint": "x", "keys": {"p256dh": "AAAA", "auth": "AAAA"}}',
        '{"endpoint": "x", "keys": {"p256dh": 7, "auth": 7}}',
    ],
)  # fmt: skip
def test_what_is_no_subscription_is_unfit(text: str) -> None:
    with pytest.raises(Unfit, match="isn't one that a browser makes"):
        read_subscription(text)


def test_a_key_may_be_pem_or_a_number() -> None:
    key = generate_private_key(SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    number = encoded(key.private_numbers().private_value.to_bytes(32, "big"))
    assert Vapid(read_vapid_key(pem), "x").public_key == Vapid(read_vapid_key(number), "x").public_key
    for other in ("secret", "AAAA", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"):
        with pytest.raises(ValueError, match="must be"):
            read_vapid_key(other)


def test_a_token_is_used_again_until_an_hour_before_its_end() -> None:
    clock = SettableClock()
    vapid = Vapid(generate_private_key(SECP256R1()), "mailto:ops@example.com")
    first = vapid.header("https://a.example", clock)
    assert vapid.header("https://b.example", clock) != first
    clock.instant = (VAPID_LIFETIME - 3600) * SECOND
    assert vapid.header("https://a.example", clock) == first
    clock.instant += SECOND
    second = vapid.header("https://a.example", clock)
    assert second != first
    clock.instant = 0
    assert vapid.header("https://a.example", clock) not in (first, second)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"subject": "ops@example.com"}, "expected mailto:"),
        ({"allowed_hosts": ["https://push.example.com"]}, "expected a host"),
        ({"allowed_hosts": ["*"]}, "expected a host"),
        ({"allowed_hosts": []}, "allowed_hosts"),
        ({"networks": ["10.0.0.1/8"]}, "networks"),
        ({"payload": {"x": "{content.nothing}"}}, "payload.x: the block inApp has no field 'nothing'"),
        ({"payload": {"x": "{secret.a}"}}, "payload"),
        ({"recipient": "subscriptions"}, "recipient"),
        ({"ttl": "29d"}, "ttl"),
    ],
)
@pytest.mark.anyio
async def test_problems_of_the_options(options: dict[str, Any], change: dict[str, Any], problem: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=problem):
        async with opened("webpush", {**options, **change, "tls": {}}, block="inApp"):
            pass
