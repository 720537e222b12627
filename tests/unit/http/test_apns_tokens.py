"""Provider tokens for APNs: verified by the library of tokens, and the same for all who have the key."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from deliveryd.http.apns_tokens import USED_SECONDS, ProviderKey, ProviderTokens
from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.target import target_of
from deliveryd.model import SECOND
from deliveryd.runtime.secret_file import RenewedValue
from deliveryd.testing.adapters import SettableClock

NOW = 1_800_000_000
REQUEST = OutgoingRequest("POST", target_of("https://api.push.apple.com/3/device/1"), (), b"")


def pem(key: EllipticCurvePrivateKey | None = None) -> str:
    made = key or generate_private_key(SECP256R1())
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key.p8"
    file.touch(mode=0o600)
    file.write_text(pem())
    return file


def key_of(file: Path) -> ProviderKey:
    return ProviderKey.read(file.read_text())


def replace(file: Path) -> None:
    file.write_text(pem())


def tokens(file: Path, clock: SettableClock) -> ProviderTokens:
    return ProviderTokens(RenewedValue([file], lambda: key_of(file)), "K1L2M3N4O5", "A1B2C3D4E5", clock)


@pytest.mark.anyio
async def test_a_token_is_verified_by_the_public_key(key_file: Path) -> None:
    clock = SettableClock()
    clock.instant = NOW * SECOND
    [(name, value)] = await tokens(key_file, clock).headers(REQUEST)
    assert name == b"authorization"
    token = value.decode().removeprefix("bearer ")
    public = key_of(key_file).key.public_key()
    claims = jwt.decode(token, public, ["ES256"], options={"verify_iat": False})
    assert claims == {"iss": "A1B2C3D4E5", "iat": NOW - NOW % USED_SECONDS}
    assert jwt.get_unverified_header(token) == {"alg": "ES256", "kid": "K1L2M3N4O5"}
    assert len(urlsafe_b64decode(token.split(".")[2] + "==")) == 64


@pytest.mark.anyio
async def test_all_workers_use_the_same_token_for_forty_minutes(key_file: Path) -> None:
    """After a restart too: APNs rejects connections whose token changes more often than every 20 minutes."""
    clock = SettableClock()
    seen = []
    for second in range(NOW - NOW % USED_SECONDS, NOW - NOW % USED_SECONDS + 3 * USED_SECONDS, 60):
        clock.instant = second * SECOND
        one, other = tokens(key_file, clock), tokens(key_file, clock)
        assert await one.headers(REQUEST) == await other.headers(REQUEST)
        seen.append((await one.headers(REQUEST))[0][1])
    assert [seen.count(each) for each in dict.fromkeys(seen)] == [40, 40, 40]


@pytest.mark.anyio
async def test_another_key_makes_another_token(key_file: Path) -> None:
    given = tokens(key_file, SettableClock())
    shown = await given.headers(REQUEST)
    assert not await given.renew(shown)
    replace(key_file)
    assert await given.renew(shown)
    assert [*given.secrets()] == [(await given.headers(REQUEST))[0][1].decode().removeprefix("bearer ")]


@pytest.mark.parametrize("text", ["secret", pem(generate_private_key(SECP384R1()))])
def test_another_kind_of_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        ProviderKey.read(text)
