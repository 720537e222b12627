"""Whom an installation sends to: which addresses an entry allows, and which customers a share has."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import pytest

from deliveryd.config import Config, load
from deliveryd.delivery.safety import Safety, position_of
from deliveryd.errors import ConfigError
from deliveryd.options.safety import SafetyOptions, limits_text

PHONES, OTHERS = "sms", "telegram"
"""A provider whose addresses are read as phone numbers, and one whose addresses may be anything."""


def allows(entry: str, address: str, provider: str = PHONES) -> bool:
    return Safety(SafetyOptions(only_to=(entry,)), [PHONES]).lists(provider, address)


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("+4915112345678", "+4915112345678"),
        ("+4915112345678", "4915112345678"),
        ("+4915*", "+4915112345678"),
        ("+4*", "+4915112345678"),
        ("ann@example.com", "Ann@EXAMPLE.com"),
        ("Ann@Example.com", "ann@example.com"),
        ("ann@example.com", "Ann <ann@example.com>"),
        ("*@example.com", "anybody@example.com"),
        ("*@bücher.example", "ann@xn--bcher-kva.example"),
        ("*@xn--bcher-kva.example", "ann@BÜCHER.example"),
        ("ann@bücher.example", "ann@xn--bcher-kva.example"),
        ("jürgen@example.com", "JÜRGEN@example.com"),
    ],
)
def test_an_address_that_is_allowed(entry: str, address: str) -> None:
    assert allows(entry, address)


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("+4915112345678", "+49151123456789"),
        ("+4915112345678", "+4915112345679"),
        ("+4915*", "+4917112345678"),
        ("+4915*", "+4915112345678,+4917112345678"),
        ("+4915*", "0151 1234 5678"),
        ("+4915*", ""),
        ("ann@example.com", "anna@example.com"),
        ("ann@example.com", "ann@example.com.org"),
        ("*@example.com", "ann@sub.example.com"),
        ("*@example.com", "ann@example.com, bob@example.org"),
        ("*@example.com", '"x@example.com" <bob@example.org>'),
        ("*@example.com", "bob@example.org\nann@example.com"),
        ("*@example.com", "fmGk3:APA91bF@example.com/x"),
        ("customer:17", "17"),
        ("customer:4915112345678", "+4915112345678"),
    ],
)
def test_an_address_that_is_not_allowed(entry: str, address: str) -> None:
    """What isn't surely one address on the list is none."""
    assert not allows(entry, address)


def test_digits_are_a_phone_number_only_where_they_were_read_as_one() -> None:
    """A chat's number may begin like a phone number."""
    assert allows("+4915*", "4915112345", PHONES)
    assert not allows("+4915*", "4915112345", OTHERS)
    assert allows("+4915*", "+4915112345", OTHERS)


def test_who_is_in_a_share_stays_in_as_it_grows() -> None:
    """The share of many customers is as large as it says; their positions are as the documents say."""
    shares = [Safety(SafetyOptions(share=share)) for share in ("1%", "5%", "10%", "100%")]
    customers = range(1, 20_001)
    within = [{id_ for id_ in customers if safety.admits_customer(id_)} for safety in shares]
    for less, more in pairwise(within):
        assert less < more
    assert 900 < len(within[1]) < 1100
    assert within[3] == set(customers)
    assert position_of(17) == int(hashlib.sha256(b"17").hexdigest()[:8], 16)


def test_a_share_of_nobody_and_no_limit_at_all() -> None:
    nobody = Safety(SafetyOptions(share="0%"))
    assert not any(map(nobody.admits_customer, range(1000)))
    assert all(map(Safety().admits_customer, range(1000)))


def test_what_is_said_of_the_limits() -> None:
    assert limits_text(1, None).startswith("sends only to the 1 entry of safety.only_to;")
    assert limits_text(2, 0.005).startswith(
        "sends only to 0.5% of the customers and to the 2 entries of safety.only_to;"
    )


def read(path: Path, keys: str) -> Config:
    path.write_text(
        '[service]\nbase_url = "http://127.0.0.1:1"\n[channels.sms]\nadapter = "http"\n'
        f'url = "http://127.0.0.1:1/"\njson = {{ text = "{{content.text}}" }}\n[safety]\n{keys}\n',
        encoding="utf-8",
    )
    return load(path, {})


def test_the_table_limits_nothing_if_it_is_left_out_or_empty(tmp_path: Path) -> None:
    assert not read(tmp_path / "config.toml", "").safety.limits


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("only_to = []", "safety.only_to: is an empty list; leave it out to send to all customers, or"),
        (
            'only_to = ["+4915*", "+4915"]',
            'safety.only_to.1: +4915 is too short for a phone number; write "+4915*" for all that begin so',
        ),
        (
            'only_to = ["+49 151 12345678"]',
            'safety.only_to.0: write the number with digits alone, "+4915112345678"',
        ),
        ('only_to = ["015112345678"]', "safety.only_to.0: expected a phone number such as"),
        ('only_to = ["+4915…"]', "safety.only_to.0: expected a phone number such as"),
        ('only_to = ["*"]', "safety.only_to.0: expected a phone number such as"),
        ('only_to = ["@example.com"]', "safety.only_to.0: expected one whole e-mail address, or"),
        ('only_to = ["a*@example.com"]', "safety.only_to.0: expected one whole e-mail address, or"),
        ('only_to = ["*@*.example.com"]', "safety.only_to.0: '*.example.com' isn't a domain"),
        ('only_to = ["*@"]', "safety.only_to.0: '' isn't a domain"),
        ('only_to = ["customer:x"]', "safety.only_to.0: expected the customer's ID, an integer"),
        ("only_to = [17]", "safety.only_to.0: "),
        ('only_to = "+4915*"', 'safety.only_to: expected a list such as ["a", "b"]'),
        ('share = "101%"', 'safety.share: expected a string such as "5%" or "0.5%"'),
        ("share = 0.05", 'safety.share: expected a string such as "5%" or "0.5%"'),
        ("shares = 5", "safety.shares: unknown key; did you mean share?"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_what_to_do(tmp_path: Path, keys: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "config.toml", keys)
    [found] = caught.value.problems
    assert found.replace(f"{tmp_path}/config.toml:", "").startswith(problem)
