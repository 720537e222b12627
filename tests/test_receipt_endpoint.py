"""Paths of receipts that end with a token."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from deliveryd.channels.receipt_options import ReceiptOptions
from deliveryd.receipts.endpoint import ReceiptEndpoint
from deliveryd.receipts.inlet import ReceiptReply, open_inlet
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Forged

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/receipts/sms/ab%2Fcd%2B", 200),
        ("/receipts/sms/ab%2Fcd+", 200),
        ("/receipts%2Fsms/ab%2Fcd+", 200),
        ("/receipts/sms/ab%2F", 401),
        ("/receipts/sms", 401),
        ("/receipts/sms/ab/cd+", 404),
    ],
)
async def test_a_token_may_have_a_slash_in_it(tmp_path: Path, path: str, status: int) -> None:
    """Tokens in base64 have some."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("ab/cd+")
    signature = {"scheme": "token", "at": "path", "secret_file": str(token)}
    inlet = open_inlet(ReceiptOptions.model_validate({"provider_id": "/id", "signature": signature}))

    async def take_in(_provider: str, request: ReceiptRequest) -> ReceiptReply:
        try:
            inlet.verify(request, 0)
        except Forged:
            return inlet.refusal
        return inlet.reply

    app = ReceiptEndpoint(
        {"/receipts/sms": "sms"}, {"sms": inlet}, take_in, lambda _status, _provider: None, max_body=100
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        assert (await client.post(path)).status_code == status
