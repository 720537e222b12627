"""`event-grid`: Azure Event Grid. Requests carry a secret, and a subscription begins with a handshake.

In the schema of Event Grid; that of CloudEvents begins with a request by OPTIONS.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from deliveryd.http.finder import Document
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Covered, Forged, NoReport, echoed
from deliveryd.receipts.signatures.plain import TokenScheme

_KIND = "aeg-event-type"
_CODE = ("0", "data", "validationCode")


class EventGridScheme(TokenScheme):
    """The scheme with its options."""

    def verify(self, request: ReceiptRequest, keys: Sequence[bytes], now: int) -> Covered:
        """Compare the secret; the code of a handshake is to be returned."""
        covered = super().verify(request, keys, now)
        if request.headers.get(_KIND, "").lower() != "subscriptionvalidation":
            return covered
        code = Document(request.body).value(_CODE)
        if not isinstance(code, str):
            raise Forged("there is no code in the handshake")
        return covered._replace(
            content=NoReport(json.dumps({"validationResponse": echoed(code)}), "application/json")
        )
