"""The customer data area: a customer's data and the configurations that it names (interface 4.4, 4.5).

Only commands and programs that read customers load it; the worker doesn't.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import anyio
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    field_validator,
)

from deliveryd.errors import ServiceRefused, ServiceUnreadable
from deliveryd.http.target import target_of
from deliveryd.http.wire import Target, WireResponse
from deliveryd.service import exact_json
from deliveryd.service.caller import Caller, below
from deliveryd.service.configuration_access import ConfigurationAccess
from deliveryd.service.configurations import NOT_MODIFIED, Configurations
from deliveryd.service.exact_json import integral
from deliveryd.service.hosts import REFUSED, AllowedHosts, NameServers, OwnPaths
from deliveryd.service.wire import GROUPS, MOST_PAGES, ServiceBody, problems_of

_MERCHANT = re.compile(rb"/merchants/[^/]+/[^/]+/[^/?]+/?(?:\?.*)?$")


def _number(value: object) -> object:
    return float(value) if isinstance(value, Decimal) else value


Degrees = Annotated[float, Field(strict=True), BeforeValidator(_number)]


class _MerchantPart(BaseModel):
    """Further fields are kept in `model_extra`; the interface doesn't say which are required."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)


class Location(_MerchantPart):
    """A merchant's location (interface 2.5); latitude and longitude are in degrees."""

    name: StrictStr | None = None
    lat: Degrees | None = None
    lon: Degrees | None = None
    phones: StrictStr | None = None
    address: StrictStr | None = None
    schedule: StrictStr | None = None


class Merchant(_MerchantPart):
    """A merchant, its texts in the language that the configuration's address names (interface 2.5)."""

    id: Annotated[StrictInt | None, BeforeValidator(integral)] = None
    market_name: StrictStr | None = Field(None, alias="marketName")
    legal_name: StrictStr | None = Field(None, alias="legalName")
    about: StrictStr | None = None
    phones: StrictStr | None = None
    emails: StrictStr | None = None
    website: StrictStr | None = None
    fb_link: StrictStr | None = Field(None, alias="fbLink")
    vk_link: StrictStr | None = Field(None, alias="vkLink")
    instagram_link: StrictStr | None = Field(None, alias="instagramLink")
    category: StrictStr | None = None
    button_text: StrictStr | None = Field(None, alias="buttonText")
    button_url: StrictStr | None = Field(None, alias="buttonUrl")
    locations: tuple[Location, ...] = ()

    @field_validator("locations", mode="before")
    @classmethod
    def _none_for_null(cls, locations: object) -> object:
        return () if locations is None else locations


def is_merchant(path: bytes) -> bool:
    """Whether the path of a configuration's address has the form that merchants' have (interface 4.5)."""
    return _MERCHANT.search(path) is not None


def read_merchant(value: Mapping[str, Any]) -> Merchant:
    """Parse the `value` of a merchant's configuration. Raises ServiceUnreadable."""
    try:
        return Merchant.model_validate(value)
    except ValidationError as error:
        raise ServiceUnreadable(f"merchant: {problems_of(error)}") from None


EntityId = Annotated[StrictInt, BeforeValidator(integral)]


class EntityBody(BaseModel):
    """An entity of a customer; further fields are kept (interface 2.4)."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    id: EntityId
    config_url: str = Field(alias="configUrl")


class GroupBody(ServiceBody):
    """One page of a group of entities."""

    list: list[EntityBody]
    continuation_token: Annotated[str | None, AfterValidator(lambda token: token or None)] = Field(
        default=None, alias="continuationToken"
    )


class CustomerDataBody(ServiceBody):
    """A customer's groups by their names (interface 2.4), and why others can't be read."""

    value: dict[str, GroupBody]
    unreadable: dict[str, str] = Field(default_factory=dict)


def read_customer_data(body: bytes) -> CustomerDataBody:
    """Parse a page of customer data. Raises ServiceUnreadable if no group of it can be read."""
    value, unreadable = {}, {}
    for name, raw in read_groups(body).items():
        try:
            value[name] = read_group(name, raw)
        except ServiceUnreadable as error:
            unreadable[name] = str(error)
    if unreadable and not value:
        raise ServiceUnreadable("; ".join(unreadable.values()))
    return CustomerDataBody(value=value, unreadable=unreadable)


def read_groups(body: bytes) -> dict[str, Any]:
    """Return the unparsed groups of a page of customer data by name. Raises ServiceUnreadable."""
    try:
        parsed = exact_json.read_plain(body)
    except ServiceUnreadable as error:
        raise ServiceUnreadable(f"customer data: {error}") from None
    value = parsed.get("value") if isinstance(parsed, dict) else None
    if not isinstance(value, dict):
        raise ServiceUnreadable("customer data: expected an object with an object in `value`")
    return {name: value[name] for name in GROUPS if name in value}


def read_group(name: str, raw: object) -> GroupBody:
    """Parse a page of one group (interface 2.4). Raises ServiceUnreadable."""
    try:
        return GroupBody.model_validate(raw)
    except ValidationError as error:
        raise ServiceUnreadable(f"customer data: {name}: {problems_of(error)}") from None


LONGEST_TOKEN = 32_768
"""Most characters of an encoded token in an address."""


@dataclass(frozen=True, slots=True)
class Entity:
    """One entity of a customer. `fields` are its customer level fields (interface 2.4)."""

    group: str
    id: int
    config_url: str
    fields: Mapping[str, Any]


FetchGroups = Callable[[Collection[str], Mapping[str, str]], Awaitable[Mapping[str, Any]]]
"""One request (interface 4.4): groups, and tokens that continue them; returns the unparsed groups."""


class CustomerData(Mapping[str, "EntityGroup"]):
    """The requested groups by name, in the interface's order.

    Groups are independent: each can be read at any time, in any order, concurrently, or not at all. No
    request is made before that; one request returns the first pages of all groups.
    """

    def __init__(self, fetch: FetchGroups, include: Collection[str], most_pages: int = MOST_PAGES) -> None:
        check_groups(include)
        names = [name for name in GROUPS if name in include]
        self._opening = _Opening(fetch, names)
        self._groups = {name: EntityGroup(name, fetch, self._opening, most_pages) for name in names}

    @property
    def answered(self) -> bool:
        """Whether the service returned any of the groups; False until one has been read."""
        return self._opening.answered

    def __getitem__(self, name: str) -> EntityGroup:
        return self._groups[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


class EntityGroup(AsyncIterator[Entity]):
    """The entities of one group, in the service's order; each page is requested after the previous one.

    Raises ServiceUnavailable and ServiceRefused, after which iteration can continue where it stopped, and
    ServiceUnreadable, also for a broken chain of pages: a repeated token, a page with a token but nothing
    new, more than `most_pages`. Entities read before have been returned by then.
    """

    def __init__(self, name: str, fetch: FetchGroups, opening: _Opening, most_pages: int) -> None:
        self.name = name
        self.pages = 0
        self.entities = 0
        self._fetch = fetch
        self._opening = opening
        self._most_pages = most_pages
        self._ready: deque[Entity] = deque()
        self._token: str | None = None
        self._tokens: set[int] = set()
        self._before: Sequence[tuple[int, str]] = ()
        self._dead_end: str | None = None
        self._turning = anyio.Lock()

    @property
    def ready(self) -> int:
        """The number of entities available without a request."""
        return len(self._ready)

    async def __anext__(self) -> Entity:
        while not self._ready:
            await self._turn_page()
        self.entities += 1
        return self._ready.popleft()

    async def _turn_page(self) -> None:
        async with self._turning:
            if self._ready:
                return
            if self._dead_end is not None:
                raise ServiceUnreadable(f"{self.name}: {self._dead_end}")
            if self.pages and self._token is None:
                raise StopAsyncIteration
            page = await self._next_page()
            self.pages += 1
            self._take_in(page)

    async def _next_page(self) -> GroupBody:
        if self._token is None:
            return await self._opening.page(self.name)
        groups = await self._fetch([self.name], {self.name: self._token})
        if self.name not in groups:
            raise ServiceUnreadable(f"{self.name}: the answer to a continuation token lacks the group")
        return read_group(self.name, groups[self.name])

    def _take_in(self, page: GroupBody) -> None:
        entities = [(entity.id, entity.config_url) for entity in page.list]
        token = page.continuation_token
        repeats = token is not None and entities == self._before
        if not repeats:
            self._ready.extend(_entity(self.name, body) for body in page.list)
        self._before = entities
        self._token = token
        if token is None:
            return
        if repeats or not entities:
            self._dead_end = f"page {self.pages} has a continuation token but no new entities"
        elif hash(token) in self._tokens:
            self._dead_end = (
                f"the continuation token of page {self.pages} was used before: the chain would never end"
            )
        elif self.pages >= self._most_pages:
            self._dead_end = f"there are more than {self.pages} pages"
        elif len(quote(token)) > LONGEST_TOKEN:
            self._dead_end = f"the continuation token of page {self.pages} is too long"
        self._tokens.add(hash(token))  # not the tokens, which may be long


class _Opening:
    """The first pages of all groups, fetched with one request by the first reader."""

    def __init__(self, fetch: FetchGroups, names: Sequence[str]) -> None:
        self._fetch = fetch
        self._names = names
        self.answered = False
        self._pages: dict[str, Any] | None = None
        self._asking = anyio.Lock()

    async def page(self, name: str) -> GroupBody:
        """Return the first page of a group; empty if the answer lacks the group. Raises ServiceError."""
        async with self._asking:
            if self._pages is None:
                self._pages = dict(await self._fetch(self._names, {}))
                self.answered = not self._pages.keys().isdisjoint(self._names)
        raw = self._pages.get(name)
        page = GroupBody(list=[]) if name not in self._pages else read_group(name, raw)
        self._pages.pop(name, None)
        return page


def check_groups(names: Collection[str]) -> None:
    """Raise ValueError for an unknown group."""
    if unknown := set(names) - set(GROUPS):
        raise ValueError(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")


def _entity(group: str, body: EntityBody) -> Entity:
    return Entity(group, body.id, body.config_url, body.model_extra or {})


class CustomerArea:
    """Reads the customer data area of the service at `base`.

    `elsewhere` calls other hosts for configurations (None: not allowed).
    """

    def __init__(
        self,
        base: Target,
        service: Caller,
        elsewhere: Caller | None,
        access: ConfigurationAccess,
    ) -> None:
        self._base = base
        self._service = service
        self._largest = access.max_size
        self._elsewhere = elsewhere
        look_up = None if access.proxy_resolves else access.look_up or NameServers()
        self._hosts = AllowedHosts(base, access.rules, look_up)
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
            return await self._service.call("GET", target, headers=headers, also=also, max_body=self._largest)
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
