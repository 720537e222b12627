"""What `check` and `run` say of configurations that are unsafe, or hardly what was meant."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from deliveryd.config import examine_to_run, load
from deliveryd.network.address import is_loopback
from deliveryd.runtime.rights import group_name
from deliveryd.runtime.secret_file import SecretFile
from deliveryd.worker.wiring import open_inlets
from support.check_command import check, warned
from support.places import ROOT
from support.terminal import command
from support.world import World, open_world

NOBODY = 65534


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101", "email": "ann@example.com"}])
        yield world


# secrets in plain text


INSECURE = {
    "service.base_url": (
        "the secret of service.auth would be sent to queue.example.com unencrypted: give an https://"
        " address, or set allow_plain_text = true in this table if the network is trusted"
    ),
    "channels.sms.url": (
        "the secret token would be sent to sms.example.com unencrypted: give an https:// address,"
        " or set allow_plain_text = true in this table if the network is trusted"
    ),
    "channels.email.tls": (
        'the password would be sent to mail.example.com unencrypted: set tls = "starttls",'
        " or set allow_plain_text = true in this table if the network is trusted"
    ),
    "customers.url": (
        "the secret of auth would be sent to crm.example.com unencrypted: give an https:// address,"
        " or set allow_plain_text = true in this table if the network is trusted"
    ),
}
"""By key, what is said where a secret would leave the machine in plain text."""

PLAIN = """\
[service]
base_url = "http://queue.example.com"
auth = { token_file = "token" }
PLAIN
[settings]
cache_dir = "cache"
[journal]
url = "sqlite:///journal.db"
[customers]
source = "http"
url = "http://crm.example.com/{customerId}"
fields = { phone = "/phone", email = "/email" }
auth = { username = "deliveryd", password_file = "token" }
PLAIN
[admin]
listen = ""
[channels.sms]
adapter = "http"
url = "http://sms.example.com/send"
json = { to = "{customer.phone}", text = "{content.text}" }
headers = { Authorization = "Bearer {secret.token}" }
secrets = { token = "token" }
PLAIN
[channels.email]
adapter = "smtp"
host = "mail.example.com"
tls = "none"
username = "deliveryd"
password_file = "token"
sender = "club@example.com"
PLAIN
"""


def write_plain(world: World, key: str) -> None:
    secret = world.folder / "token"
    secret.touch(mode=0o600)
    secret.write_text("s3cret")
    world.write_config(PLAIN.replace("PLAIN", key))


def test_secrets_that_would_go_out_in_plain_text_are_errors_which_stop_run_too(world: World) -> None:
    """Both say the same, with the same status."""
    write_plain(world, "")
    answered = check(world, "--offline")
    run = command("run", "--config", world.config)
    told = {f"{world.config}:{key}: {text}" for key, text in INSECURE.items()}
    assert (answered.status, set(answered.err.splitlines())) == (78, told)
    assert (run.status, set(run.err.splitlines())) == (78, told)


@pytest.mark.parametrize("table", ["service", "entities", "channels.sms"])
def test_a_password_for_a_proxy_counts_as_well(world: World, table: str) -> None:
    secret = world.folder / "token"
    secret.touch(mode=0o600)
    secret.write_text("s3cret")
    keys = 'proxy = "http://proxy.example.com:3128"\nproxy_username = "me"\nproxy_password_file = "token"\n'
    text = world.config.read_text()
    there = f"[{table}]\n"
    world.write_config(text.replace(there, there + keys) if there in text else f"{text}{there}{keys}")
    answered = check(world, "--offline")
    said = "the password for the proxy would be sent to proxy.example.com:3128 unencrypted"
    assert answered.status == 78
    assert answered.err.startswith(f"{world.config}:{table}.proxy: {said}")
    world.change("http://proxy", "https://proxy")
    assert check(world, "--offline").status == 0


def test_check_itself_shows_no_secret_to_whom_a_mistake_leads(world: World) -> None:
    """A mistake beside it, such as a misspelt `proxy`, may be what would keep it from going out."""
    secret = world.folder / "token"
    secret.touch(mode=0o600)
    secret.write_text("s3cret")
    mistake = 'proxi = "http://127.0.0.1:1"\n'
    world.change("[service]\n", f'[service]\nauth = {{ token_file = "token" }}\n{mistake}')
    assert check(world).status == 78
    assert world.state.requests["settings"] == 0
    world.change(mistake, "")
    assert check(world).status == 0
    assert world.state.requests["settings"] == 1


def test_what_is_asked_through_a_proxy_elsewhere_leaves_this_machine(world: World) -> None:
    """Even where its address is this machine's: by then it is the proxy that goes there."""
    secret = world.folder / "token"
    secret.touch(mode=0o600)
    secret.write_text("s3cret")
    keys = 'auth = { token_file = "token" }\nproxy = "http://192.0.2.2:3128"\n'
    world.change("[service]\n", f"[service]\n{keys}")
    assert f"{world.config}:service.base_url: the secret of service.auth would" in check(world).err


def test_each_table_can_allow_plain_text(world: World) -> None:
    write_plain(world, "allow_plain_text = true")
    assert (check(world, "--offline").status, warned(check(world, "--offline"))) == (0, {})


def test_a_header_that_is_for_secrets_counts_as_one_and_loopback_does_not(world: World) -> None:
    world.add('headers = { Authorization = "Bearer literal" }\n')
    assert check(world, "--offline").status == 0
    world.change(f'url = "{world.sandbox.base_url}/sms"', 'url = "http://127.0.0.1.example.com/sms"')
    answered = check(world, "--offline")
    assert answered.status == 78
    assert "the header Authorization would be sent to 127.0.0.1.example.com" in answered.err


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True), ("LOCALHOST.", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True),
        ("0:0:0:0:0:0:0:1", True), ("[::1]", True), ("127.0.0.1.example.com", False),
        ("localhost.example.com", False), ("10.0.0.1", False), ("128.0.0.1", False), ("::2", False),
        ("", False),
    ],
)  # fmt: skip
def test_what_is_this_machine_is_told_by_name_or_address_alone(host: str, is_here: bool) -> None:
    assert is_loopback(host) is is_here


def test_a_journal_folder_that_others_can_write_to_is_an_error_unless_it_is_allowed(world: World) -> None:
    """Also with the sticky bit: others could put a journal there before we do."""
    folder = world.folder / "state"
    folder.mkdir()
    world.change("sqlite:///journal.db", "sqlite:///state/journal.db")
    for mode in (0o777, 0o1777, 0o757):
        folder.chmod(mode)
        for words in (("check", "--offline"), ("run", "--until-idle"), ("explain", "1")):
            answered = command(*words, "--config", world.config)
            assert answered.status == 78
            assert answered.err == (
                f"{world.config}:journal.url: other users can write to {folder}, and replace the journal:"
                f" run: chmod go-w {folder}; where they are trusted, set journal.allow_shared_folder = true\n"
            )
    world.change("[journal]\n", "[journal]\nallow_shared_folder = true\n")
    assert check(world, "--offline").status == 0


def test_the_image_takes_volumes_as_orchestrators_hand_them_over(world: World) -> None:
    """Open to others, which nobody else in a container uses."""
    image = ROOT.joinpath("Containerfile").read_text(encoding="utf-8")
    [(name, value)] = re.findall(r"(DELIVERYD_JOURNAL__ALLOW_SHARED_FOLDER)=(\S+)", image)
    world.folder.joinpath("state").mkdir()
    world.folder.joinpath("state").chmod(0o777)
    world.change("sqlite:///journal.db", "sqlite:///state/journal.db")
    assert load(world.config, {name: value}).journal.allow_shared_folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_journal_folder_of_a_group_with_others_in_it_is_an_error(world: World) -> None:
    folder = world.folder / "state"
    folder.mkdir()
    world.change("sqlite:///journal.db", "sqlite:///state/journal.db")
    folder.chmod(0o770)
    assert check(world, "--offline").status == 0  # root's group is its own
    os.chown(folder, -1, NOBODY)
    assert check(world, "--offline").status == 78


def test_warnings_change_the_status_only_where_they_are_to_be_strict(world: World) -> None:
    world.change('[admin]\nlisten = ""', '[admin]\nlisten = "0.0.0.0:0"')
    answered = check(world, "--offline")
    assert answered.status == 0
    assert list(warned(answered)) == ["admin.listen"]
    assert answered.out.splitlines()[-1].startswith("warning")
    strict = check(world, "--offline", "--strict", "--json")
    assert (strict.status, strict.data["level"]) == (78, "warning")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0"])
def test_receipts_that_are_not_verified_are_warned_of_wherever_they_come_in(
    world: World, listen: str
) -> None:
    """On loopback, too: a proxy passes requests from anywhere on to it."""
    world.add('receipt = { provider_id = "/id", status = "/status", delivered = ["ok"], failed = [] }\n')
    assert warned(check(world, "--offline")) == {}
    world.change('[receipts]\nlisten = ""', f'[receipts]\nlisten = "{listen}"')
    assert "add [channels.sms.receipt.signature]" in warned(check(world, "--offline"))["channels.sms.receipt"]


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("?api_key=abc", "channels.sms.url"),
        ("?to=1&token=abc", "channels.sms.url"),
        ("?to=1&clientSecret=abc", "channels.sms.url"),
        ("?to=1&passWord=abc", "channels.sms.url"),
        ("?to={secret.word}", "channels.sms.url"),
        ("/{secret.word}/send", "channels.sms.url"),
    ],
)
def test_a_secret_in_an_address_is_warned_of(world: World, address: str, key: str) -> None:
    world.folder.joinpath("word").touch(mode=0o600)
    world.folder.joinpath("word").write_text("s3cret")
    world.add('secrets = { word = "word" }\n')
    world.change(f'url = "{world.sandbox.base_url}/sms"', f'url = "{world.sandbox.base_url}/sms{address}"')
    answered = check(world, "--offline")
    assert answered.status == 0
    assert "logs" in warned(answered)[key]


@pytest.mark.parametrize(
    ("line", "key", "level"),
    [
        ('headers = { Authorization = "Bearer s3cr3t" }', "headers.Authorization", "warning"),
        ('headers = { X-Api-Key = "abc" }', "headers.X-Api-Key", "warning"),
        ('headers = { X-Account = "4f9a0c1e77b2d3a65e88" }', "headers.X-Account", "hint"),
        ('headers = { X-Account = "4f9aGQx2Zk1Q.Yb7TnRwLp3" }', "headers.X-Account", "hint"),
        (
            'json = { to = "{customer.phone}", auth = { password = "hunter2" } }',
            "json.auth.password",
            "warning",
        ),
        ('json = { to = "{customer.phone}", accessToken = "hunter2" }', "json.accessToken", "warning"),
        (
            'json = { to = "{customer.phone}", a = { SMSPassword = "hunter2" } }',
            "json.a.SMSPassword",
            "warning",
        ),
        ('json = { to = "{customer.phone}", keys = ["Basic YTpi"] }', "json.keys.0", "warning"),
    ],
)
def test_a_secret_in_a_request_is_warned_of(world: World, line: str, key: str, level: str) -> None:
    """Everybody may read the configuration. The secret isn't repeated."""
    own = world.config.read_text(encoding="utf-8")
    if line.startswith("json"):
        own = re.sub(r"(?m)^json = .*$", "", own)
    world.write_config(own + line + "\n")
    answered = check(world, "--offline")
    (found,) = [each for each in answered.out.splitlines() if f" channels.sms.{key} " in each]
    assert found.split()[0] == level
    assert "looks like a secret" in found
    assert not re.search("s3cr3t|4f9a|hunter2|YTpi", answered.out)


def test_a_secret_in_a_header_of_mails_is_warned_of(world: World) -> None:
    """It can't be in a file of its own."""
    world.add(
        """
[channels.email]
adapter = "smtp"
host = "127.0.0.1"
sender = "bank@example.com"
headers = { X-Mail-Token = "s3cr3t", X-Campaign = "spring" }
"""
    )
    answered = check(world, "--offline")
    (found,) = [each for each in answered.out.splitlines() if " channels.email.headers." in each]
    assert found.split()[:2] == ["warning", "channels.email.headers.X-Mail-Token"]
    assert "s3cr3t" not in answered.out


QUESTIONS = """
[channels.sms.lookup]
url = "https://gateway.example/messages?ref={message.key}&api_key=hunter2"
headers = { Authorization = "Bearer s3cr3t" }
answers = [{ status = ["2xx"], verdict = "taken" }]

[channels.sms.probe]
url = "https://gateway.example/account"
method = "POST"
query = { token = "hunter2" }
json = { auth = { password = "hunter2" } }
headers = { X-Api-Key = "s3cr3t" }
"""


def test_a_secret_in_what_a_provider_is_asked_is_warned_of(world: World) -> None:
    """It stands in the same file as those of messages."""
    world.add(QUESTIONS)
    answered = check(world, "--offline")
    assert set(warned(answered)) == {
        "channels.sms.lookup.url", "channels.sms.lookup.headers.Authorization",
        "channels.sms.probe.query.token", "channels.sms.probe.json.auth.password",
        "channels.sms.probe.headers.X-Api-Key",
    }  # fmt: skip
    assert not re.search("s3cr3t|hunter2", answered.out)


def test_what_is_no_secret_in_a_request_is_not_warned_of(world: World) -> None:
    """What is filled in, identifiers of templates in a body, and names of operations in a header."""
    own = re.sub(r"(?m)^json = .*$", "", world.config.read_text(encoding="utf-8"))
    world.write_config(
        own
        + """\
json = { to = "{customer.phone}", key = "{message.key}", kind = "token", template = "HX4f9a0c1e77b2d3a65e88" }
headers.Accept = "application/json"
headers.tokenType = "x"
headers.hotKeys = "x"
headers.Idempotency-Token = "{message.key}"
headers.X-Amz-Target = "PinpointSMSVoiceV2.SendTextMessage"
headers.X-Target = "AWSSimbaAPIService_v20180301.CreateTask"
"""
    )
    assert "looks like a secret" not in check(world, "--offline").out
    assert "PinpointSMSVoiceV2.SendTextMessage" in command("config", "show", "--config", world.config).out


def test_other_queries_are_no_secrets(world: World) -> None:
    world.change(
        f'url = "{world.sandbox.base_url}/sms"',
        f'url = "{world.sandbox.base_url}/sms?monkey=1&token={{message.key}}&to={{customer.phone}}"',
    )
    assert warned(check(world, "--offline")) == {}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody can enter, which pytest's own ones aren't."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_files_of_keys_and_customers_that_others_can_read_or_change_are_warned_of(
    world: World, open_folder: Path
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("deliveryd.example.com")
    files = {name: open_folder / name for name in ("cert.pem", "key.pem", "customers.jsonl")}
    certificate.cert_chain_pems[0].write_to_path(files["cert.pem"])
    certificate.private_key_pem.write_to_path(files["key.pem"])
    files["customers.jsonl"].write_text('{"id": 1, "phone": "1"}\n')
    files["key.pem"].chmod(0o644)
    files["customers.jsonl"].chmod(0o644)
    world.change('path = "customers.jsonl"', f'path = "{files["customers.jsonl"]}"')
    world.change(
        "[queue]",
        f'[service.tls]\ncert_file = "{files["cert.pem"]}"\nkey_file = "{files["key.pem"]}"\n[queue]',
    )
    assert warned(check(world, "--offline")) == {
        "service.tls.key_file": (
            f"other users may read {files['key.pem']}; run: chmod o-rwx {files['key.pem']}"
        ),
        "customers.path": (
            f"other users may read {files['customers.jsonl']}; run: chmod o-rwx {files['customers.jsonl']}"
        ),
    }
    open_folder.chmod(0o700)
    assert warned(check(world, "--offline")) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_that_a_foreign_group_may_read_is_refused(world: World) -> None:
    """Root's own group and that of the file's owner may: systemd and orchestrators hand files over so."""
    secret = world.folder / "token"
    secret.write_text("s3cret")
    world.add('secrets = { token = "token" }\n')
    for mode in (0o640, 0o660, 0o620):
        secret.chmod(mode)
        os.chown(secret, 0, 0)
        assert check(world, "--offline").status == 0
        os.chown(secret, 0, NOBODY)
        answered = check(world, "--offline")
        assert answered.status == 78
        assert (
            f"token may be read by the group {group_name(NOBODY)}, which isn't yours; run: chmod g-rwx"
            in answered.err
        )
    for each in (secret, world.folder):  # its owner is the worker's user
        os.chown(each, NOBODY, NOBODY)
    assert examine_to_run(world.config, {}).problems == []


def test_a_secret_is_checked_by_what_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever exchanges the file between a look at it and the reading gains nothing."""
    open_to_all, closed = tmp_path / "open", tmp_path / "closed"
    for path, mode in ((open_to_all, 0o644), (closed, 0o600)):
        path.write_text("s3cret")
        path.chmod(mode)
    shown = closed.stat()
    monkeypatch.setattr(Path, "stat", lambda _path, **_options: shown)
    assert "may be read by all users" in (SecretFile(open_to_all).problem() or "")


def test_a_cache_that_cannot_be_used_is_done_without(world: World) -> None:
    world.folder.joinpath("file").touch()
    world.change('cache_dir = "cache"', 'cache_dir = "file/cache"')
    answered = check(world, "--offline")
    assert answered.status == 0
    assert (
        "file isn't a folder, so settings won't be cached on disk" in warned(answered)["settings.cache_dir"]
    )


@pytest.mark.parametrize(
    ("tls", "port", "hinted"),
    [
        ("tls", 587, 'port 587 is usually for tls = "starttls", not "tls"'),
        ("tls", 25, 'port 25 is usually for tls = "starttls", not "tls"'),
        ("starttls", 465, 'port 465 is usually for tls = "tls", not "starttls"'),
        ("starttls", 2525, None),
        ("tls", 465, None),
        ("none", 587, None),
    ],
)
def test_a_port_for_another_kind_of_tls_is_hinted_at(
    world: World, tls: str, port: int, hinted: str | None
) -> None:
    world.add(
        f'[channels.email]\nadapter = "smtp"\nhost = "mail.example.com"\nport = {port}\n'
        f'tls = "{tls}"\nsender = "club@example.com"\n'
    )
    answered = check(world, "--offline", "--strict")
    assert answered.status == 0
    hints = [line for line in answered.out.splitlines() if line.startswith("hint")]
    assert [hint.split(maxsplit=2)[1:] for hint in hints] == (
        [["channels.email.tls", hinted]] if hinted else []
    )


def test_a_validity_that_changes_with_each_try_is_warned_of_where_keys_are_heeded(world: World) -> None:
    """A provider that heeds keys compares what it gets under one: `check` names the mapping that differs."""
    options = 'json = { to = "{customer.phone}", ttl = "{message.validity}" }\nheeds_keys = true\n'
    text = world.config.read_text()
    world.config.write_text(re.sub(r'(url = "[^"]*/sms"\n)json = .*\n', rf"\g<1>{options}", text))
    assert warned(check(world, "--offline")) == {
        "channels.sms.heeds_keys": (
            "a repeat must be the same, but {message.validity} is computed again for each try:"
            " use {message.expiresAt}, or leave the validity out"
        )
    }


WEBHOOKS = """
[channels.messenger]
adapter = "whatsapp"
phone_number_id = "1"
secrets = { token = "hook", app_secret = "hook", verify_token = "hook" }
"""


@pytest.mark.parametrize(("limit", "told"), [("", None), ("1MiB", "3MiB for messenger"), ("4MiB", None)])
def test_a_limit_that_was_set_below_what_a_provider_sends_is_told(
    world: World, limit: str, told: str | None
) -> None:
    """The provider's own counts then; the default is no mistake."""
    secret = world.folder / "hook"
    secret.touch(mode=0o600)
    secret.write_text("s3cret")
    text = world.config.read_text(encoding="utf-8")
    given = f'\nmax_body = "{limit}"' if limit else ""
    assert text.count("[receipts]") == 1
    text = text.replace('[receipts]\nlisten = ""', f'[receipts]\nlisten = "127.0.0.1:0"{given}')
    world.config.write_text(text + WEBHOOKS, encoding="utf-8")
    found = warned(check(world, "--offline")).get("receipts.max_body")
    if told is None:
        assert found is None
    else:
        assert found == f"{limit} is less than what is accepted of providers that send more: {told}"
    config = load(world.config)
    assert open_inlets(config).by_provider["messenger"].largest == max(3 << 20, config.receipts.max_body)


def test_a_batch_size_that_never_counts_is_pointed_at(world: World) -> None:
    """With both numbers; it is no mistake."""
    world.change("[queue]", "[queue]\nbatch_size = 500\nmax_in_flight = 200")
    answered = check(world, "--offline", "--strict")
    (found,) = [line for line in answered.out.splitlines() if " queue.batch_size " in line]
    assert found.startswith("hint")
    assert "500" in found
    assert "200" in found
    assert answered.status == 0


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("", "is for other hosts than the service's own: name them in entities.hosts"),
        (
            'hosts = ["config.example"]\nallow_http = true\n',
            (
                "the secret would be sent to hosts without TLS unencrypted: remove entities.allow_http,"
                " or set allow_plain_text = true in this table if the network is trusted"
            ),
        ),
        ('hosts = ["config.example"]\nallow_http = true\nallow_plain_text = true\n', None),
        ('hosts = ["config.example"]\n', None),
    ],
)
def test_what_authenticates_at_configurations_hosts_goes_to_them_alone_and_encrypted(
    world: World, keys: str, problem: str | None
) -> None:
    secret = world.folder / "token"
    secret.touch(mode=0o600)
    secret.write_text("s3cret")
    world.write_config(f'{world.config.read_text()}\n[entities]\n{keys}auth.token_file = "token"\n')
    answered = check(world, "--offline")
    said = "" if problem is None else f"{world.config}:entities.auth: {problem}\n"
    assert (answered.status, answered.err) == (78 if said else 0, said)
