"""A customer's data: groups of entities, each read page by page on demand (interface 2.4, 4.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import anyio

from deliveryd.errors import ServiceUnreadable
from deliveryd.service.customer_wire import EntityBody, GroupBody, read_group
from deliveryd.service.wire import GROUPS, MOST_PAGES

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
