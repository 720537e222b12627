"""The whole line with a real directory: how many look-ups two thousand messages make, and an outage of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from time import monotonic

import anyio
import pytest
from sqlalchemy import Engine, event

from deliveryd.config import load
from deliveryd.worker.supervisor import Supervisor
from support.directories import (
    MANY,
    ONE,
    NoPostgres,
    Postgres,
    crowd,
    open_crm,
    open_postgres,
    write_postgres,
    write_sqlite,
)
from support.logs import log_text
from support.messages import message
from support.patience import PATIENCE
from support.world import World, open_world

pytestmark = pytest.mark.slow

MESSAGES = 2000
CUSTOMERS = 400
PEOPLE = crowd(range(1, CUSTOMERS + 1))
UNKNOWN = {10, 20}
"""Customers that no directory knows: each is of five messages."""

IN_APP = """
[channels.inApp]
adapter = "http"
url = "BASE_URL/inApp"
json = { to = "everybody", title = "{content.name}", reference = "{message.id}" }
"""
SETTINGS = {
    1: {
        "content": {
            "en": {"greetings": {"personal": "Dear {customer.name}"}, "sms": {"text": "{greeting} {word}"}}
        }
    },
    2: {"content": {"en": {"inApp": {"name": "hello {word}"}}}},
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A sandbox with both settings; those of `inApp` need no customer."""
    for world in open_world(tmp_path):
        world.add(IN_APP)
        world.state.settings.update(SETTINGS)
        yield world


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    try:
        with open_postgres() as server:
            yield server
    except NoPostgres as error:
        pytest.skip(str(error))


@pytest.fixture
def log() -> Iterator[StringIO]:
    """What was logged so far."""
    with log_text("debug") as stream:
        yield stream


def use(world: World, table: Mapping[str, object]) -> None:
    """Have the world's worker look customers up there."""
    lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
    world.change('source = "file"\npath = "customers.jsonl"', "\n".join(lines))


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(member)}" for key, member in value.items()) + " }"
    return json.dumps(value)


def run(world: World) -> None:
    """Run a worker in this process until there is nothing more to do."""

    async def work() -> None:
        with anyio.fail_after(PATIENCE):
            await Supervisor(load(world.config, {})).run(until_idle=True)

    anyio.run(work)


def fill(world: World) -> None:
    """Two thousand messages to four hundred customers, each of whom is in many takes."""
    world.state.enqueue(*(message(id_, 1, id_ % CUSTOMERS + 1) for id_ in range(1, MESSAGES + 1)))


def check(world: World, log: StringIO) -> None:
    """All went to whom they should, and nobody's name or number is in the log."""
    sent = {received.message_id: received.payload for received in world.state.received}
    for id_ in range(1, MESSAGES + 1):
        customer = id_ % CUSTOMERS + 1
        if customer in UNKNOWN:
            assert world.state.statuses(id_) == ["dequeued", "error"]
            continue
        assert world.state.statuses(id_) == ["dequeued", "sent"]
        assert sent[id_]["text"] == f"Dear Name-{customer} w"
        assert sent[id_]["to"] == PEOPLE[customer]["phone"]
    assert Counter(received.message_id for received in world.state.received).most_common(1)[0][1] == 1
    assert "message.sent" in log.getvalue()
    assert not any(word in log.getvalue() for word in ("Name-", "+4477"))


def known() -> dict[int, dict[str, str]]:
    return {id_: person for id_, person in PEOPLE.items() if id_ not in UNKNOWN}


@pytest.fixture
def queries() -> Iterator[list[int]]:
    """How many customers each query of the worker asked for."""
    seen: list[int] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if "where id" in statement:
            assert isinstance(parameters, tuple)
            seen.append(len(parameters))

    event.listen(Engine, "before_cursor_execute", note)
    yield seen
    event.remove(Engine, "before_cursor_execute", note)


def report(questions: Sequence[int]) -> None:
    """Write the figures, which pytest shows with `-rP`."""
    each = sum(questions) / len(questions)
    sys.stdout.write(f"{MESSAGES} messages, {CUSTOMERS} customers: {len(questions)} look-ups of {each:.1f}\n")


@pytest.mark.parametrize("batched", [False, True], ids=["one by one", "batched"])
def test_over_http_each_customer_is_asked_for_once(world: World, log: StringIO, batched: bool) -> None:
    """Alone: as many requests as customers. Batched: a fraction of that, and still each once."""
    with open_crm(known()) as crm:
        use(world, {"source": "http", **(crm.batched if batched else crm.options)})
        fill(world)
        run(world)
        check(world, log)
        asked = [len(ids) for ids in crm.requests]
        report(asked)
        assert Counter(id_ for ids in crm.requests for id_ in ids) == dict.fromkeys(PEOPLE, 1)
        assert len(asked) < CUSTOMERS / 5 if batched else len(asked) == CUSTOMERS


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, world: World) -> str:
    """The address of a database with the customers, in each of two kinds."""
    if request.param == "sqlite":
        write_sqlite(world.folder / "people.db", known())
        return "sqlite:///people.db"
    server: Postgres = request.getfixturevalue("postgres")
    anyio.run(write_postgres, server.url, known())
    return server.url


@pytest.mark.parametrize("query", [ONE, MANY], ids=["one by one", "batched"])
def test_in_a_database_each_customer_is_asked_for_once(
    world: World, log: StringIO, database: str, query: str, queries: list[int]
) -> None:
    """The same, by queries."""
    use(world, {"source": "sql", "url": database, "query": query})
    fill(world)
    run(world)
    check(world, log)
    report(queries)
    assert sum(queries) == CUSTOMERS
    assert len(queries) < CUSTOMERS / 5 if query == MANY else len(queries) == CUSTOMERS


def _watched(write: Callable[[str], int], put_off: anyio.Event) -> Callable[[str], int]:
    """Write lines, and tell when a hundred messages wait, and the directory is known to be away."""
    waiting, is_away = 0, False

    def watch(text: str) -> int:
        nonlocal waiting, is_away
        waiting += '"message.waiting"' in text
        is_away = is_away or '"customers.unavailable"' in text
        if waiting >= 100 and is_away:
            put_off.set()
        return write(text)

    return watch


def outage(
    world: World, log: StringIO, begin: Callable[[], object], end: Callable[[], object]
) -> tuple[float, float]:
    """Run while the directory is away until those that don't need it have gone, and then some.

    Returns when the last of those was sent, and when the first of the others.
    """
    world.state.enqueue(*(message(id_, 1 + id_ % 2, id_ % 50 + 1) for id_ in range(1, 201)))
    begin()
    times: dict[str, float] = {}

    async def work() -> None:
        start, put_off = monotonic(), anyio.Event()
        log.write = _watched(log.write, put_off)  # type: ignore[method-assign]

        async def heal() -> None:
            await anyio.to_thread.run_sync(
                lambda: world.state.wait_for(lambda state: len(state.received) >= 100, PATIENCE)
            )
            times["without"] = monotonic() - start
            await put_off.wait()  # the others, each once at least: nobody has them
            assert {received.channel for received in world.state.received} == {"inApp"}
            await anyio.to_thread.run_sync(end)
            times["healed"] = monotonic() - start

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(heal)
                await Supervisor(load(world.config, {})).run(until_idle=True)
        times["all"] = monotonic() - start

    anyio.run(work)
    sys.stdout.write(f"those without a customer after {times['without']:.2f} s, ")
    sys.stdout.write(f"the others {times['all'] - times['healed']:.2f} s after the outage\n")
    assert len(world.state.received) == 200
    assert all(world.state.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, 201))
    events = [json.loads(line)["event"] for line in log.getvalue().splitlines()]
    assert events.count("customers.unavailable") == 1
    assert events.count("customers.recovered") <= 1
    assert "Name-" not in log.getvalue()
    return times["without"], times["all"] - times["healed"]


def test_while_the_http_directory_is_away_only_those_wait_that_need_it(world: World, log: StringIO) -> None:
    """The others go at once; when it is back, those that waited go within seconds."""
    with open_crm(PEOPLE) as crm:
        use(world, {"source": "http", **crm.batched})
        without, after = outage(
            world, log, lambda: setattr(crm, "status", 503), lambda: setattr(crm, "status", None)
        )
    assert without < 4
    assert after < 12


def test_while_the_database_is_away_only_those_wait_that_need_it(
    world: World, log: StringIO, postgres: Postgres
) -> None:
    """The same with a real PostgreSQL that is stopped and started."""
    anyio.run(write_postgres, postgres.url, PEOPLE)
    use(world, {"source": "sql", "url": postgres.url, "query": MANY})
    without, after = outage(world, log, postgres.stop, postgres.start)
    assert without < 4
    assert after < 12


def test_a_trial_message_asks_the_directory_too(world: World) -> None:
    """`render` shows what the customer would get; with the directory away it says so, and nothing else."""
    write_sqlite(world.folder / "people.db", PEOPLE)
    use(world, {"source": "sql", "url": "sqlite:///people.db", "query": ONE})
    settings = world.folder / "settings.json"
    settings.write_text(json.dumps(SETTINGS[1]), encoding="utf-8")
    words = ["render", "--config", str(world.config), "--settings", str(settings), "--customer", "7"]
    shown = world.command(*words, "--variables", '{"word": "w"}')
    assert shown.returncode == 0
    assert "Dear Name-7 w" in shown.stdout
    (world.folder / "people.db").unlink()
    away = world.command(*words)
    assert away.returncode == 1
    assert away.stderr.startswith(
        "deliveryd: the customer directory: the database answered with FileNotFound"
    )
