"""Commands against a journal in a real PostgreSQL: what they show, and what they say when it isn't there."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import anyio
import psycopg
import pytest

from deliveryd.config import load
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.place import JournalDatabase
from deliveryd.journal.postgresql.opening import open_shared_journal
from deliveryd.model import Malformed, UnreadReport
from journal.attention import hold_twice_tried
from journal.reading import fail_on
from journal.samples import (
    NOW,
    ONE_SECOND,
    bring_to_wait,
    decide_on,
    deliver_to_sent,
    refuse_first,
    sample_message,
    sample_receipt,
)
from support.messages import sms_settings
from support.ports import free_port
from support.postgres import new_database
from support.sandboxes import open_sandbox
from support.terminal import Answered, command

pytestmark = pytest.mark.slow

CONFIG = """\
[service]
base_url = "http://127.0.0.1:1"
[settings]
cache_dir = "cache"
[journal]
url = "URL"
[control]
socket = "control.sock"
[customers]
source = "file"
path = "customers.jsonl"
[channels.sms]
adapter = "http"
url = "http://127.0.0.1:1/sms"
json = { to = "{customer.phone}" }
provider_id = "/id"
receipt = { provider_id = "/id", status = "/status", delivered = ["d"] }
"""
REFUSED = '{"id":5,"customerId":100}'


async def fill(database: JournalDatabase) -> None:
    """Record messages in most of the states there are, and what needs an operator."""
    async with open_shared_journal(database) as journal:
        await deliver_to_sent(journal, 1, "p1")
        await fail_on(journal, 2, "sms", NOW + 5, "provider answered 404")
        await hold_twice_tried(journal, 3, "sms", NOW + 7)
        await bring_to_wait(journal, 4, NOW + ONE_SECOND, "email")
        await journal.take([], [Malformed(REFUSED, "no settings", 5)], NOW)
        await deliver_to_sent(journal, 6, "p6")
        await journal.receive([sample_receipt("p6"), sample_receipt("nowhere")])
        await refuse_first(journal, NOW + 9)
        await journal.receive([UnreadReport("sms", '{"id":"p1"}', "there is no status", NOW)])
        await decide_on(journal, Action.STOP, ItemKind.RECIPIENT, "sms +15550100")
        await decide_on(journal, Action.PAUSE, ItemKind.SETTINGS, 40)
        await journal.take([sample_message(7, city="Ulm")], [], NOW)


def new_url() -> str:
    """The address of an empty database."""
    url = new_database()
    if url is None:
        pytest.skip("there is no PostgreSQL here")
    return url


def write_config(folder: Path, url: str) -> Path:
    """A configuration whose journal is there."""
    folder.joinpath("customers.jsonl").write_text('{"id": 0}\n', encoding="utf-8")
    path = folder / "config.toml"
    path.write_text(CONFIG.replace("URL", url), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a database that is filled; no worker runs. Tests only read it."""
    url = new_url()
    anyio.run(fill, JournalDatabase(url))
    return write_config(tmp_path_factory.mktemp("filled"), url)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """The configuration of a database without a journal."""
    return write_config(tmp_path, new_url())


def shown(config: Path, *arguments: object) -> Answered:
    """What a command shows that succeeds."""
    answered = command(*arguments, "--config", config)
    assert (answered.status, answered.err) == (0, ""), answered
    return answered


def test_explain_shows_the_life_of_a_message(filled: Path) -> None:
    """From the queue to the last event, with the attempt's key at the provider."""
    life = shown(filled, "explain", 1, "--json").data
    assert [event["status"] for event in life["events"]] == ["dequeued", "sent"]
    assert [attempt["provider_id"] for attempt in life["attempts"]] == ["p1"]
    assert "sent" in shown(filled, "explain", 1).out


def test_explain_names_the_worker_that_recorded_an_event_and_the_one_that_has_the_message(
    filled: Path,
) -> None:
    """What it logged is on its machine."""
    name = f"{socket.gethostname()}/{os.getpid()} (1)"
    sent, taken = (shown(filled, "explain", id_, "--json").data for id_ in (1, 7))
    assert [event["worker"] for event in sent["events"]] == [name, name]
    assert (sent["message"]["worker"], taken["message"]["worker"]) == (name, name)
    assert f"worker: {name}\n" in shown(filled, "explain", 1).out
    assert f"  worker     {name}\n" in shown(filled, "explain", 7).out


def test_explain_names_the_database_that_lacks_a_message(filled: Path) -> None:
    """Without what may be secret in its address."""
    answered = command("explain", 99, "--config", filled)
    assert answered.status == 1
    assert "message 99 isn't in the journal postgresql://" in answered.err
    assert "?" not in answered.err.partition("journal postgresql")[2].partition(" ")[0]


def test_find_and_failed_list_messages(filled: Path) -> None:
    """By what is selected; a failure with its reason, and whether it can be retried."""
    assert [found["id"] for found in shown(filled, "find", "--json").data] == [1, 2, 3, 4, 5, 6, 7]
    assert [found["id"] for found in shown(filled, "find", "--channel", "email", "--json").data] == [4]
    assert [found["id"] for found in shown(filled, "failed", "list", "--ids", "--json").data] == [2, 5]
    failure = shown(filled, "failed", "show", 2, "--json").data
    assert (failure["reason"], failure["retry_refused"]) == ("sms: provider answered 404", None)
    [exported] = shown(filled, "failed", "export", 2).out.splitlines()
    assert [event["status"] for event in json.loads(exported)["events"]] == ["dequeued", "error"]
    assert shown(filled, "failed", "retry", 2, "--dry-run", "--json").data["done"] == [2]


def test_in_doubt_lists_what_is_held(filled: Path) -> None:
    [held] = shown(filled, "in-doubt", "list", "--json").data
    assert (held["message_id"], held["provider"], held["tries"]) == (3, "sms", 2)
    assert "1 held in doubt" in shown(filled, "in-doubt", "list").out
    assert shown(filled, "in-doubt", "resend", "--all", "--dry-run", "--json").data["done"] == ["message:3"]


def test_dead_letters_are_listed_and_shown(filled: Path) -> None:
    found = shown(filled, "dead", "list", "--json").data
    assert [each["kind"] for each in found] == ["malformed", "report", "event", "receipt"]
    [malformed, *_] = found
    assert shown(filled, "dead", "show", malformed["name"], "--json").data["raw"] == REFUSED
    assert [each["kind"] for each in shown(filled, "dead", "list", "--kind", "report", "--json").data] == [
        "report"
    ]


def test_the_audit_finds_the_journal_balanced(filled: Path) -> None:
    """The rules of a journal in a file hold, and those of one that is shared."""
    audit = shown(filled, "audit", "--json").data
    assert (audit["balanced"], audit["taken"], audit["gap"]) == (True, 7, 0)
    assert audit["states"] == {
        "taken": 1, "waiting": 1, "in_doubt": 1, "sent": 1, "delivered": 1, "failed": 2,
    }  # fmt: skip
    lines = shown(filled, "audit").out.splitlines()
    assert lines[-1] == "the journal is balanced"


def test_overdue_lists_what_was_never_confirmed(filled: Path) -> None:
    [overdue] = shown(filled, "overdue", "--json").data
    assert (overdue["message_id"], overdue["provider_id"]) == (1, "p1")


def test_a_pause_waits_for_nobody_where_no_worker_is(tmp_path: Path) -> None:
    url = new_url()
    anyio.run(fill, JournalDatabase(url))
    answered = command("pause", "channel", "sms", "--config", write_config(tmp_path, url))
    assert (answered.status, answered.err) == (0, "")


def test_orders_are_listed(filled: Path) -> None:
    """What is paused, who is stopped, and the decisions themselves."""
    [paused] = shown(filled, "paused", "--json").data
    assert (paused["kind"], paused["key"]) == ("settings", "40")
    [stopped] = shown(filled, "stopped", "list", "--json").data
    assert (stopped["channel"], stopped["source"]) == ("sms", "operator")
    assert shown(filled, "stopped", "export", "--channel", "sms").out.strip() == stopped["recipient"]
    assert [each["verb"] for each in shown(filled, "decisions", "--json").data] == ["stop", "pause"]


def test_erase_previews_what_belongs_to_a_customer(filled: Path) -> None:
    """Messages, one of them malformed, that element, and the report that names the other one."""
    answered = shown(filled, "erase", "--customer", 100, "--dry-run", "--json").data
    assert answered["erased"] == {"messages": 2, "malformed": 1, "receipts": 0, "reports": 1}


def test_render_minds_who_stopped_the_channel(filled: Path, tmp_path: Path) -> None:
    """The digest of an address is computed with the key of the shared journal."""
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps(sms_settings("hello")), encoding="utf-8")
    for phone, status in (("+15550100", 1), ("+15550199", 0)):
        filled.with_name("customers.jsonl").write_text(f'{{"id": 9, "phone": "{phone}"}}\n', encoding="utf-8")
        answered = command("render", "--settings", settings, "--customer", 9, "--config", filled)
        assert answered.status == status, answered
        assert ("the recipient is suppressed" in answered.out) == bool(status), answered.out


def test_lint_compares_placeholders_with_the_variables_of_the_journal(filled: Path) -> None:
    with open_sandbox() as sandbox:
        sandbox.state.settings[70] = sms_settings("{town}")
        text = filled.read_text(encoding="utf-8")
        config = filled.with_name("lint.toml")
        config.write_text(text.replace("http://127.0.0.1:1", sandbox.base_url, 1), encoding="utf-8")
        answered = command("lint", "--settings", 70, "--config", config)
    assert "town" in answered.out
    assert "the only message in the journal" in answered.out


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", 1), ("find",), ("failed", "list"), ("in-doubt", "list"), ("dead", "list"), ("audit",),
        ("overdue",), ("decisions",), ("stopped", "list"), ("erase", "--customer", 1, "--dry-run"),
    ],
)  # fmt: skip
def test_a_database_without_a_journal_is_said_to_have_none(
    empty: Path, arguments: tuple[object, ...]
) -> None:
    answered = command(*arguments, "--config", empty)
    assert answered.status == 1
    place = load(empty, {}).journal.place.name
    assert answered.err == f"deliveryd: there is no journal in {place}: deliveryd hasn't run with it yet\n"


def test_nothing_is_paused_before_the_first_run(empty: Path) -> None:
    assert shown(empty, "paused").out == "nothing is paused\n"


@pytest.mark.parametrize("name", ["status", "tail"])
def test_who_watches_where_no_worker_runs_is_led_to_the_others(empty: Path, name: str) -> None:
    """Workers of the same journal may run elsewhere; a socket or an admin server names one."""
    answered = command(name, "--config", empty)
    assert answered.status == 1
    assert answered.err == (
        f"deliveryd: no worker of this machine listens at {empty.with_name('control.sock')}:"
        " deliveryd workers shows all of the journal; name one with"
        " DELIVERYD_CONTROL__SOCKET, or with --url\n"
    )


def test_a_database_that_cannot_be_reached_is_one_line_that_says_what_to_check(tmp_path: Path) -> None:
    config = write_config(tmp_path, f"postgresql://deliveryd@127.0.0.1:{free_port()}/deliveryd")
    answered = command("audit", "--config", config)
    assert answered.status == 1
    [line] = answered.err.splitlines()
    assert line.startswith("deliveryd: the journal's database can't be reached: ")
    assert "journal.url" in line


def test_a_journal_of_a_newer_format_is_said_to_be_one(tmp_path: Path) -> None:
    url = new_url()
    anyio.run(fill, JournalDatabase(url))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE main.meta SET value = '9' WHERE key IN ('format', 'written_since')")
    answered = command("find", "--config", write_config(tmp_path, url))
    assert answered.status == 78
    assert "the journal has format 9" in answered.err
    assert "run a newer one" in answered.err


def test_a_user_who_may_not_read_the_tables_is_told_what_to_grant(tmp_path: Path) -> None:
    url = new_url()
    anyio.run(fill, JournalDatabase(url))
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS looker")
        db.execute("CREATE ROLE looker LOGIN")
    config = write_config(tmp_path, url.replace("postgres@", "looker@"))
    answered = command("audit", "--config", config)
    assert answered.status == 78
    assert "GRANT USAGE ON SCHEMA main, own and SELECT ON ALL TABLES IN SCHEMA main, own" in answered.err
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("GRANT USAGE ON SCHEMA main, own TO looker")
        db.execute("GRANT SELECT ON ALL TABLES IN SCHEMA main, own TO looker")
    assert shown(config, "audit").out.endswith("the journal is balanced\n")
    assert "dequeued" in shown(config, "explain", 1).out


def test_what_is_found_is_erased_and_leaves_a_balanced_journal(tmp_path: Path) -> None:
    """The order is carried out in the database, without a worker."""
    url = new_url()
    anyio.run(fill, JournalDatabase(url))
    config = write_config(tmp_path, url)
    assert command("erase", "--customer", 200, "--config", config).status == 0
    again = shown(config, "erase", "--customer", 200, "--json").data
    assert sum(again["erased"].values()) == 0
    assert shown(config, "audit").out.endswith("the journal is balanced\n")
