"""Secrets in what a provider answered: masked, however the request wrote them."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from deliveryd.channels.base import Refused
from deliveryd.channels.masking import mask
from deliveryd.testing.gateway import Reply, open_gateway
from deliveryd.testing.samples import dispatch, opened

SECRET = 's3cr"t/p w'
pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        "s3cr%22t%2Fp%20w",
        "s3cr%22t/p%20w",
        "s3cr%22t%2Fp+w",
        's3cr\\"t/p w',
        b64encode(SECRET.encode()).decode(),
    ],
)
def test_a_secret_is_masked_in_each_form(written: str) -> None:
    assert mask(f"key={written};", [SECRET]) == "key=***;"


async def test_the_providers_words_are_kept_without_secrets(tmp_path: Path) -> None:
    """Some providers repeat the key that they refuse, or the whole request."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(SECRET)
    login = b64encode(f"user:{SECRET}".encode()).decode()
    options = {
        "json": {"text": "{content.text}"},
        "basic": {"username": "user", "password": "{secret.token}"},
        "secrets": {"token": str(token)},
        "answers": [{"status": ["4xx"], "verdict": "refused", "reason": "key is .*"}],
    }
    async with open_gateway() as gateway:
        gateway.script.append(Reply(400, f"key is {SECRET} or {login}".encode()))
        async with opened("http", {"url": f"{gateway.url}/sms", **options}, block="sms") as channel:
            verdict = await channel.send(dispatch("sms", {"text": "Hi"}))
    assert isinstance(verdict, Refused)
    assert verdict.words == "key is *** or ***"
