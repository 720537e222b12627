"""What is posted to a token server, and what its answers come to."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from deliveryd.errors import NotSent, OutOfFiles, ProxyRefused
from deliveryd.http.client import HttpClient
from deliveryd.http.oauth2 import Proof, TokenServer, by_certificate, read_service_account, read_signing_key
from deliveryd.http.target import target_of
from deliveryd.http.tokens import Token
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.authentication_tables import GoogleOptions, OAuth2Options
from deliveryd.options.token_credentials import account_proof, client_proof
from deliveryd.runtime.secret_file import RenewedValue
from support.memory_wire import MemoryWire

pytestmark = pytest.mark.anyio

URL = "https://idp.example/token"
GOOD = {"access_token": "abc.def", "token_type": "Bearer", "expires_in": 3599}
EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(65537, 2048)

SM2 = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqBHM9VAYItBG0wawIBAQQgLYP+6pJ3XyhRqlz8
sjfmrVETOkFwcj8vFA/3zcuUgmmhRANCAASemFkck8XgY0VdkFqiG9BDLP/9MYqq
VPxinw1KUifVemgeMXzgtDlfKR/jV+FjJFKtuYMAOcoojPa3AUdiKEtt
-----END PRIVATE KEY-----"""
"""On a curve that the library doesn't have."""

UNPROVEN: Proof = partial(by_certificate, "me")


def pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture
def secret(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "secret"
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


class Server:
    """A token server in memory that answers the same to all."""

    def __init__(self, answer: httpx.Response | None = None) -> None:
        self.answer = answer or httpx.Response(200, json=GOOD)
        self.requests: list[httpx.Request] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answer

    @property
    def form(self) -> Mapping[str, str]:
        """The last form that was posted."""
        fields = parse_qs(self.requests[-1].content.decode(), strict_parsing=True)
        return {name: value for name, [value] in fields.items()}

    async def token(self, proof: Proof, **form: str) -> Token:
        client = HttpClient(MemoryWire(self.handle), timeout=5.0)
        return await TokenServer(client, target_of(URL), form, RenewedValue([], lambda: proof)).fetch()


async def test_a_secret_is_sent_in_the_header(secret: Callable[[str], Path]) -> None:
    """Both are encoded as in a form first (RFC 6749, 2.3.1)."""
    server = Server()
    file = secret("p:ss wörd")
    options = OAuth2Options(token_url=URL, client_id="a:b", client_secret_file=file)
    token = await server.token(client_proof(options), grant_type="client_credentials", scope="send read")
    assert token == Token("abc.def", 3599.0)
    shown = server.requests[0].headers["authorization"].removeprefix("Basic ")
    assert base64.b64decode(shown) == b"a%3Ab:p%3Ass+w%C3%B6rd"
    assert server.form == {"grant_type": "client_credentials", "scope": "send read"}


async def test_a_secret_is_sent_in_the_body(secret: Callable[[str], Path]) -> None:
    server = Server()
    file = secret("s3cret")
    options = OAuth2Options(token_url=URL, client_id="me", client_secret_file=file, sent_in="body")
    await server.token(client_proof(options))
    assert "authorization" not in server.requests[0].headers
    assert server.form == {"client_id": "me", "client_secret": "s3cret"}


@pytest.mark.parametrize(("key", "algorithm"), [(EC_KEY, "ES256"), (RSA_KEY, "RS256")], ids=["EC", "RSA"])
async def test_a_key_signs_an_assertion_that_is_another_one_each_time(
    key: Any, algorithm: str, secret: Callable[[str], Path]
) -> None:
    server = Server()
    options = OAuth2Options(token_url=URL, client_id="me", key_file=secret(pem(key)), key_id="k1")
    proof = client_proof(options)
    named = set()
    for _ in range(2):
        await server.token(proof)
        assertion = server.form["client_assertion"]
        claims = jwt.decode(assertion, key.public_key(), [algorithm], audience=URL)
        assert (claims["iss"], claims["sub"], claims["exp"] - claims["iat"]) == ("me", "me", 300)
        assert jwt.get_unverified_header(assertion)["kid"] == "k1"
        named.add(claims["jti"])
    assert len(named) == 2
    assert server.form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


async def test_a_service_account_exchanges_an_assertion(secret: Callable[[str], Path]) -> None:
    file = {
        "type": "service_account", "project_id": "acme", "client_email": "a@acme.iam.gserviceaccount.com",
        "private_key_id": "k9", "private_key": pem(RSA_KEY), "token_uri": URL, "universe_domain": "x",
    }  # fmt: skip
    server = Server()
    options = GoogleOptions(key_file=secret(json.dumps(file, indent=2)), scope="https://scope.example")
    await server.token(account_proof(options))
    assert server.form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    claims = jwt.decode(server.form["assertion"], RSA_KEY.public_key(), ["RS256"], audience=URL)
    assert (claims["iss"], claims["scope"]) == (file["client_email"], "https://scope.example")
    assert jwt.get_unverified_header(server.form["assertion"])["kid"] == "k9"


HTML = httpx.Response(200, content=b"<html>login</html>")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.Response(401, json={"error": "invalid_client"}), "answered 401: invalid_client"),
        (httpx.Response(400, json={"error": "secret: s3cret"}), "answered 400"),
        (httpx.Response(400, json={"error": ["x"]}), "answered 400"),
        (httpx.Response(503), "answered 503"),
        (httpx.Response(302, headers={"location": "https://x"}), "answered 302"),
        (HTML, "answered 200, but with no usable access_token"),
        (httpx.Response(200, json=[]), "answered 200, but with no usable access_token"),
        (httpx.Response(200, content=b"[" * 5000), "answered 200, but with no usable access_token"),
        (httpx.Response(200, json={"access_token": ""}), "answered 200, but with no usable access_token"),
        (
            httpx.Response(200, json={"access_token": "a\r\nb"}),
            "answered 200, but with no usable access_token",
        ),
        (
            httpx.Response(200, json=GOOD | {"token_type": "DPoP"}),
            "answered 200, but with a token that isn't a bearer token",
        ),
        *(
            (
                httpx.Response(200, json=GOOD | {"expires_in": seconds}),
                "answered 200, but with an expires_in that isn't a number of seconds",
            )
            for seconds in (0, -1, True, "soon", "", [1], 1e12)
        ),
    ],
)
async def test_an_answer_without_a_token_says_why(answer: httpx.Response, reason: str) -> None:
    """The reason names the server and what it answered, and nothing secret."""
    server = Server(answer)
    with pytest.raises(NotSent) as caught:
        await server.token(UNPROVEN)
    assert str(caught.value) == f"the token server idp.example {reason}"


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ({"expires_in": "3600"}, Token("abc.def", 3600.0)),
        ({"expires_in": 0.5}, Token("abc.def", 0.5)),
        ({"expires_in": None}, Token("abc.def", 3600.0)),
        ({"token_type": "bearer"}, Token("abc.def", 3599.0)),
        ({"token_type": "BearerToken"}, Token("abc.def", 3599.0)),
        ({"token_type": None}, Token("abc.def", 3599.0)),
    ],
    ids=str,
)
async def test_answers_that_real_servers_give_are_read(fields: dict[str, object], token: Token) -> None:
    server = Server(httpx.Response(200, json=GOOD | fields))
    assert await server.token(UNPROVEN) == token


async def test_a_server_that_is_away_is_named() -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    server = Server()
    server.handle = away  # type: ignore[method-assign]
    with pytest.raises(NotSent, match=r"^the token server idp\.example: connection refused$"):
        await server.token(UNPROVEN)


@pytest.mark.parametrize(
    "error", [OutOfFiles("too many open files"), ProxyRefused("the proxy answered 407", 407)], ids=repr
)
async def test_what_is_no_fault_of_the_server_stays_what_it_is(error: NotSent) -> None:
    """A lack of files concerns this process, a refusal of the proxy the configuration."""

    def fail(request: httpx.Request) -> httpx.Response:
        raise error

    server = Server()
    server.handle = fail  # type: ignore[method-assign]
    with pytest.raises(type(error), match=r"^the token server idp\.example: ") as caught:
        await server.token(UNPROVEN)
    assert getattr(caught.value, "status", None) == getattr(error, "status", None)


def account(**change: object) -> str:
    key = {
        "type": "service_account", "client_email": "a@example", "private_key_id": "1",
        "private_key": pem(RSA_KEY), "token_uri": URL,
    }  # fmt: skip
    return json.dumps(key | change)


ADDRESS = "its token_uri must begin with https://, and name a host"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("AIzaS3cret", "it isn't JSON"),
        ("[" * 5000, "it isn't JSON"),
        ("[]", 'its type isn\'t "service_account"'),
        (account(type="authorized_user"), 'its type isn\'t "service_account"'),
        (account(client_email=None), "client_email is missing"),
        (account(private_key=""), "private_key is missing"),
        (account(token_uri=5), "token_uri is missing"),
        (account(token_uri="https://:99999/x"), ADDRESS),
        (account(token_uri="https://me:pw@oauth.example/x"), ADDRESS),
        (account(token_uri="http://oauth.example/x"), ADDRESS),
        (
            account(private_key="AIzaS3cret"),
            "its private_key must be a private key in PEM, without a passphrase",
        ),
        (
            account(private_key=pem(ec.generate_private_key(ec.SECP384R1()))),
            "its private_key must be an RSA key of at least 2048 bits, or an EC key on P-256",
        ),
    ],
    ids=lambda each: str(each)[-30:],
)
def test_what_is_wrong_with_the_key_of_a_service_account_is_named(text: str, mistake: str) -> None:
    """And nothing of what the file holds."""
    assert read_service_account(account()).token_uri == URL
    with pytest.raises(ValueError, match=r"^must be the key of a service account") as caught:
        read_service_account(text)
    assert str(caught.value) == f"must be the key of a service account, JSON as Google issues it: {mistake}"


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "",
        pem(ec.generate_private_key(ec.SECP384R1())),
        SM2,
        pem(rsa.generate_private_key(65537, 1024)),  # noqa: S505  # that is the case
    ],
    ids=["nonsense", "nothing", "P-384", "SM2", "RSA 1024"],
)
def test_a_key_that_cannot_sign_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        read_signing_key(text)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, "token_url"),
        ({"token_url": "idp"}, "http:// or https://"),
        ({"client_secret_file": None}, "give one of client_secret_file, key_file, tls.cert_file"),
        ({"key_file": "S"}, "give one of client_secret_file, key_file, tls.cert_file"),
        ({"parameters": {"client_id": "x"}}, "parameters: client_id is sent by another key"),
        ({"sent_in": "query"}, "'header' or 'body'"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(
    table: dict[str, Any], problem: str, secret: Callable[[str], Path]
) -> None:
    base = {"token_url": URL, "client_id": "me", "client_secret_file": "S"} if table else {"client_id": "me"}
    path = str(secret("s3cret"))
    given = {name: path if value == "S" else value for name, value in (base | table).items()}
    with pytest.raises(ValueError, match=problem):
        AuthOptions.model_validate({"oauth2": given})


def test_a_token_is_not_requested_in_plain_text(secret: Callable[[str], Path]) -> None:
    """But on this machine, or where that is allowed."""
    table = {"client_id": "me", "client_secret_file": secret("s3cret")}
    for url, allow, count in (
        ("http://idp.example/token", False, 1),
        ("http://idp.example/token", True, 0),
        ("http://127.0.0.1/token", False, 0),
    ):
        options = {"oauth2": {**table, "token_url": url, "allow_plain_text": allow}}
        problems = list(AuthOptions.model_validate(options).problems())
        assert len(problems) == count
        assert all(problem.startswith("oauth2.token_url: the token ") for problem in problems)
