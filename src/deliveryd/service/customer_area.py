"""The customer data area: a customer's data and the configurations that it names (interface 4.4, 4.5).

Only commands and programs that read customers load it; the worker doesn't.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from deliveryd.errors import ServiceRefused, ServiceUnreadable
from deliveryd.http.target import target_of
from deliveryd.http.wire import Target, WireResponse
from deliveryd.service.caller import Caller, below
from deliveryd.service.configuration_access import ConfigurationAccess
from deliveryd.service.configurations import NOT_MODIFIED, Configurations
from deliveryd.service.customer_data import CustomerData, check_groups
from deliveryd.service.customer_wire import CustomerDataBody, read_customer_data, read_groups
from deliveryd.service.hosts import REFUSED, AllowedHosts
from deliveryd.service.merchant import Merchant, is_merchant, read_merchant
from deliveryd.service.own_paths import OwnPaths
from deliveryd.service.wire import GROUPS


class CustomerArea:
    """Reads the customer data area of the service at `base`.

    `own_host` calls the service's own host for configurations, `elsewhere` other hosts (None: not allowed).
    """

    def __init__(
        self,
        base: Target,
        service: Caller,
        own_host: Caller,
        elsewhere: Caller | None,
        access: ConfigurationAccess,
    ) -> None:
        self._base = base
        self._service = service
        self._own_host = own_host
        self._elsewhere = elsewhere
        self._hosts = AllowedHosts(base, access.rules, access.look_up)
        self._own_paths = OwnPaths(base)
        self._configurations = Configurations(self._ask_for_configuration, access.ttl, access.cache)

    def data(
        self, customer_id: int, include: Collection[str], language: str | None, most_pages: int
    ) -> CustomerData:
        """Return groups by name; no request is made before one is read. Raises ValueError."""

        async def fetch(groups: Collection[str], tokens: Mapping[str, str]) -> Mapping[str, Any]:
            return read_groups(await self._page(customer_id, groups, tokens, language))

        return CustomerData(fetch, include, most_pages)

    async def page(
        self, customer_id: int, include: Collection[str], tokens: Mapping[str, str], language: str | None
    ) -> CustomerDataBody:
        """Return one page of each group. Raises ValueError for an unknown group."""
        check_groups([*include, *tokens])
        return read_customer_data(await self._page(customer_id, include, tokens, language))

    async def entity(self, config_url: str) -> Merchant | Mapping[str, Any]:
        """Return a merchant's configuration typed (interface 2.5), any other as JSON."""
        value = await self.configuration(config_url)
        return read_merchant(value) if is_merchant(target_of(config_url).path) else value

    async def configuration(self, config_url: str) -> Mapping[str, Any]:
        """Return any entity's configuration as sent by its host: the answer's `value`."""
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

    async def _page(
        self, customer_id: int, include: Collection[str], tokens: Mapping[str, str], language: str | None
    ) -> bytes:
        asked = {*include, *tokens}
        query = [(f"{group}.include", "true") for group in GROUPS if group in asked]
        query += [(f"{group}.continuationToken", token) for group, token in tokens.items()]
        if language is not None:
            query.append(("language", language))
        path = f"/customers/{customer_id}/all?{urlencode(query, quote_via=quote)}"
        answer = await self._service.call("GET", below(self._base, path))
        return answer.body


def _target(config_url: str) -> Target:
    try:
        return target_of(config_url)
    except ValueError:
        raise ServiceUnreadable("the configuration's address is invalid") from None
