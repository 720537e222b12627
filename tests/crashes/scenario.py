"""What there is to do for a worker that will be killed: one message of every fate, or many of them."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from deliveryd.states import State
from support.configurations import FILES, SMS_GATEWAY

NO_SUCH_SETTINGS = 404


class Fate(Enum):
    """What becomes of a message: the statuses that the service hears, and the state at the end."""

    PLAIN = "sent at once"
    BUSY = "sent after its provider was busy twice"
    FALLBACK = "refused by one provider, sent by the next"
    REPORTED = "sent, and reported as delivered"
    HELD = "sent, with an answer that is lost on a channel that holds it in doubt"
    UNHEARD = "sent, and the service refuses to hear it"
    REFUSED = "refused by its only provider"
    EXPIRED = "too late"
    UNSETTLED = "without settings"
    MALFORMED = "no message at all"
    STAYS = "sent, not confirmed in time, and no later channel has content for it"
    UNCONFIRMED = "sent, not confirmed in time, and sent by the next channel as well"
    STOPPED = "to somebody who stopped the first channel, sent by the next one"
    MOVED = "sent by the one provider of three that works"
    PROBED = "the same, when it is known already which of them are down"
    DOWN = "sent by the next channel, since the only provider of the first is down"


class Due(NamedTuple):
    """What must be true in the end."""

    statuses: tuple[str, ...]
    states: frozenset[State]
    channels: tuple[str, ...] = ()
    """The channels that are asked, in this order."""


SENT = frozenset({State.SENT})
HELD_ELSEWHERE = SENT | {State.IN_DOUBT}
"""A try that was begun at a provider that is down is held in doubt after a crash, though it never left."""

FAILED = frozenset({State.FAILED})

DUE: Mapping[Fate, Due] = {
    Fate.PLAIN: Due(("dequeued", "sent"), SENT, ("sms",)),
    Fate.BUSY: Due(("dequeued", "sent"), SENT, ("sms",)),
    Fate.FALLBACK: Due(("dequeued", "sent"), SENT, ("sms", "email")),
    Fate.REPORTED: Due(("dequeued", "sent", "delivered"), SENT | {State.DELIVERED}, ("inApp",)),
    Fate.HELD: Due(("dequeued", "sent"), SENT | {State.IN_DOUBT}, ("messenger",)),
    Fate.UNHEARD: Due(("dequeued",), SENT, ("sms",)),
    Fate.REFUSED: Due(("dequeued", "error"), FAILED, ("sms",)),
    Fate.EXPIRED: Due(("dequeued", "error"), FAILED),
    Fate.UNSETTLED: Due(("dequeued", "error"), FAILED),
    Fate.MALFORMED: Due(("dequeued", "error"), FAILED),
    Fate.STAYS: Due(("dequeued", "sent"), SENT, ("inApp",)),
    Fate.UNCONFIRMED: Due(("dequeued", "sent", "sent"), SENT, ("inApp", "email")),
    Fate.STOPPED: Due(("dequeued", "sent"), SENT, ("sms", "email")),
    Fate.MOVED: Due(("dequeued", "sent"), HELD_ELSEWHERE, ("sms",)),
    Fate.PROBED: Due(("dequeued", "sent"), HELD_ELSEWHERE, ("sms",)),
    Fate.DOWN: Due(("dequeued", "sent"), HELD_ELSEWHERE, ("sms",)),
}

_SETTINGS = {
    Fate.FALLBACK: 5,
    Fate.REPORTED: 3,
    Fate.HELD: 4,
    Fate.EXPIRED: 2,
    Fate.UNSETTLED: NO_SUCH_SETTINGS,
    Fate.STAYS: 3,
    Fate.UNCONFIRMED: 6,
    Fate.STOPPED: 5,
    Fate.MOVED: 5,
}
_NUMBERS = {
    Fate.BUSY: "+15550101",
    Fate.FALLBACK: "+15550100",
    Fate.REFUSED: "+15550100",
    Fate.STOPPED: "+15550105",
}
_FIELDS = {Fate.MOVED: "token", Fate.PROBED: "token", Fate.DOWN: "pager"}
"""What only customers of these fates have, so that the channels `push` and `pager` reach nobody else."""

SETTINGS: Mapping[int, Mapping[str, Any]] = {
    1: {"content": {"en": {"sms": {"text": "hello {customer.name} {word}"}}}},
    2: {"delivery": {"expiresAt": "2020-01-01T00:00:00Z"}, "content": {"en": {"sms": {"text": "{word}"}}}},
    3: {"content": {"en": {"inApp": {"name": "n {word}", "description": "d"}}}},
    4: {"content": {"en": {"messenger": {"text": "m {word}"}}}},
    5: {"content": {"en": {"sms": {"text": "s"}, "email": {"subject": "s {word}", "body": "b"}}}},
    6: {
        "content": {
            "en": {"inApp": {"name": "n", "description": "d"}, "email": {"subject": "s", "body": "b"}}
        }
    },
}

_PUSH = """\
[channels.push.providers.{name}]
adapter = "http"
url = "{url}"
json.to = "{{{{customer.token}}}}"
json.text = "{{{{content.text}}}}"
json.reference = "{{{{message.id}}}}"
weight = {weight}
timeout = "{{timeout}}"
on_in_doubt = "hold"
breaker = {{{{ failures = 1, pause = "10ms", max_pause = "20ms" }}}}
"""
CONFIG = (
    """
[service]
base_url = "{base_url}"
timeout = "{timeout}"
[queue]
batch_size = {batch_size}
poll_interval = "10ms"
max_poll_interval = "30ms"
[events]
batch_size = 16
flush_interval = "5ms"
"""
    + FILES
    + """\
reserve = "1MiB"
[admin]
listen = ""
[receipts]
listen = "127.0.0.1:{receipts_port}"
[log]
level = "warning"
format = "json"
[channels]
order = ["push", "pager", "sms", "inApp", "messenger", "email"]
[channels.push]
block = "sms"
"""
    + _PUSH.format(name="closed", url="http://127.0.0.1:1/", weight=1)
    + _PUSH.format(name="wrong", url="{base_url}/queue", weight=1)
    + _PUSH.format(name="good", url="{base_url}/sms", weight=0)
    + """\
[channels.pager]
block = "sms"
unavailable_after = "50ms"
adapter = "http"
url = "http://127.0.0.1:1/"
json = {{ to = "{{customer.pager}}", text = "{{content.text}}" }}
timeout = "{timeout}"
on_in_doubt = "hold"
breaker = {{ failures = 1, pause = "10ms", max_pause = "20ms" }}
"""
    + SMS_GATEWAY
    + """\
timeout = "{timeout}"
retry = {{ attempts = 9, base = "5ms", max = "20ms" }}
[[channels.sms.answers]]
status = ["4xx"]
where = [{{ at = "/error", matches = "opted out" }}]
verdict = "stopped"
[channels.inApp]
receipt_deadline = "50ms"
adapter = "http"
url = "{base_url}/inApp"
json = {{ to = "{{customer.device}}", name = "{{content.name}}", reference = "{{message.id}}" }}
provider_id = "/id"
timeout = "{timeout}"
retry = {{ attempts = 9, base = "5ms", max = "20ms" }}
[channels.inApp.receipt]
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
reported_at = "/at"
[channels.messenger]
adapter = "http"
url = "{base_url}/messenger"
json = {{ to = "{{customer.device}}", text = "{{content.text}}", reference = "{{message.id}}" }}
provider_id = "/id"
lookup.url = "{base_url}/who?key={{message.key}}"
lookup.after = "0s"
lookup.answers = [{{ status = [200], verdict = "taken" }}]
on_in_doubt = "hold"
timeout = "{timeout}"
retry = {{ attempts = 9, base = "5ms", max = "20ms" }}
[channels.email]
adapter = "smtp"
host = "127.0.0.1"
port = {smtp_port}
tls = "none"
sender = "club@example.com"
timeout = "{timeout}"
retry = {{ attempts = 9, base = "5ms", max = "20ms" }}
"""
)


class Scenario(NamedTuple):
    """Messages by their fates, and how the worker is configured."""

    fates: Mapping[int, Fate]
    batch_size: int = 6
    timeout: str = "2s"
    lossy: int = 0
    """Seed of where answers of the service and of providers are lost; 0: nowhere."""

    def elements(self) -> list[str]:
        """The queue's elements as texts; the first message stands in it twice."""
        texts = [element(id_, fate) for id_, fate in self.fates.items()]
        return [*texts[: len(texts) // 2], *texts[:1], *texts[len(texts) // 2 :]]

    def expected(self) -> int:
        """How many different events the service accepts when everything has been done."""
        return sum(len(DUE[fate].statuses) for fate in self.fates.values())

    def customers(self) -> str:
        """The customer file."""
        return "".join(json.dumps(_customer(id_, fate)) + "\n" for id_, fate in self.fates.items())

    def ids_of(self, fate: Fate) -> list[int]:
        """The messages that have this fate."""
        return [id_ for id_, each in self.fates.items() if each is fate]

    def prepare(self, folder: Path, **places: object) -> None:
        """Write the files that a worker needs."""
        text = CONFIG.format(batch_size=self.batch_size, timeout=self.timeout, **places)
        folder.joinpath("config.toml").write_text(text, encoding="utf-8")
        folder.joinpath("customers.jsonl").write_text(self.customers(), encoding="utf-8")


def element(id_: int, fate: Fate) -> str:
    """A message as the queue has it; its text holds what is broken off badly: characters of many bytes."""
    if fate is Fate.MALFORMED:
        return json.dumps({"id": id_, "settingsId": "none", "customerId": id_, "variables": {}})
    variables = {"word": f"w\u00f6rd \u20ac{id_}"}
    message = {"id": id_, "settingsId": _SETTINGS.get(fate, 1), "customerId": id_, "variables": variables}
    return json.dumps(message, ensure_ascii=False)


def _customer(id_: int, fate: Fate) -> dict[str, object]:
    phone = _NUMBERS.get(fate, f"+4470{id_:06}")
    is_reported = fate not in (Fate.STAYS, Fate.UNCONFIRMED)
    device = f"{'d' if is_reported else 'failed'}{id_}"  # by a word that means nothing
    field = {_FIELDS[fate]: phone} if fate in _FIELDS else {}
    return {
        "id": id_, "name": f"N{id_}", "phone": phone, "email": f"a{id_}@example.com", "device": device,
        **field,
    }  # fmt: skip


def one_of_each() -> Scenario:
    """A message of every fate, and a few more plain ones."""
    fates = [Fate.PLAIN, *Fate, Fate.PLAIN, Fate.PLAIN]
    return Scenario(dict(enumerate(fates, start=1)))


def plain(count: int, *, timeout: str = "2s") -> Scenario:
    """So many messages that are sent at once."""
    return Scenario(dict.fromkeys(range(1, count + 1), Fate.PLAIN), timeout=timeout)


def many(count: int, seed: int) -> Scenario:
    """So many messages of mixed fates, among lost answers."""
    draw = random.Random(seed)
    weights = [20 if fate is Fate.PLAIN else 1 for fate in Fate]
    fates = draw.choices(list(Fate), weights, k=count)
    batch_size = draw.choice((3, 10, 40))
    return Scenario(dict(enumerate(fates, start=1)), batch_size, lossy=draw.randrange(1, 1 << 30))
