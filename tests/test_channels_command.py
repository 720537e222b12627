"""`deliveryd channels`: what a channel can be, without a configuration and with one."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from deliveryd.channels.preset_catalogue import Catalogue
from deliveryd.channels.registry import ADAPTERS
from support.presets import POSTBOX
from support.terminal import command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with a preset of its own."""
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "postbox.toml").write_text(POSTBOX, encoding="utf-8")
    path = tmp_path / "config.toml"
    path.write_text(
        '[service]\nbase_url = "http://127.0.0.1:1"\n[channels]\npresets_dir = "presets"\n', encoding="utf-8"
    )
    return path


def test_adapters_and_presets_are_listed_without_a_configuration() -> None:
    listed = command("channels", "list")
    assert listed.status == 0
    names = [line.split()[0] for line in listed.out.splitlines()[1:]]
    assert set(names) >= {*ADAPTERS, *Catalogue().names()}
    rows = json.loads(command("channels", "list", "--json").out)
    assert [row["name"] for row in rows] == names


def test_a_configuration_adds_its_presets(config: Path) -> None:
    rows = json.loads(command("channels", "list", "--config", str(config), "--json").out)
    row = next(row for row in rows if row["name"] == "postbox")
    assert row == {
        "name": "postbox", "kind": "preset", "sends": ["sms", "messenger"], "title": "Postbox",
        "receipts": False, "repeats": "ignored", "doubts": "no",
    }  # fmt: skip


def test_a_preset_is_shown_with_its_keys_an_example_its_tables_and_sources(config: Path) -> None:
    shown = command("channels", "show", "--config", str(config), "postbox")
    assert shown.status == 0
    for text in (
        "postbox: Postbox",
        "sends          sms, messenger",
        "account   required                       account",
        'url = "{key.base_url}/{key.account}/messages"',
        "# instead, for the block messenger",
        "everything: invented",
    ):
        assert text in shown.out
    example = shown.out.partition("to copy\n")[2].partition("the tables behind it")[0]
    assert tomllib.loads(example) == {
        "channels": {
            "sms": {
                "adapter": "postbox",
                "account": "A01",
                "secrets": {"token": "/run/credentials/deliveryd.service/postbox-token"},
            }
        }
    }


def test_a_preset_as_json_has_all_of_its_file(config: Path) -> None:
    shown = json.loads(command("channels", "show", "--config", str(config), "postbox", "--json").out)
    assert shown["keys"]["account"]["required"] is True
    assert shown["table"]["on_in_doubt"] == "hold"
    assert tomllib.loads(shown["example"])["channels"]["sms"]["adapter"] == "postbox"


@pytest.mark.parametrize("name", sorted(ADAPTERS))
def test_an_adapter_is_shown_with_its_keys(name: str) -> None:
    shown = command("channels", "show", name)
    assert shown.status == 0
    assert "required" in shown.out
    assert json.loads(command("channels", "show", name, "--json").out)["kind"] == "adapter"


def test_an_unknown_name_is_an_error_with_a_suggestion(config: Path) -> None:
    shown = command("channels", "show", "--config", str(config), "posbox")
    assert shown.status == 1
    assert shown.err == "deliveryd: unknown adapter 'posbox'; did you mean postbox?\n"


def test_a_mistake_in_a_preset_is_named(config: Path) -> None:
    preset = config.parent / "presets" / "postbox.toml"
    preset.write_text(POSTBOX.replace("title", "titel"), encoding="utf-8")
    shown = command("channels", "list", "--config", str(config))
    assert shown.status == 78
    assert "postbox.toml:titel: unknown key; did you mean title?" in shown.err
