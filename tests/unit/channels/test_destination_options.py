"""The keys by which a channel and its providers are sent some phone numbers only."""

from __future__ import annotations

from pathlib import Path

import pytest

from deliveryd.channels.destination_rules import rules_of
from deliveryd.config import Config, load
from deliveryd.errors import ConfigError

BASE = """
[service]
base_url = "http://service"
[journal]
url = "sqlite:///journal.db"
[channels.sms]
"""
ONE = 'adapter = "http"\nurl = "http://p"\njson = { to = "{customer.phone|e164}" }\n'
SEVERAL = f"[channels.sms.providers.one]\n{ONE}"


def read(text: str, folder: Path) -> Config:
    path = folder / "config.toml"
    path.write_text(BASE + text)
    return load(path, {})


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ('countries = ["de"]', "countries.0: 'de' isn't a country; expected two letters of ISO 3166"),
        ('countries = ["UK"]', "did you mean GB?"),
        ("countries = []", "countries: names none; name at least one, or leave the key out for all"),
        ('prefixes = ["4915"]', "prefixes.0: '4915' is no beginning of a number; expected + and digits"),
        ('prefixes = ["+49 15"]', "prefixes.0: write '+49 15' with digits alone, \"+4915\""),
        ('prefixes = ["+49*"]', "prefixes.0: write '+49*' with digits alone, \"+49\""),
        ('prefixes = ["+0"]', "prefixes.0: '+0' is no beginning of a number"),
        ("weights = { de = 1 }", "weights.de: 'de' isn't a country"),
        ("weights = { DE = -1 }", "weights.DE: "),
        ('countrie = ["DE"]', "did you mean countries?"),
    ],
)
def test_mistakes(keys: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(f"{keys}\n{ONE}", tmp_path)
    assert any(problem in each for each in raised.value.problems), raised.value.problems


def test_beside_several_providers_they_belong_to_the_channel(tmp_path: Path) -> None:
    """And below one to that; which allows premium rates is the channel's alone."""
    config = read(f'countries = ["DE"]\n{SEVERAL}prefixes = ["+4915"]\n', tmp_path)
    channel = config.channels.configured["sms"]
    rules = rules_of(channel, channel.providers["one"])
    assert [(rule.place, rule.text) for rule in rules] == [
        ("channels.sms", "DE"),
        ("channels.sms.providers.one", "+4915*"),
    ]
    with pytest.raises(ConfigError, match=r"allow_premium: belongs to the channel"):
        read(f"{SEVERAL}allow_premium = true\n", tmp_path)


def test_those_of_a_single_provider_are_the_channels(tmp_path: Path) -> None:
    config = read(f'countries = ["DE"]\n{ONE}', tmp_path)
    channel = config.channels.configured["sms"]
    assert [rule.place for rule in rules_of(channel, channel.providers["sms"])] == ["channels.sms"]


@pytest.mark.parametrize(
    ("provider", "problem"),
    [
        (
            'adapter = "smtp"\nhost = "mail"\nsender = "a@example.com"\n',
            "is for phone numbers, which the adapter smtp doesn't send to (email)",
        ),
        (
            'adapter = "http"\nurl = "http://p"\njson = { a = "{customer.x}", b = "{customer.y}" }\n',
            'needs the phone number that is sent to: set recipient = "{customer.FIELD}" (email)',
        ),
    ],
)
def test_a_provider_whose_addresses_are_no_phone_numbers(provider: str, problem: str, tmp_path: Path) -> None:
    text = f'{ONE}\n[channels.email]\ncountries = ["DE"]\n{provider}'
    with pytest.raises(ConfigError) as raised:
        read(text, tmp_path)
    assert raised.value.problems == [f"{tmp_path}/config.toml:channels.email.countries: {problem}"]


def test_weights_by_country_need_phone_numbers(tmp_path: Path) -> None:
    mail = 'adapter = "http"\nurl = "http://p"\njson = { a = "{customer.x}", b = "{customer.y}" }\n'
    with pytest.raises(ConfigError) as raised:
        read(f"{ONE}\n[channels.email]\nweights = {{ DE = 2 }}\n{mail}", tmp_path)
    (problem,) = raised.value.problems
    assert problem.startswith(f"{tmp_path}/config.toml:channels.email.weights: needs the phone number")
