"""A script that sends one message after the other with httpx. It keeps nothing on disk."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
from templates import Templates, event, parse, read_customers

BATCH = 500


def main() -> None:
    """Do the work at the address and in the folder that the command names."""
    templates = Templates(read_customers(Path(sys.argv[2])))
    with httpx.Client(base_url=sys.argv[1]) as client:
        while messages := parse(client.get("/queue", params={"take": BATCH}).raise_for_status().content):
            dequeued = [event(message["id"], "dequeued") for message in messages]
            client.post("/events", json=dequeued).raise_for_status()
            for settings_id in templates.unknown(messages):
                templates.add(settings_id, client.get(f"/settings/{settings_id}").raise_for_status().json())
            sent = []
            for message in messages:
                headers = {"Idempotency-Key": f"script-{message['id']}"}
                answer = client.post("/sms", json=templates.request(message), headers=headers)
                answer.raise_for_status()
                _ = answer.json()["id"]
                sent.append(event(message["id"], "sent"))
            client.post("/events", json=sent).raise_for_status()


if __name__ == "__main__":
    main()
