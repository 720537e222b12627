"""`deliveryd overdue`, and the keys of a channel that say what follows when no receipt comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deliveryd.commands.messages.explanation import life_lines
from deliveryd.config import examine, load
from deliveryd.journal.reader import file_reader
from deliveryd.journal.sqlite.journal import open_journal_file
from journal.deadlines import send_to_confirm
from journal.samples import deliver_to_sent, receive_all, sample_receipt
from support.terminal import command

CONFIG = """\
[service]
base_url = "http://127.0.0.1:1"
[settings]
cache_dir = "cache"
[journal]
url = "sqlite:///journal.db"
[receipts]
listen = "127.0.0.1:0"
[channels.sms]
adapter = "http"
url = "http://127.0.0.1:1/sms"
json = {}
provider_id = "/id"
"""
RECEIPT = 'receipt = { provider_id = "/id", status = "/status", delivered = ["d"] }\n'
LATER = '[channels.email]\nadapter = "http"\nurl = "http://127.0.0.1:1/email"\njson = {}\n'


def problems(folder: Path, text: str) -> list[str]:
    """What is wrong with a configuration, without the name of its file."""
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return [problem.partition(".toml:")[2] for problem in examine(path, {}).problems]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG + RECEIPT, encoding="utf-8")
    return path


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_it_lists_what_was_sent_long_ago_and_never_confirmed(config: Path) -> None:
    """Without a worker; a delivered message isn't listed."""
    async with open_journal_file(config.parent / "journal.db") as journal:
        await deliver_to_sent(journal, 1, "p1")
        await deliver_to_sent(journal, 2, None)
        await deliver_to_sent(journal, 3, "p3")
        await receive_all(journal, [sample_receipt("p1")])
    listed = command("overdue", "--config", config, "--json")
    assert listed.status == 0
    assert json.loads(listed.out) == [
        {
            "message_id": id_,
            "channel": "sms",
            "provider": "sms",
            "provider_id": provider_id,
            "sent_at": "2023-11-14T22:13:20.000005Z",
        }
        for id_, provider_id in ((2, None), (3, "p3"))
    ]
    assert command("overdue", "--config", config).out.splitlines() == [
        "2  sms, sent 2023-11-14T22:13:20.000Z",
        "    id at the provider: none",
        "3  sms, sent 2023-11-14T22:13:20.000Z",
        "    id at the provider: p3",
        "2 overdue",
    ]


def test_it_lists_nothing_of_providers_without_receipts(tmp_path: Path, config: Path) -> None:
    config.write_text(CONFIG, encoding="utf-8")
    assert problems(tmp_path, CONFIG) == []
    assert command("overdue", "--config", config).status == 1  # there is no journal yet


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_explain_says_how_much_time_is_left(config: Path) -> None:
    path = config.parent / "journal.db"
    async with open_journal_file(path) as journal:
        await send_to_confirm(journal, 1)
        await journal.pass_deadlines(60_000_000, 0, ["sms"], 9)
    (line,) = [
        line for line in life_lines(file_reader(path).lives([1])[0], ["sms"]) if "next channel" in line
    ]
    assert (
        line.strip() == "goes to the next channel unless a delivery is reported within 0:09:00 of listening"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [("receipt_deadline", '"10m"'), ("receipt_failed_then", '"next"'), ("receipt_overdue", '"1h"')],
)
def test_the_keys_need_a_provider_that_reports_and_a_server_that_listens(
    tmp_path: Path, key: str, value: str
) -> None:
    given = CONFIG.replace("adapter", f"{key} = {value}\nadapter", 1)
    assert problems(tmp_path, given + RECEIPT + LATER) == []
    assert problems(tmp_path, given + LATER) == [
        f"channels.sms.{key}: no provider of the channel reports receipts: add a receipt table to one of them"
    ]
    deaf = (given + RECEIPT + LATER).replace('"127.0.0.1:0"', '""')
    assert f"channels.sms.{key}: receipts.listen is empty, so no receipt could arrive" in problems(
        tmp_path, deaf
    )


@pytest.mark.parametrize("key", ["receipt_deadline", "receipt_overdue"])
def test_a_deadline_must_end_before_the_message_is_deleted(tmp_path: Path, key: str) -> None:
    given = CONFIG.replace("adapter", f'{key} = "7d"\nadapter', 1)
    assert problems(tmp_path, given + RECEIPT + LATER) == [
        f"channels.sms.{key}: must be shorter than journal.retention, which deletes messages before"
    ]


FAILURES = RECEIPT.replace('["d"]', '[], failed = ["f"]')


def test_what_a_provider_never_confirms_is_never_overdue_and_has_no_deadline(tmp_path: Path) -> None:
    """One that reports failures only; what a failure leads to is a good key all the same."""
    text = CONFIG + FAILURES + LATER
    assert problems(tmp_path, text) == []
    assert load(tmp_path / "config.toml").channels.overdue == {}
    problem = "no provider of the channel reports deliveries: no receipt table has delivered"
    for key in ("receipt_deadline", "receipt_overdue"):
        given = text.replace("adapter", f'{key} = "10m"\nadapter', 1)
        assert problems(tmp_path, given) == [f"channels.sms.{key}: {problem}"]
    assert problems(tmp_path, text.replace("adapter", 'receipt_failed_then = "next"\nadapter', 1)) == []


def test_opt_outs_alone_make_nothing_overdue(tmp_path: Path) -> None:
    """The preset of Telegram, which reports who stopped the bot, and no deliveries."""
    path = tmp_path / "config.toml"
    for name in ("token", "hook"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text("0123456789abcdef", encoding="utf-8")
    secrets = '{ token = "token", webhook_token = "hook" }'
    head = CONFIG.partition("[channels.sms]")[0]
    path.write_text(
        f'{head}[channels.messenger]\nadapter = "telegram"\nsecrets = {secrets}\n', encoding="utf-8"
    )
    channels = load(path).channels
    assert (list(channels.reporting), channels.overdue) == (["messenger"], {})
