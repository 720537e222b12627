"""`deliveryd check`: everything that is wrong with a configuration, told before it goes wrong."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deliveryd.commands.common.conventions import CONFIGURATION
from deliveryd.http.reachability import connect_problem
from deliveryd.http.tls import TlsFiles
from support.check_command import check, line, warned
from support.patience import PATIENCE
from support.ports import free_port
from support.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101", "email": "ann@example.com"}])
        yield world


@contextmanager
def listening() -> Iterator[int]:
    """A port that somebody else holds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_where_all_is_well_each_thing_has_a_line_and_nothing_is_taken(world: World) -> None:
    """The service is asked for settings: its queue stays as it is, and no provider is asked to send."""
    world.state.enqueue({"id": 1, "settingsId": 1, "customerId": 1, "variables": {}})
    answered = check(world)
    assert answered.status == 0
    assert all(line.startswith("ok  ") for line in answered.out.splitlines())
    assert f"{world.sandbox.base_url} can be reached" in line(answered, "service.base_url")
    assert f"{world.sandbox.base_url} can be reached" in line(answered, "channels.sms")
    assert "customers.jsonl was read" in line(answered, "customers.path")
    assert "journal.db will be created" in line(answered, "journal.url")
    assert "turned off" in line(answered, "admin.listen")
    assert set(world.state.requests) == {"settings"}
    assert world.state.offers.waiting == 1


def test_nothing_is_left_behind(world: World) -> None:
    before = sorted(world.folder.iterdir())
    check(world)
    assert sorted(world.folder.iterdir()) == before


def test_all_mistakes_of_the_file_are_told_at_once_with_78(world: World) -> None:
    """Each on a line that begins with the file and the key."""
    world.change("[queue]", "[queue]\nbatch_sise = 5")
    world.change('flush_interval = "20ms"', 'flush_interval = "soon"')
    answered = check(world)
    assert (answered.status, answered.out) == (78, "")
    problems = answered.err.splitlines()
    assert problems[0].startswith(f"{world.config}:queue.batch_sise: unknown key; did you mean batch_size?")
    assert problems[1].startswith(f"{world.config}:events.flush_interval: ")
    data = check(world, "--json").data
    assert data["level"] == "error"
    assert [found["key"] for found in data["checks"]] == [
        f"{world.config}:queue.batch_sise",
        f"{world.config}:events.flush_interval",
    ]


def test_what_cannot_be_reached_stands_last_and_ends_with_1(world: World) -> None:
    port = free_port()
    world.change(f'url = "{world.sandbox.base_url}/sms"', f'url = "http://127.0.0.1:{port}/sms"')
    answered = check(world)
    assert answered.status == 1
    assert answered.out.splitlines()[-1].startswith("failed")
    assert f"no connection to 127.0.0.1:{port}: connection refused" in line(answered, "channels.sms")


def test_offline_nothing_is_connected_to(world: World) -> None:
    world.change(f'base_url = "{world.sandbox.base_url}"', f'base_url = "http://127.0.0.1:{free_port()}"')
    answered = check(world, "--offline")
    assert answered.status == 0
    assert "service" not in answered.out
    assert check(world).status == 1


def test_a_mail_server_is_asked_too(world: World) -> None:
    world.add(
        '[channels.email]\nadapter = "smtp"\nhost = "127.0.0.1"\nport = SMTP_PORT\n'
        'tls = "none"\nsender = "club@example.com"\n'
    )
    answered = check(world)
    assert answered.status == 0
    assert f"127.0.0.1:{world.sandbox.smtp_port} can be reached" in line(answered, "channels.email")


def test_addresses_of_our_own_that_are_taken_end_with_1(world: World) -> None:
    with listening() as port:
        world.change('[admin]\nlisten = ""', f'[admin]\nlisten = "127.0.0.1:{port}"')
        answered = check(world)
    assert answered.status == 1
    assert "Address already in use" in line(answered, "admin.listen")
    assert "is free" in line(check(world), "admin.listen")


def test_addresses_that_this_machine_does_not_have_end_with_1(world: World) -> None:
    """One that moves between machines may come to this one."""
    world.change('[admin]\nlisten = ""', '[admin]\nlisten = "192.0.2.1:9470"')
    answered = check(world)
    assert answered.status == 1
    assert answered.out.splitlines()[-1].startswith("failed")


def test_one_address_for_two_servers_is_found_out(world: World) -> None:
    port = free_port()
    world.change('[admin]\nlisten = ""', f'[admin]\nlisten = "127.0.0.1:{port}"')
    world.change('[receipts]\nlisten = ""', f'[receipts]\nlisten = "127.0.0.1:{port}"')
    world.add('receipt = { provider_id = "/id", status = "/status", delivered = ["ok"], failed = [] }\n')
    for options in ((), ("--offline",)):
        answered = check(world, *options)
        assert answered.status == CONFIGURATION
        assert "receipts.listen: is the same address as admin.listen" in answered.out + answered.err


@pytest.mark.slow
def test_a_running_worker_may_hold_its_own_addresses(world: World) -> None:
    """And its journal is told to be in use, which is no problem either."""
    port = free_port()
    world.change('[admin]\nlisten = ""', f'[admin]\nlisten = "127.0.0.1:{port}"')
    worker = world.start()
    world.state.wait_for(lambda state: state.requests["queue"], PATIENCE)
    answered = check(world)
    assert answered.status == 0
    assert f"in use by process {worker.pid}" in line(answered, "journal.url")
    assert f"is in use while deliveryd runs as process {worker.pid}" in line(answered, "admin.listen")


def test_an_unusable_customer_file_names_the_line(world: World) -> None:
    world.folder.joinpath("customers.jsonl").write_text('{"id": 1}\n{"id": "Ann"}\n')
    answered = check(world, "--offline")
    assert answered.status == 78
    assert "customers.jsonl:2: the id isn't an integer" in line(answered, "customers.path")
    assert "Ann" not in answered.out


def test_mistakes_do_not_hide_what_else_is_wrong(world: World) -> None:
    """A key, a secret, the customer file and a provider that is away: all in one list, each under its key."""
    port = free_port()
    world.change("[queue]", "[queue]\nbatch_sise = 5")
    world.change(f'url = "{world.sandbox.base_url}/sms"', f'url = "http://127.0.0.1:{port}/sms"')
    world.change('timeout = "1m"', 'timeout = "1m"\nauth = { token_file = "absent" }')
    world.folder.joinpath("customers.jsonl").unlink()
    answered = check(world)
    assert (answered.status, answered.out) == (78, "")
    keys = [told.removeprefix(f"{world.config}:").partition(": ")[0] for told in answered.err.splitlines()]
    assert sorted(keys) == ["channels.sms", "customers.path", "queue.batch_sise", "service.auth.token_file"]
    assert f"{world.config}:channels.sms: failed: no connection" in answered.err
    results = {found["key"]: found["level"] for found in check(world, "--json").data["checks"]}
    assert results[f"{world.config}:channels.sms"] == "failed"
    assert results[f"{world.config}:customers.path"] == "error"
    assert "channels.sms: " not in check(world, "--offline").err


def test_what_a_variable_names_is_told_with_the_variable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the file, which names another one."""
    world.change("[queue]", "[queue]\nbatch_sise = 5")
    monkeypatch.setenv("DELIVERYD_CUSTOMERS__PATH", "/absent.jsonl")
    told = check(world, "--offline").err.splitlines()
    assert told[1:] == ["DELIVERYD_CUSTOMERS__PATH: /absent.jsonl: No such file or directory"]


def test_what_is_told_once_is_not_told_again(world: World) -> None:
    """A secret of a channel that is missing keeps the channel from being opened too."""
    world.add('secrets = { token = "absent" }\n')
    told = check(world).err.splitlines()
    assert len(told) == 1
    assert told[0].startswith(f"{world.config}:channels.sms.secrets.token: ")


@pytest.mark.parametrize("lacking", ["secret", "address"])
def test_one_fault_of_a_preset_is_told_once(world: World, lacking: str) -> None:
    """Twilio's token is sent and signs receipts; its requests carry the address for them."""
    text = world.config.read_text(encoding="utf-8")
    table = text[text.index("[channels.sms]") :]
    token = world.config.parent / "twilio-token"
    if lacking != "secret":
        token.write_text("s3cret")
        token.chmod(0o600)
    keys = 'account = "AC0001"\nfrom = "Acme"\nsecrets = { token = "twilio-token" }\n'
    preset = f'[channels.sms]\nadapter = "twilio"\n{keys}'
    public = 'public_url = "https://cb.example.com"\n' if lacking != "address" else ""
    receives = f'[receipts]\nlisten = "127.0.0.1:0"\n{public}'
    text = text.replace(table, preset).replace('[receipts]\nlisten = ""\n', receives)
    world.config.write_text(text, encoding="utf-8")
    [told] = check(world, "--offline").err.splitlines()
    expected = "channels.sms.secrets.token" if lacking == "secret" else "receipts.public_url"
    assert told.startswith(f"{world.config}:{expected}: ")


def in_place_of_the_file(world: World, table: str) -> None:
    world.change('source = "file"\npath = "customers.jsonl"', table)


def test_a_directory_over_http_is_connected_to(world: World) -> None:
    """It isn't asked for anybody."""
    fields = 'fields = { name = "/name", phone = "/phone" }'
    in_place_of_the_file(
        world, f'source = "http"\nurl = "{world.sandbox.base_url}/c/{{customerId}}"\n{fields}'
    )
    answered = check(world)
    assert answered.status == 0
    assert f"{world.sandbox.base_url} can be reached" in line(answered, "customers.url")
    assert set(world.state.requests) == {"settings"}
    assert "customers.url" not in check(world, "--offline").out


def test_a_query_is_tried_on_nobody(world: World) -> None:
    """What the database has against it is told; a database that is away may come back by itself."""
    query = "select name, phone from people where id = :customer_id"
    table = f'source = "sql"\nurl = "sqlite:///people.db"\nquery = "{query}"'
    in_place_of_the_file(world, table)
    answered = check(world)
    assert answered.status == 1
    assert "No such file or directory" in line(answered, "customers.url")
    people = sqlite3.connect(world.folder / "people.db")
    people.execute("CREATE TABLE guests (name TEXT, phone TEXT)")
    people.close()
    assert "no such table: people" in line(check(world), "customers.url")
    world.change("from people where id", "from guests where rowid")
    answered = check(world)
    assert answered.status == 0
    assert "people.db can be reached" in line(answered, "customers.url")


def test_a_foreign_database_is_no_journal(world: World) -> None:
    db = sqlite3.connect(world.folder / "journal.db")
    db.execute("CREATE TABLE guests (name TEXT)")
    db.close()
    answered = check(world, "--offline")
    assert answered.status == 78
    assert "no journal of deliveryd" in line(answered, "journal.url")


def test_folders_that_cannot_be_made_are_named(world: World) -> None:
    world.folder.joinpath("file").touch()
    world.change('cache_dir = "cache"', 'cache_dir = "file/cache"')
    world.change("sqlite:///journal.db", "sqlite:///file/journal.db")
    answered = check(world, "--offline")
    assert answered.status == 78
    assert "file isn't a folder" in line(answered, "settings.cache_dir")
    assert "Not a directory" in line(answered, "journal.url")


def test_tls_files_are_read(world: World) -> None:
    world.change("[queue]", '[service.tls]\nca_file = "absent.pem"\n\n[queue]')
    answered = check(world, "--offline")
    assert answered.status == 78
    assert "service.tls" in answered.err


def test_secrets_are_not_shown(world: World) -> None:
    secret = world.folder / "token"
    secret.touch(mode=0o600)
    secret.write_text("s3cret")
    world.add('headers = { Authorization = "Bearer {secret.token}" }\nsecrets = { token = "token" }\n')
    answered = check(world, "--json")
    assert answered.status == 0
    assert "s3cret" not in answered.out + answered.err


@pytest.mark.anyio
async def test_somebody_without_tls_is_told_apart_from_nobody(world: World) -> None:
    """An https address that answers in plain HTTP says that TLS is the trouble."""
    problem = await connect_problem("127.0.0.1", world.sandbox.port, TlsFiles())
    assert problem is not None
    assert problem.startswith(f"TLS with 127.0.0.1:{world.sandbox.port} failed: ")


# fields that no customer has


def test_a_field_that_no_customer_of_the_file_has_is_compared_with_those_there(world: World) -> None:
    world.change("{customer.phone}", "{customer.phon}")
    assert warned(check(world, "--offline")) == {
        "channels.sms": "{customer.phon} has no value for any customer, so no one is reached:"
        " customers.jsonl has email, id, name, phone; did you mean {customer.phone}?"
    }


def test_customers_whose_addresses_cannot_be_read_are_counted(world: World) -> None:
    """By provider and field, with the first few; what `check` says quotes no address."""
    phones = ["+447700900101", "07700 9XXXXX", "\u200b", "\u00a0+44 7700 900102", "unknown", "4.477E+11", "0"]
    world.customers(
        [{"id": id_, "phone": phone, "email": "a@example.com;b"} for id_, phone in enumerate(phones, 1)]
    )
    world.change("{customer.phone}", "{customer.phone|e164}")
    world.add(
        '[channels.email]\nadapter = "smtp"\nhost = "127.0.0.1"\nport = SMTP_PORT\n'
        'tls = "none"\nsender = "club@example.com"\n'
    )
    told = warned(check(world, "--offline"))
    assert told["channels.sms"] == (
        "{customer.phone} can't be read for 4 of 7 customers, who aren't reached: 2, 5, 6 and 1 more"
    )
    assert told["channels.email"].startswith("{customer.email} can't be read for 7 of 7 customers")


def test_each_device_of_a_list_is_read_by_itself(world: World) -> None:
    """A customer with one that can be read is reached."""
    numbers = [["+33700000012"], ["unknown", "+33700000013"], "+33700000014", ["unknown", "0"]]
    world.customers([{"id": id_, "phones": phones} for id_, phones in enumerate(numbers, 1)])
    world.change("{customer.phone}", "{customer.phones|e164}")
    world.add('recipient = "{customer.phones|e164}"\ndevices = true\n')
    assert warned(check(world, "--offline")) == {
        "channels.sms": "{customer.phones} can't be read for 1 of 4 customers, who aren't reached: 4"
    }


def test_a_field_is_compared_with_those_of_a_directory_over_http(world: World) -> None:
    in_place_of_the_file(
        world,
        f'source = "http"\nurl = "{world.sandbox.base_url}/c/{{customerId}}"\nfields = {{ fone = "/p" }}',
    )
    assert warned(check(world, "--offline")) == {
        "channels.sms": "{customer.phone} has no value for any customer, so no one is reached:"
        " customers.fields has fone, id; did you mean {customer.fone}?"
    }


def test_a_field_is_compared_with_the_columns_of_a_query(world: World) -> None:
    query = "select name, telephone from people where id = :customer_id"
    in_place_of_the_file(world, f'source = "sql"\nurl = "sqlite:///people.db"\nquery = "{query}"')
    people = sqlite3.connect(world.folder / "people.db")
    people.execute("CREATE TABLE people (id INTEGER, name TEXT, telephone TEXT)")
    people.close()
    assert warned(check(world)) == {
        "channels.sms": "{customer.phone} has no value for any customer, so no one is reached:"
        " the query selects id, name, telephone; did you mean {customer.telephone}?"
    }


def test_without_a_directory_a_channel_that_needs_an_address_reaches_nobody(world: World) -> None:
    in_place_of_the_file(world, "")
    assert warned(check(world, "--offline")) == {
        "channels.sms": "{customer.phone} has no value for any customer, so no one is reached:"
        ' customers.source is "none"'
    }
