"""`jwt`: a JSON Web Token with hashes of the body and the address, as MessageBird and Vonage send it (PyJWT).

Its times are checked here, by the worker's clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jwt
from jwt.algorithms import HMACAlgorithm

from deliveryd.channels.signature_schemes import JwtSignature
from deliveryd.model import SECOND
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Covered, Forged, Scheme, header, is_any

_BEARER = "bearer "
_HASHES = {"HS256": HMACAlgorithm.SHA256, "HS384": HMACAlgorithm.SHA384, "HS512": HMACAlgorithm.SHA512}


class _Hmac(HMACAlgorithm):
    """A keyed hash with a key of any length: the provider made it."""

    def check_key_length(self, key: bytes) -> None:  # noqa: ARG002  # the library would warn of a short one
        return None


class JwtScheme(Scheme):
    """The scheme with its options."""

    signs_raw_body = True
    _options: JwtSignature

    def __init__(self, options: JwtSignature) -> None:
        super().__init__(options)
        self._tokens = jwt.PyJWS([])
        for name in options.algorithms:
            self._tokens.register_algorithm(name, _Hmac(_HASHES[name]))

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], now: int) -> Covered:
        """Verify the token, then its claims about times, body and address.

        A hash of the body always counts; one of the address only with `receipts.public_url`.
        """
        token = header(request, self._options.header)
        if token.lower().startswith(_BEARER):
            token = token[len(_BEARER) :].strip()
        claims = self._claims(token, keys)
        self._check_times(claims, now / SECOND)
        if self._options.issuer is not None and claims.get("iss") != self._options.issuer:
            raise Forged("the claim iss is another")
        if "payload_hash" in claims:
            _check_hash(claims, "payload_hash", request.body)
        if self._options.covers_url:
            _check_hash(claims, "url_hash", request.url.encode("latin-1"))
        return Covered(request, "payload_hash" in claims, self._options.covers_url)

    def _claims(self, token: str, keys: Sequence[bytes]) -> Mapping[str, Any]:
        found = [claims for key in keys if (claims := self._decoded(token, key)) is not None]
        if not found:
            raise Forged("the token isn't signed with one of the secrets, or by another algorithm")
        return found[0]

    def _decoded(self, token: str, key: bytes) -> Mapping[str, Any] | None:
        try:
            claims = json.loads(self._tokens.decode(token, key, list(self._options.algorithms)))
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None
        return claims if isinstance(claims, dict) else None

    def _check_times(self, claims: Mapping[str, Any], now: float) -> None:
        leeway = self._options.tolerance
        times = {name: _number(claims, name) for name in ("iat", "nbf", "exp")}
        issued, begins, ends = times.values()
        if issued is None and ends is None:
            raise Forged("the token has neither iat nor exp")
        if issued is not None and abs(now - issued) > leeway:
            raise Forged("the claim iat is too far from now")
        if begins is not None and begins > now + leeway:
            raise Forged("the claim nbf is in the future")
        if ends is not None and ends < now - leeway:
            raise Forged("the claim exp is in the past")


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Forged(f"the claim {name} is no number")
    return value


def _check_hash(claims: Mapping[str, Any], name: str, signed: bytes) -> None:
    claimed = str(claims.get(name, "")).lower()
    if not is_any(claimed.encode(), [hashlib.sha256(signed).hexdigest().encode()]):
        raise Forged(f"the claim {name} doesn't fit")
