"""`deliveryd lint`: a table of settings with a mistake each, and the forms of what it prints."""

from __future__ import annotations

import json
import re
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from deliveryd.commands.lint.reading import SourceMap, Spot
from deliveryd.commands.lint.rules import RULES, Severity
from deliveryd.sandbox.scenario import demo_settings
from support.messages import message, sms_settings
from support.places import ROOT
from support.terminal import Answered, command
from support.world import World, open_world

CASES: list[dict[str, Any]] = tomllib.loads(
    (ROOT / "tests/unit/commands/lint/bad.toml").read_text(encoding="utf-8")
)["case"]
SMS = """\
[service]
base_url = "https://queue.example.com"
[journal]
url = "sqlite:///journal.db"
[channels.sms]
adapter = "http"
url = "https://sms.example.com/send"
json = { to = "{customer.phone}", text = "{content.text}" }
max_parts = 1
"""
TELEGRAM = """\
[service]
base_url = "https://queue.example.com"
[journal]
url = "sqlite:///journal.db"
[customers]
source = "http"
url = "https://crm.example.com/{customerId}"
fields = { telegram = "/telegram" }
[channels.messenger]
adapter = "telegram"
secrets = { token = "token", webhook_token = "token" }
"""
CONFIGURATIONS = {"sms": SMS, "telegram": TELEGRAM}


def lint(*arguments: object) -> Answered:
    return command("lint", *arguments)


def written(folder: Path, name: str, value: object) -> Path:
    path = folder / name
    path.write_text(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), encoding="utf-8"
    )
    return path


def run_case(case: dict[str, Any], folder: Path) -> Answered:
    text = re.sub(r"TEXT(\d+)", lambda match: "a" * int(match[1]), case["settings"])
    arguments: list[object] = [written(folder, "settings.json", text), "--json"]
    if "config" in case:
        folder.chmod(0o700)
        written(folder, "token", "s3cret").chmod(0o600)
        arguments += ["--config", written(folder, "config.toml", CONFIGURATIONS[case["config"]])]
    if "variables" in case:
        arguments += ["--variables", json.dumps(case["variables"])]
    if "messages" in case:
        given = [message(number, **each) for number, each in enumerate(case["messages"], 1)]
        arguments += ["--message", written(folder, "messages.json", given)]
    return lint(*arguments)


def place_of(found: dict[str, Any]) -> str:
    """Language, block, field and offset."""
    field = found["field"] if found["offset"] is None else f"{found['field']}:{found['offset']}"
    return " ".join(part for part in (found["language"], found["channel"], field) if part)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_bad_settings(case: dict[str, Any], tmp_path: Path) -> None:
    """Each has the findings of the table and no others, and the status of the worst of them."""
    answered = run_case(case, tmp_path)
    found = answered.data["findings"]
    assert [[each["rule"], place_of(each)] for each in found] == case["finds"]
    assert answered.status == (1 if any(each["severity"] == "error" for each in found) else 0)
    assert all(each["text"] and each["remedy"] for each in found)


def test_every_rule_has_a_case_and_is_documented() -> None:
    assert {rule for case in CASES for rule, _ in case["finds"]} == set(RULES)
    page = (ROOT / "docs/reference/lint.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (error|warning|note) \|", page, re.MULTILINE))
    assert rows == {name: rule.severity.name.lower() for name, rule in RULES.items()}


def test_the_settings_of_the_demo(tmp_path: Path) -> None:
    """One has expired, one lacks a greeting, and three characters cost a part; all on purpose."""
    file = written(tmp_path, "demo.json", {str(id_): each for id_, each in demo_settings().items()})
    answered = lint(file, "--json")
    worse = [each for each in answered.data["findings"] if each["severity"] != "note"]
    assert [(each["settings"], each["rule"], each["language"]) for each in worse] == [
        (503, "forced-ucs2", "pt"),
        (505, "expired", None),
        (507, "forced-ucs2", "pt"),
        (508, "half-greeting", "en"),
    ]
    assert answered.status == 1


def test_what_is_right_has_no_findings(tmp_path: Path) -> None:
    """Style sheets in a mail, a placeholder in an attribute, a link of an app, a language with a region."""
    body = (
        "<!doctype html><html><head><style>@media (max-width: 9px) { p { margin: 0 } }</style></head><body>"
        '<p>{greeting}<br>See <a href="{link}">here</a><img alt="" src="https://example.com/a.png"/></p></body></html>'
    )
    block = {
        "greetings": {"general": "Hello,", "personal": "Hello {customer.name},"},
        "email": {"subject": "Your {thing}", "body": body},
        "messenger": {"text": "Hi {thing}", "button": {"text": "Go", "url": "shop://offers"}},
    }
    messenger = {"messenger": {"text": "Oi {thing}"}}
    settings = {
        "content": {"en": block, "pt": block, "pt-BR": messenger},
        "delivery": {"expiresAt": "2199-01-01T00:00:00Z"},
    }
    variables = json.dumps({"link": "https://example.com", "thing": "x"})
    answered = lint(written(tmp_path, "settings.json", settings), "--variables", variables, "--strict")
    assert answered == (0, "nothing found in 1 settings object\n", "")


# Sources


def test_several_files_lists_and_objects_by_id(tmp_path: Path) -> None:
    """A file that can't be read hides no other one."""
    good = {"content": {"en": {"sms": {"text": "Hi"}}}}
    bad = {"content": {"en": {"sms": {"text": "Hi {"}}}}
    files = [
        written(tmp_path, "list.json", [good, {"id": 12, **bad}, bad]),
        written(tmp_path, "by-id.json", {"5": bad}),
        written(tmp_path, "broken.json", '{"content": \n {"en" }}'),
        tmp_path / "absent.json",
    ]
    found = lint(*files, "--json").data["findings"]
    assert [(each["settings"], each["position"], each["rule"], each["line"]) for each in found] == [
        (12, 1, "unbalanced-brace", 1),
        (None, 2, "unbalanced-brace", 1),
        (5, None, "unbalanced-brace", 1),
        (None, None, "unreadable-settings", 2),
        (None, None, "unreadable-settings", None),
    ]
    assert [Path(each["file"]).name for each in found[-2:]] == ["broken.json", "absent.json"]
    assert [each["remedy"] for each in found[-2:]] == [
        "correct them: nothing of them is sent", "name a file that this user can read",
    ]  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Any:
    yield from open_world(tmp_path)


def test_settings_of_the_service(world: World) -> None:
    """Those that the service doesn't have are an error; the queue is left alone."""
    world.state.settings[7] = sms_settings("Hi {x", ("en",))
    answered = lint("--config", world.config, "--settings", 7, "--settings", 8, "--json")
    found = answered.data["findings"]
    assert [(each["settings"], each["rule"], each["line"]) for each in found] == [
        (7, "unbalanced-brace", None),
        (8, "unreadable-settings", None),
    ]
    assert answered.status == 1
    assert set(world.state.requests) == {"settings"}


@pytest.mark.slow
def test_settings_of_the_cache_and_the_variables_of_the_journal(world: World) -> None:
    """What a worker fetched is in its cache; the names that messages had are in its journal."""
    world.customers([{"id": 1, "name": "Ann", "phone": "+447700900101"}])
    world.state.settings[7] = sms_settings("Hi {x} {y} {z}", ("en",))
    world.state.enqueue(message(1, 7, x="secret-value", y="1"))
    world.state.enqueue(message(2, 7, x="secret-value"))
    world.run_until_idle()
    answered = lint("--config", world.config, "--cached", "--json")
    found = [each for each in answered.data["findings"] if each["severity"] != "note"]
    assert [(each["settings"], each["rule"], each["offset"]) for each in found] == [
        (7, "optional-placeholder", 7),
        (7, "unknown-placeholder", 11),
    ]
    assert "2 messages in the journal" in found[0]["text"]
    assert "secret-value" not in answered.out
    with closing(sqlite3.connect(world.folder / "journal.db")) as db:
        db.execute("UPDATE message SET variables = NULL")
        db.commit()
    assert lint("--config", world.config, "--cached", "--json").data["not_sampled"] == ["7"]


def test_no_cache_and_no_service_are_failures(world: World) -> None:
    assert lint("--config", world.config, "--cached").err.startswith("deliveryd: there is no cache in ")
    world.change(f'base_url = "{world.sandbox.base_url}"', 'base_url = "http://127.0.0.1:9"')
    answered = lint("--config", world.config, "--settings", 7)
    assert (answered.status, answered.out) == (1, "")
    assert answered.err.startswith("deliveryd: settings 7: ")


def test_messages_are_compared_with_their_own_settings(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "settings.json",
        {
            "1": {"content": {"en": {"sms": {"text": "{a}"}}}},
            "2": {"content": {"en": {"sms": {"text": "{b}"}}}},
        },
    )
    sample = written(tmp_path, "message.json", message(5, 1, a="1"))
    answered = lint(file, "--message", sample, "--json")
    assert (answered.status, answered.data["findings"], answered.data["not_sampled"]) == (0, [], ["2"])


def test_wrong_use_is_told(tmp_path: Path) -> None:
    assert lint().status == 2
    file = written(tmp_path, "settings.json", {"content": {}})
    assert lint(file, "--json", "--format", "sarif").status == 2
    assert "expected a message with variables" in lint(file, "--message", file).err
    assert "invalid JSON" in lint(file, "--variables", "{").err


# Forms


def bad_file(folder: Path) -> Path:
    return written(folder, "bad, 100%.json", '{\n "content": {"en": {"sms": {\n  "text": "é\\n{x"}}}\n}')


def test_the_table_is_short(tmp_path: Path) -> None:
    answered = lint(bad_file(tmp_path))
    lines = answered.out.splitlines()
    assert lines[1:3] == [
        "  warning  unbalanced-brace  en sms.text:3, line 3",
        "           { has no }: {x; add }, or remove {",
    ]
    assert lines[-1] == "1 warning in 1 settings object"
    assert answered.err == (
        f"deliveryd: placeholders of {tmp_path}/bad, 100%.json weren't compared with variables:"
        " give messages with --message\n"
    )
    assert (answered.status, lint(bad_file(tmp_path), "--strict").status) == (0, 1)


def test_annotations_of_github_are_escaped(tmp_path: Path) -> None:
    answered = lint(bad_file(tmp_path), "--format", "github")
    (line,) = answered.out.splitlines()
    assert line.startswith("::warning file=")
    assert "bad%2C 100%25.json,title=unbalanced-brace,line=3,col=15::" in line


def test_sarif_has_what_its_schema_requires(tmp_path: Path) -> None:
    """Rules with levels, results that name them by index, places as URIs with regions."""
    log = lint(bad_file(tmp_path), "--format", "sarif").data
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert [rule["id"] for rule in driver["rules"]] == list(RULES)
    assert {rule["defaultConfiguration"]["level"] for rule in driver["rules"]} == {"error", "warning", "note"}
    (result,) = run["results"]
    assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "unbalanced-brace"
    assert result["level"] == Severity.WARNING.name.lower()
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == (tmp_path / "bad, 100%.json").as_uri()
    assert location["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 15}


@pytest.mark.parametrize(
    ("text", "path", "offset", "spot"),
    [
        ('{"a": "x"}', ("a",), None, Spot(1, 7)),
        ('{"a": "x"}', ("a",), 0, Spot(1, 8)),
        ('[1,\n {"b": ["p", "q"]}]', (1, "b", 1), None, Spot(2, 14)),
        ('[1,\n {"b": ["p", "q"]}]', (1, "b"), None, Spot(2, 3)),
        ('{"a": "\\u00e9\\n\\ud83d\\ude00x"}', ("a",), 3, Spot(1, 28)),
        ('{"a": {"b": 1}, "c": {}}', ("c", "d", "e"), 4, Spot(1, 17)),
        ('{"a": "x"}', ("a",), 99, Spot(1, 9)),
        ("[]", (0,), None, Spot(1, 1)),
        ('{"a\\"b": {"": "{"}, "z": 1}', ("z",), None, Spot(1, 26)),
    ],
)
def test_values_are_found_in_their_file(
    text: str, path: tuple[str | int, ...], offset: int | None, spot: Spot
) -> None:
    assert SourceMap(text).spot(path, offset) == spot


def test_a_number_without_end_is_a_finding(tmp_path: Path) -> None:
    """Python reads no integer of more than 4,300 digits."""
    bad = tmp_path / "bad.json"
    bad.write_text(f'{{"content": {{}}, "price": {"9" * 5000}}}', encoding="utf-8")
    [found] = lint(bad, "--json").data["findings"]
    assert (found["rule"], found["text"]) == (
        "unreadable-settings",
        "invalid JSON: a number with too many digits",
    )


def test_tags_that_never_end_take_no_time(tmp_path: Path) -> None:
    """They took the square of their number."""
    body = f"<html><b>x</b>{'<style ' * 100_000}"
    bad = written(tmp_path, "bad.json", {"content": {"en": {"email": {"subject": "x", "body": body}}}})
    assert lint(bad, "--json").status in (0, 1)
