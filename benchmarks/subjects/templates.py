"""What every script has to do with a message before it can send it: find its text and fill it in."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PLACEHOLDER = re.compile(r"\{([\w.-]+)\}")

Json = dict[str, Any]


def parse(body: bytes | str) -> Any:
    """JSON with its fractions as they were written."""
    return json.loads(body, parse_float=str)


def read_customers(folder: Path) -> dict[int, Json]:
    """The issuer's customers by id."""
    lines = folder.joinpath("customers.jsonl").read_text(encoding="utf-8").splitlines()
    return {customer["id"]: customer for customer in map(json.loads, lines)}


def timestamp() -> str:
    """Now, as the events have it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")[:26] + "Z"


def event(message_id: int, status: str) -> Json:
    """A status event."""
    return {"timestamp": timestamp(), "messageId": message_id, "status": status}


def compiled(text: str, greetings: Json) -> tuple[str, str]:
    """A text as two format strings, for customers with a name and for those without, to fill with `%`."""
    named = text.replace("{greeting}", greetings["personal"])
    unnamed = text.replace("{greeting}", greetings["general"])
    return _as_format(named), _as_format(unnamed)


def _as_format(text: str) -> str:
    return _PLACEHOLDER.sub(r"%(\1)s", text.replace("%", "%%"))


class Templates:
    """The settings that were fetched so far, compiled once."""

    def __init__(self, customers: dict[int, Json]) -> None:
        self._customers = customers
        self._compiled: dict[tuple[int, str], tuple[str, str]] = {}
        self._known: set[int] = set()

    def unknown(self, messages: list[Json]) -> set[int]:
        """The settings ids of these messages that have yet to be fetched."""
        return {message["settingsId"] for message in messages} - self._known

    def add(self, settings_id: int, settings: Json) -> None:
        """Compile settings."""
        for language, block in settings["content"].items():
            self._compiled[settings_id, language] = compiled(block["sms"]["text"], block["greetings"])
        self._known.add(settings_id)

    def request(self, message: Json) -> Json:
        """The provider's JSON for a message."""
        customer = self._customers[message["customerId"]]
        named, unnamed = self._compiled[message["settingsId"], customer["language"]]
        name = customer.get("name")
        if name is None:
            text = unnamed % message["variables"]
        else:
            text = named % {"customer.name": name, **message["variables"]}
        return {"to": customer["phone"], "text": text, "reference": str(message["id"])}
