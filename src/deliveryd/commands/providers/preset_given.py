"""What a case is given, opened: the provider that a preset makes, and the message to send."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from deliveryd.channels.base import Dispatch
from deliveryd.channels.options import ProviderTable
from deliveryd.channels.presets.catalogue import Preset
from deliveryd.channels.presets.table import expand
from deliveryd.commands.providers.preset_cases import CaseBody, CaseFile, Given, RequestCase
from deliveryd.errors import DeliverydError
from deliveryd.model import Customer, Entry, Rendered

USUAL_INSTANT = datetime(2026, 11, 21, 18, 40, tzinfo=UTC)
KEY = "m-12-1"
MESSAGE: Mapping[str, Any] = {"id": 12, "customerId": 7, "settingsId": 3, "key": KEY}


class StillClock:
    """A clock that stands at one instant."""

    def __init__(self, at: datetime) -> None:
        self._now = micros(at)

    def now(self) -> int:
        """Return the instant, in microseconds."""
        return self._now


def micros(at: datetime) -> int:
    """Return an instant in microseconds; without a zone it is UTC."""
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1_000_000)


def merged(shared: Given, own: Given) -> Given:
    """Override the parts of `shared`: keys, secrets, table and message one by one, the others as a whole."""
    return Given(
        block=own.block or shared.block,
        keys={**shared.keys, **own.keys},
        secrets={**shared.secrets, **own.secrets},
        table={**shared.table, **own.table},
        at=own.at or shared.at,
        message={**shared.message, **own.message},
        customer=own.customer or shared.customer,
        content=own.content or shared.content,
        variables=own.variables or shared.variables,
    )


def block_of(preset: Preset, given: Given) -> str:
    """Return the block that a case sends: its own, or the first of the preset."""
    return given.block or preset.file.channels[0]


def operator_table(preset: Preset, given: Given, folder: Path, origin: str) -> dict[str, Any]:
    """Return what an operator would write: the keys, and secrets in files; the API is at `origin`."""
    secrets = {name: _secret_files(folder, name, values) for name, values in given.secrets.items()}
    base = preset.file.keys.get("base_url")
    own = {} if base is None else {"base_url": origin + urlsplit(str(base.default or base.example)).path}
    return {**given.table, **own, **given.keys, **({"secrets": secrets} if secrets else {})}


def _secret_files(folder: Path, name: str, values: Sequence[str]) -> str | list[str]:
    paths = []
    for index, value in enumerate(values):
        path = folder / f"{name}-{index}"
        path.touch(mode=0o600)
        path.write_text(value, encoding="utf-8")
        paths.append(str(path))
    return paths[0] if len(paths) == 1 else paths


def expanded(preset: Preset, given: Given, folder: Path, origin: str) -> dict[str, Any]:
    """Return the table that the preset makes. Raises DeliverydError with the mistakes in `given`."""
    secrets = preset.file.secrets.items()
    missing = [
        f"given.secrets.{name} is missing: its value ({secret.description})"
        for name, secret in secrets
        if secret.required and name not in given.secrets
    ]
    if missing:
        raise DeliverydError("; ".join(missing))
    table = operator_table(preset, given, folder, origin)
    made = expand(preset.file, table, block_of(preset, given), ProviderTable.model_fields)
    if made.problems:
        raise DeliverydError("; ".join(f"given: {key} {text}" for key, text in made.problems))
    return made.table


def dispatch_of(preset: Preset, given: Given) -> Dispatch:
    """Return the attempt to send the message of a case."""
    message = {**MESSAGE, **given.message}
    unknown = set(message) - {*MESSAGE, "expiresAt"}
    if unknown:
        raise DeliverydError(f"given.message: there is no {', '.join(sorted(unknown))}")
    at = given.at or USUAL_INSTANT
    entry = Entry(
        message["id"], message["settingsId"], message["customerId"], given.variables, number=1,
        begun_at=micros(at),
    )  # fmt: skip
    expires_at = micros(message["expiresAt"]) if "expiresAt" in message else None
    return Dispatch(
        message["key"],
        entry,
        Customer(message["customerId"], given.customer),
        Rendered(block_of(preset, given), "en", given.content),
        expires_at,
        StillClock(at),
    )


def parts(case: RequestCase) -> Given:
    """Return what a request case is given, without what it expects."""
    return Given(**{name: getattr(case, name) for name in Given.model_fields})


def of_first_request(file: CaseFile, own: Given) -> Given:
    """Return what a case is given that concerns the message of the first request."""
    first = merged(file.given, parts(file.request[0])) if file.request else file.given
    return merged(first, own)


def written_body(body: CaseBody) -> tuple[bytes, str | None]:
    """Return the bytes of a body, and its content type if the case doesn't have to name one."""
    if body.json_body is not None:
        return json.dumps(body.json_body, ensure_ascii=False).encode(), "application/json"
    if body.form is not None:
        return urlencode(body.form, doseq=True).encode(), "application/x-www-form-urlencoded"
    if body.body_base64 is not None:
        return base64.b64decode(body.body_base64), None
    return (body.body or "").encode(), None
