"""One client for every endpoint of the remote service (interface 4).

It distinguishes the service's answers from those of something else in its place, such as a proxy or a
portal. All bodies of the service are JSON, so a page or any other text isn't its answer. Nothing may be sent
with an error, and in answer to events.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

from deliveryd.errors import (
    AnswerTooLarge,
    BrokenOff,
    OutcomeUnknown,
    ServiceRefused,
    ServiceUnavailable,
)
from deliveryd.http.client import HttpClient
from deliveryd.http.responses import is_page
from deliveryd.http.target import target_of
from deliveryd.http.wire import WireResponse
from deliveryd.model import Settings
from deliveryd.runtime.threads import Aside
from deliveryd.service.array_text import BYTE_ORDER_MARK
from deliveryd.service.batch import LARGEST_BATCH, Batch, read_batch
from deliveryd.service.caller import Caller, Ready, Sleep, below
from deliveryd.service.configuration_access import ConfigurationAccess
from deliveryd.service.wire import GROUPS, LARGEST_SETTINGS, MOST_PAGES, read_settings, settings_too_large

if TYPE_CHECKING:
    from deliveryd.service.customer_area import CustomerArea, CustomerData, CustomerDataBody, Merchant

_JSON = re.compile(rb"[ \t\r\n]*+(?:[{\[\"]|(?:null|true|false|-?\d[\d.eE+-]*+)[ \t\r\n]*+\Z)")

NO_SETTINGS = frozenset({400, 404, 410, 422})
"""Statuses that mean that there are no such settings; any other refusal concerns the request."""


class ServiceClient:
    """The client of the service at `base_url`. Every call except `take` retries transient errors.

    All calls raise ServiceUnavailable (try later), ServiceRefused (the request itself is wrong) or
    ServiceUnreadable (the answer isn't what the interface describes). `async with` closes it.
    """

    def __init__(
        self,
        http: HttpClient,
        base_url: str,
        *,
        configurations: ConfigurationAccess | None = None,
        sleep: Sleep = anyio.sleep,
    ) -> None:
        access = configurations or ConfigurationAccess()
        self._base = target_of(base_url)
        self._service = Caller(http, "the service", sleep)
        self._aside = Aside()
        self._elsewhere = None if access.elsewhere is None else Caller(access.elsewhere, "the host", sleep)
        self._access = access

    async def take(self, count: int, ready: Ready | None = None) -> Batch:
        """Take up to `count` messages from the queue (interface 4.1).

        The service may deliver each message only once, so the request isn't repeated once it was sent. If the
        answer is incomplete or unreadable, the batch is what could be read of it, with the fault. Something
        else than the service, which answers with a page, hands out no batch.
        """
        try:
            queue = below(self._base, f"/queue?take={count}")
            answer = await self._service.get_once(queue, ready, max_body=LARGEST_BATCH)
        except BrokenOff as error:
            _check_no_page(WireResponse(error.status, {}, error.body))
            return await read_batch(self._aside, error.body, count, ServiceUnavailable(str(error)))
        except OutcomeUnknown as error:
            return Batch([], [], ServiceUnavailable(str(error)))
        _check_no_page(answer)
        return await read_batch(self._aside, answer.body, count)

    async def report(self, bodies: Sequence[str], ready: Ready | None = None) -> None:
        """Report status events, each given as its JSON text (interface 4.2)."""
        body = f"[{','.join(bodies)}]".encode()
        _check_no_page(await self._service.call("POST", below(self._base, "/events"), body=body, ready=ready))

    async def fetch_settings(self, settings_id: int) -> bytes:
        """Return settings as sent by the service (interface 4.3); `parse_settings` parses them.

        Raises ServiceRefused, with a status of NO_SETTINGS, only if the service itself seems to answer that
        it has none.
        """
        path = below(self._base, f"/settings/{settings_id}")
        try:
            answer = await self._service.call("GET", path, also=NO_SETTINGS, max_body=LARGEST_SETTINGS)
        except AnswerTooLarge as error:
            if error.beginning:
                _check_json(WireResponse(error.answered, {}, error.beginning))
            raise settings_too_large(settings_id) from None
        if answer.status in NO_SETTINGS:
            _check_refusal(answer)
            raise ServiceRefused(f"the service answered {answer.status}", answer.status)
        _check_json(answer)
        return answer.body

    @staticmethod
    def parse_settings(settings_id: int, body: bytes) -> Settings:
        """Parse the result of `fetch_settings`, fresh or cached. Raises ServiceUnreadable."""
        return read_settings(settings_id, body)

    async def look(self, path: str) -> WireResponse:
        """Return the answer to a GET below the service's address, whatever its status. Raises WireError."""
        return await self._service.ask(below(self._base, path))

    def customer_data(
        self,
        customer_id: int,
        include: Collection[str] = GROUPS,
        *,
        language: str | None = None,
        most_pages: int = MOST_PAGES,
    ) -> CustomerData:
        """Return the groups of `include` by name, each an async iterator of entities (interface 2.4, 4.4).

        Raises ValueError for an unknown group. The iterators raise the same errors as calls.
        """
        return self._customers.data(customer_id, include, language, most_pages)

    async def customer_page(
        self,
        customer_id: int,
        include: Collection[str] = GROUPS,
        *,
        tokens: Mapping[str, str] | None = None,
        language: str | None = None,
    ) -> CustomerDataBody:
        """Return one page of each group of `include` (interface 4.4); `tokens` continue after a page.

        Raises ValueError for an unknown group.
        """
        return await self._customers.page(customer_id, include, tokens or {}, language)

    async def entity(self, config_url: str) -> Merchant | Mapping[str, Any]:
        """Return the configuration of an entity (interface 4.5): a merchant typed (2.5), others as JSON.

        Concurrent calls share one request; the result is cached as its host and the configuration allow.
        Raises ServiceRefused for an address that isn't allowed.
        """
        return await self._customers.entity(config_url)

    async def configuration(self, config_url: str) -> Mapping[str, Any]:
        """Return any entity's configuration as sent by its host: the answer's `value` (interface 4.5)."""
        return await self._customers.configuration(config_url)

    @cached_property
    def _customers(self) -> CustomerArea:
        from deliveryd.service.customer_area import CustomerArea  # noqa: PLC0415  # the worker never reads it

        return CustomerArea(self._base, self._service, self._elsewhere, self._access)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._elsewhere is not None:
            await self._elsewhere.aclose()
        await self._service.aclose()
        if self._access.cache is not None:
            await self._access.cache.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _begins_as_json(body: bytes) -> bool:
    """Whether a body is JSON, or was meant to be."""
    return _JSON.match(body.removeprefix(BYTE_ORDER_MARK)) is not None


def _check_json(answer: WireResponse) -> None:
    """Raise ServiceUnavailable if an answer that must be JSON isn't the service's."""
    if not _begins_as_json(answer.body):
        raise _in_its_place(answer)


def _check_refusal(answer: WireResponse) -> None:
    """Raise ServiceUnavailable if an error, which may have no body, isn't the service's."""
    if answer.body.strip():
        _check_json(answer)


def _check_no_page(answer: WireResponse) -> None:
    """Raise ServiceUnavailable if an answer, whose body may be anything else, is a page."""
    if is_page(answer.body):
        raise _in_its_place(answer)


def _in_its_place(answer: WireResponse) -> ServiceUnavailable:
    what = "a page" if is_page(answer.body) else "a text" if answer.body.strip() else "nothing"
    reason = f"something else seems to answer for the service: {answer.status} with {what} instead of JSON"
    return ServiceUnavailable(reason, status=answer.status)
