"""The conformance table of customer directories: a customer is the same, wherever the record is kept.

Subclass `DirectoryConformance`, and supply the fixture `records`, which yields where the customers `PEOPLE`
are kept and how that is configured:

    class TestLighthouse(DirectoryConformance):
        @pytest.fixture
        async def records(self):
            async with open_gateway() as gateway:
                gateway.respond = lambda seen: Reply(body=people_json(json.loads(seen.body)["ids"]))
                yield CustomerRecords({"source": "lighthouse", "url": gateway.url}, gateway.fail)

The source is looked up as `[customers] source` is, so its package must be installed with its entry point.
The table runs against the directory as the worker opens it: the source behind `RemoteDirectory`, which
gathers, remembers and repeats.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deliveryd.config import load
from deliveryd.directory.base import Directory, DirectoryAnswer, find_customer
from deliveryd.errors import DirectoryUnavailable
from deliveryd.model import Customer
from deliveryd.options.toml_text import toml_value
from deliveryd.worker.outside import open_directory

PEOPLE: Mapping[int, Mapping[str, str]] = {
    7: {"name": "Ann Whitfield", "language": "en", "phone": "+447700900101", "email": "ann@example.com"},
    8: {"name": "Zoë 😀 {greeting}", "language": "pt-BR"},
    -3: {"phone": "0"},
    2**62: {"email": "far@example.com"},
    **{id_: {"name": f"Name-{id_}"} for id_ in range(100, 400)},
}
"""The customers that the records must hold, by id. A field that a customer lacks has no value."""


class CustomerRecords(NamedTuple):
    """Where `PEOPLE` are kept: what `[customers]` holds to find them, and a call that makes them unavailable.

    Relative paths in `table` are relative to the test's `tmp_path`. After `fail` every look-up must fail,
    by an error answer, a stopped server or a deleted file.
    """

    table: Mapping[str, Any]
    fail: Callable[[], object]


def people_json(ids: Iterable[int]) -> bytes:
    """Return those of `PEOPLE` with these ids, as a JSON object by id: what a peer can answer."""
    return json.dumps({str(id_): PEOPLE[id_] for id_ in ids if id_ in PEOPLE}).encode()


class DirectoryConformance:
    """What every customer directory must do. Subclass it as `Test…`; see this module for the ten lines.

    Supply the fixture `records`, which yields new `CustomerRecords` for each test.

    Checked: that fields arrive exactly as they are kept; that unknown customers are answered as unknown,
    whatever their number; that more customers than fit into one request are each answered once; that answers
    are remembered; that `probe` finds no problem; that a failure is never taken for an unknown customer, and
    its reason has no name in it.
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop: asyncio, on which the worker runs."""
        return "asyncio"

    @pytest.fixture
    async def directory(self, records: CustomerRecords, tmp_path: Path) -> AsyncIterator[Directory]:
        """The directory, opened from a configuration file as the worker opens it."""
        path = tmp_path / "config.toml"
        path.write_text(_configuration(records.table), encoding="utf-8")
        directory = await open_directory(load(path, {}))
        yield directory
        await directory.aclose()

    async def test_fields(self, directory: Directory) -> None:
        """Fields arrive exactly as they are kept; a field without a value is left out."""
        ids = (7, 8, -3, 2**62)
        assert await _answers(directory, *ids) == {id_: Customer(id_, PEOPLE[id_]) for id_ in ids}

    async def test_unknown_customers(self, directory: Directory) -> None:
        """They are answered with None, beside known ones and alone, whatever their number."""
        known = {7: Customer(7, PEOPLE[7])}
        unknown = dict.fromkeys((9, 0, 2**70))
        assert await _answers(directory, 7, 9, 0, 2**70) == {**known, **unknown}
        assert await find_customer(directory, 10) is None

    async def test_many_customers_at_once(self, directory: Directory) -> None:
        """More than fit into one request, some of them unknown, are each answered once."""
        found = await _answers(directory, *range(90, 410))
        assert found == {id_: Customer(id_, PEOPLE[id_]) if id_ in PEOPLE else None for id_ in range(90, 410)}

    async def test_answers_are_remembered(self, directory: Directory) -> None:
        """After an answer, known or unknown, the next message needs no look-up."""
        await _answers(directory, 7, 9)
        assert directory.at_hand([7, 9]) == {7: Customer(7, PEOPLE[7]), 9: None}

    async def test_probe(self, directory: Directory) -> None:
        """`probe` finds no problem while the records are available."""
        assert await directory.probe() is None

    async def test_failure(self, directory: Directory, records: CustomerRecords) -> None:
        """A customer who can't be looked up is never answered as unknown; the reason has no name in it."""
        records.fail()
        found = await _answers(directory, 7, 8)
        assert found.keys() == {7, 8}
        assert all(isinstance(answer, DirectoryUnavailable) for answer in found.values())
        assert not any("Ann" in str(answer) for answer in found.values())
        with pytest.raises(DirectoryUnavailable):
            await find_customer(directory, 7)


async def _answers(directory: Directory, *ids: int) -> dict[int, DirectoryAnswer]:
    found: dict[int, DirectoryAnswer] = {}

    async def keep(answers: Mapping[int, DirectoryAnswer]) -> None:
        assert not answers.keys() & found.keys(), "a customer was answered twice"
        found.update(answers)

    await directory.look_up(set(ids), keep)
    return found


def _configuration(customers: Mapping[str, Any]) -> str:
    tables = {
        "service": {"base_url": "http://127.0.0.1:1"},
        "channels": {
            "sms": {"adapter": "http", "url": "http://127.0.0.1:1/", "json": {"a": "{content.text}"}}
        },
        "customers": customers,
    }
    return "".join(f"{key} = {toml_value(table)}\n" for key, table in tables.items())
