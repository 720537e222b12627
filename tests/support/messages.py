"""Messages: as the queue's JSON holds them, as the line takes them, and settings that go with them."""

from __future__ import annotations

from typing import Any

from deliveryd.model import QueuedMessage


def message(id_: int, settings_id: int = 1, customer_id: int = 1, **variables: object) -> dict[str, Any]:
    """An element of the queue; its only variable is `word`, unless others are given."""
    return {
        "id": id_,
        "settingsId": settings_id,
        "customerId": customer_id,
        "variables": variables or {"word": "w"},
    }


def queued_message(id_: int, settings_id: int = 1, customer_id: int = 1, **variables: str) -> QueuedMessage:
    """The same as the line takes it."""
    return QueuedMessage(id_, settings_id, customer_id, variables or {"word": "w"})


def sms_settings(
    text: str = "{greeting} {word}", languages: tuple[str, ...] = ("en", "de")
) -> dict[str, Any]:
    """Settings with one text message in each language, and both greetings."""
    return {
        "content": {
            language: {
                "greetings": {"personal": f"{language} {{customer.name}}", "general": f"{language} all"},
                "sms": {"text": text},
            }
            for language in languages
        }
    }
