"""A line in virtual time with the real http adapter, whose provider is a function."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx

from deliveryd.channels.base import Channel
from deliveryd.channels.devices import DevicesChannel
from deliveryd.channels.http.adapter import HttpChannel, mapping_context, prepare_requests
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.http.request import RequestWriter
from deliveryd.channels.options import ProviderConfig
from deliveryd.config import Config
from deliveryd.http.client import HttpClient
from deliveryd.http.tls import TlsFiles
from deliveryd.journal.orders import Action, Decided, ItemKind, Order
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.runtime.secret_file import RenewedValue
from deliveryd.runtime.threads import inline
from deliveryd.worker.outside import Openers
from support.memory_wire import MemoryWire
from support.virtual import START, VirtualWorld, live

Answer = Callable[[httpx.Request], httpx.Response]


class Provider:
    """A provider behind the real http adapter. It keeps the requests that it was given."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self.answer: Answer = accept

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answer(request)

    @property
    def said(self) -> list[str]:
        return [json.loads(request.content)["text"] for request in self.requests if request.content]

    @property
    def keys(self) -> Counter[str]:
        return Counter(request.headers["Idempotency-Key"] for request in self.requests if request.content)


def accept(_request: httpx.Request) -> httpx.Response:
    return httpx.Response(200)


def busy(_request: httpx.Request) -> httpx.Response:
    return httpx.Response(503)


def cut_off(_request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("cut off")


class HttpWorld(VirtualWorld):
    """The line with the real http adapter at one provider."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.provider = Provider()

    def openers(self) -> Openers:
        return super().openers()._replace(provider=self._open_provider)

    def _open_provider(self, _config: Config, provider: ProviderConfig) -> Channel:
        options = provider.options
        assert isinstance(options, HttpChannelOptions)
        context = mapping_context(options)
        wire = MemoryWire(self.provider.handle)
        channel = HttpChannel(
            options,
            TlsFiles(),
            client=HttpClient(wire, timeout=5.0),
            prepared=RenewedValue((), lambda: prepare_requests(options, context)),
            masked=RequestWriter(options, context),
            context=context,
        )
        field = options.devices_field
        return channel if field is None else DevicesChannel(channel, field)

    def decide(self, verb: Action, *ids: int) -> Decided:
        """Have an order carried out for messages, with the journal at rest."""

        async def decide() -> None:
            async with open_journal_file(self.folder / "journal.db", blocking=inline) as journal:
                order = Order(verb, ItemKind.MESSAGE, tuple(map(str, ids)))
                found.append(await journal.decide(order, START, ["sms"]))

        found: list[Decided] = []
        live(decide)
        return found[0]
