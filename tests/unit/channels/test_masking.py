"""Secrets in what a provider answered: masked, however the request wrote them."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from urllib.parse import quote

import pytest

from deliveryd.channels.base import Refused
from deliveryd.channels.http import masking
from deliveryd.channels.http.masking import MASK, mask
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
        "s3cr%22t%2fp%20w",
        "%73%33%63%72%22%74%2F%70%20%77",
        "s3cr%2522t%252Fp%2520w",
        's3cr\\"t/p w',
        's3cr\\"t\\/p w',
        "s3cr\\u0022t\\u002Fp\\u0020w",
        's3cr\\\\\\"t\\\\/p w',
        "s3cr\\\\u0022t/p w",
        "s3cr&quot;t/p w",
        "s3cr&#34;t&#x2F;p&#32;w",
        "s3cr&amp;quot;t&sol;p w",
        "s3cr=22t/p=20w",
        SECRET.encode().hex(),
        SECRET.encode().hex().upper(),
        b64encode(SECRET.encode()).decode(),
        b64encode(SECRET.encode()).decode().rstrip("="),
        urlsafe_b64encode(SECRET.encode()).decode(),
        quote(b64encode(SECRET.encode()).decode(), safe=""),
    ],
)
def test_a_secret_is_masked_in_each_form(written: str) -> None:
    assert mask(f"key={written};", [SECRET]) == "key=***;"


@pytest.mark.parametrize(
    ("secret", "written"),
    [
        ("Fe12/Qx8+Yz34Kw7==", "password=Fe12%2FQx8%2BYz34Kw7%3D%3D"),
        ("Fe12/Qx8+Yz34Kw7==", "password%3DFe12%252FQx8%252BYz34Kw7%253D%253D"),
        ("Fe12/Qx8+Yz34Kw7==", "password=Fe12\\/Qx8+Yz34Kw7=="),
        ("pa%41ss/word", "password=pa%41ss\\/word"),
        ('a&amp;s"word', 'password=a&amp;s\\"word'),
        ("a\\nb&c", "password=a\\nb&amp;c"),
        ("pässword", "password=p%E4ssword"),
    ],
)
def test_what_looks_like_an_escape_of_another_kind_is_the_secrets(secret: str, written: str) -> None:
    """A key may begin with two hexadecimal digits behind "=", or have a part that is an escape elsewhere."""
    masked = mask(f"{written};", [secret])
    assert masked in ("password=***;", "password%3D***;")


def test_a_secret_on_several_lines_is_masked() -> None:
    """Base64 and quoted-printable are folded in mail."""
    coded = b64encode(b"0123456789" + SECRET.encode()).decode()
    assert mask(f"{coded[:20]}\n{coded[20:]}", [SECRET]) == f"{coded[:13]}***"
    assert mask("key=3Ds3cr=22t=\r\n/p w;", [SECRET]) == "key=3D***;"


MANY_KINDS = "%2525253D\\\\\\u0026&amp;amp;amp;#37;=3D3D3D=\n"


def test_escapes_of_many_kinds_cost_a_bounded_number_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or an answer of 4 KiB would stop all other deliveries; what can't be searched is never shown."""
    resolved = []

    def noting(read: masking._Read, kind: masking._Kind) -> masking._Read:
        resolved.append(len(read.text))
        return unescaped(read, kind)

    unescaped = masking._unescaped
    monkeypatch.setattr(masking, "_unescaped", noting)
    assert mask(MANY_KINDS * 100 + "s3cr%22t%2Fp%20w, said again", [SECRET]) == MASK
    assert 0 < sum(resolved) <= masking.MOST_SEARCHED
    few = "100%25 of A&amp;B \\/ "
    assert mask(few * 50 + "s3cr%22t%2Fp%20w", [SECRET]) == few * 50 + MASK


@pytest.mark.parametrize("secrets", [[], [""]])
def test_without_secrets_nothing_is_searched(secrets: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are shown as they are, whatever escapes they have."""
    monkeypatch.delattr(masking, "_readings")
    assert mask(MANY_KINDS * 100, secrets) == MANY_KINDS * 100


@pytest.mark.parametrize(
    "written",
    [
        'S3CR"T/P W',
        "S3cr%22t%2fP+W",
        "s3cr\\x22t\\x2Fp\\x20w",
        "s3cr%u0022t%u002fp%u0020w",
        "s3cr%22t%u002Fp%20w",
        b64encode(SECRET.encode()).decode().upper(),
    ],
)
def test_a_secret_is_masked_in_either_case_and_as_scripts_write_it(written: str) -> None:
    """A provider may write what it repeats in capitals, or by the escapes of JavaScript."""
    assert mask(f"\u0130 key={written};", [SECRET]) == "\u0130 key=***;"


@pytest.mark.parametrize("user", ["a", "ab", "abc", "someone:"])
def test_a_secret_within_what_was_encoded_is_masked(user: str) -> None:
    """Base64 of a login, at each of the three offsets: no digit is left that holds a bit of the secret."""
    coded = b64encode(f"{user}{SECRET}".encode()).decode()
    masked = mask(f"Basic {coded}.", [SECRET])
    assert masked.endswith("***.")
    assert len(masked) <= len("Basic ") + 4 * len(user) // 3 + 4


def test_a_token_made_of_a_secret_is_masked() -> None:
    """It is as good as the key while it is valid."""
    token = "eyJhbGciOiJSUzI1NiJ9.eyJpYXQiOjF9.c2lnbmF0dXJl-_"
    assert mask(f"invalid token: Bearer {token}; eyJ.", ["key"]) == "invalid token: Bearer ***; eyJ."
    assert mask(quote(f'"{token}"'), ["key"]) == "%22***%22"


def test_secrets_beside_and_within_one_another_are_masked() -> None:
    """Also with characters that only two units of JSON can write, and where escapes look like no secret."""
    assert mask("ab abc \\ud83d\\ude00x %zz &x", ["ab", "abc", "\U0001f600x"]) == "*** *** *** %zz &x"
    assert mask("nothing % of \\ it &amp;", ["secret", ""]) == "nothing % of \\ it &amp;"


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


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("x" * 490 + f" {SECRET}", "x" * 490 + " ***"),
        (" " * 8190 + SECRET, None),
        (" " * 4090 + SECRET, None),
        (" " * 2000 + "x" * 8000 + SECRET, "x" * 500),
        (f"{SECRET} {MANY_KINDS * 80}", MASK),
    ],
)
async def test_a_secret_at_the_end_of_the_kept_words_is_masked_before_they_are_cut(
    said: str, words: str | None, tmp_path: Path
) -> None:
    """Half of it would no longer be found."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(SECRET)
    options = {
        "json": {"text": "{content.text}"},
        "headers": {"X-Key": "{secret.token}"},
        "secrets": {"token": str(token)},
        "answers": [{"status": ["4xx"], "verdict": "refused", "reason": "/error"}],
    }
    async with open_gateway() as gateway:
        gateway.script.append(Reply(400, json.dumps({"error": said}).encode()))
        async with opened("http", {"url": f"{gateway.url}/sms", **options}, block="sms") as channel:
            verdict = await channel.send(dispatch("sms", {"text": "Hi"}))
    assert isinstance(verdict, Refused)
    assert verdict.words == words
