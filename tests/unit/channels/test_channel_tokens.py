"""Tokens that the http adapter signs its requests with."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from deliveryd.channels.base import Accepted, Misconfigured, TryAgain, Verdict
from deliveryd.channels.http.signing import LIFETIME, Bearer
from deliveryd.errors import ConfigError
from deliveryd.model import SECOND
from deliveryd.testing.gateway import Reply, closed_port, open_gateway
from deliveryd.testing.samples import dispatch, opened

pytestmark = pytest.mark.anyio


class At:
    """A clock that stands still."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now(self) -> int:
        return self._now


def private_key(bits: int = 2048) -> RSAPrivateKey:
    return generate_private_key(65537, bits)


def pem(
    key: RSAPrivateKey | Ed25519PrivateKey | ec.EllipticCurvePrivateKey,
    form: PrivateFormat = PrivateFormat.PKCS8,
) -> str:
    return key.private_bytes(Encoding.PEM, form, NoEncryption()).decode()


def bearer_options(folder: Path, secret: str) -> dict[str, Any]:
    """Requests with a token, whose key is in a file of this content."""
    (folder / "key").write_text(secret)
    (folder / "key").chmod(0o600)
    return {
        "json": {"text": "{content.text}"},
        "secrets": {"key": str(folder / "key")},
        "sign": {"scheme": "jwt", "secret": "key", "claims": {"application_id": "app-1"}},
    }


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
async def test_a_request_with_a_token(tmp_path: Path, form: PrivateFormat) -> None:
    """A token has the claims of the table and is valid for 15 minutes; a preview masks it."""
    key = private_key()
    options = bearer_options(tmp_path, pem(key, form))
    sample = dispatch("sms", {"text": "Hi"}, clock=At(1_795_286_400 * SECOND))
    async with open_gateway() as gateway:
        async with opened("http", {"url": gateway.url, **options}, block="sms") as channel:
            assert isinstance(await channel.send(sample), Accepted)
            assert "Authorization: Bearer ***\n" in channel.preview(sample)
        scheme, token = gateway.seen[0].headers["authorization"].split(" ")
        claims = jwt.decode(
            token, key.public_key(), ["RS256"], options={"verify_exp": False, "verify_iat": False}
        )
        assert scheme == "Bearer"
        assert str(UUID(claims["jti"])) == claims.pop("jti")
        assert claims == {"application_id": "app-1", "iat": 1_795_286_400, "exp": 1_795_287_300}


async def test_a_token_is_used_until_half_of_its_lifetime_is_over() -> None:
    """Or until the clock is set back."""
    signer = Bearer(private_key(), {})

    def token(at: int) -> list[tuple[bytes, bytes]]:
        return signer.headers(dispatch("sms", {}, clock=At(at * SECOND)), b"")

    first = token(1_795_286_400)
    assert token(1_795_286_400 + LIFETIME // 2 - 1) == first
    second = token(1_795_286_400 + LIFETIME // 2)
    assert second != first
    assert token(1_795_286_400) != second


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        ("hunter2", "must be a private key in PEM, without a passphrase"),
        (pem(Ed25519PrivateKey.generate()), "must be an RSA key of at least 2048 bits"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "must be an RSA key of at least 2048 bits"),
        (pem(private_key(1024)), "must be an RSA key of at least 2048 bits"),
    ],
    ids=["no key", "another kind", "a curve", "too short"],
)
async def test_a_key_that_cannot_sign_a_token_is_named(tmp_path: Path, secret: str, problem: str) -> None:
    options = {"url": "http://127.0.0.1:1/", **bearer_options(tmp_path, secret)}
    with pytest.raises(ConfigError, match=rf"secrets\.key: {problem}"):
        async with opened("http", options, block="sms"):
            pass


async def test_a_message_loses_no_try_without_a_token(tmp_path: Path) -> None:
    """The token server is away: nothing is sent, and the reason names it."""
    secret = tmp_path / "client"
    secret.touch(mode=0o600)
    secret.write_text("secret", encoding="utf-8")
    async with open_gateway() as gateway:
        server = f"127.0.0.1:{await closed_port()}"
        oauth2 = {
            "token_url": f"http://{server}/token", "client_id": "c", "client_secret_file": str(secret),
        }  # fmt: skip
        options = {"url": gateway.url, "json": {"text": "{content.text}"}, "auth": {"oauth2": oauth2}}
        async with opened("http", options, block="sms") as channel:
            verdict = await channel.send(dispatch("sms", {"text": "Hi"}))
        assert gateway.seen == []
    assert isinstance(verdict, TryAgain)
    assert verdict.reason.startswith(f"the token server {server}: no connection to {server}")
    assert not verdict.counts


@pytest.mark.parametrize(("status", "kind"), [(503, TryAgain), (429, TryAgain), (407, Misconfigured)])
async def test_a_proxy_before_the_token_server_costs_no_try(
    tmp_path: Path, status: int, kind: type[Verdict]
) -> None:
    """It may connect later, or must be set up otherwise."""
    secret = tmp_path / "client"
    secret.touch(mode=0o600)
    secret.write_text("secret", encoding="utf-8")
    async with open_gateway() as proxy:
        proxy.script.append(Reply(status))
        oauth2 = {
            "token_url": "https://tokens.invalid/token", "client_id": "c", "client_secret_file": str(secret),
            "proxy": proxy.url,
        }  # fmt: skip
        options = {"url": proxy.url, "json": {"text": "{content.text}"}, "auth": {"oauth2": oauth2}}
        async with opened("http", options, block="sms") as channel:
            verdict = await channel.send(dispatch("sms", {"text": "Hi"}))
    assert isinstance(verdict, kind)
    assert f"the token server tokens.invalid: the proxy answered {status}" in str(verdict)
    assert not (isinstance(verdict, TryAgain) and verdict.counts)
