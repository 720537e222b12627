"""Answers and reports as data: texts and structures with placeholders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlencode

Values = Mapping[str, str | int]

_PLACEHOLDER = re.compile(r"\{([a-z]+(?:\.[a-z]+)?)\}")


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer or a report; strings in `headers`, `query` and the body have placeholders such as {id}."""

    status: int = 200
    method: Literal["POST", "GET"] = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    replace: Mapping[str, str] = field(default_factory=dict)
    json_body: Any = None
    form: Mapping[str, str] | None = None
    body: str = ""

    def written(self, values: Values) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body with these values."""
        headers = {name.lower(): str(fill(text, values)) for name, text in self.headers.items()}
        if self.json_body is not None:
            headers.setdefault("content-type", "application/json")
            return headers, json.dumps(fill(self.json_body, values), separators=(",", ":")).encode()
        if self.form is not None:
            headers.setdefault("content-type", "application/x-www-form-urlencoded")
            return headers, urlencode(fill(dict(self.form), values)).encode()
        headers.setdefault("content-type", "text/plain; charset=utf-8")
        return headers, str(fill(self.body, values)).encode()


def fill(value: Any, values: Values) -> Any:
    """Fill the placeholders in a parsed value; a string that is exactly one keeps the value's type."""
    if isinstance(value, str):
        if (whole := _PLACEHOLDER.fullmatch(value)) and whole[1] in values:
            return values[whole[1]]
        return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), value)
    if isinstance(value, Mapping):
        return {name: fill(each, values) for name, each in value.items()}
    if isinstance(value, list):
        return [fill(each, values) for each in value]
    return value
