"""Presets in a configuration file: what they become, and where mistakes are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.presets.file import PresetKey
from deliveryd.config import Config, load
from deliveryd.errors import ConfigError
from support.presets import POSTBOX

SERVICE = '[service]\nbase_url = "http://127.0.0.1:1"\n'
SMS = """
[channels]
presets_dir = "presets"
[channels.sms]
adapter = "postbox"
account = "A01"
secrets = { token = "token" }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "postbox.toml").write_text(POSTBOX, encoding="utf-8")
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("t0k", encoding="utf-8")
    return tmp_path / "config.toml"


def loaded(path: Path, text: str = SMS, **environ: str) -> Config:
    path.write_text(SERVICE + text, encoding="utf-8")
    return load(path, environ)


def problems(path: Path, text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(path, text, **environ)
    return [problem.replace(f"{path.parent}/", "") for problem in caught.value.problems]


def test_a_preset_becomes_the_http_adapter(path: Path) -> None:
    provider = loaded(path).channels.providers["sms"]
    assert provider.common.adapter == "http"
    assert (provider.common.on_in_doubt, provider.common.timeout) == ("hold", 5.0)
    assert isinstance(provider.options, HttpChannelOptions)
    assert provider.options.url == "https://api.postbox.example/A01/messages"
    assert provider.options.secrets["token"][0].read() == "t0k"


def test_a_channel_has_a_preset_among_its_providers(path: Path) -> None:
    text = SMS.replace("[channels.sms]", '[channels.sms.providers.first]\ntimeout = "2s"')
    assert loaded(path, text).channels.providers["sms/first"].common.timeout == 2.0


def test_the_block_of_the_channel_decides(path: Path) -> None:
    config = loaded(path, SMS.replace("[channels.sms]", "[channels.messenger]"))
    options = config.channels.providers["messenger"].options
    assert isinstance(options, HttpChannelOptions)
    assert options.json_body == {"to": "{customer.messenger}", "text": "{content.text}"}


def test_mistakes_are_reported_at_the_keys_of_the_operator(path: Path) -> None:
    text = SMS.replace('account = "A01"', 'acount = "A01"') + 'priority = "high"\ntimeout = 5\n'
    assert problems(path, text) == [
        "config.toml:channels.sms.account: is missing: account, such as 'A01'",
        "config.toml:channels.sms.priority: must be an integer, such as 3 (priority of the messages)",
        "config.toml:channels.sms.acount: unknown key; did you mean account?",
    ]


def test_what_a_value_breaks_is_reported_at_its_key(path: Path) -> None:
    told = problems(path, SMS + 'base_url = "ftp://x"\nsender = "{costumer.x}"\n')
    assert len(told) == 2
    assert told[0].startswith("config.toml:channels.sms.base_url: ")
    assert told[1].startswith("config.toml:channels.sms.sender: from: unknown placeholder {costumer.x}")


def test_a_table_with_several_keys_is_reported_at_the_adapter(path: Path) -> None:
    told = problems(path, SMS + 'sender = "{costumer.x}"\npriority = 2\n')
    assert len(told) == 1
    assert told[0].startswith("config.toml:channels.sms.adapter: the preset postbox: json: from: unknown")


SNS = """
[channels.sms]
adapter = "sns"
sender_id = "Acme"
region = "eu-central-1"
"""


def test_a_key_that_another_auth_lacks_is_reported_there(path: Path) -> None:
    own = 'auth = { sigv4 = { service = "sns", from_environment = true } }\n'
    assert problems(path, SNS + own) == ["config.toml:channels.sms.auth.sigv4.region: is missing"]


FCM_SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
FCM = '[channels.inApp]\nadapter = "fcm"\nproject_id = "acme-app"\n'


@pytest.mark.parametrize(
    ("text", "auth", "files"),
    [
        (SNS + 'access_key_file = "a"\nsecret_key_file = "s"\n',
         'auth = { sigv4 = { region = "eu-central-1", service = "sns", from_environment = true } }',
         "access_key_file, secret_key_file"),
        (FCM + 'key_file = "k"\n',
         f'auth = {{ google = {{ scope = "{FCM_SCOPE}", from_environment = true }} }}', "key_file"),
    ],
    ids=["sns", "fcm"],
)  # fmt: skip
def test_a_role_beside_files_of_keys_is_pointed_to_auth(path: Path, text: str, auth: str, files: str) -> None:
    for name in ("a", "s", "k"):
        (path.parent / name).touch(mode=0o600)
    told = problems(path, text + "from_environment = true\n")
    assert [each.partition(": ")[2] for each in told] == [f"unknown key; set {auth} instead of {files}"]
    own = "".join(f"{line}\n" for line in text.splitlines() if "key_file" not in line)
    assert len(loaded(path, own + auth).channels.providers) == 1


def test_a_secret_that_goes_out_plain_is_reported_at_the_address(path: Path) -> None:
    told = problems(path, SMS + 'base_url = "http://postbox.example"\n')
    assert [problem.partition(": ")[0] for problem in told] == ["config.toml:channels.sms.base_url"]


def test_a_variable_of_the_environment_is_named(path: Path) -> None:
    told = problems(path, SMS, DELIVERYD_CHANNELS__SMS__ACCOUNT="B1")
    assert told == ["DELIVERYD_CHANNELS__SMS__ACCOUNT: must match A[0-9]+, such as 'A01' (account)"]


def test_a_mistake_in_a_preset_names_its_file_and_key(path: Path) -> None:
    preset = path.parent / "presets" / "postbox.toml"
    preset.write_text(POSTBOX.replace("{customer.phone}", "{customer}"), encoding="utf-8")
    told = problems(path, SMS)
    assert len(told) == 1
    assert told[0].startswith("presets/postbox.toml:table.json: to: {customer} needs a field")


def test_an_unknown_adapter_is_suggested_from_all_names(path: Path) -> None:
    [told] = problems(path, SMS.replace('"postbox"', '"posbox"'))
    assert told.startswith(
        "config.toml:channels.sms.adapter: unknown adapter 'posbox'; did you mean postbox?"
    )


def test_a_key_beside_the_providers_is_said_to_belong_to_one(path: Path) -> None:
    text = SMS.replace("[channels.sms]", '[channels.sms]\naccount = "A01"\n[channels.sms.providers.first]')
    told = problems(path, text)
    assert told == [
        "config.toml:channels.sms.account: belongs to a provider, as channels.sms.providers.NAME.account"
    ]


def test_a_folder_that_is_not_there_is_reported(path: Path) -> None:
    told = problems(path, SMS.replace('"presets"', '"absent"'))
    assert told[0] == "config.toml:channels.presets_dir: absent isn't a folder"


def test_a_pattern_that_is_no_expression_is_told() -> None:
    with pytest.raises(ValidationError, match=r"pattern\n.*not a regular expression in RE2.*missing"):
        PresetKey.model_validate({"description": "d", "example": "1", "pattern": "("})
