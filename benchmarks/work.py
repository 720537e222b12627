"""The work that every subject gets: messages, settings and customers, and what must come of them.

The expected texts are written here by hand, not by a template engine, so that they can judge one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CUSTOMERS = 1000
LANGUAGES = ("en", "de")
_FILLER = "und so weiter, "

TEXTS = {
    "en": "{greeting} your order {order.id} of {amount} EUR from {shop} is on its way. Code: {tid.0}.",
    "de": "{greeting} Ihre Bestellung {order.id} über {amount} EUR von {shop} ist unterwegs. Code: {tid.0}.",
}
GREETINGS = {
    "en": {"personal": "Dear {customer.name},", "general": "Dear customer,"},
    "de": {"personal": "Guten Tag {customer.name},", "general": "Guten Tag,"},
}


@dataclass(frozen=True, slots=True)
class Work:
    """How many messages of how many settings; `text_length` is a template's length in characters.

    0 leaves the templates as they are; less than theirs leaves a greeting only.
    """

    messages: int = 20_000
    settings: int = 20
    text_length: int = 0

    def elements(self) -> Iterator[bytes]:
        """The queue's elements as JSON, message 1 first."""
        for id_ in range(1, self.messages + 1):
            order, amount, shop, code = _values(id_)
            variables = f'"order.id":{order},"amount":{amount},"shop":"{shop}","tid.0":"{code}"'
            yield (
                f'{{"id":{id_},"settingsId":{self.settings_of(id_)},"customerId":{customer_of(id_)},'
                f'"variables":{{{variables}}}}}'
            ).encode()

    def settings_of(self, id_: int) -> int:
        """The settings id of a message."""
        return id_ % self.settings + 1

    def settings_body(self, settings_id: int) -> bytes:
        """What the service answers for these settings."""
        content = {
            language: {
                "greetings": GREETINGS[language],
                "sms": {"text": self._template(language, settings_id)},
            }
            for language in LANGUAGES
        }
        return json.dumps({"reference": f"campaign-{settings_id}", "content": content}).encode()

    def expected(self, id_: int) -> tuple[str, str]:
        """The phone number and the text that the provider must get for a message."""
        order, amount, shop, code = _values(id_)
        customer = customer_record(customer_of(id_))
        name, language = customer["name"], customer["language"]
        if language == "en":
            greeting = f"Dear {name}," if name else "Dear customer,"
            text = f"{greeting} your order {order} of {amount} EUR from {shop} is on its way. Code: {code}."
        else:
            greeting = f"Guten Tag {name}," if name else "Guten Tag,"
            text = f"{greeting} Ihre Bestellung {order} über {amount} EUR von {shop} ist unterwegs."
            text += f" Code: {code}."
        if self._is_short(language):
            return customer["phone"], greeting
        return customer["phone"], text + self._tail(language, self.settings_of(id_))

    def _template(self, language: str, settings_id: int) -> str:
        if self._is_short(language):
            return "{greeting}"
        return TEXTS[language] + self._tail(language, settings_id)

    def _is_short(self, language: str) -> bool:
        return 0 < self.text_length < len(TEXTS[language])

    def _tail(self, language: str, settings_id: int) -> str:
        tail = f" ({language}-{settings_id})"
        missing = self.text_length - len(TEXTS[language]) - len(tail)
        return tail if missing <= 0 else tail + (_FILLER * (missing // len(_FILLER) + 1))[:missing]


def _values(id_: int) -> tuple[int, str, str, str]:
    # The amount is a JSON number that ends in a nought, which has to arrive as it was written.
    return 700_000 + id_, f"{id_ % 997}.{id_ % 10}0", f"Linden & Söhne {id_ % 37}", f"X{id_:07d}"


def customer_of(id_: int) -> int:
    """The customer of a message."""
    return id_ * 7 % CUSTOMERS + 1


def customer_record(customer_id: int) -> dict[str, Any]:
    """A customer as the directory has it; every tenth has no name."""
    return {
        "id": customer_id,
        "name": None if customer_id % 10 == 0 else f"Jānis Ozols {customer_id}",
        "language": LANGUAGES[customer_id % 2],
        "phone": f"+3712{customer_id:07d}",
    }


def write_customers(path: Path) -> None:
    """Write the directory as JSON Lines."""
    records = (customer_record(customer_id) for customer_id in range(1, CUSTOMERS + 1))
    lines = [
        json.dumps({key: value for key, value in record.items() if value is not None}) + "\n"
        for record in records
    ]
    path.write_text("".join(lines), encoding="utf-8")
