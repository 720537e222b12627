"""A mail as the smtp adapter is given it, and an attempt to send it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deliveryd.channels.base import Verdict
from deliveryd.model import Customer
from deliveryd.testing.samples import dispatch, opened
from support.mail_server import MailServer

TEXT = {"subject": "Grüße, Ada", "body": "Привіт!\n.\n..dots\nbye", "format": "text"}


NAME = "<a-1@shop.example>"


def options_for(server: MailServer | int, **more: Any) -> dict[str, Any]:
    port = server if isinstance(server, int) else server.port
    return {"host": "127.0.0.1", "port": port, "tls": "none", "sender": "Shop <news@shop.example>", **more}


async def send(
    server: MailServer | int, fields: Mapping[str, str] = TEXT, to: str = "ada@example.com", **more: Any
) -> Verdict:
    async with opened("smtp", options_for(server, **more), block="email") as channel:
        return await channel.send(mail_to(to, fields))


def mail_to(address: str, fields: Mapping[str, str] = TEXT, key: str = "a-1") -> Any:
    customer = Customer(7, {"email": address})
    return dispatch("email", fields, customer=customer, key=key)
