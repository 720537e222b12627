"""Requests tokens of an OAuth2 server: client credentials (RFC 6749, 4.4), or an assertion (RFC 7523)."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_plus, urlencode
from uuid import uuid4

from deliveryd.errors import NotSent, OutOfFiles, ProxyRefused, WireError
from deliveryd.http.client import HttpClient
from deliveryd.http.target import target_of
from deliveryd.http.tokens import Token, Tokens
from deliveryd.http.wire import Headers, Target
from deliveryd.model import SECOND, WallClock
from deliveryd.runtime.secret_file import RenewedValue

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

LARGEST_ANSWER = 1 << 16
UNNAMED_LIFETIME = 3600.0
"""Seconds for which a token counts as valid whose answer names none; a 401 ends it earlier."""

ASSERTION_LIFETIME = 300
"""Seconds for which an assertion is valid: it is used at once, but the server's clock may differ."""

LONGEST_ASSERTION = 3600
"""Seconds for which Google lets an assertion be valid."""

SHORTEST_RSA = 2048

_CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ERROR = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_TOKEN = re.compile(r"[!-~]+")
_BEARER = frozenset({"bearer", "bearertoken"})  # the second one is Apigee's


class SigningKey(NamedTuple):
    """A private key, and the algorithm of the tokens that it signs."""

    key: RSAPrivateKey | EllipticCurvePrivateKey
    algorithm: str


def read_signing_key(pem: str) -> SigningKey:
    """Read an RSA or P-256 key in PEM, the lines of which may be one. Raises ValueError."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  # few need it
    from cryptography.hazmat.primitives.asymmetric import ec, rsa  # noqa: PLC0415  # few need it
    from cryptography.hazmat.primitives.serialization import load_der_private_key  # noqa: PLC0415  # as above

    try:
        key = load_der_private_key(b64decode("".join(pem.split("-----")[2:3]) or pem), None)
    except (ValueError, TypeError):
        raise ValueError("must be a private key in PEM, without a passphrase") from None
    except UnsupportedAlgorithm:
        key = None
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= SHORTEST_RSA:
        return SigningKey(key, "RS256")
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return SigningKey(key, "ES256")
    raise ValueError(f"must be an RSA key of at least {SHORTEST_RSA} bits, or an EC key on P-256")


def assertion(key: SigningKey, key_id: str | None, lifetime: int, **claims: str) -> str:
    """Return a JSON Web Token with these claims that ends after so many seconds."""
    import jwt  # noqa: PLC0415  # few need it

    now = WallClock().now() // SECOND
    named = {**claims, "iat": now, "exp": now + lifetime, "jti": str(uuid4())}
    return jwt.encode(named, key.key, key.algorithm, headers={"kid": key_id} if key_id else None)


class TokenRequest(NamedTuple):
    """What is posted to a token server."""

    form: Mapping[str, str]
    headers: Headers = ()

    def __repr__(self) -> str:
        return "TokenRequest()"


def by_secret(client_id: str, secret: str) -> TokenRequest:
    """Authenticate the client in the header (RFC 6749, 2.3.1)."""
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()
    return TokenRequest({}, [(b"authorization", b"Basic " + b64encode(pair))])


def by_secret_in_body(client_id: str, secret: str) -> TokenRequest:
    """Authenticate the client in the form, which some servers require."""
    return TokenRequest({"client_id": client_id, "client_secret": secret})


def by_certificate(client_id: str) -> TokenRequest:
    """Name the client, whose certificate the connection shows (RFC 8705)."""
    return TokenRequest({"client_id": client_id})


def by_key(client_id: str, key: SigningKey, key_id: str | None, audience: str) -> TokenRequest:
    """Authenticate the client by an assertion that its key signs (RFC 7523, 2.2)."""
    signed = assertion(key, key_id, ASSERTION_LIFETIME, iss=client_id, sub=client_id, aud=audience)
    return TokenRequest(
        {"client_id": client_id, "client_assertion_type": _CLIENT_ASSERTION, "client_assertion": signed}
    )


class ServiceAccount(NamedTuple):
    """A service account of Google, read from its key."""

    email: str
    key: SigningKey
    key_id: str
    token_uri: str


_OF_ACCOUNT = ("client_email", "private_key", "token_uri")


def read_service_account(text: str) -> ServiceAccount:
    """Read the key of a service account, JSON. Raises ValueError, without what the text holds."""
    try:
        named = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{_NO_ACCOUNT}: it isn't JSON") from None
    if not isinstance(named, dict) or named.get("type") != "service_account":
        raise ValueError(f'{_NO_ACCOUNT}: its type isn\'t "service_account"')
    for name in _OF_ACCOUNT:
        if not isinstance(named.get(name), str) or not named[name]:
            raise ValueError(f"{_NO_ACCOUNT}: {name} is missing")
    email, key, token_uri = (named[name] for name in _OF_ACCOUNT)
    key_id = named.get("private_key_id")
    if not _is_https(token_uri):
        raise ValueError(f"{_NO_ACCOUNT}: its token_uri must begin with https://, and name a host")
    try:
        signing = read_signing_key("".join(key.split()))
    except ValueError as error:
        raise ValueError(f"{_NO_ACCOUNT}: its private_key {error}") from None
    return ServiceAccount(email, signing, key_id if isinstance(key_id, str) else "", token_uri)


_NO_ACCOUNT = "must be the key of a service account, JSON as Google issues it"


def _is_https(address: str) -> bool:
    try:
        return target_of(address).scheme == "https"
    except ValueError:
        return False


def by_service_account(account: ServiceAccount, scope: str) -> TokenRequest:
    """Exchange an assertion for a token (RFC 7523, 2.1), as Google has it."""
    claims = {"iss": account.email, "aud": account.token_uri, "scope": scope}
    signed = assertion(account.key, account.key_id, LONGEST_ASSERTION, **claims)
    return TokenRequest({"grant_type": _ASSERTION_GRANT, "assertion": signed})


Proof = Callable[[], TokenRequest]
"""Returns what proves in a request which client asks; an assertion is another one each time."""


def open_tokens(
    client: HttpClient, target: Target, form: Mapping[str, str], proof: RenewedValue[Proof]
) -> Tokens:
    """Open the tokens of a server; `form` is what is posted beside the proof."""
    server = TokenServer(client, target, form, proof)
    return Tokens(server.fetch, client.aclose)


class TokenServer:
    """Requests tokens of a server."""

    def __init__(
        self, client: HttpClient, target: Target, form: Mapping[str, str], proof: RenewedValue[Proof]
    ) -> None:
        self._client = client
        self._target = target
        self._form = form
        self._proof = proof

    async def fetch(self) -> Token:
        """Request a token. Raises NotSent with the reason if the server gives none."""
        made = self._proof.current()()
        headers = [
            *made.headers,
            (b"accept", b"application/json"),
            (b"content-type", b"application/x-www-form-urlencoded"),
        ]
        body = urlencode({**self._form, **made.form}).encode("ascii")
        server = f"the token server {self._target.authority}"
        try:
            answer = await self._client.exchange("POST", self._target, headers, body)
        except ProxyRefused as error:
            raise ProxyRefused(f"{server}: {error}", error.status) from None
        except OutOfFiles as error:
            raise OutOfFiles(f"{server}: {error}") from None
        except WireError as error:
            raise NotSent(f"{server}: {error}") from None
        document = _parsed(answer.body)
        if not 200 <= answer.status < 300:
            code = document.get("error")
            named = f": {code}" if isinstance(code, str) and _ERROR.fullmatch(code) else ""
            raise NotSent(f"{server} answered {answer.status}{named}")
        try:
            return read_token(document)
        except ValueError as error:
            raise NotSent(f"{server} answered {answer.status}, but {error}") from None


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def read_token(answer: Mapping[str, Any]) -> Token:
    """Read a server's answer (RFC 6749, 5.1). Raises ValueError, without the token."""
    value, kind, given = answer.get("access_token"), answer.get("token_type"), answer.get("expires_in")
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise ValueError("with no usable access_token")
    if isinstance(kind, str) and kind.lower() not in _BEARER:
        raise ValueError("with a token that isn't a bearer token")
    if given is None:
        return Token(value, UNNAMED_LIFETIME)
    if isinstance(given, str) and re.fullmatch("[0-9]{1,9}", given):  # as Microsoft's first version writes it
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < 1e9:
        raise ValueError("with an expires_in that isn't a number of seconds")
    return Token(value, float(given))
