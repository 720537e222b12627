"""A journal and a cache belong to one service: another one's ids and templates are never taken for these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from deliveryd.errors import ConfigError, JournalLocked, JournalUnusable
from deliveryd.journal.moving.move import move_journal
from deliveryd.journal.opening import JournalTerms, open_journal, open_reader
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.place import JournalDatabase, JournalFile
from deliveryd.journal.postgresql.workers import examine_database
from deliveryd.journal.reader import DecisionSelection
from deliveryd.journal.service_adoption import adopt_service
from deliveryd.journal.sqlite.lock import exclusive_worker
from support.check_command import line
from support.messages import message
from support.postgres import new_database
from support.terminal import Answered, command
from support.virtual import VirtualWorld, live

OLD, NEW = "http://service", "http://other:8080"


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = template("hello {word}")
    return world


def template(text: str) -> str:
    return json.dumps({"content": {"en": {"sms": {"text": text}}}})


def name_service(world: VirtualWorld, address: str) -> None:
    text = world.path.read_text(encoding="utf-8")
    world.write(text.replace(f'base_url = "{world.config().service.base_url}"', f'base_url = "{address}"'))


def live_with(world: VirtualWorld) -> None:
    live(world.run_until_idle)


def journal_command(world: VirtualWorld, *arguments: str) -> Answered:
    return command("journal", *arguments, "--config", world.path)


def test_an_id_of_the_old_service_is_never_told_to_another_as_sent(world: VirtualWorld) -> None:
    """A worker whose address differs from the journal's doesn't start, and says what to do."""
    world.service.enqueue(message(1))
    live_with(world)
    told = len(world.service.events)
    name_service(world, NEW)
    world.service.enqueue(message(1))
    with pytest.raises(JournalUnusable, match="deliveryd journal adopt-service") as found:
        live_with(world)
    assert f"service at {OLD}, and service.base_url names {NEW}" in str(found.value)
    assert len(world.service.events) == told


@pytest.mark.slow
def test_a_template_of_the_old_service_is_never_sent_for_another(world: VirtualWorld) -> None:
    """With a journal of its own and the cache of before, the new service's settings are requested."""
    world.service.enqueue(message(1))
    live_with(world)
    name_service(world, NEW)
    world.write(world.path.read_text(encoding="utf-8").replace("journal.db", "another.db"))
    world.service.settings[1] = template("goodbye {word}")
    world.service.enqueue(message(2))
    live_with(world)
    texts = [dispatch.rendered.fields["text"] for _, dispatch in world.channels["sms"].attempts]
    assert texts == ["hello w", "goodbye w"]


def test_a_reload_with_another_address_changes_nothing(world: VirtualWorld) -> None:
    """The running worker refuses it with the same words, and goes on with its own service."""

    async def run() -> None:
        worker, ready = world.supervisor(), trio.Event()
        worker._on_ready = lambda _addresses: ready.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await ready.wait()
            assert worker.reloader is not None
            name_service(world, NEW)
            with pytest.raises(ConfigError) as found:
                await worker.reloader.reload(accept_orphans=False)
            (problem,) = found.value.problems
            assert problem.startswith(f"{world.path}:service.base_url: ")
            assert f"service at {OLD}" in problem
            assert "deliveryd journal adopt-service" in problem
            assert worker.config.service.base_url == OLD
            name_service(world, f"{OLD}/")
            await worker.reloader.reload(accept_orphans=False)
            worker.stop()

    live(run)


@pytest.mark.parametrize("spelling", ["http://service/", "http://service:80", "HTTP://Service:80/", OLD])
def test_another_spelling_is_the_same_service(world: VirtualWorld, spelling: str) -> None:
    """A slash at the end, the default port and the case of scheme and host say nothing."""
    live_with(world)
    name_service(world, spelling)
    world.service.enqueue(message(1))
    live_with(world)
    assert world.service.statuses(1) == ["dequeued", "sent"]


@pytest.mark.parametrize("address", ["https://service", "http://service:81", "http://service/v2", "http://s"])
def test_another_address_is_another_service(world: VirtualWorld, address: str) -> None:
    """Scheme, host, port and path count."""
    live_with(world)
    name_service(world, address)
    with pytest.raises(JournalUnusable, match="deliveryd journal adopt-service"):
        live_with(world)


def test_a_service_that_moved_back_has_its_present_templates(world: VirtualWorld) -> None:
    """Those that were cached at its old address before it moved away are fetched anew."""
    for number, (address, text) in enumerate(((OLD, "old"), (NEW, "new"), (OLD, "new")), 1):
        name_service(world, address)
        if number > 1:
            assert journal_command(world, "adopt-service").status == 0
        world.service.settings[1] = template(text)
        world.service.enqueue(message(number))
        live_with(world)
    texts = [dispatch.rendered.fields["text"] for _, dispatch in world.channels["sms"].attempts]
    assert texts == ["old", "new", "new"]


def test_a_service_that_moved_is_adopted_and_recorded(world: VirtualWorld) -> None:
    """The worker then goes on at the new address with what the journal holds."""
    world.service.enqueue(message(1))
    live_with(world)
    name_service(world, NEW)
    found = journal_command(world, "adopt-service", "--reason", "new name")
    assert (
        found.out
        == f"the journal belongs to the service at {NEW} now, and belonged to the one at {OLD} before\n"
    )
    rows = world.journal_rows("SELECT verb, kind, key, reason FROM decision")
    assert rows == [("adopt", "service", NEW, "new name")]
    world.service.enqueue(message(1), message(2))
    live_with(world)
    assert world.service.statuses(1) == ["dequeued", "sent", "dequeued", "sent"]
    assert [dispatch.entry.id for _, dispatch in world.channels["sms"].attempts] == [1, 2]


def test_an_address_that_the_journal_has_already_is_not_adopted(world: VirtualWorld) -> None:
    """Nothing is recorded, the cache stays, and a running worker is no obstacle."""
    world.service.enqueue(message(1))
    live_with(world)
    with exclusive_worker(world.folder / "journal.db"):
        found = journal_command(world, "adopt-service")
    told = f"nothing to do: the journal belongs to the service at {OLD} already\n"
    assert (found.status, found.out) == (0, told)
    assert world.journal_rows("SELECT verb FROM decision") == []
    assert command("cache", "info", "--settings", "1", "--config", world.path).status == 0
    assert journal_command(world, "adopt-service", "--json").data == {"service": OLD, "before": OLD}


def test_a_journal_isnt_adopted_while_a_worker_has_it(world: VirtualWorld) -> None:
    """The command says who has it, and what to do, and leaves the cache; without a journal it makes none."""
    answered = journal_command(world, "adopt-service")
    assert (answered.status, "there is no journal at" in answered.err) == (1, True)
    assert not (world.folder / "journal.db").exists()
    world.service.enqueue(message(1))
    live_with(world)
    name_service(world, NEW)
    with exclusive_worker(world.folder / "journal.db"):
        answered = journal_command(world, "adopt-service")
    assert answered.status == 1
    name_service(world, OLD)
    assert command("cache", "info", "--settings", "1", "--config", world.path).status == 0
    assert answered.err.endswith("): stop the worker first\n")


def test_check_says_that_the_journal_belongs_to_another_service(world: VirtualWorld) -> None:
    """At the key that is to be changed, with what to do; before any request."""
    answered = command("check", "--offline", "--config", world.path)
    assert "belongs to" not in answered.out
    live_with(world)
    name_service(world, NEW)
    answered = command("check", "--offline", "--config", world.path)
    assert answered.status == 78
    assert line(answered, "service.base_url").startswith("error")
    assert f"belongs to the service at {OLD}" in line(answered, "service.base_url")


@pytest.mark.parametrize("words", [("explain", "1"), ("audit",)])
def test_what_only_reads_the_journal_asks_for_no_service(world: VirtualWorld, words: tuple[str, ...]) -> None:
    """They say of a journal what it holds, whatever is configured by now."""
    world.service.enqueue(message(1))
    live_with(world)
    name_service(world, NEW)
    assert command(*words, "--config", world.path).status == 0


# in a database


@pytest.fixture
def database() -> JournalDatabase:
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return JournalDatabase(url)


async def begin(place: JournalDatabase | JournalFile, service: str) -> None:
    async with open_journal(place, JournalTerms(lease=2.0, service=service)):
        pass


def adopt(place: JournalDatabase | JournalFile, service: str) -> str | None:
    return adopt_service(place, Order(Action.ADOPT, ItemKind.SERVICE, (service,)), 1)


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_all_workers_of_a_database_have_one_service(database: JournalDatabase) -> None:
    """It takes the address of the first one; one with another doesn't begin; all stop for an adoption."""
    async with open_journal(database, JournalTerms(lease=2.0, service=OLD)):
        with pytest.raises(JournalUnusable, match="adopt-service"):
            await begin(database, NEW)
        await begin(database, OLD)
        with pytest.raises(JournalLocked, match="stop all workers of it first"):
            adopt(database, NEW)
        assert adopt(database, OLD) == OLD
    assert adopt(database, NEW) == OLD
    await begin(database, NEW)
    assert examine_database(database).service == NEW
    with pytest.raises(JournalUnusable, match="adopt-service"):
        await begin(database, OLD)
    (decision,) = open_reader(database).decisions(DecisionSelection(), 0, 9)
    assert (decision.verb, decision.kind, decision.key) == ("adopt", "service", NEW)


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_move_takes_the_service_along(database: JournalDatabase, tmp_path: Path) -> None:
    """There and back."""
    there, back = JournalFile(tmp_path / "journal.db"), JournalFile(tmp_path / "back.db")
    await begin(there, OLD)
    move_journal(there, database, 1, lambda *_: None)
    with pytest.raises(JournalUnusable, match="adopt-service"):
        await begin(database, NEW)
    move_journal(database, back, 2, lambda *_: None)
    with pytest.raises(JournalUnusable, match="adopt-service"):
        await begin(back, NEW)
    await begin(back, OLD)
