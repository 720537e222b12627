"""`twilio`: X-Twilio-Signature, over the address that Twilio called and the sorted form.

Twilio signs the address sometimes with and sometimes without the standard port, so both are tried. A JSON
body isn't signed itself: its hash is in the query as `bodySHA256`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import defaultdict
from collections.abc import Sequence
from urllib.parse import urlsplit

from deliveryd.channels.signature_schemes import TwilioSignature
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Covered, Forged, decode, header, is_any

_HEADER = "X-Twilio-Signature"
_BODY_HASH = b"bodySHA256"
_PORTS = {"https": 443, "http": 80}


class Scheme:
    """The scheme; it has no options."""

    def __init__(self, _options: TwilioSignature) -> None:
        pass

    def read_key(self, secret: str) -> bytes:
        """Return the auth token."""
        return secret.encode()

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], _now: int) -> Covered:
        """Compare the signature with the hash of each spelling of the address under each key."""
        given = decode(header(request, _HEADER), "base64")
        if given is None:
            raise Forged("the signature isn't base64")
        form = _sorted(request)
        signed = [url.encode("latin-1") + form for url in _spellings(request.url)]
        if not is_any(given, [hmac.digest(key, each, "sha1") for key in keys for each in signed]):
            raise Forged("the signature doesn't fit; it covers receipts.public_url and the form")
        named = _named_hash(request)
        if named is not None and not is_any(
            named.lower(), [hashlib.sha256(request.body).hexdigest().encode()]
        ):
            raise Forged(f"the body doesn't fit {_BODY_HASH.decode()} of the query")
        return Covered(request, request.is_form or named is not None, query=True)


def _spellings(url: str) -> list[str]:
    """Return an address without its port, and with it."""
    parts = urlsplit(url)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    host = parts.netloc.removesuffix(f":{port}")
    return [parts._replace(netloc=netloc).geturl() for netloc in (host, f"{host}:{port}")]


def _sorted(request: ReceiptRequest) -> bytes:
    """Return the fields of the form, sorted by name; of a repeated one every value once, sorted."""
    values: defaultdict[bytes, set[bytes]] = defaultdict(set)
    try:
        for name, value in request.form_pairs():
            values[name].add(value)
    except ValueError:
        raise Forged("the form can't be read") from None
    return b"".join(name + value for name in sorted(values) for value in sorted(values[name]))


def _named_hash(request: ReceiptRequest) -> bytes | None:
    """Return the hash of the body that the query names, if any."""
    try:
        return dict(request.query_pairs()).get(_BODY_HASH)
    except ValueError:
        raise Forged("the query can't be read") from None
