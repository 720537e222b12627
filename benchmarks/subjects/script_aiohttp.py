"""What a good engineer writes in an afternoon: aiohttp on uvloop, a semaphore of 100, nothing on disk."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import uvloop
from templates import Json, Templates, event, parse, read_customers

BATCH = 500


async def main() -> None:
    """Do the work at the address and in the folder that the command names."""
    templates = Templates(read_customers(Path(sys.argv[2])))
    semaphore = asyncio.Semaphore(100)

    async def send(session: aiohttp.ClientSession, message: Json) -> Json:
        headers = {"Idempotency-Key": f"script-{message['id']}"}
        async with (
            semaphore,
            session.post("/sms", json=templates.request(message), headers=headers) as answer,
        ):
            _ = (await answer.json())["id"]
        return event(message["id"], "sent")

    async with aiohttp.ClientSession(
        sys.argv[1],
        connector=aiohttp.TCPConnector(limit=100),
        cookie_jar=aiohttp.DummyCookieJar(),
        raise_for_status=True,
    ) as session:

        async def get(path: str) -> bytes:
            async with session.get(path) as answer:
                return await answer.read()

        async def report(events: list[Json]) -> None:
            async with session.post("/events", json=events):
                pass

        while messages := parse(await get(f"/queue?take={BATCH}")):
            await report([event(message["id"], "dequeued") for message in messages])
            for settings_id in templates.unknown(messages):
                templates.add(settings_id, parse(await get(f"/settings/{settings_id}")))
            await report(await asyncio.gather(*[send(session, message) for message in messages]))


if __name__ == "__main__":
    uvloop.run(main())
