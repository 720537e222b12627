"""Customers from an HTTP source: one per request, or many."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from deliveryd.directory.base import Terms
from deliveryd.directory.http_options import (
    ID_PLACEHOLDER,
    IDS_PLACEHOLDER,
    PLACE,
    HttpDirectoryOptions,
    address_with_place,
)
from deliveryd.errors import (
    ConfigError,
    CustomerUnreadable,
    DirectoryUnavailable,
    ServiceRefused,
    ServiceUnavailable,
)
from deliveryd.field_lists import field_text
from deliveryd.http.client import build_client
from deliveryd.http.json_pointer import follow, parse_pointer
from deliveryd.http.reachability import connect_problem, endpoint_of
from deliveryd.http.responses import is_page
from deliveryd.http.wire import Target
from deliveryd.model import Customer
from deliveryd.options.credentials import open_authentication
from deliveryd.runtime.threads import Aside
from deliveryd.service import exact_json
from deliveryd.service.caller import Caller

UNKNOWN_STATUSES = frozenset({404, 410})
"""Statuses that mean an unknown customer."""

LARGEST_CUSTOMER = 64 << 10
LARGEST_DIRECTORY_ANSWER = 8 << 20
"""Limits in bytes: of a customer on average, and of an answer."""


class HttpSource:
    """Sends GET requests, and reads the fields of the JSON answer by JSON Pointer (RFC 6901)."""

    def __init__(self, options: HttpDirectoryOptions, caller: Caller) -> None:
        self._caller = caller
        self._endpoint = endpoint_of(options.url, options.tls_files(), options.proxy)
        self._one = address_with_place(options.url, ID_PLACEHOLDER)
        self._many = (
            address_with_place(options.batch_url, IDS_PLACEHOLDER) if options.batch_url is not None else None
        )
        self._entries = parse_pointer(options.batch_entries) if options.batch_entries is not None else ()
        self._fields = {name: parse_pointer(pointer) for name, pointer in options.fields.items()}
        self._id = self._fields.pop("id", ())
        self.batch_size = options.batch_size if self._many is not None else 1
        self._aside = Aside()

    async def look_up(self, ids: Collection[int]) -> Mapping[int, Customer]:
        """Look up customers. Raises DirectoryUnavailable."""
        try:
            if self._many is None or len(ids) == 1:
                return {id_: found for id_ in ids if (found := await self._find(self._one, id_)) is not None}
            return await self._find_all(self._many, ids)
        except ServiceUnavailable as error:
            raise DirectoryUnavailable(str(error), error.after) from None
        except ServiceRefused as error:
            raise CustomerUnreadable(str(error)) from None

    async def probe(self) -> str | None:
        """Get what authenticates requests, connect, with TLS for https, and disconnect without a request."""
        problem = await self._caller.credentials_problem(self._one)
        return problem or await connect_problem(*self._endpoint)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._caller.aclose()

    async def _find(self, target: Target, customer_id: int) -> Customer | None:
        answer = await self._caller.call("GET", _filled(target, [customer_id]), also=UNKNOWN_STATUSES)
        body = answer.body
        if answer.status not in UNKNOWN_STATUSES:
            return await self._aside.sized(len(body), partial(self._one_in, body, customer_id))
        if is_page(body):
            raise DirectoryUnavailable(
                f"something else seems to answer for the customer directory: {answer.status} with a page"
            )
        return None

    def _one_in(self, body: bytes, customer_id: int) -> Customer:
        """Return the customer of an answer that must bear the id that was asked for, where it has one."""
        document = _parsed(body)
        if self._id and self._id_of(document) != str(customer_id):
            raise DirectoryUnavailable("the answer is about another customer")
        return self._customer(customer_id, document)

    async def _find_all(self, target: Target, ids: Collection[int]) -> Mapping[int, Customer]:
        answer = await self._caller.call("GET", _filled(target, ids))
        return await self._aside.sized(len(answer.body), partial(self._all_in, answer.body, ids))

    def _all_in(self, body: bytes, ids: Collection[int]) -> Mapping[int, Customer]:
        found: dict[int, Customer] = {}
        wanted = {str(id_): id_ for id_ in ids}
        for entry in _entries(follow(_parsed(body), self._entries)):
            customer_id = wanted.get(self._id_of(entry))
            if customer_id is not None:
                found[customer_id] = self._customer(customer_id, entry)
        return found

    def _id_of(self, entry: object) -> str:
        found = follow(entry, self._id)
        if not isinstance(found, str):
            raise DirectoryUnavailable("fields.id doesn't point to an id in the answer")
        return found

    def _customer(self, customer_id: int, document: object) -> Customer:
        fields = {name: _text_of(name, follow(document, steps)) for name, steps in self._fields.items()}
        return Customer(customer_id, {name: text for name, text in fields.items() if text.strip()})


def _filled(target: Target, ids: Iterable[int]) -> Target:
    """Return the address with the IDs: digits, signs and commas, which need no escaping."""
    written = ",".join(map(str, ids)).encode()
    return target._replace(path=target.path.replace(PLACE, written))


def _parsed(body: bytes) -> Any:
    try:
        return exact_json.loads_exact(body.decode("utf-8-sig"))
    except ValueError:
        raise DirectoryUnavailable("the answer isn't valid JSON") from None


def _entries(found: object) -> Sequence[object]:
    """Return the customers of an answer: the members of a list, or the values of an object."""
    if isinstance(found, list | dict):
        members = list(found.values()) if isinstance(found, dict) else found
        return [member for member in members if member is not None]
    raise DirectoryUnavailable("the answer contains neither a list nor an object of customers")


def _text_of(name: str, value: object) -> str:
    match value:
        case str():  # numbers too, verbatim
            return value
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case _:
            try:
                return field_text(name, value)
            except TypeError as error:
                raise CustomerUnreadable(f"fields.{name} points to a value that is {error}") from None


def open_http_source(options: HttpDirectoryOptions, terms: Terms) -> HttpSource:
    """Open the source. Must be called within the event loop; raises ConfigError."""
    if problems := options.problems():
        raise ConfigError([f"customers.{problem}" for problem in problems])
    largest = min(
        LARGEST_CUSTOMER * (options.batch_size if options.batch_url else 1), LARGEST_DIRECTORY_ANSWER
    )
    client = build_client(
        timeout=terms.timeout,
        max_body=largest,
        tls=options.tls_files(),
        proxy=options.open_proxy(),
        authentication=open_authentication(options.auth, "customers.auth", terms.timeout),
    )
    return HttpSource(options, Caller(client, "the customer directory"))
