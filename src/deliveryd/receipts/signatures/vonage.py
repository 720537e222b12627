"""`vonage`: `sig` over the sorted parameters of the SMS API; the Messages API signs with `jwt`."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence

from deliveryd.channels.signature_schemes import VonageSignature
from deliveryd.http.json_pointer import value_text
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Covered, Forged, check_time, decode, is_any, read_time

_SIGNATURE = b"sig"
_TIME = b"timestamp"
_ESCAPED = bytes.maketrans(b"&=", b"__")


class Scheme:
    """The scheme with its options."""

    def __init__(self, options: VonageSignature) -> None:
        self._options = options

    def read_key(self, secret: str) -> bytes:
        """Return the signature secret."""
        return secret.encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], now: int) -> Covered:
        """Compare `sig`, in lower or upper case, with the hash of the other parameters under each key."""
        parameters = _parameters(request)
        given = decode(parameters.pop(_SIGNATURE, b"").decode("latin-1"), "hex")
        if not given:
            raise Forged("there is no usable sig")
        if self._options.tolerance is not None:
            check_time(read_time(parameters.get(_TIME, b"").decode("latin-1")), now, self._options.tolerance)
        fields = (b"&%b=%b" % (name, value.translate(_ESCAPED)) for name, value in sorted(parameters.items()))
        signed = b"".join(fields)
        if not is_any(given, [self._hash(key, signed) for key in keys]):
            raise Forged("sig doesn't fit")
        return Covered(request, body=bool(request.body), query=not request.body)

    def _hash(self, key: bytes, signed: bytes) -> bytes:
        if self._options.algorithm == "md5":
            return hashlib.md5(signed + key, usedforsecurity=False).digest()
        return hmac.digest(key, signed, self._options.algorithm.removeprefix("hmac-"))


def _parameters(request: ReceiptRequest) -> dict[bytes, bytes]:
    """Return the parameters of a query, a form or a flat JSON object. Raises Forged."""
    try:
        if not request.body or request.is_form:
            pairs = request.parameters()
            parameters = dict(pairs)
            if len(parameters) != len(pairs):
                raise Forged("a parameter is given twice")
            return parameters
        report = json.loads(request.body, parse_float=str)
    except (ValueError, RecursionError):
        raise Forged("the parameters can't be read") from None
    if not isinstance(report, dict):
        raise Forged("the body isn't an object")
    texts = {name: value_text(value) for name, value in report.items() if value is not None}
    if None in texts.values():
        raise Forged("the body has a list or an object, which sig doesn't cover")
    return {_encoded(name): _encoded(text) for name, text in texts.items() if text is not None}


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
