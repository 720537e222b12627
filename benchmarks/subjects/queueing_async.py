"""What the asyncio task queues have in common: an aiohttp session, templates and buffered events."""

from __future__ import annotations

import asyncio
from typing import Self

import aiohttp
from queueing import BASE_URL, EVENTS, FOLDER, PAUSE
from templates import Json, Templates, event, parse, read_customers


class AsyncSender:
    """Sends messages and reports them, for a whole worker process."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            BASE_URL,
            connector=aiohttp.TCPConnector(limit=100),
            cookie_jar=aiohttp.DummyCookieJar(),
            raise_for_status=True,
        )
        self._templates = Templates(read_customers(FOLDER))
        self._events: list[Json] = []

    @classmethod
    async def open(cls) -> Self:
        """Open a session, and report in the background."""
        sender = cls()
        sender._reporting = asyncio.create_task(sender._post_forever())
        return sender

    async def close(self) -> None:
        """Close the session."""
        self._reporting.cancel()
        await self._session.close()

    async def send(self, message: Json) -> None:
        """Fetch the settings where they aren't known, send the message, report it as sent."""
        for settings_id in self._templates.unknown([message]):
            async with self._session.get(f"/settings/{settings_id}") as answer:
                self._templates.add(settings_id, parse(await answer.read()))
        headers = {"Idempotency-Key": f"task-{message['id']}"}
        async with self._session.post(
            "/sms", json=self._templates.request(message), headers=headers
        ) as answer:
            _ = (await answer.json())["id"]
        self._events.append(event(message["id"], "sent"))
        if len(self._events) >= EVENTS:
            await self._post()

    async def _post_forever(self) -> None:
        while True:
            await asyncio.sleep(PAUSE)
            await self._post()

    async def _post(self) -> None:
        events, self._events = self._events, []
        if events:
            async with self._session.post("/events", json=events):
                pass
