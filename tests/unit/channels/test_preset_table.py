"""Presets: an operator's few keys become the table of the http adapter."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deliveryd.channels.options import ProviderTable
from deliveryd.channels.presets.catalogue import Catalogue, check_tables, read_preset
from deliveryd.channels.presets.file import PresetFile
from deliveryd.channels.presets.table import Expansion, examples, expand
from deliveryd.errors import ConfigError
from support.presets import POSTBOX, postbox

SECRETS = {"token": "token-file"}
COMMON = tuple(ProviderTable.model_fields)


def expanded(block: str = "sms", **given: Any) -> Expansion:
    return expand(
        postbox(), {"adapter": "postbox", "account": "A01", "secrets": SECRETS} | given, block, COMMON
    )


def problems(block: str = "sms", **given: Any) -> dict[str, str]:
    return dict(expanded(block, **given).problems)


# what comes out


def test_keys_are_filled_in_and_keep_their_types() -> None:
    table = expanded(sender="Acme", priority=5).table
    assert table["adapter"] == "http"
    assert table["url"] == "https://api.postbox.example/A01/messages"
    assert table["json"] == {
        "to": "{customer.phone}", "text": "{content.text}", "from": "Acme", "options": {"rank": 5},
    }  # fmt: skip


def test_an_optional_key_without_a_value_leaves_its_member_out() -> None:
    table = expanded().table
    assert "from" not in table["json"]
    assert table["json"]["options"] == {"rank": 1}


def test_an_optional_secret_that_is_not_given_leaves_its_text_out() -> None:
    assert expanded().table["headers"] == {"Authorization": "Bearer {secret.token}"}
    both = {"token": "a", "region": "b"}
    assert expanded(secrets=both).table["headers"]["X-Region"] == "{secret.region}"
    assert expanded(secrets=both).table["secrets"] == both


def test_a_table_that_names_an_optional_secret_that_is_not_given_is_left_out() -> None:
    file = tomllib.loads(POSTBOX)
    file["table"]["receipt"] = {"status": "/s", "signature": {"scheme": "token", "secret": "region"}}
    preset = PresetFile.model_validate(file)
    given = {"account": "A01", "secrets": SECRETS}
    assert expand(preset, given, "sms", COMMON).table["receipt"] == {"status": "/s"}
    both = {"token": "a", "region": "b"}
    receipt = expand(preset, {"account": "A01", "secrets": both}, "sms", COMMON).table["receipt"]
    assert receipt["signature"] == {"scheme": "token", "secret": "region"}


def test_a_value_may_be_a_placeholder_of_the_mapping() -> None:
    assert expanded(sender="{variables.sender}").table["json"]["from"] == "{variables.sender}"


def test_a_block_replaces_keys_of_the_table() -> None:
    assert expanded("messenger").table["json"] == {"to": "{customer.messenger}", "text": "{content.text}"}


def test_an_operator_overrides_the_keys_of_every_provider() -> None:
    auth = {"token_file": "token"}
    table = expanded(timeout="3s", retry={"attempts": 2}, proxy="http://proxy:1", auth=auth).table
    assert (table["timeout"], table["retry"], table["on_in_doubt"]) == ("3s", {"attempts": 2}, "hold")
    assert (table["proxy"], table["auth"]) == ("http://proxy:1", auth)


REGIONAL = (
    ('example = "https://api.postbox.example"\ndefault = "https://api.postbox.example"',
     'example = "https://a01.postbox.example"\ndefault = "https://{key.account}.postbox.example"'),
    ('url = "{key.base_url}/{key.account}/messages"',
     'url = "{key.base_url}/messages"\nauth = { basic = { username = "{key.account}" } }'),
)  # fmt: skip


def changed(*changes: tuple[str, str]) -> PresetFile:
    text = POSTBOX
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return PresetFile.model_validate(tomllib.loads(text))


def test_a_default_may_hold_other_keys() -> None:
    """The operator's own value is taken as it is written."""
    given = {"account": "A07", "secrets": SECRETS}
    assert expand(changed(*REGIONAL), given, "sms", COMMON).table["url"] == (
        "https://A07.postbox.example/messages"
    )
    own = {**given, "base_url": "https://x.example/{key.account}"}
    assert expand(changed(*REGIONAL), own, "sms", COMMON).table["url"] == (
        "https://x.example/{key.account}/messages"
    )


def test_a_slash_at_the_end_of_the_address_is_dropped() -> None:
    table = expanded(base_url="https://api.postbox.example/").table
    assert table["url"] == "https://api.postbox.example/A01/messages"


def test_a_key_of_auth_is_required_beside_another_auth_if_the_address_needs_it() -> None:
    own = {"auth": {"token_file": "token"}, "secrets": SECRETS}
    assert dict(expand(changed(*REGIONAL), own, "sms", COMMON).problems) == {
        "account": "is missing: account, such as 'A01'"
    }
    alone = changed(REGIONAL[1])
    assert expand(alone, own, "sms", COMMON).problems == []


def test_a_key_that_another_auth_makes_useless_is_refused() -> None:
    """And one that makes the address must be what the other one has."""
    signed = (
        'url = "{key.base_url}/{key.account}/messages"',
        'url = "{key.base_url}/messages"\nauth = { header = "{key.account}", value_file = "{key.sender}" }',
    )
    preset = changed(signed, ('from = "{key.sender}"\n', ""), REGIONAL[0])
    own = {"auth": {"header": "A02", "value_file": "x"}, "secrets": SECRETS, "account": "A01", "sender": "y"}
    assert dict(expand(preset, own, "sms", COMMON).problems) == {
        "sender": "has no effect beside auth: remove sender, or remove auth",
        "account": "differs from auth.header: set both alike",
    }
    alike = {**own, "auth": {"header": "A01", "value_file": "x"}}
    del alike["sender"]
    assert expand(preset, alike, "sms", COMMON).problems == []


def test_a_variant_that_needs_a_key_is_left_out_without_its_value() -> None:
    added = (
        '[[table.variants]]\nneeds = ["sender"]\nwhen = [{ at = "{content.text}", present = true }]\n'
        'json = { by = "{key.sender}" }\n\n[blocks.messenger]'
    )
    variant = ("[blocks.messenger]", added)
    given = {"account": "A01", "secrets": SECRETS}
    assert "variants" not in expand(changed(variant), given, "sms", COMMON).table
    (made,) = expand(changed(variant), {**given, "sender": "Acme"}, "sms", COMMON).table["variants"]
    assert made == {"when": [{"at": "{content.text}", "present": True}], "json": {"by": "Acme"}}
    with pytest.raises(ValidationError, match="needs: sendr isn't declared in keys"):
        changed(("[blocks.messenger]", added.replace('["sender"]', '["sendr"]')))


def test_a_table_that_needs_a_key_is_left_out_where_the_key_is_false() -> None:
    tracked = changed(
        (
            "[blocks.messenger]",
            '[table.probe]\nneeds = ["ask"]\nurl = "https://a.example"\n\n[blocks.messenger]',
        ),
        (
            "[keys.sender]",
            '[keys.ask]\ndescription = "ask"\nexample = true\ntype = "boolean"\n\n[keys.sender]',
        ),
    )
    given = {"account": "A01", "secrets": SECRETS}
    assert "probe" not in expand(tracked, given, "sms", COMMON).table
    assert "probe" not in expand(tracked, {**given, "ask": False}, "sms", COMMON).table
    asked = expand(tracked, {**given, "ask": True}, "sms", COMMON)
    assert (asked.table["probe"], asked.problems) == ({"url": "https://a.example"}, [])


@pytest.mark.parametrize(
    "variants", ["5", "[5]", "[{ needs = 5 }]", '[{ needs = [["x"]] }]', '[{ needs = "sender" }]']
)
def test_variants_of_another_shape_are_named(variants: str, tmp_path: Path) -> None:
    path = tmp_path / "postbox.toml"
    path.write_text(POSTBOX.replace("[table]\n", f"[table]\nvariants = {variants}\n", 1), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        check_tables(read_preset(path), ProviderTable)
    assert "variants" in caught.value.problems[0]


# what an operator is told


def test_missing_keys_and_secrets_are_named_with_their_meaning() -> None:
    found = dict(expand(postbox(), {"adapter": "postbox"}, "sms", COMMON).problems)
    assert found == {
        "account": "is missing: account, such as 'A01'",
        "secrets.token": "is missing: a file that holds it (API token)",
    }


def test_a_key_that_has_no_effect_without_another_is_named() -> None:
    file = tomllib.loads(POSTBOX)
    file["keys"]["priority"]["only_with"] = "sender"
    given = {"adapter": "postbox", "account": "A01", "secrets": SECRETS, "priority": 5}

    def told(**more: Any) -> dict[str, str]:
        return dict(expand(PresetFile.model_validate(file), {**given, **more}, "sms", COMMON).problems)

    assert told() == {"priority": "has no effect without sender: set that, or remove this"}
    assert told(sender="Acme") == {}
    file["keys"]["priority"]["only_with"] = "sendr"
    with pytest.raises(ValidationError, match=r"keys\.priority\.only_with: sendr isn't declared in keys"):
        PresetFile.model_validate(file)


def test_values_are_checked_by_type_and_pattern() -> None:
    assert problems(account="B1", priority="high") == {
        "account": "must match A[0-9]+, such as 'A01' (account)",
        "priority": "must be an integer, such as 3 (priority of the messages)",
    }


def test_unknown_keys_and_secrets_are_errors_with_a_suggestion() -> None:
    found = problems(acount="A01", url="https://x", secrets={"token": "a", "tokn": "b"})
    assert found == {
        "acount": "unknown key; did you mean account?",
        "url": "unknown key",
        "secrets.tokn": "unknown secret; did you mean token?",
    }


def test_a_block_that_the_provider_cannot_send_is_an_error() -> None:
    assert problems("email") == {"adapter": "can't send the block email; it sends sms, messenger"}


# what the author of a preset is told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("{key.sender}", "{key.sendr}", "table.json.from: {key.sendr} isn't declared in keys"),
        ("{key.sender}", "by {key.sender}", "{key.sender} has no value where the operator sets none"),
        ("{secret.region}", "{secret.regoin}", "table.headers.X-Region: {secret.regoin} isn't declared"),
        ('"{key.priority}"', "1", "keys.priority: not used in table"),
        ('on_in_doubt = "hold"', 'on_in_doubt = "resend"', 'table.on_in_doubt: must be "hold"'),
        ("receipts = false", "receipts = true", "promises.receipts needs table.receipt"),
        ('settles_doubt = "no"', 'settles_doubt = "lookup"', "needs table.lookup"),
        ("[blocks.messenger]", "[blocks.email]", "blocks.email: not in channels"),
        ('example = "A01"', 'example = "B01"', "example 'B01' must match A[0-9]+"),
        (
            'default = "https://api.postbox.example"',
            'default = "https://{key.sender}.example"',
            "keys.base_url.default: {key.sender} must be required, or have a value as default",
        ),
        (
            'default = "https://api.postbox.example"',
            'default = "https://{key.sendr}.example"',
            "keys.base_url.default: {key.sendr} isn't declared in keys",
        ),
        ("example = 3", 'example = "3"', "example '3' must be an integer"),
    ],
)
def test_a_mistake_in_a_preset_is_named(old: str, new: str, told: str) -> None:
    assert old in POSTBOX
    with pytest.raises(ValidationError) as caught:
        PresetFile.model_validate(tomllib.loads(POSTBOX.replace(old, new, 1)))
    assert told in str(caught.value)


def test_a_mistake_is_reported_with_the_file_and_its_key(tmp_path: Path) -> None:
    path = tmp_path / "postbox.toml"
    path.write_text(POSTBOX.replace("title", "titel"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_preset(path)
    assert caught.value.problems == [
        f"{path}:title: is missing",
        f"{path}:titel: unknown key; did you mean title?",
    ]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("{customer.phone}", "{costumer.phone}", "table.json: to: unknown placeholder {costumer.phone}"),
        ("timeout", "time_out", "table.time_out: unknown key"),
        ('timeout = "5s"', 'timeout = "5"', "table.timeout: expected a string such as"),
        ("{content.text}", "{content.subject}", "table.json.text: the block sms has no field 'subject'"),
    ],
)
def test_what_a_table_makes_of_the_examples_is_checked(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = tmp_path / "postbox.toml"
    path.write_text(POSTBOX.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        check_tables(read_preset(path), ProviderTable)
    assert f"{path}:{told}" in str(caught.value)


def test_a_mistake_in_a_block_is_reported_there(tmp_path: Path) -> None:
    path = tmp_path / "postbox.toml"
    path.write_text(POSTBOX.replace("{customer.messenger}", "{costumer.messenger}"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        check_tables(read_preset(path), ProviderTable)
    assert f"{path}:blocks.messenger.json: to: unknown placeholder" in str(caught.value)


# where presets are


def test_a_folder_adds_presets_to_those_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "postbox.toml").write_text(POSTBOX, encoding="utf-8")
    catalogue = Catalogue(tmp_path)
    assert "postbox" in catalogue.names()
    found = catalogue.find("postbox")
    assert found is not None
    assert found.file == postbox()
    assert Catalogue().find("postbox") is None
    assert list(catalogue.problems()) == []


def test_a_file_name_that_is_no_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "Post Box.toml").write_text(POSTBOX, encoding="utf-8")
    assert [problem.partition(":")[0] for problem in Catalogue(tmp_path).problems()] == ["Post Box.toml"]
    (tmp_path / "Post Box.toml").rename(tmp_path / "http.toml")
    told = "http.toml: there is an adapter of this name; rename the file"
    assert list(Catalogue(tmp_path).problems()) == [told]
    assert list(Catalogue(tmp_path / "absent").problems()) == [f"{tmp_path / 'absent'} isn't a folder"]


@pytest.mark.parametrize("only_required", [False, True])
def test_the_examples_of_a_preset_are_a_complete_table(only_required: bool) -> None:
    given = examples(postbox(), only_required=only_required)
    assert expand(postbox(), given, "sms", COMMON).problems == []


def test_the_examples_have_what_is_advised_though_not_required() -> None:
    """Twilio needs a sender: a number, or a messaging service in place of it."""
    twilio = Catalogue().find("twilio")
    assert twilio is not None
    assert "from" in examples(twilio.file, only_required=True)
    assert "messaging_service" not in examples(twilio.file, only_required=True)
