"""The configuration: what an operator writes, what they are told of their mistakes, and the example file."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from pydantic import ValidationError

from deliveryd.config import Config, ReceiptsOptions, load
from deliveryd.directory.registry import FileOptions
from deliveryd.errors import ConfigError
from deliveryd.options.units import Rate

NOBODY = 65534


SERVICE = '[service]\nbase_url = "http://127.0.0.1:1"\n'


SMS = """
[channels.sms]
adapter = "http"
url = "http://127.0.0.1:1/sms"
json = { text = "{content.text}" }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def loaded(path: Path, text: str, **environ: str) -> Config:
    path.write_text(text, encoding="utf-8")
    return load(path, environ)


def problems(path: Path, text: str, **environ: str) -> list[str]:
    """What the operator is told, without the folder of the file."""
    with pytest.raises(ConfigError) as caught:
        loaded(path, text, **environ)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [problem.replace(f"{path.parent}/", "") for problem in caught.value.problems]


# good files


def test_a_service_and_a_channel_are_enough(path: Path) -> None:
    config = loaded(path, SERVICE + SMS)
    assert config.service.base_url == "http://127.0.0.1:1"
    assert (config.queue.batch_size, config.queue.poll_interval) == (100, 1.0)
    assert config.channels.order == ("inApp", "messenger", "sms", "email")
    assert list(config.channels.configured) == ["sms"]
    sms = config.channels.providers["sms"].common
    assert (sms.retry.max, sms.breaker.failures, sms.breaker.pause, sms.breaker.max_pause) == (
        600.0,
        10,
        1.0,
        60.0,
    )


def test_what_is_given_is_taken(path: Path) -> None:
    config = loaded(
        path,
        SERVICE
        + '[queue]\npoll_interval = "250ms"\n[settings]\nttl = "7d"\nsize_limit = "1GiB"\n'
        + SMS.replace('"http"\n', '"http"\nrate = "50/s"\nretry = { attempts = 2, max = "1m" }\n', 1),
    )
    assert config.queue.poll_interval == 0.25
    assert (config.settings.ttl, config.settings.size_limit) == (604800.0, 1 << 30)
    sms = config.channels.providers["sms"].common
    assert (sms.rate, sms.retry.attempts, sms.retry.base, sms.retry.max) == (Rate(50, 1.0), 2, 2.0, 60.0)


def test_relative_paths_are_relative_to_the_file_wherever_the_process_stands(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text(
        SERVICE
        + '[settings]\ncache_dir = "cache"\n[customers]\nsource = "file"\npath = "who/customers.csv"\n'
        + '[journal]\nurl = "sqlite:///journal.db"\n'
        + SMS
    )
    monkeypatch.chdir(path.parent)
    path.parent.joinpath("elsewhere").mkdir()
    for name in (path, Path(path.name)):
        config = load(name, {})
        assert config.settings.cache_dir == path.parent / "cache"
        assert isinstance(config.customers.options, FileOptions)
        assert config.customers.options.path == path.parent / "who" / "customers.csv"
        assert config.journal.path == path.parent / "journal.db"


@pytest.mark.parametrize(
    ("url", "file"),
    [
        ("sqlite:////var/lib/d/journal.db", "/var/lib/d/journal.db"),
        ("sqlite:///journal.db", "FOLDER/journal.db"),
        ("sqlite:///state/j.db", "FOLDER/state/j.db"),
    ],
)
def test_the_url_of_a_journal_names_a_file(path: Path, url: str, file: str) -> None:
    config = loaded(path, f'{SERVICE}[journal]\nurl = "{url}"\n{SMS}')
    assert str(config.journal.path) == file.replace("FOLDER", str(path.parent))
    assert config.journal.url == f"sqlite:///{config.journal.path}"


def test_without_a_url_the_journal_is_where_the_system_keeps_state(path: Path) -> None:
    assert loaded(path, SERVICE + SMS).journal.path == Path("/var/lib/deliveryd/journal.db")


def test_servers_can_have_any_free_port_or_be_turned_off(path: Path) -> None:
    listen = '[admin]\nlisten = "[::1]:0"\n[receipts]\nlisten = ""\n'
    config = loaded(path, SERVICE + listen + SMS)
    assert (config.admin.listen, config.receipts.listen) == ("[::1]:0", "")


def test_a_file_may_begin_with_a_byte_order_mark_and_end_lines_as_windows_does(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + (SERVICE + SMS).replace("\n", "\r\n").encode())
    assert load(path, {}).service.base_url == "http://127.0.0.1:1"


def test_a_channel_may_have_a_name_of_its_own_with_a_block_and_a_place_in_the_order(path: Path) -> None:
    order = '[channels]\norder = ["backup-sms"]\n'
    table = SMS.replace("channels.sms", "channels.backup-sms").replace('"http"', '"http"\nblock = "sms"', 1)
    channel = loaded(path, SERVICE + order + table).channels.configured["backup-sms"]
    assert (channel.name, channel.block) == ("backup-sms", "sms")


# the environment


def test_the_environment_overrides_the_file(path: Path) -> None:
    config = loaded(
        path,
        SERVICE + "[queue]\nbatch_size = 7\n" + SMS,
        DELIVERYD_QUEUE__BATCH_SIZE="50",
        DELIVERYD_QUEUE__POLL_INTERVAL="2s",
        DELIVERYD_CONTENT__LANGUAGES='["de", "en"]',
        DELIVERYD_CONTENT__GREETING_FALLBACK="true",
        DELIVERYD_CHANNELS__SMS__URL="http://127.0.0.1:2/x?a=b",
        DELIVERYD_CHANNELS__SMS__RETRY__ATTEMPTS="3",
        DELIVERYD_CONFIG="ignored",
        OTHER__THING="ignored",
    )
    assert (config.queue.batch_size, config.queue.poll_interval) == (50, 2.0)
    assert (config.content.languages, config.content.greeting_fallback) == (("de", "en"), True)
    sms = config.channels.providers["sms"]
    assert (sms.options.model_dump()["url"], sms.common.retry.attempts) == ("http://127.0.0.1:2/x?a=b", 3)


def test_the_environment_alone_can_configure_a_channel_in_its_right_spelling(path: Path) -> None:
    config = loaded(
        path,
        SERVICE,
        DELIVERYD_CHANNELS__INAPP__ADAPTER="http",
        DELIVERYD_CHANNELS__INAPP__URL="http://127.0.0.1:1/{message.id}",
        DELIVERYD_CHANNELS__INAPP__QUERY='{ name = "{content.name}" }',
    )
    assert list(config.channels.configured) == ["inApp"]


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("DELIVERYD_QUEUE__BATCH_SIZE", "many", "must be a valid integer"),
        ("DELIVERYD_QUEUE__POLL_INTERVAL", "5", "expected a string such as"),
        ("DELIVERYD_CONTENT__LANGUAGES", '["en", "!"]', "not a language tag: '!'"),
        ("DELIVERYD_CHANNELS__SMS__RATE", "5", "expected a string such as"),
        ("DELIVERYD_CHANNELS__SMS__URL", "ftp://x", "expected http:// or https://"),
        ("DELIVERYD_QUEU__BATCH_SIZE", "5", "unknown key; did you mean queue?"),
        ("DELIVERYD_QUEUE__BATCHSIZE", "5", "unknown key; did you mean batch_size?"),
    ],
)
def test_a_mistake_in_the_environment_is_told_with_its_variable(
    path: Path, variable: str, value: str, problem: str
) -> None:
    (told,) = problems(path, SERVICE + SMS, **{variable: value})
    assert told.startswith(f"{variable}: {problem}")


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("DELIVERYD_QUEUE__MAX_POLL_INTERVAL", "1ms", "max_poll_interval must not be shorter than"),
        ("DELIVERYD_SERVICE__AUTH__USERNAME", "me", "username and password_file must be given together"),
        ("DELIVERYD_CHANNELS__SMS__BREAKER__PAUSE", "1d", "max_pause must not be shorter than pause"),
        ("DELIVERYD_CHANNELS__SMS__JSON__TO", "{secret.key}", "to: {secret.key} isn't defined"),
    ],
)
def test_a_mistake_in_the_environment_that_shows_in_its_table_is_told_with_its_variable(
    path: Path, variable: str, value: str, problem: str
) -> None:
    """The file isn't blamed for a value that it doesn't hold."""
    (told,) = problems(path, SERVICE + SMS, **{variable: value})
    assert told.startswith(f"{variable}: {problem}")


def test_a_mistake_in_a_table_is_blamed_only_on_variables_that_it_names(path: Path) -> None:
    """Another variable of the same table is right; two that don't fit together are both named."""
    shorter = "[queue]\nmax_poll_interval = '1ms'\n"
    (told,) = problems(path, SERVICE + SMS + shorter, DELIVERYD_QUEUE__BATCH_SIZE="5")
    assert told.startswith("config.toml:queue: max_poll_interval must not be shorter")
    both = {"DELIVERYD_QUEUE__MAX_POLL_INTERVAL": "1ms", "DELIVERYD_QUEUE__POLL_INTERVAL": "1s"}
    (told,) = problems(path, SERVICE + SMS, **both)
    assert told.startswith(f"{', '.join(both)}: max_poll_interval must not be shorter")


# files that can't be read


def test_a_file_that_is_not_there_is_no_empty_one(path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"config\.toml: can't be read: No such file or directory; --config"
    ):
        load(path, {})
    with pytest.raises(ConfigError, match=r"can't be read: Is a directory$"):
        load(path.parent, {})


def test_a_file_that_may_not_be_read_is_named(path: Path) -> None:
    path.touch(mode=0)
    user = os.geteuid()
    if user == 0:  # who may read everything
        os.seteuid(NOBODY)
    try:
        with pytest.raises(ConfigError, match=r"config\.toml: can't be read: Permission denied$"):
            load(path, {})
    finally:
        os.seteuid(user)


def test_what_is_no_toml_is_told_with_its_line(path: Path) -> None:
    (told,) = problems(path, SERVICE + 'timeout = "10s\n')
    assert told.startswith("config.toml: invalid TOML: ")
    assert "line 3" in told


def test_what_is_no_text_is_told(path: Path) -> None:
    path.write_bytes(b"[service]\nbase_url = '\xff'\n")
    with pytest.raises(ConfigError, match=r"not UTF-8 text$"):
        load(path, {})


# mistakes


def test_five_mistakes_are_five_lines(path: Path) -> None:
    text = """
[service]
base_url = "127.0.0.1"
[queue]
batch_size = 0
[content]
languages = []
[log]
level = "loud"
[channels.sms]
adapter = "http"
url = "http://127.0.0.1:1/sms"
json = { text = "{content.txt}" }
"""
    told = problems(path, text)
    assert [problem.split(": ")[0] for problem in told] == [
        "config.toml:channels.sms.json.text",
        "config.toml:service.base_url",
        "config.toml:queue.batch_size",
        "config.toml:content.languages",
        "config.toml:log.level",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[quue]\nbatch_size = 1", "quue: unknown key; did you mean queue?"),
        ("[queue]\nbatchsize = 1", "queue.batchsize: unknown key; did you mean batch_size?"),
        ("[queue]\nBATCH_SIZE = 1", "queue.BATCH_SIZE: unknown key; did you mean batch_size?"),
        ("[service.auth]\ntokenfile = 'x'", "service.auth.tokenfile: unknown key; did you mean token_file?"),
        ("[service.tls]\ncafile = 'x'", "service.tls.cafile: unknown key; did you mean ca_file?"),
        ("[channels.sms]\nurll = 'x'", "channels.sms.urll: unknown key; did you mean url?"),
        ("[channels.sms]\ntimeot = '1s'", "channels.sms.timeot: unknown key; did you mean timeout?"),
        (
            "[channels.sms]\nretry = { atempts = 3 }",
            "channels.sms.retry.atempts: unknown key; did you mean attempts?",
        ),
        (
            "[channels.sms]\ntls = { cafile = 'x' }",
            "channels.sms.tls.cafile: unknown key; did you mean ca_file?",
        ),
        ("[events]\nxyzzy = 1", "events.xyzzy: unknown key"),
        ("[journal]\npath = 'x'", "journal.path: unknown key"),
        (
            "[channels.sms]\nadapter = 'htp'",
            "channels.sms.adapter: unknown adapter 'htp'; did you mean http?",
        ),
    ],
)
def test_a_misspelt_word_is_told_with_the_one_that_was_meant(path: Path, text: str, told: str) -> None:
    """At every depth, also in what belongs to an adapter."""
    extra, sms = text, SMS
    if text.startswith("[channels.sms]\n"):
        extra, key = "", text.removeprefix("[channels.sms]\n")
        sms = re.sub(rf"^{key.split(' ')[0]} = .*\n", "", SMS, flags=re.MULTILINE) + key
    (problem,) = problems(path, f"{SERVICE}{sms}\n{extra}")
    assert problem.startswith(f"config.toml:{told}")


def test_a_longest_pause_is_no_shorter_than_the_first(path: Path) -> None:
    (told,) = problems(path, f'{SERVICE}{SMS}breaker.pause = "2m"\n')
    assert told == "config.toml:channels.sms.breaker: max_pause must not be shorter than pause"


def test_all_mistakes_of_a_channel_are_told_at_once(path: Path) -> None:
    """Those in what every channel has, and those in what its adapter needs."""
    told = problems(path, SERVICE + SMS.replace("json", 'rate = "often"\njsn'))
    assert [problem.split(": ")[0] for problem in told] == [
        "config.toml:channels.sms.rate",
        "config.toml:channels.sms.jsn",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[queue]\npoll_interval = "1 week"', 'queue.poll_interval: expected a string such as "10s"'),
        ("[queue]\npoll_interval = 1", 'queue.poll_interval: expected a string such as "10s"'),
        ("[queue]\npoll_interval = 1.5", 'queue.poll_interval: expected a string such as "10s"'),
        ("[queue]\npoll_interval = inf", 'queue.poll_interval: expected a string such as "10s"'),
        ('[queue]\npoll_interval = "0s"', "queue.poll_interval: must be greater than 0"),
        ('[queue]\npoll_interval = "1m"', "queue: max_poll_interval must not be shorter than poll_interval"),
        ("[queue]\nbatch_size = true", "queue.batch_size: must be a valid integer"),
        ("[queue]\nbatch_size = '50'", "queue.batch_size: must be a valid integer"),
        ("[content]\ngreeting_fallback = 'no'", "content.greeting_fallback: must be a valid boolean"),
        ("queue = 3", "queue: expected a table"),
        ('[settings]\nsize_limit = "256mb"', 'settings.size_limit: expected a string such as "256MiB"'),
        ("[settings]\nsize_limit = 1000000000", 'settings.size_limit: expected a string such as "256MiB"'),
        ('[settings]\nsize_limit = "1KiB"', "settings.size_limit: must be at least 1MiB"),
        ('[settings]\ncache_dir = ""', "settings.cache_dir: expected a path"),
        ('[receipts]\nmax_body = "0B"', "receipts.max_body: must be at least 1B"),
        ('[events]\ndetails_field = "status"', "events.details_field: is already the name of another field"),
        (
            '[events]\nintermediate = ["sent"]',
            "events.intermediate.0: must be 'sending' or 'accepted'",
        ),
        ('[content]\nlanguages = ["en", "x y"]', "content.languages.1: not a language tag: 'x y'"),
        ('[customers]\nsource = "file"', "customers.path: is missing"),
        ('[customers]\npath = "x"', 'customers.source: is "none", which has no key path: set the source'),
        ('[admin]\nlisten = "9470"', "admin.listen: expected HOST:PORT"),
        (
            '[receipts]\nlisten = "127.0.0.1:99999"',
            "receipts.listen: the port must be between 0 and 65535",
        ),
        ('[journal]\nurl = "sqlite:journal.db"', 'journal.url: must look like "sqlite:////var/lib/'),
        ('[journal]\nurl = "sqlite:///"', 'journal.url: must look like "sqlite:////var/lib/'),
        ('[journal]\nurl = "sqlite:///x.db?mode=ro"', 'journal.url: must look like "sqlite:////var/lib/'),
        ('[journal]\nurl = "mysql://x/y"', 'journal.url: must look like "sqlite:////var/lib/'),
        ("[journal]\nurl = 1", 'journal.url: must look like "sqlite:////var/lib/'),
        ('[service.auth]\nusername = "x"', "service.auth: username and password_file must be given together"),
        ('[service.tls]\nkey_file = "x"', "service.tls: key_file needs cert_file"),
        (
            '[service.tls]\nca_file = "absent.pem"',
            "service.tls.ca_file: absent.pem can't be read: No such file",
        ),
        (
            "[channels.fax]\nadapter = 'http'\nurl = 'http://h/{message.id}'\nblock = 'fax'",
            "channels.fax.block: ",
        ),
        (
            '[channels."a b"]\nadapter = "smtp"\nhost = "h"\nsender = "a@example.com"',
            "channels.a b: a channel's",
        ),
        ("[channels]\norder = []", "channels.order: "),
        ("[channels]\nsms2 = 1", "channels.sms2: unknown key; a channel is a table"),
    ],
)
def test_a_value_that_cannot_be_used_is_told_with_its_key(path: Path, text: str, told: str) -> None:
    first, second = (text + "\n", SERVICE) if text.startswith("queue") else (SERVICE, text + "\n")
    listed = problems(path, first + second + SMS)
    assert listed[0].startswith(f"config.toml:{told}")


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("127.0.0.1:8080", "an address must start with http:// or https:// and a host"),
        ("http://user:pw@127.0.0.1", "an address must not contain a user name or password"),
        ("http://127.0.0.1/?x=1", "must have no query and no fragment"),
        ("http://127.0.0.1/#x", "must have no query and no fragment"),
    ],
)
def test_an_address_of_the_service_must_be_one_that_paths_can_be_put_behind(
    path: Path, url: str, told: str
) -> None:
    (problem,) = problems(path, f'[service]\nbase_url = "{url}"\n{SMS}')
    assert problem.startswith("config.toml:service.base_url: ")
    assert told in problem


def test_an_empty_file_is_told_what_it_lacks(path: Path) -> None:
    assert problems(path, "") == [
        "config.toml:channels: no channel is configured; add a table such as [channels.sms]",
        "config.toml:service.base_url: is missing",
    ]


def test_a_channel_that_the_order_leaves_out_and_one_that_only_the_order_has(path: Path) -> None:
    told = problems(path, f'{SERVICE}[channels]\norder = ["email", "sns"]\n{SMS}')
    assert told == [
        "config.toml:channels.order: there is no [channels.sns]; did you mean sms?",
        "config.toml:channels.order: sms is configured but missing from the order, so it would never be used",
    ]


def test_receipts_without_a_server_for_them_are_a_mistake(path: Path) -> None:
    receipt = 'provider_id = "/id"\nreceipt = { provider_id = "/id", status = "/s", delivered = ["ok"] }\n'
    assert problems(path, f'{SERVICE}[receipts]\nlisten = ""\n{SMS}{receipt}') == [
        "config.toml:channels.sms.receipt: receipts.listen is empty, so no receipt could arrive"
    ]


@pytest.mark.parametrize(
    ("admin", "receipts", "is_refused"),
    [
        ("127.0.0.1:9471", None, True),
        (None, "127.0.0.1:9470", True),
        ("127.0.0.1:9000", "0.0.0.0:9000", True),
        ("[::]:9000", "[::1]:9000", True),
        ("[::1]:9000", "[0:0::1]:9000", True),
        ("Localhost:9000", "localhost:9000", True),
        ("127.0.0.1:9000", "127.0.0.1:9001", False),
        ("127.0.0.1:9000", "127.0.0.2:9000", False),
        ("0.0.0.0:9000", "[::]:9000", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("", "127.0.0.1:9470", False),
    ],
)
def test_two_servers_on_one_address_are_a_mistake(
    path: Path, admin: str | None, receipts: str | None, is_refused: bool
) -> None:
    """If receipts are configured: their server isn't started before."""
    tables = [("admin", admin), ("receipts", receipts)]
    listen = "".join(f'[{name}]\nlisten = "{given}"\n' for name, given in tables if given is not None)
    receipt = 'provider_id = "/id"\nreceipt = { provider_id = "/id", status = "/s", delivered = ["ok"] }\n'
    loaded(path, f"{SERVICE}{listen}{SMS}")
    text = f"{SERVICE}{listen}{SMS}{receipt}"
    if is_refused:
        [told] = problems(path, text)
        assert told.startswith("config.toml:receipts.listen: is the same address as admin.listen")
    else:
        loaded(path, text)


def test_secrets_that_cannot_be_used_are_told_with_their_keys_and_never_shown(path: Path) -> None:
    open_to_all = path.parent / "token"
    open_to_all.write_text("s3cret")
    open_to_all.chmod(0o644)
    auth = '[service.auth]\ntoken_file = "token"\n'
    told = problems(path, SERVICE + auth + SMS + 'secrets = { key = "absent", token = "token" }\n')
    assert told == [
        (
            "config.toml:channels.sms.secrets.key: expected the path of a file that contains the secret:"
            " there is no such file"
        ),
        "config.toml:channels.sms.secrets.token: token may be read by all users; run: chmod o-rwx token",
        "config.toml:service.auth.token_file: token may be read by all users; run: chmod o-rwx token",
    ]
    assert "s3cret" not in str(told)


@pytest.mark.parametrize(
    ("network", "good"),
    [
        ("0.0.0.0/0", False), ("::/0", False), ("128.0.0.0/1", False), ("2000::/3", False),
        ("10.0.0.0/8", True), ("fc00::/7", True), ("192.0.2.7", True),
    ],
)  # fmt: skip
def test_not_everybody_can_be_a_trusted_proxy(network: str, good: bool) -> None:
    """Whoever is trusted names the peer of a request, and so passes every limit for peers."""
    problem = pytest.raises(ValidationError, match="whoever is trusted may name any peer")
    with nullcontext() if good else problem:
        ReceiptsOptions.model_validate({"trusted_proxies": [network]})
