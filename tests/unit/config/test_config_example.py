"""config.example.toml has every key of the configuration, with its default and what it is for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import trustme
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from deliveryd.channels.options import ChannelTable, ProviderTable
from deliveryd.channels.registry import ADAPTERS
from deliveryd.config import Config, load
from deliveryd.directory.registry import SOURCES, FileOptions
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.tables import LoadedOnUse
from deliveryd.rules.options import RuleOptions
from support.issued_keys import issued, p256_key, service_account
from support.places import ROOT

EXAMPLE = ROOT.joinpath("config.example.toml").read_text(encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def loaded(path: Path, text: str, **environ: str) -> Config:
    path.write_text(text, encoding="utf-8")
    return load(path, environ)


# config.example.toml


WAYS = {
    "token": {"token_file"},
    "basic": {"username", "password_file"},
    "header": {"header", "value_file"},
    "oauth2": {"oauth2"},
    "google": {"google"},
    "sigv4": {"sigv4"},
    "azure": {"azure"},
    "apns": {"apns"},
}
OTHER_PROOFS = {"key_file", "key_id", "audience", "tls.cert_file", "tls.key_file"}
"""What takes the place of a client's secret."""


def uncommented(text: str, keep: Callable[[str, str], bool] = lambda _table, _key: True) -> str:
    """The example with all that is left out in it, save what `keep` (of table and key) says no to."""
    table = ""
    lines = []
    for line in without_sources(text).splitlines():
        bare = re.sub(r"^#(?=[a-z\[])", "", line)
        if header := re.match(r"\[(.+?)\]", bare):
            table = header[1]
        key = bare.partition(" ")[0]
        lines.append(bare if bare == line or keep(table, key) else "")
    return "\n".join(lines)


def without_sources(text: str) -> str:
    """The example without the customer directories that may stand in place of none."""
    return re.sub(r'^#source = "\w+".*\n(?:#.*\n)*', "", text, flags=re.MULTILINE)


def with_source(source: str) -> str:
    """The example with one of the customer directories in place of none."""
    block = re.search(rf'^#source = "{source}".*\n(?:#.*\n)*', EXAMPLE, flags=re.MULTILINE)
    assert block is not None
    bare = re.sub(r"^#", "", block[0], flags=re.MULTILINE)
    return EXAMPLE.replace(block[0], bare).replace('source = "none" ', '#source = "none" ')


SECRETS = {
    "service-account.json": service_account(),
    "azure-key": "c2VjcmV0",
    "vapid-key": p256_key(),
    "apns-key": p256_key(),
}
"""Those of a certain form."""


def usable(text: str, folder: Path) -> str:
    """The text with its files in this folder, which are made, and all of its channels in the order."""
    if "\n[channels.web]" in text:
        text = text.replace('order = ["inApp",', 'order = ["web", "inApp",')
    (folder / "presets").mkdir(exist_ok=True)
    authority = trustme.CA()
    certificate = authority.issue_cert("deliveryd.example.com")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "holidays").write_text("2026-12-25\n", encoding="utf-8")
    for name in re.findall(r'"/run/credentials/deliveryd\.service/(.+?)"', text):
        secret = folder / name
        secret.touch(mode=0o600)
        secret.write_text(SECRETS.get(name) or issued(name) or "s3cret-of-sixteen")
    text = text.replace("/etc/deliveryd/holidays", str(folder / "holidays"))
    return re.sub(r"/run/credentials/deliveryd\.service|/etc/deliveryd/tls", str(folder), text)


def sections(
    model: type[BaseModel], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """All keys below a model, with their fields."""
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        key = (*path, field.alias or name)
        below = [kind for kind in kinds(field.annotation) if issubclass(kind, BaseModel)]
        if below == [AuthOptions] and path != ("service",):  # as for the service
            yield key, field
        elif below and get_origin(field.annotation) is not list:
            yield from sections(below[0], key)
        else:
            yield key, field


def kinds(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, LoadedOnUse):
        yield annotation.load()
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from kinds(argument)


def value_at(data: Any, path: tuple[str, ...]) -> Any:
    """The value at a path, or None; of a list of tables, in any of them."""
    for key in path:
        found = [table[key] for table in (data if isinstance(data, list) else [data]) if key in table]
        lists = [each for each in found if isinstance(each, list)]
        data = list(chain(*lists)) if lists else next(iter(found), {})
    return data if data != {} else None


def default_of(model: type[BaseModel], path: tuple[str, ...]) -> Any:
    """A default as the file writes it; None for a key that has none."""
    for key in path[:-1]:
        field = next(f for name, f in model.model_fields.items() if (f.alias or name) == key)
        model = next(kind for kind in kinds(field.annotation) if issubclass(kind, BaseModel))
    name, field = next((n, f) for n, f in model.model_fields.items() if (f.alias or n) == path[-1])
    if field.default in (PydanticUndefined, None) or isinstance(field.default, AuthOptions):
        return None
    return model.model_construct(**{name: field.default}).model_dump(mode="json", include={name})[name]


COMMON = [path for path, _ in sections(Config) if path[0] != "channels"] + [("channels", "order")]


def test_the_example_can_be_used_as_it_is(path: Path) -> None:
    config = loaded(path, EXAMPLE)
    assert list(config.channels.configured) == ["sms"]


@pytest.mark.parametrize("way", WAYS)
def test_the_example_can_be_used_with_all_that_is_left_out_in_it(path: Path, way: str) -> None:
    """Of the ways to authenticate one at a time."""

    def keep(table: str, key: str) -> bool:
        if (table, key) == ("journal", "password_file") or key.startswith("mail."):  # of the block email
            return False
        if key == "slow_after":  # of several providers
            return False
        if table.startswith("service.auth."):
            return table == f"service.auth.{way}" and (way != "oauth2" or key not in OTHER_PROOFS)
        return table != "service.auth" or key in WAYS[way]

    text = uncommented(EXAMPLE, keep).replace(
        "allow_plain_text = false", "allow_plain_text = true"
    )  # proxies
    config = loaded(path, usable(text, path.parent))
    assert list(config.channels.configured) == ["sms", "messenger", "inApp", "email", "web"]
    given = config.service.auth.model_dump(exclude_none=True)
    assert set(given) == WAYS[way]


def test_the_example_can_be_used_with_a_shared_journal(path: Path) -> None:
    """The address in its comment, and the password that is left out."""
    address = re.search(r'# (url = "postgresql://.*?")', EXAMPLE)
    assert address is not None
    text = re.sub(r"^url = \"sqlite:.*", address[1], EXAMPLE, flags=re.MULTILINE)
    config = loaded(
        path,
        usable(
            text.replace(
                '#password_file = "/run/credentials/deliveryd.service/db',
                'password_file = "/run/credentials/deliveryd.service/db',
            ),
            path.parent,
        ),
    )
    assert config.journal.is_shared
    assert config.journal.password_file is not None


@pytest.mark.parametrize("key", COMMON, ids=".".join)
def test_the_example_has_the_key_with_its_default(key: tuple[str, ...]) -> None:
    """A key with a default stands there as it is; one without is behind a #, save the service's address."""
    default = default_of(Config, key)
    if default == {}:
        assert value_at(tomllib.loads(uncommented(EXAMPLE)), key)
    elif default is not None:
        is_left_out = key[:2] == ("service", "auth") or key[0] == "rules"
        shown = uncommented(EXAMPLE) if is_left_out else EXAMPLE
        assert value_at(tomllib.loads(shown), key) == default
    else:
        assert value_at(tomllib.loads(uncommented(EXAMPLE)), key) is not None
        assert key == ("service", "base_url") or value_at(tomllib.loads(EXAMPLE), key) is None


@pytest.mark.parametrize(
    ("adapter", "key"),
    [("http", path) for table in (ChannelTable, ProviderTable) for path, _ in sections(table)]
    + [
        (adapter, path)
        for adapter, kind in ADAPTERS.items()
        for path, _ in sections(kind().options)
        if path != ("sign", "claims")  # of a scheme that the example's doesn't leave room for
    ],
    ids=lambda part: part if isinstance(part, str) else ".".join(part),
)
def test_the_example_has_the_key_of_a_channel_with_its_default(adapter: str, key: tuple[str, ...]) -> None:
    """At least one of the channels of that adapter shows it; where there is a default, shows that."""
    channels = tomllib.loads(uncommented(EXAMPLE))["channels"]
    shown = [
        value
        for channel in channels.values()
        if isinstance(channel, dict) and channel["adapter"] == adapter
        if (value := value_at(channel, key)) is not None
    ]
    tables = (ChannelTable, ProviderTable, ADAPTERS[adapter]().options)
    table = next(each for each in tables if key in dict(sections(each)))
    default = default_of(table, key)
    assert shown
    assert default in (None, "", [], {}) or default in shown


SOURCE_OPTIONS: dict[str, type[BaseModel]] = {
    "file": FileOptions,
    **{name: kind().options for name, kind in SOURCES.items()},
}


@pytest.mark.parametrize("source", SOURCE_OPTIONS)
def test_the_example_has_each_directory_with_its_keys_and_defaults(path: Path, source: str) -> None:
    """It can be used as it is when it is put in place of none; of a table within, a key is shown."""
    text = with_source(source)
    config = loaded(path, usable(text, path.parent))
    assert isinstance(config.customers.options, SOURCE_OPTIONS[source])
    shown = tomllib.loads(text)["customers"]
    for key, field in SOURCE_OPTIONS[source].model_fields.items():
        default = field.get_default()
        assert key in shown
        assert default in (None, PydanticUndefined, shown[key]) or isinstance(default, BaseModel)


def test_the_comments_of_the_example_stand_below_one_another() -> None:
    """In each paragraph or table in one column; only a value that reaches beyond it has its own behind it."""
    for paragraph in re.split(r"\n(?:\n|#?\[[^\n]*\n)", EXAMPLE):
        found = re.findall(r"^(#?[a-z][\w.]* = .*?)( +)# ", paragraph, re.MULTILINE)
        columns = [len(value) + len(blanks) for value, blanks in found]
        aligned = max(
            (column for (_, blanks), column in zip(found, columns, strict=True) if len(blanks) > 2), default=0
        )
        assert {column for column in columns if column < aligned} == set(), paragraph
        beyond = {blanks for (_, blanks), column in zip(found, columns, strict=True) if column > aligned}
        assert beyond <= {"  "}, paragraph


def test_every_key_of_the_example_is_explained() -> None:
    """Behind it, on the same line; the channels that are there for comparison are explained above them."""
    keys = [line for line in EXAMPLE.splitlines() if re.match(r"#?[a-z][a-z_.]* = ", line)]
    silent = [line for line in keys if not re.search(r'(?<=["\d\]}se])\s+# \S', line)]
    compared = (
        "messenger",
        "inApp",
        'adapter = "http"',
        'adapter = "smtp"',
        "form =",
        "query =",
        'method = "GET"',
    )
    assert [line for line in silent if not any(word in line for word in compared)] == []


# where keys belong


def test_the_keys_of_a_channel_with_several_providers_are_named_as_they_are() -> None:
    """In the example by the first and the last one of them, on the page one by one."""
    table = EXAMPLE.partition("\n[channels.sms]\n")[2].partition("\n\n")[0]
    keys = re.findall(r"^#?(\w+)", table, flags=re.MULTILINE)
    own = keys[keys.index("block") : keys.index("receipt_overdue") + 1]
    assert {*own, "budget", "spent"} == set(ChannelTable.model_fields)
    page = ROOT.joinpath("docs/how-to/several-providers.md").read_text(encoding="utf-8")
    sentences = page.partition("has only its own keys: ")[2].partition("Everything else")[0]
    assert set(re.findall(r"`(\w+)`", sentences)) == set(ChannelTable.model_fields)


def test_every_key_of_a_rule_is_among_those_worth_tuning() -> None:
    page = ROOT.joinpath("docs/how-to/configure.md").read_text(encoding="utf-8")
    rows = page.partition("| `[[rules]]` |")[2].partition("| `[safety]` |")[0]
    assert set(re.findall(r"`(\w+)`", rows)) == set(RuleOptions.model_fields)
