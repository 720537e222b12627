"""The JSON of a status event, as the outbox stores it and the service receives it."""

from __future__ import annotations

from deliveryd.journal.rows import to_json
from deliveryd.model import StatusEvent, format_instant


class EventWriter:
    """Writes status events as the JSON that is posted to the service (interface 6)."""

    def __init__(self, details_field: str) -> None:
        self._details_field = details_field

    def write(self, event: StatusEvent) -> str:
        """Return an event as JSON. The timestamp is always at the same place, where SQL reads it."""
        message_id, status, timestamp, channel, reported_at, details, told_as = event
        if told_as is not None:
            message_id = told_as
        if channel is None and reported_at is None and details is None:  # nearly every event
            at = format_instant(timestamp)
            return f'{{"timestamp":"{at}","messageId":{message_id},"status":"{status}"}}'
        body: dict[str, object] = {
            "timestamp": format_instant(timestamp),
            "messageId": message_id,
            "status": status,
        }
        if channel is not None:
            body["channel"] = channel
        if reported_at is not None:
            body["reportedAt"] = format_instant(reported_at)
        if details is not None:
            body[self._details_field] = details
        return to_json(body)
