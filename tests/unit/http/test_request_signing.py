"""Signatures of requests, as other programs compute them."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deliveryd.http.authentication import OutgoingRequest
from deliveryd.http.client import raw_header
from deliveryd.http.request_signing import AwsKey, AzureKey
from deliveryd.http.target import target_of
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.credentials import open_authentication

NOW = datetime(2026, 11, 29, 9, 36, 15, tzinfo=UTC)
ACCESS, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"  # from AWS's documents


def request(method: str, url: str, headers: Mapping[str, str], body: bytes) -> OutgoingRequest:
    return OutgoingRequest(method, target_of(url), [raw_header(*each) for each in headers.items()], body)


JSON = request(
    "POST",
    "https://email.eu-central-1.amazonaws.com/v2/email/outbound-emails",
    {"content-type": "application/json"},
    b'{"a":1}',
)
FORM = request(
    "POST",
    "https://sns.us-east-1.amazonaws.com/",
    {"content-type": "application/x-www-form-urlencoded; charset=utf-8", "user-agent": "deliveryd/1"},
    b"Action=Publish&Message=h%C3%A9",
)
ODD = request(
    "GET",
    "https://x.example:8443/a%20b/c~d/%7Bx%7D?b=2&a=%20x&a=1&empty=&flag",
    {"x-odd": "  many   blanks  "},
    b"",
)


@pytest.mark.parametrize(
    ("outgoing", "key", "signed", "signature"),
    [
        (
            JSON,
            AwsKey(ACCESS, SECRET, "eu-central-1", "ses"),
            "content-type;host;x-amz-content-sha256;x-amz-date",
            "75af09855fde3d9f06608e6f925e90fba4c019c5d6c66e2d52e65328e180fd6d",
        ),
        (
            FORM,
            AwsKey(ACCESS, SECRET, "us-east-1", "sns", "tok/en+="),
            "content-type;host;x-amz-content-sha256;x-amz-date;x-amz-security-token",
            "b6695152e5448acdedba57cd2dd3616ff9b5d8fa9787eb3e636031c4ee00a76a",
        ),
        (
            ODD,
            AwsKey(ACCESS, SECRET, "us-east-1", "execute-api"),
            "host;x-amz-content-sha256;x-amz-date;x-odd",
            "c67f9bb823b7c78a3e32791bfe89039253b835d505fa14eb7e6e2921a041e104",
        ),
        (
            request("POST", "https://ses.example.com/v2//email/", {}, b""),
            AwsKey(ACCESS, SECRET, "us-east-1", "ses"),
            "host;x-amz-content-sha256;x-amz-date",
            "d34ac445c0783bceeaa0909bbb186a8bf69d20def65422ab8993c1fe1d702c25",
        ),
    ],
    ids=["JSON", "form with a session token", "odd path and query", "empty parts of a path"],
)
def test_a_signature_for_aws_is_that_of_botocore(
    outgoing: OutgoingRequest, key: AwsKey, signed: str, signature: str
) -> None:
    """Computed by botocore 1.44.8, `SigV4Auth`, for the same request and instant."""
    headers = {name.decode(): value.decode() for name, value in key.sign(outgoing, NOW)}
    scope = f"{ACCESS}/20261129/{key.region}/{key.service}/aws4_request"
    assert headers["authorization"] == (
        f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={signed}, Signature={signature}"
    )
    assert headers["x-amz-date"] == "20261129T093615Z"
    assert headers["x-amz-content-sha256"] == hashlib.sha256(outgoing.body).hexdigest()
    assert headers.get("x-amz-security-token") == key.token


def test_a_signature_for_azure_covers_what_is_sent() -> None:
    """Method, path with query, date, host and the body's digest, as Azure's documents say."""
    url = "https://acme.communication.azure.com/sms?api-version=2021-03-07"
    outgoing = request("POST", url, {"content-type": "application/json"}, b"{}")
    secret = b64encode(b"k" * 32).decode()
    headers = {name.decode(): value.decode() for name, value in AzureKey.read(secret).sign(outgoing, NOW)}
    assert headers["x-ms-date"] == "Sun, 29 Nov 2026 09:36:15 GMT"
    digest = headers["x-ms-content-sha256"]
    assert b64decode(digest) == hashlib.sha256(b"{}").digest()
    start, _, signature = headers["authorization"].partition("&Signature=")
    assert start == "HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256"
    text = f"POST\n/sms?api-version=2021-03-07\n{headers['x-ms-date']};acme.communication.azure.com;{digest}"
    assert b64decode(signature) == hmac.digest(b"k" * 32, text.encode(), "sha256")


def test_an_access_key_that_is_no_base64_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("not base64!")
    path.chmod(0o600)
    options = AuthOptions.model_validate({"azure": {"key_file": str(path)}})
    with pytest.raises(ValueError, match="must be an access key in base64"):
        open_authentication(options, "channels.sms.auth", 10.0)


@pytest.mark.anyio
async def test_a_rotated_key_signs_after_a_rejection(tmp_path: Path) -> None:
    """Both files are replaced one after the other; a 401 has them read at once."""
    paths = {"access_key_file": tmp_path / "access", "secret_key_file": tmp_path / "secret"}
    for path, text in zip(paths.values(), ("AKIA" + "1" * 16, "1" * 40), strict=True):
        path.write_text(text)
        path.chmod(0o600)
    table = {name: str(path) for name, path in paths.items()} | {"region": "eu-west-1", "service": "sns"}
    authentication = open_authentication(
        AuthOptions.model_validate({"sigv4": table}), "channels.sms.auth", 10.0
    )
    assert authentication is not None
    before = await authentication.headers(FORM)
    for path, text in zip(paths.values(), ("ASIA" + "2" * 16, "2" * 40), strict=True):
        path.write_text(text)
    assert await authentication.renew(before)
    shown = dict(await authentication.headers(FORM))[b"authorization"]
    assert b"Credential=ASIA2222222222222222/" in shown
    assert await authentication.renew(before)  # of another request that showed the old key
    assert not await authentication.renew(await authentication.headers(FORM))


ID = "AKIAIOSFODNN7EXAMPLE"  # from AWS's documents, as SECRET is


@pytest.mark.parametrize(
    ("files", "problems"),
    [
        ({"access_key_file": "AKIA IOSFODNN7 EXAMPLE"}, ["must be an access key ID"]),
        ({"access_key_file": f"aws_access_key_id={ID}"}, ["must be an access key ID"]),
        ({"access_key_file": "AKIA"}, ["must be an access key ID"]),
        ({"access_key_file": f"{ID}\n{SECRET}"}, ["contains more than one line"]),
        ({"access_key_file": ""}, ["is empty"]),
        ({"secret_key_file": SECRET[:-1]}, ["must be a secret access key: 40 letters"]),
        ({"secret_key_file": f"{SECRET[:20]} {SECRET[21:]}"}, ["must be a secret access key: 40 letters"]),
        ({"session_token_file": "IQoJ b3Jp"}, ["must be a session token: ASCII without blanks"]),
        (
            {"access_key_file": SECRET, "secret_key_file": ID},
            ["has the form of a secret access key", "has the form of an access key ID"],
        ),
    ],
    ids=["blanks", "a name before it", "short", "both", "empty", "cut", "a blank", "token", "swapped"],
)
def test_keys_of_another_form_are_named_and_not_shown(
    tmp_path: Path, files: dict[str, str], problems: list[str]
) -> None:
    """Each once, by its key and its file."""
    given = {"access_key_file": ID, "secret_key_file": SECRET, "session_token_file": "IQoJb3Jp+/="} | files
    table = {"region": "eu-west-1", "service": "sns"} | {name: str(tmp_path / name) for name in given}
    for name, text in given.items():
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text)
    found = list(AuthOptions.model_validate({"sigv4": table}).problems())
    for problem, told, name in zip(found, problems, files, strict=True):
        assert problem.startswith(f"sigv4.{name}: {tmp_path / name} {told}")
    assert not any(text in problem for text in (ID, SECRET, SECRET[:20], "b3Jp") for problem in found)


@pytest.mark.anyio
async def test_half_a_key_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    """Its file is being written; what is there then is no key."""
    table = {"region": "eu-west-1", "service": "sns"}
    for name, text in (("access_key_file", ID), ("secret_key_file", SECRET)):
        table[name] = str(tmp_path / name)
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text)
    authentication = open_authentication(
        AuthOptions.model_validate({"sigv4": table}), "channels.sms.auth", 10.0
    )
    assert authentication is not None
    before = await authentication.headers(FORM)
    (tmp_path / "secret_key_file").write_text(SECRET[:10])
    assert not await authentication.renew(before)
    (tmp_path / "secret_key_file").write_text("2" * 40)
    assert await authentication.renew(before)
