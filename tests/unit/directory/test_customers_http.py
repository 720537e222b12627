"""Customers over HTTP: what is asked, how fields are found, and what each answer means."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deliveryd.directory.base import Terms
from deliveryd.directory.http import HttpSource, open_http_source
from deliveryd.directory.http_options import HttpDirectoryOptions
from deliveryd.errors import ConfigError, DirectoryUnavailable
from deliveryd.model import Customer
from deliveryd.testing.gateway import Disconnect, Reply, closed_port, open_gateway
from support.directories import Crm, crowd, open_crm

pytestmark = pytest.mark.anyio

TERMS = Terms(cache_ttl=300.0, timeout=2.0, concurrency=10)


@pytest.fixture
def crm() -> Iterator[Crm]:
    with open_crm(crowd(range(1, 200))) as opened:
        yield opened


@asynccontextmanager
async def opened(options: Mapping[str, Any]) -> AsyncIterator[HttpSource]:
    source = open_http_source(HttpDirectoryOptions.model_validate(options), TERMS)
    try:
        yield source
    finally:
        await source.aclose()


async def test_many_are_asked_for_with_one_request(crm: Crm) -> None:
    """Their ids separated by commas; a single one is asked for at the address of one."""
    async with opened(crm.batched) as source:
        assert source.batch_size == 100
        found = await source.look_up(range(150, 250))
        assert found.keys() == set(range(150, 200))
        assert await source.look_up([7]) == {7: Customer(7, crowd([7])[7])}
    assert crm.requests == [list(range(150, 250)), [7]]


async def test_without_an_address_of_many_each_is_asked_for_alone(crm: Crm) -> None:
    async with opened(crm.options) as source:
        assert source.batch_size == 1


@pytest.mark.parametrize("items", [[{"id": 7}, None, {"id": 9}], {"a": {"id": "7"}, "b": None}])
async def test_customers_are_found_in_a_list_or_in_an_object(crm: Crm, items: object) -> None:
    """By the id that each has, number or text; others that nobody asked for don't matter."""
    crm.body = json.dumps({"items": items}).encode()
    async with opened(crm.batched) as source:
        assert await source.look_up([7, 8]) == {7: Customer(7, {})}


async def test_values_are_texts_as_they_were_written(crm: Crm) -> None:
    """Numbers keep their text, truth values are words, null and blank are no value."""
    crm.body = b'{"a": {"b": [10.50, 12345678901234567890]}, "c": true, "d": null, "e": " ", "f/g": "x"}'
    fields = {"n": "/a/b/0", "m": "/a/b/1", "c": "/c", "d": "/d", "e": "/e", "f": "/f~1g", "h": "/a/h"}
    async with opened({**crm.options, "fields": fields}) as source:
        assert await source.look_up([1]) == {
            1: Customer(1, {"n": "10.50", "m": "12345678901234567890", "c": "true", "f": "x"})
        }


UNREADABLE = {
    "no JSON": (b"<html>", "the answer isn't valid JSON"),
    "no UTF-8": (b'"\xff"', "the answer isn't valid JSON"),
    "nested without end": (b"[" * 50_000, "the answer isn't valid JSON"),
    "a list for a text": (
        b'{"id": 1, "names": [["Ann"]]}',
        "fields.name points to a value that is neither a string nor a number",
    ),
}


@pytest.mark.parametrize(("body", "reason"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_an_answer_that_cannot_be_read_is_no_answer(crm: Crm, body: bytes, reason: str) -> None:
    """Nobody is taken for unknown, or for somebody without a name."""
    crm.body = body
    async with opened(crm.options) as source:
        with pytest.raises(DirectoryUnavailable) as caught:
            await source.look_up([1])
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"id": 99, "names": ["Bob"]}', "the answer is about another customer"),
        (b'{"error": "no such view"}', "fields.id doesn't point to an id in the answer"),
        (b"[]", "fields.id doesn't point to an id in the answer"),
    ],
)
async def test_an_answer_about_nobody_or_somebody_else_is_no_answer(
    crm: Crm, body: bytes, reason: str
) -> None:
    """Nobody gets the text that is for somebody else, nor is taken for somebody without an address."""
    crm.body = body
    async with opened(crm.options) as source:
        with pytest.raises(DirectoryUnavailable) as caught:
            await source.look_up([1])
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"items": 5}', "the answer contains neither a list nor an object of customers"),
        (b"{}", "the answer contains neither a list nor an object of customers"),
        (b'{"items": [{"name": "Ann"}]}', "fields.id doesn't point to an id in the answer"),
    ],
)
async def test_an_answer_for_many_without_their_list_or_ids_is_no_answer(
    crm: Crm, body: bytes, reason: str
) -> None:
    crm.body = body
    async with opened(crm.batched) as source:
        with pytest.raises(DirectoryUnavailable) as caught:
            await source.look_up([1, 2])
    assert str(caught.value) == reason


@pytest.mark.parametrize("status", [404, 410])
async def test_not_found_is_an_unknown_customer(crm: Crm, status: int) -> None:
    crm.status = status
    async with opened(crm.options) as source:
        assert await source.look_up([1]) == {}


@pytest.mark.parametrize("status", [400, 401, 403, 429, 500, 503])
async def test_any_other_status_says_nothing_about_a_customer(crm: Crm, status: int) -> None:
    crm.status = status
    async with opened(crm.options) as source:
        with pytest.raises(DirectoryUnavailable, match=f"the customer directory answered {status}"):
            await source.look_up([1])


async def test_redirects_are_not_followed(crm: Crm) -> None:
    """Where they lead is told, and nothing goes there."""
    crm.status = 302
    async with opened(crm.options) as source:
        with pytest.raises(DirectoryUnavailable, match="redirects aren't followed"):
            await source.look_up([1])
    assert len(crm.requests) == 1


async def test_an_answer_beyond_its_bound_is_not_read(crm: Crm) -> None:
    crm.body = b'{"names": ["' + b"x" * 100_000 + b'"]}'
    async with opened(crm.options) as source:
        with pytest.raises(DirectoryUnavailable):
            await source.look_up([1])


async def test_what_the_directory_asks_for_is_kept() -> None:
    """How long it wants to be left alone."""
    async with open_gateway() as gateway:
        gateway.script.append(Reply(503, b"", (("Retry-After", "90"),)))
        options = {"url": f"{gateway.url}/{{customerId}}", "fields": {"name": "/n"}}
        async with opened(options) as source:
            with pytest.raises(DirectoryUnavailable) as caught:
                await source.look_up([1])
    assert caught.value.after == pytest.approx(90, abs=1)


async def test_a_connection_that_breaks_is_tried_again() -> None:
    """Inside one question, as for the service."""
    async with open_gateway() as gateway:
        gateway.script += [Disconnect(), Reply(200, b'{"n": "Ann"}')]
        options = {"url": f"{gateway.url}/{{customerId}}", "fields": {"name": "/n"}}
        async with opened(options) as source:
            assert await source.look_up([1]) == {1: Customer(1, {"name": "Ann"})}


async def test_nobody_there(crm: Crm) -> None:
    """Look-ups and the probe say so, without an address of a customer."""
    port = await closed_port()
    options = {"url": f"http://127.0.0.1:{port}/c/{{customerId}}", "fields": {"name": "/n"}}
    async with opened(options) as source:
        with pytest.raises(DirectoryUnavailable):
            await source.look_up([4711])
        problem = await source.probe()
    assert problem is not None
    assert f"no connection to 127.0.0.1:{port}" in problem


async def test_credentials_are_shown_and_read_again_when_they_are_refused(crm: Crm, tmp_path: Path) -> None:
    """The same ways as for the service; a file that was replaced counts from the next look-up on."""
    secret = tmp_path / "token"
    secret.touch(mode=0o600)
    secret.write_text("before")
    crm.token = "before"
    async with opened({**crm.options, "auth": {"token_file": str(secret)}}) as source:
        assert await source.look_up([1])
        crm.token = "after"
        with pytest.raises(DirectoryUnavailable, match="answered 401"):
            await source.look_up([1])
        secret.write_text("after")
        assert await source.look_up([1])


MISTAKES = {
    "no placeholder": ({"url": "http://h/customers"}, "must contain {customerId} in its path or query"),
    "in the host": ({"url": "http://{customerId}/x"}, "must contain {customerId} in its path or query"),
    "in the fragment": ({"url": "http://h/x#{customerId}"}, "must have no fragment, since it isn't sent"),
    "no address": ({"url": "{customerId}"}, "an address must start with http:// or https:// and a host"),
    "a password": (
        {"url": "http://u:secret@h/{customerId}"},
        "an address must not contain a user name or password",
    ),
    "no fields": ({"fields": {}}, "at least 1 item"),
    "no pointer": ({"fields": {"name": "name"}}, 'a JSON Pointer must start with "/"'),
    "many without ids": ({"batch_url": "http://h/?{customerIds}"}, "batch_url needs fields.id"),
    "many without a place": ({"batch_url": "http://h/all"}, "must contain {customerIds} in its path"),
    "nobody at once": ({"batch_size": 0}, "greater than or equal to 1"),
    "two ways to authenticate": ({"auth": {"token_file": "a", "header": "b"}}, "must be given together"),
    "unknown": ({"methd": "GET"}, "Extra inputs are not permitted"),
}


@pytest.mark.parametrize(("change", "told"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_told(change: Mapping[str, Any], told: str) -> None:
    good = {"url": "https://crm.example.com/{customerId}", "fields": {"name": "/name"}}
    HttpDirectoryOptions.model_validate(good)
    with pytest.raises(ValidationError) as caught:
        HttpDirectoryOptions.model_validate({**good, **change})
    messages = [error["msg"] for error in caught.value.errors()]
    assert any(told in message for message in messages), messages


async def test_files_that_cannot_be_used_are_told_when_it_is_opened(tmp_path: Path) -> None:
    """And by `problems`, which connects to nothing."""
    options = HttpDirectoryOptions.model_validate(
        {
            "url": "https://h/{customerId}",
            "fields": {"name": "/name"},
            "auth": {"token_file": tmp_path / "absent"},
            "tls": {"ca_file": tmp_path / "nothing.pem"},
        }
    )
    assert [problem.partition(":")[0] for problem in options.problems()] == ["auth.token_file", "tls.ca_file"]
    with pytest.raises(ConfigError, match=r"customers\.auth\.token_file: "):
        open_http_source(options, TERMS)
