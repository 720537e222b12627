"""An asyncio script with httpx and a semaphore of 100. It keeps nothing on disk."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
from templates import Json, Templates, event, parse, read_customers

BATCH = 500


async def main() -> None:
    """Do the work at the address and in the folder that the command names."""
    templates = Templates(read_customers(Path(sys.argv[2])))
    semaphore = asyncio.Semaphore(100)

    async def send(client: httpx.AsyncClient, message: Json) -> Json:
        headers = {"Idempotency-Key": f"script-{message['id']}"}
        async with semaphore:
            answer = await client.post("/sms", json=templates.request(message), headers=headers)
        answer.raise_for_status()
        _ = answer.json()["id"]
        return event(message["id"], "sent")

    async with httpx.AsyncClient(base_url=sys.argv[1]) as client:
        while messages := parse((await client.get("/queue", params={"take": BATCH})).content):
            dequeued = [event(message["id"], "dequeued") for message in messages]
            (await client.post("/events", json=dequeued)).raise_for_status()
            for settings_id in templates.unknown(messages):
                templates.add(settings_id, (await client.get(f"/settings/{settings_id}")).json())
            sent = await asyncio.gather(*[send(client, message) for message in messages])
            (await client.post("/events", json=sent)).raise_for_status()


if __name__ == "__main__":
    asyncio.run(main())
