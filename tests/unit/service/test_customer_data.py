"""Customer data as a library: groups that are read page by page, and chains of pages that lead nowhere."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import pytest

from deliveryd.errors import ServiceRefused, ServiceUnavailable, ServiceUnreadable
from deliveryd.http.client import HttpClient
from deliveryd.http.wire import BeforeSend, Headers, Target, WireResponse
from deliveryd.service.client import ServiceClient
from deliveryd.service.customer_area import Entity, EntityGroup
from deliveryd.service.wire import GROUPS

pytestmark = pytest.mark.anyio

AWKWARD = ["&=%+/ ü", "%26", "a+b c", "#?", "\u0000\r\n", "=", "Ключ", "😀", "../..", "a" * 5000]


class Service:
    """The service as a wire in memory: pages of each group; a token is the group's own text for a page."""

    def __init__(self) -> None:
        self.pages: dict[str, list[list[Any]]] = {}
        self.tokens: Callable[[str, int], str] = lambda group, page: f"{group}&={page}%+/ ü"
        self.asked: list[list[tuple[str, str]]] = []
        self.trouble: list[WireResponse] = []

    async def exchange(
        self,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        max_body: int,
        check: BeforeSend | None = None,
    ) -> WireResponse:
        await anyio.lowlevel.checkpoint()
        split = urlsplit(target.path.decode())
        query = parse_qsl(split.query, keep_blank_values=True)
        self.asked.append(query)
        if self.trouble:
            return self.trouble.pop(0)
        flags = dict(query)
        value = {
            group: self.page(group, flags.get(f"{group}.continuationToken"))
            for group in self.pages
            if flags.get(f"{group}.include") == "true"
        }
        return WireResponse(200, {}, json.dumps({"value": value}).encode())

    def page(self, group: str, token: str | None) -> dict[str, Any]:
        pages = self.pages[group]
        names = [self.tokens(group, number) for number in range(1, len(pages))]
        at = 0 if token is None else names.index(token) + 1
        answer: dict[str, Any] = {"list": pages[at]}
        return answer | ({"continuationToken": names[at]} if at < len(names) else {})

    async def aclose(self) -> None:
        pass


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[ServiceClient]:
    async with ServiceClient(HttpClient(service, timeout=5.0), "http://service/api") as opened:
        yield opened


def entities(*ids: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"id": each, "configUrl": f"http://service/{each}", **fields} for each in ids]


async def ids_of(group: EntityGroup) -> list[int]:
    return [entity.id async for entity in group]


async def test_all_pages_of_all_groups_in_order(service: Service, client: ServiceClient) -> None:
    """Every entity is there, once, in the service's order; the first pages come with one request."""
    service.pages = {group: [entities(*range(at, at + 10)) for at in range(0, 100, 10)] for group in GROUPS}
    data = client.customer_data(17)
    assert list(data) == list(GROUPS)
    for group in data.values():
        assert await ids_of(group) == list(range(100))
        assert (group.pages, group.entities) == (10, 100)
    assert len(service.asked) == 1 + 6 * 9


async def test_only_what_is_asked_for_is_requested(service: Service, client: ServiceClient) -> None:
    """Flags name the groups of `include`, later requests the one that goes on; language goes with all."""
    service.pages = {group: [entities(1), entities(2)] for group in GROUPS}
    data = client.customer_data(17, ["rewards", "merchants"], language="*")
    assert list(data) == ["merchants", "rewards"]
    assert service.asked == []
    assert await ids_of(data["rewards"]) == [1, 2]
    assert service.asked == [
        [("merchants.include", "true"), ("rewards.include", "true"), ("language", "*")],
        [
            ("rewards.include", "true"),
            ("rewards.continuationToken", "rewards&=1%+/ ü"),
            ("language", "*"),
        ],
    ]
    with pytest.raises(KeyError):
        data["offers"]


async def test_pages_are_asked_for_as_they_are_needed(service: Service, client: ServiceClient) -> None:
    """Who stops early asks for no more; who goes on later is there where they stopped."""
    service.pages = {"offers": [entities(1, 2), entities(3, 4), entities(5)]}
    offers = client.customer_data(17, ["offers"])["offers"]
    assert [(await anext(offers)).id for _ in range(3)] == [1, 2, 3]
    assert len(service.asked) == 2
    assert await ids_of(offers) == [4, 5]
    assert await ids_of(offers) == []


async def test_groups_side_by_side(service: Service, client: ServiceClient) -> None:
    """Groups that are read at the same time don't disturb each other."""
    service.pages = {group: [entities(at) for at in range(50)] for group in GROUPS}
    data = client.customer_data(17)
    found: dict[str, list[int]] = {}

    async def read(name: str) -> None:
        found[name] = await ids_of(data[name])

    async with anyio.create_task_group() as tasks:
        for name in data:
            tasks.start_soon(read, name)
    assert found == {group: list(range(50)) for group in GROUPS}
    assert len(service.asked) == 1 + 6 * 49


async def test_two_readers_of_one_group_share_it(service: Service, client: ServiceClient) -> None:
    """No page is asked for twice, and no entity handed out twice."""
    service.pages = {"offers": [entities(at) for at in range(40)]}
    offers = client.customer_data(17, ["offers"])["offers"]
    found: list[int] = []

    async def read() -> None:
        found.extend(await ids_of(offers))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(read)
    assert sorted(found) == list(range(40))
    assert len(service.asked) == 40


@pytest.mark.parametrize("token", AWKWARD)
async def test_a_token_goes_back_as_it_came(service: Service, client: ServiceClient, token: str) -> None:
    """Whatever characters it has: it is nobody's business but the service's."""
    service.pages = {"offers": [entities(1), entities(2)]}
    service.tokens = lambda _group, _page: token
    assert await ids_of(client.customer_data(17, ["offers"])["offers"]) == [1, 2]
    assert service.asked[-1][-1] == ("offers.continuationToken", token)


async def test_what_the_interface_does_not_name_is_kept(service: Service, client: ServiceClient) -> None:
    """Customer level fields come along as the service wrote them."""
    fields = {"level": "gold", "rate": 1.5, "group": "mine", "nested": {"a": [1, None]}}
    service.pages = {"offers": [entities(1, **fields)]}
    [offer] = [entity async for entity in client.customer_data(17, ["offers"])["offers"]]
    assert offer == Entity("offers", 1, "http://service/1", fields)


async def test_a_group_that_the_service_leaves_out_is_empty(service: Service, client: ServiceClient) -> None:
    """All groups of the answer are optional."""
    assert await ids_of(client.customer_data(17, ["regions"])["regions"]) == []


def test_a_group_that_does_not_exist_is_told_at_once() -> None:
    """Before anything is requested."""
    client = ServiceClient(HttpClient(Service(), timeout=5.0), "http://service/api")
    with pytest.raises(ValueError, match="no such group: prices; there are merchants"):
        client.customer_data(17, ["prices"])


# chains that lead nowhere


async def read_to_the_end(group: EntityGroup) -> tuple[list[int], str]:
    """What is handed out before the error, and what it says."""
    found: list[int] = []

    async def read() -> None:
        async for entity in group:
            found.append(entity.id)  # noqa: PERF401 - what came before an error has to be there

    with pytest.raises(ServiceUnreadable) as caught:
        await read()
    return found, str(caught.value)


async def test_a_token_that_comes_again_ends_the_reading(service: Service, client: ServiceClient) -> None:
    """After all that was read was handed out, and without asking again and again."""
    service.pages = {"offers": [entities(at) for at in range(5)]}
    service.tokens = lambda _group, page: "same" if page in (2, 4) else str(page)
    offers = client.customer_data(17, ["offers"])["offers"]
    found, told = await read_to_the_end(offers)
    assert found == [0, 1, 2, 3]
    assert told == "offers: the continuation token of page 4 was used before: the chain would never end"
    assert await read_to_the_end(offers) == ([], told)
    assert len(service.asked) == 4


@pytest.mark.parametrize("second", [[], entities(1)], ids=["an empty page", "the page before"])
async def test_a_page_that_brings_nothing_new_ends_the_reading(
    service: Service, client: ServiceClient, second: list[Any]
) -> None:
    """A token with nothing to it is no progress; what came before isn't handed out again."""
    service.pages = {"offers": [entities(1), second, entities(3)]}
    found, told = await read_to_the_end(client.customer_data(17, ["offers"])["offers"])
    assert found == [1]
    assert told == "offers: page 2 has a continuation token but no new entities"


async def test_a_chain_without_end_is_ended(service: Service, client: ServiceClient) -> None:
    """Always something new, and always another token: at some number of pages it is enough."""
    service.pages = {"offers": [entities(at) for at in range(1000)]}
    found, told = await read_to_the_end(client.customer_data(17, ["offers"], most_pages=20)["offers"])
    assert found == list(range(20))
    assert told == "offers: there are more than 20 pages"


async def test_a_token_that_no_address_can_carry(service: Service, client: ServiceClient) -> None:
    """It is told, where a library would have crashed."""
    service.pages = {"offers": [entities(1), entities(2)]}
    service.tokens = lambda _group, _page: "ü" * 6000
    found, told = await read_to_the_end(client.customer_data(17, ["offers"])["offers"])
    assert (found, "too long" in told) == ([1], True)


# what goes wrong


async def test_a_broken_group_spoils_no_other(service: Service, client: ServiceClient) -> None:
    """Though both came with one answer."""
    service.pages = {"merchants": [[{"id": "seven"}]], "offers": [entities(1)]}
    data = client.customer_data(17, ["merchants", "offers"])
    assert await ids_of(data["offers"]) == [1]
    with pytest.raises(ServiceUnreadable, match=r"customer data: merchants: list\.0\.id: "):
        await anext(data["merchants"])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (WireResponse(503, {"retry-after": "600"}, b""), ServiceUnavailable),
        (WireResponse(404, {}, b""), ServiceRefused),
        (WireResponse(200, {}, b"<html>"), ServiceUnreadable),
        (WireResponse(200, {}, b'{"value": {"offers": {"list": [{"id": 1, "configUrl": "u", "x": NaN}]}}}'),
         ServiceUnreadable),
        (WireResponse(200, {}, b'{"value": {"offers": {"list": [{"id": 1, "configUrl": "\\ud800"}]}}}'),
         ServiceUnreadable),
    ],
)  # fmt: skip
async def test_a_reading_goes_on_where_it_failed(
    service: Service, client: ServiceClient, answer: WireResponse, error: type[Exception]
) -> None:
    """An error in the middle loses nothing: the same iterator asks for the same page again."""
    service.pages = {"offers": [entities(1), entities(2)]}
    offers = client.customer_data(17, ["offers"])["offers"]
    assert (await anext(offers)).id == 1
    service.trouble = [answer]
    with pytest.raises(error):
        await anext(offers)
    assert await ids_of(offers) == [2]


async def test_a_continuation_without_its_group_is_unreadable(
    service: Service, client: ServiceClient
) -> None:
    """Who has a token was promised more."""
    service.pages = {"offers": [entities(1), entities(2)]}
    offers = client.customer_data(17, ["offers"])["offers"]
    await anext(offers)
    service.trouble = [WireResponse(200, {}, b'{"value": {}}')]
    with pytest.raises(ServiceUnreadable, match="lacks the group"):
        await anext(offers)
