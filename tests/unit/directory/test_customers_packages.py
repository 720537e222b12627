"""Sources of customers that other packages bring: found by name, and told clearly when they are broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.config import load
from deliveryd.directory.base import Terms
from deliveryd.directory.registry import open_source, options_of
from deliveryd.errors import ConfigError
from support.directories import importable, install_package

TERMS = Terms(300.0, 5.0, 10)
CONFIG = """\
[service]
base_url = "http://127.0.0.1:1"
[channels.sms]
adapter = "http"
url = "http://127.0.0.1:1/"
json = { text = "{content.text}" }
[customers]
"""


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[None]:
    """A package with a good source, and with some that are none."""
    install_package(
        tmp_path / "packages",
        "register = customer_register:KIND",
        "failing = customer_register:FAILING",
        "no-kind = customer_register:NO_KIND",
        "nothing = customer_register:ABSENT",
        "broken = customer_register_that_is_not_there:KIND",
    )
    with importable(tmp_path / "packages"):
        yield


def problems(folder: Path, table: str) -> list[str]:
    path = folder / "config.toml"
    path.write_text(CONFIG + table, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    return [problem.removeprefix(f"{path}:") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "registre",
            "unknown source 'registre'; did you mean register? (there are: none, file, http, sql, ",
        ),
        ("no-kind", "the source 'no-kind': customer_register:NO_KIND is no SourceKind"),
        ("nothing", "the source 'nothing' can't be loaded: AttributeError: "),
        ("broken", "the source 'broken' can't be loaded: ModuleNotFoundError: "),
    ],
)
def test_a_source_that_cannot_be_used_is_told_at_its_key(
    packages: None, tmp_path: Path, source: str, told: str
) -> None:
    (problem,) = problems(tmp_path, f'source = "{source}"\n')
    assert problem.startswith(f"customers.source: {told}")


def test_keys_of_a_source_are_checked_by_its_own_model(packages: None, tmp_path: Path) -> None:
    """With a suggestion, beside the keys that all directories have."""
    told = problems(tmp_path, 'source = "register"\npeopel = "p.json"\ncache_tll = "1m"\n')
    assert sorted(told) == [
        "customers.cache_tll: unknown key; did you mean cache_ttl?",
        "customers.peopel: unknown key; did you mean people?",
        "customers.people: is missing",
    ]


def test_what_fails_while_it_is_opened_is_told_without_its_words(packages: None) -> None:
    """They may hold a secret."""
    options = options_of("failing").model_validate({"people": "p.json"})
    with pytest.raises(ConfigError) as caught:
        open_source("failing", options, TERMS)
    assert caught.value.problems == ["customers.source: 'failing' can't be opened: RuntimeError"]
