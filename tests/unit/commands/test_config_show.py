"""`deliveryd config show` and `init`: what is in force, and a new file that `check` accepts."""

from __future__ import annotations

import os
import pty
import stat
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from deliveryd.config import load
from support.terminal import Answered, command

CONFIG = """\
[service]
base_url = "https://queue.example.com"
auth = { token_file = "token" }

[queue]
batch_size = 50
[receipts]
public_url = "https://receipts.example.com"
[customers]
source = "http"
url = "https://crm.example.com/{customerId}?api_key=lit3ral"
fields = { phone = "/phone" }

[channels.sms]
max_parts = 2
[channels.sms.providers.twilio]
adapter = "twilio"
account = "AC1"
from = "Acme"
secrets = { token = "token" }
[channels.sms.providers.plain]
adapter = "http"
url = "https://sms.example.com/send?token=lit3ral"
headers = { Authorization = "Bearer lit3ral", X-Id = "{message.key}", X-Vendor = "Key lit3ral" }
json = { text = "{content.text}", password = "lit3ral", appKey = "lit3ral", key = "{secret.token}" }
secrets = { token = "token" }
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("s3cret", encoding="utf-8")
    path = tmp_path / "config.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def show(path: Path, *options: str, **environ: str) -> Answered:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        return command("config", "show", "--config", path, *options)


# show


def test_what_is_shown_can_be_loaded_and_is_the_same(config: Path, tmp_path: Path) -> None:
    """Save for what is masked: paths are whole, defaults are written out."""
    config.write_text(CONFIG.replace("lit3ral", "{secret.token}").replace("?api_key={secret.token}", ""))
    answered = show(config)
    assert (answered.status, answered.err) == (0, "")
    again = tmp_path / "again.toml"
    again.write_text(answered.out, encoding="utf-8")
    assert load(again, {}).model_dump() == load(config, {}).model_dump()
    shown, loaded = load(again, {}).channels.providers, load(config, {}).channels.providers
    assert {name: each.options for name, each in shown.items()} == {
        name: each.options for name, each in loaded.items()
    }


@pytest.mark.parametrize("budget", ["", 'budget = "10 messages/day"\n'])
def test_spent_is_shown_once_beside_a_budget(config: Path, tmp_path: Path, budget: str) -> None:
    """Of a channel with one provider, and of a rule; without a budget it would be a mistake."""
    table = CONFIG[: CONFIG.index("[channels.sms]")]
    table += f"""\
[channels.sms]
{budget}adapter = "http"
url = "https://sms.example.com/send"
json = {{ text = "{{content.text}}" }}
[[rules]]
settings = [1]
priority = "high"
{budget}"""
    config.write_text(table.replace("?api_key=lit3ral", ""), encoding="utf-8")
    answered = show(config)
    again = tmp_path / "again.toml"
    again.write_text(answered.out, encoding="utf-8")
    assert load(again, {}).model_dump() == load(config, {}).model_dump()
    assert answered.out.count("spent = ") == (2 if budget else 0)


def test_keys_of_sms_are_shown_of_no_other_block(config: Path, tmp_path: Path) -> None:
    """Where they would be mistakes, also with their defaults."""
    email = '[channels.email]\nadapter = "smtp"\nhost = "127.0.0.1"\nport = 25\nsender = "club@example.com"\n'
    text = CONFIG[: CONFIG.index("[channels.sms]")].replace("?api_key=lit3ral", "")
    config.write_text(f'{text}{email}tls = "none"\n', encoding="utf-8")
    again = tmp_path / "again.toml"
    again.write_text(show(config).out, encoding="utf-8")
    assert load(again, {}).model_dump() == load(config, {}).model_dump()


def test_each_value_has_its_origin(config: Path) -> None:
    """A line of the file, a variable, a preset, or the default."""
    answered = show(
        config, "--json", DELIVERYD_QUEUE__POLL_INTERVAL="2s", DELIVERYD_CHANNELS__SMS__MAX_PARTS="3"
    )
    found = {each["key"]: (each["value"], each["origin"]) for each in answered.data}
    assert found["queue.batch_size"] == (50, f"{config}:6")
    assert found["queue.poll_interval"] == ("2s", "DELIVERYD_QUEUE__POLL_INTERVAL")
    assert found["channels.sms.max_parts"] == (3, "DELIVERYD_CHANNELS__SMS__MAX_PARTS")
    assert found["queue.max_in_flight"] == (1000, "default")
    assert found["service.auth.token_file"] == (str(config.parent / "token"), f"{config}:3")
    place = "channels.sms.providers.twilio"
    assert found[f"{place}.adapter"] == ("twilio", f"{config}:17")
    assert found[f"{place}.base_url"] == ("https://api.twilio.com", "preset twilio")
    assert found[f"{place}.on_in_doubt"] == ("hold", "preset twilio")
    assert found[f"{place}.retry.attempts"] == (15, "default")


def test_origins_are_comments(config: Path) -> None:
    answered = show(config, "--origin")
    lines = answered.out.splitlines()
    assert f"batch_size = 50            # {config}:6" in lines
    assert 'poll_interval = "1s"       # default' in lines
    assert tomllib.loads(answered.out)["queue"]["batch_size"] == 50


def test_literal_secrets_are_masked(config: Path) -> None:
    """In addresses, headers and bodies; what names a secret is shown, and so are the files."""
    for options in ((), ("--origin",), ("--json",)):
        assert "lit3ral" not in show(config, *options).out
    text = show(config).out
    assert 'headers = { Authorization = "***", X-Id = "{message.key}", X-Vendor = "***" }' in text
    assert 'password = "***"' in text
    assert 'key = "{secret.token}"' in text
    assert f'secrets = {{ token = "{config.parent / "token"}" }}' in text
    assert '"https://crm.example.com/{customerId}?api_key=***"' in text


@pytest.mark.parametrize("literal", ["sk_live_4eC39HqLyjWDarjt", "hunter2", "AbC/4eC39HqLyjWDarjtT1zdp7dc"])
def test_a_secret_in_place_of_its_file_is_shown_nowhere(config: Path, literal: str) -> None:
    """Neither in force nor in an error."""
    config.write_text(CONFIG.replace('"token" }', f'"{literal}" }}'), encoding="utf-8")
    answered = show(config, "--origin")
    checked = command("check", "--offline", "--config", config)
    assert (answered.status, checked.status) == (78, 78)
    for text in (*answered, *checked):
        assert literal not in str(text)
    assert "service.auth.token_file: expected the path of a file that contains the secret" in checked.err
    assert 'token_file = "***"' in answered.out


def test_mistakes_stand_behind_what_is_in_force(config: Path) -> None:
    config.write_text(CONFIG.replace("batch_size = 50", "batch_size = 0"), encoding="utf-8")
    answered = show(config)
    assert answered.status == 78
    assert answered.err.startswith(f"{config}:queue.batch_size: ")
    assert "base_url" in answered.out
    assert show(config.parent / "absent.toml").out == ""


# init


GATEWAY = (
    "service.base_url=https://queue.example.com",
    "journal.url=sqlite:///journal.db",
    "settings.cache_dir=cache",
    "customers.source=http",
    "customers.url=https://crm.example.com/{customerId}",
    'customers.fields={ phone = "/phone" }',
    "channels.sms.adapter=http",
    "channels.sms.url=https://sms.example.com/send",
    'channels.sms.json={ to = "{customer.phone}", text = "{content.text}" }',
)


def init(path: Path, *values: str) -> Answered:
    return command("config", "init", path, *(part for value in values for part in ("--set", value)))


def test_a_new_file_is_private_and_check_accepts_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "config.toml"
    assert init(path, *GATEWAY, "queue.batch_size=50").status == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.toml"]
    checked = command("check", "--offline", "--config", path)
    assert (checked.status, checked.err) == (0, "")
    assert load(path, {}).queue.batch_size == 50


def test_a_file_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    """Nor is a link, wherever it leads."""
    path = tmp_path / "config.toml"
    path.symlink_to(tmp_path / "elsewhere")
    answered = init(path, *GATEWAY)
    assert answered.status == 1
    assert answered.err == f"deliveryd: {path} is there already; name another file, or remove it\n"
    assert not (tmp_path / "elsewhere").exists()


def test_wrong_answers_write_nothing(tmp_path: Path) -> None:
    """Every mistake is told at the key of the new file."""
    path = tmp_path / "config.toml"
    answered = init(path, "service.base_url=nowhere", "channels.sms.adapter=twillio", "queue.batch_sise=5")
    assert answered.status == 78
    problems = answered.err.splitlines()
    assert all(problem.startswith(f"{path}:") for problem in problems)
    assert any(":queue.batch_sise: unknown key; did you mean batch_size?" in problem for problem in problems)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("service",), "--set service: expected KEY=VALUE"),
        (("a..b=1",), "--set a..b: expected KEY=VALUE"),
        (("a=1", "a.b=2"), "--set a.b: a is a value already, not a table"),
        (("a=1", "a=2"), "--set a: is given twice"),
    ],
)
def test_a_wrong_option_is_told(tmp_path: Path, values: tuple[str, ...], told: str) -> None:
    answered = init(tmp_path / "config.toml", *values)
    assert answered.status == 2
    assert told in answered.err


def test_without_a_terminal_keys_must_be_given(tmp_path: Path) -> None:
    answered = init(tmp_path / "config.toml")
    assert answered.status == 2
    assert "give the keys with --set" in answered.err


@pytest.mark.slow
def test_questions_on_a_terminal(tmp_path: Path) -> None:
    """A preset's required keys and its secret, which is typed unseen and goes into a private file."""
    tmp_path.chmod(0o700)
    path = tmp_path / "config.toml"
    (tmp_path / "customers.jsonl").write_text('{"id": 1, "phone": "+447700900101"}\n', encoding="utf-8")
    status, rest = _asked(path, [
        ("Address of the service", "https://queue.example.com"),
        ("bearer token", "n"),
        ("Is there a file with the customers", "y"),
        ("File with the customers", "customers.jsonl"),
        ("Channel (", "sms"),
        ("Provider (", "twilio"),
        ("Public address for receipts", "https://receipts.example.com"),
        ("account (", "AC1"),
        ("from (", "Acme"),
        ("File with the secret twilio-token (auth token", "twilio-token"),
        ("isn't shown): ", "s3cret"),  # the blank comes once the echo is off
        ("Another channel", "n"),
        ("File of the journal", str(tmp_path / "journal.db")),
        ("Folder of the cache", str(tmp_path / "cache")),
    ])  # fmt: skip
    assert status == 0, rest
    assert "s3cret" not in rest
    secret = tmp_path / "twilio-token"
    assert (secret.read_text(encoding="utf-8"), stat.S_IMODE(secret.stat().st_mode)) == ("s3cret\n", 0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert command("check", "--offline", "--config", path).status == 0


@pytest.mark.slow
def test_wrong_answers_are_asked_for_again(tmp_path: Path) -> None:
    """Those that show at once and those that show when all are there; once each channel is there, no more."""
    tmp_path.chmod(0o700)
    path = tmp_path / "config.toml"
    gateway = [("Provider (", "http"), ("Address of the gateway", "https://gateway.example.com")]
    status, rest = _asked(path, [
        ("Address of the service", "queue.example.com"),
        ("Address of the service", "https://"),
        ("bearer token", "y"),
        ("File with the secret service-token", "nowhere/token"),
        ("isn't shown): ", "s3cret"),
        ("can't be written: No such file", ""),
        ("isn't shown): ", "s3cret"),
        ("Is there a file with the customers", "y"),
        ("File with the customers", "nobody.jsonl"),
        ("Channel (inApp, messenger, sms, email)", "sms"),
        *gateway,
        ("Another channel", "y"), ("Channel (inApp, messenger, email)", "messenger"), *gateway,
        ("Another channel", "y"), ("Channel (inApp, email)", "inApp"), *gateway,
        ("Another channel", "y"), ("Channel (email)", "fax"), ("Channel (email)", "email"),
        ("Provider (", "smtp"), ("Mail server", "mail.example.com"), ("Address of the sender", "Acme"),
        ("File of the journal", "what?.db"),
        ("Folder of the cache", str(tmp_path / "cache")),
        ("service.base_url: an address must start", "https://queue.example.com"),
        ("Address of the sender", "acme@example.com"),
        ("File of the journal", "journal.db"),
        ("customers.path: ", str(path)),
        ("customers.path: ", str(_customers(tmp_path))),
    ])  # fmt: skip
    assert status == 0, rest
    assert command("check", "--offline", "--config", path).status == 0
    written = tomllib.loads(path.read_text(encoding="utf-8"))
    assert written["journal"]["url"] == f"sqlite:///{tmp_path}/journal.db"
    assert list(written["channels"]) == ["sms", "messenger", "inApp", "email"]


def _customers(folder: Path) -> Path:
    path = folder / "customers.jsonl"
    path.write_text('{"id": 1, "phone": "+447700900101"}\n', encoding="utf-8")
    return path


def _asked(path: Path, answers: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """Answer the questions of `config init`, each when it is shown; return its status and the rest."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "deliveryd", "config", "init", str(path)],
        stdin=inner, stdout=inner, stderr=inner, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    os.close(inner)
    shown = ""
    for question, answer in answers:
        while question not in shown:
            shown += os.read(outer, 1024).decode()
        shown = shown.partition(question)[2]
        os.write(outer, f"{answer}\n".encode())
    rest = _until_closed(outer)
    return process.wait(60), rest


def _until_closed(terminal: int) -> str:
    text = ""
    while True:
        try:
            read = os.read(terminal, 1024)
        except OSError:  # Linux closes the terminal with the last process on it
            return text
        if not read:
            return text
        text += read.decode()


def test_a_default_that_holds_a_key_is_shown_as_it_is_in_force(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    for name in ("key-1", "key-2"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text("s" * 40, encoding="utf-8")
    channel = (
        'adapter = "sns"\nsender_id = "Acme"\nregion = "eu-west-1"\n'
        'access_key_file = "key-1"\nsecret_key_file = "key-2"\n'
    )
    path.write_text(
        f'[service]\nbase_url = "http://127.0.0.1:1"\n[channels.sms]\n{channel}', encoding="utf-8"
    )
    shown = command("config", "show", "--config", path)
    assert 'base_url = "https://sns.eu-west-1.amazonaws.com"' in shown.out
    other = tmp_path / "other.toml"
    other.write_text(shown.out, encoding="utf-8")
    assert load(other, environ={}).channels.providers["sms"].options == (
        load(path, environ={}).channels.providers["sms"].options
    )
