"""One client for every endpoint of the remote service (interface 4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import anyio

from deliveryd.errors import BrokenOff, OutcomeUnknown, ServiceRefused, ServiceUnavailable, ServiceUnreadable
from deliveryd.http.client import HttpClient, target_of
from deliveryd.http.wire import Target, WireResponse
from deliveryd.model import Settings
from deliveryd.runtime.disk_cache import DiskCache
from deliveryd.service.auth import AuthOptions
from deliveryd.service.batch import LARGEST_BATCH, Batch, read_batch
from deliveryd.service.caller import Caller, Sleep
from deliveryd.service.configurations import NOT_MODIFIED, Configurations
from deliveryd.service.customer_data import MOST_PAGES, CustomerData, check_groups
from deliveryd.service.hosts import OWN_HOST, REFUSED, AllowedHosts, HostRules, LookUp, NameServers
from deliveryd.service.merchant import Merchant, is_merchant, read_merchant
from deliveryd.service.own_paths import OwnPaths
from deliveryd.service.wire import (
    GROUPS,
    CustomerDataBody,
    read_customer_data,
    read_groups,
    read_settings,
)

LARGEST_CONFIGURATION = 1 << 20
PAGE_KEPT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ConfigurationAccess:
    """Fetching of entity configurations: allowed hosts, size limit and cache.

    `elsewhere` calls hosts other than the service's own (None: not allowed); it must not send a client
    certificate, and has its own size limit. `max_size` limits the answers of the service's own host, in
    bytes. `ttl` is the lifetime of a copy in seconds, if its host sets none. `look_up` resolves other hosts;
    None: a proxy resolves and checks them. The client closes all of these.
    """

    rules: HostRules = OWN_HOST
    elsewhere: HttpClient | None = None
    cache: DiskCache | None = None
    ttl: float = PAGE_KEPT_SECONDS
    max_size: int = LARGEST_CONFIGURATION
    look_up: LookUp | None = field(default_factory=NameServers)


class ServiceClient:
    """The client of the service at `base_url`. Every call except `take` retries transient errors.

    All calls raise ServiceUnavailable (try later), ServiceRefused (the request itself is wrong) or
    ServiceUnreadable (the answer isn't what the interface describes). `async with` closes it.
    """

    def __init__(
        self,
        http: HttpClient,
        base_url: str,
        auth: AuthOptions | None = None,
        *,
        configurations: ConfigurationAccess | None = None,
        sleep: Sleep = anyio.sleep,
    ) -> None:
        access = configurations or ConfigurationAccess()
        auth = auth or AuthOptions()
        self._base = target_of(base_url)
        self._service = Caller(http, "the service", auth, sleep)
        self._queue = Caller(http.bounded(LARGEST_BATCH), "the service", auth, sleep)
        self._own_host = Caller(http.bounded(access.max_size), "the service", auth, sleep)
        self._elsewhere = (
            None if access.elsewhere is None else Caller(access.elsewhere, "the host", AuthOptions(), sleep)
        )
        self._hosts = AllowedHosts(self._base, access.rules, access.look_up)
        self._own_paths = OwnPaths(self._base)
        self._configurations = Configurations(self._ask_for_configuration, access.ttl, access.cache)

    async def take(self, count: int) -> Batch:
        """Take up to `count` messages from the queue (interface 4.1).

        The service may deliver each message only once, so the request isn't repeated once it was sent. If the
        answer is incomplete or unreadable, the batch is what could be read of it, with the fault.
        """
        try:
            answer = await self._queue.get_once(self._below(f"/queue?take={count}"))
        except BrokenOff as error:
            return await read_batch(error.body, count, ServiceUnavailable(str(error)))
        except OutcomeUnknown as error:
            return Batch([], [], ServiceUnavailable(str(error)))
        return await read_batch(answer.body, count)

    async def report(self, bodies: Sequence[str]) -> None:
        """Report status events, each given as its JSON text (interface 4.2)."""
        await self._call("POST", "/events", f"[{','.join(bodies)}]".encode())

    async def fetch_settings(self, settings_id: int) -> bytes:
        """Return settings as sent by the service (interface 4.3); `parse_settings` parses them."""
        answer = await self._call("GET", f"/settings/{settings_id}")
        return answer.body

    @staticmethod
    def parse_settings(settings_id: int, body: bytes) -> Settings:
        """Parse the result of `fetch_settings`, fresh or cached. Raises ServiceUnreadable."""
        return read_settings(settings_id, body)

    async def look(self, path: str) -> WireResponse:
        """Return the answer to a GET below the service's address, whatever its status. Raises WireError."""
        return await self._service.ask(self._below(path))

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

        async def fetch(groups: Collection[str], tokens: Mapping[str, str]) -> Mapping[str, Any]:
            return read_groups(await self._customer_page(customer_id, groups, tokens, language))

        return CustomerData(fetch, include, most_pages)

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
        check_groups([*include, *(tokens or {})])
        return read_customer_data(await self._customer_page(customer_id, include, tokens or {}, language))

    async def entity(self, config_url: str) -> Merchant | Mapping[str, Any]:
        """Return the configuration of an entity (interface 4.5): a merchant typed (2.5), others as JSON.

        Concurrent calls share one request; the result is cached as its host and the configuration allow.
        Raises ServiceRefused for an address that isn't allowed.
        """
        value = await self.configuration(config_url)
        return read_merchant(value) if is_merchant(target_of(config_url).path) else value

    async def configuration(self, config_url: str) -> Mapping[str, Any]:
        """Return any entity's configuration as sent by its host: the answer's `value` (interface 4.5)."""
        target = _target(config_url)
        self._hosts.check(target)
        self._own_paths.check(config_url, target)
        return await self._configurations.get(config_url)

    async def _ask_for_configuration(self, config_url: str, tag: str | None) -> WireResponse:
        target = _target(config_url)
        headers = [("if-none-match", tag)] if tag is not None else []
        also = [NOT_MODIFIED] if tag is not None else []
        if self._hosts.is_own(target):
            return await self._own_host.call("GET", target, headers=headers, also=also)
        if self._elsewhere is None:
            raise ServiceRefused("configurations of other hosts than the service's aren't fetched", REFUSED)
        addresses = await self._hosts.addresses(target)
        return await self._elsewhere.call("GET", target, headers=headers, also=also, addresses=addresses)

    async def _customer_page(
        self, customer_id: int, include: Collection[str], tokens: Mapping[str, str], language: str | None
    ) -> bytes:
        asked = {*include, *tokens}
        query = [(f"{group}.include", "true") for group in GROUPS if group in asked]
        query += [(f"{group}.continuationToken", token) for group, token in tokens.items()]
        if language is not None:
            query.append(("language", language))
        answer = await self._call("GET", f"/customers/{customer_id}/all?{urlencode(query, quote_via=quote)}")
        return answer.body

    async def _call(self, method: str, path: str, body: bytes = b"") -> WireResponse:
        return await self._service.call(method, self._below(path), body=body)

    def _below(self, path: str) -> Target:
        return self._base._replace(path=self._base.path.rstrip(b"/") + path.encode("ascii"))

    async def aclose(self) -> None:
        """Close all connections."""
        if self._elsewhere is not None:
            await self._elsewhere.aclose()
        await self._service.aclose()
        await self._configurations.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _target(config_url: str) -> Target:
    try:
        return target_of(config_url)
    except ValueError:
        raise ServiceUnreadable("the configuration's address is invalid") from None
