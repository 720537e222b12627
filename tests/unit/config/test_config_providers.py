"""Channels with several providers: which keys belong where, and the addresses for their receipts."""

from __future__ import annotations

from pathlib import Path

import pytest

from deliveryd.config import Config, load, receipt_url
from deliveryd.errors import ConfigError
from deliveryd.options.units import Rate

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


# channels with several providers


def providers(**tables: str) -> str:
    """The channel sms with these providers, each with its further keys."""
    return "".join(
        f'[channels.sms.providers.{name}]\nadapter = "http"\nurl = "http://127.0.0.1:1/"\n'
        f'query = {{ text = "{{content.text}}" }}\n{keys}\n'
        for name, keys in tables.items()
    )


def test_a_channel_may_have_several_providers(path: Path) -> None:
    text = SERVICE + '[channels.sms]\nblock = "sms"\n' + providers(twilio='rate = "5/s"', sms="")
    channels = loaded(path, text).channels
    assert list(channels.configured) == ["sms"]
    assert list(channels.configured["sms"].providers) == ["twilio", "sms"]
    assert [(name, each.place) for name, each in channels.providers.items()] == [
        ("sms/twilio", "channels.sms.providers.twilio"),
        ("sms", "channels.sms.providers.sms"),
    ]
    assert channels.providers["sms/twilio"].common.rate == Rate(5, 1.0)


def test_the_short_form_is_a_provider_with_the_name_of_its_channel(path: Path) -> None:
    short = loaded(path, SERVICE + SMS).channels.providers
    assert [(name, each.name, each.place) for name, each in short.items()] == [("sms", "sms", "channels.sms")]


RECEIPT = 'provider_id = "/id"\nreceipt = { provider_id = "/id", status = "/s", delivered = ["d"] }'


def test_each_provider_has_an_address_for_receipts_and_a_single_one_its_channels_as_well(path: Path) -> None:
    one = loaded(path, SERVICE + providers(twilio=RECEIPT)).channels
    assert one.receipt_paths == {"/receipts/sms/twilio": "sms/twilio", "/receipts/sms": "sms/twilio"}
    two = loaded(path, SERVICE + providers(twilio=RECEIPT, sms=RECEIPT)).channels
    assert two.receipt_paths == {"/receipts/sms/twilio": "sms/twilio", "/receipts/sms/sms": "sms"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '[channels.sms]\nrate = "1/s"\n' + providers(twilio=""),
            "channels.sms.rate: belongs to a provider, as channels.sms.providers.NAME.rate",
        ),
        (
            '[channels.sms]\nurl = "http://127.0.0.1:1/"\n' + providers(twilio=""),
            "channels.sms.url: belongs to a provider, as channels.sms.providers.NAME.url",
        ),
        (
            '[channels.sms]\nblok = "sms"\n' + providers(twilio=""),
            "channels.sms.blok: unknown key; did you mean block?",
        ),
        (
            providers(twilio='block = "sms"'),
            "channels.sms.providers.twilio.block: belongs to the channel, as channels.sms.block",
        ),
        (
            "[channels.sms]\nproviders = 3\n",
            "channels.sms.providers: expected tables, such as [channels.sms.providers.NAME]",
        ),
        (
            "[channels.sms.providers]\ntwilio = 3\n",
            "channels.sms.providers.twilio: expected a table",
        ),
        (
            providers(**{'"a/b"': ""}),
            "channels.sms.providers.a/b: a provider's name may hold letters, digits, _ and -",
        ),
        (
            providers(twilio="rat = 1"),
            "channels.sms.providers.twilio.rat: unknown key; did you mean rate?",
        ),
    ],
)
def test_a_misplaced_key_of_a_channel_or_a_provider_is_an_error(path: Path, text: str, problem: str) -> None:
    """It says where the key belongs."""
    with pytest.raises(ConfigError) as error:
        loaded(path, SERVICE + text)
    assert f"{path}:{problem}" in error.value.problems


def test_rules_for_an_sms_belong_to_a_channel_that_sends_one(path: Path) -> None:
    """What is about the parts of SMS is an error where the block isn't sms."""
    rules = 'max_parts = 2\ntransliterate = true\ncost_guard = 2\nrate = "5 parts/s"\n'
    channel = f'adapter = "http"\nurl = "http://h/{{message.id}}"\n{rules}'
    order = '[channels]\norder = ["text", "messenger"]\n'
    config = loaded(path, f'{SERVICE}{order}[channels.text]\nblock = "sms"\n{channel}')
    assert config.channels.configured["text"].common.max_parts == 2
    assert config.channels.providers["text"].common.rate == Rate(5, 1.0, in_parts=True)
    assert config.channels.cost_guards == {"text": 2.0}
    no_parts = "only the block sms has parts; this channel sends messenger"
    assert problems(path, f"{SERVICE}[channels.messenger]\n{channel}") == [
        "config.toml:channels.messenger.cost_guard: only for the block sms; this channel sends messenger",
        "config.toml:channels.messenger.max_parts: only for the block sms; this channel sends messenger",
        "config.toml:channels.messenger.transliterate: only for the block sms; this channel sends messenger",
        f"config.toml:channels.messenger.rate: {no_parts}: name a rate such as 50/s",
    ]


def test_a_cost_guard_is_more_than_1(path: Path) -> None:
    """With 1 each change would hold a template."""
    (problem,) = problems(path, SERVICE + SMS + "cost_guard = 1\n")
    assert problem.startswith("config.toml:channels.sms.cost_guard: ")
    (problem,) = problems(path, SERVICE + SMS + "cost_guard = nan\n")
    assert problem == "config.toml:channels.sms.cost_guard: must be a finite number"


def test_slow_after_needs_two_providers_that_report_deliveries(path: Path) -> None:
    """Otherwise there is nothing to compare with."""
    receipt = 'provider_id = "/id"\nreceipt = { provider_id = "/id", status = "/status", delivered = ["d"] }'
    head = SERVICE + '[receipts]\nlisten = "127.0.0.1:0"\n[channels.sms]\nslow_after = "30s"\n'
    both = loaded(path, head + providers(a=receipt, b=receipt))
    assert both.channels.slow_after == {"sms": 30.0}
    needed = "config.toml:channels.sms.slow_after: needs two providers of the channel"
    assert problems(path, head + providers(a=receipt, b="")) == [
        f"{needed} whose receipt tables have delivered"
    ]
    assert "no provider of the channel reports receipts" in problems(path, head + providers(a="", b=""))[0]


REPORTING = """[channels.sms]
adapter = "http"
url = "http://h/sms"
json = { id = "{message.id}", callback = "{receipt.url}" }
provider_id = "/id"
"""


RECEIPT_TABLE = (
    '[channels.sms.receipt]\nprovider_id = "/id"\nstatus = "/s"\ndelivered = ["d"]\nfailed = ["f"]\n'
)


def test_an_address_for_receipts_must_be_known_and_served(path: Path) -> None:
    """`{receipt.url}` needs the public address in front of it, and a receipt table that reads what comes."""
    assert problems(path, f"{SERVICE}{REPORTING}") == [
        "config.toml:receipts.public_url: is missing; channels.sms sends {receipt.url}",
        "config.toml:channels.sms.receipt: is missing; {receipt.url} is sent, and would answer 404",
    ]
    public = '[receipts]\npublic_url = "https://cb.example.com/d/"\n'
    config = loaded(path, f"{SERVICE}{public}{REPORTING}{RECEIPT_TABLE}")
    assert (
        receipt_url(config, config.channels.providers["sms"]) == "https://cb.example.com/d/receipts/sms/sms"
    )


def test_an_invalid_address_for_receipts_is_not_called_missing(path: Path) -> None:
    public = '[receipts]\npublic_url = "cb.example.com"\n'
    assert problems(path, f"{SERVICE}{public}{REPORTING}{RECEIPT_TABLE}") == [
        "config.toml:receipts.public_url: an address must start with http:// or https:// and a host"
    ]


def test_a_missing_address_is_told_once_for_each_provider(path: Path) -> None:
    """Also where the provider's signature covers it as well."""
    (path.parent / "token").write_text("s3cret")
    (path.parent / "token").chmod(0o600)
    signature = 'signature = { scheme = "twilio", secret_file = "token" }\n'
    assert problems(path, f"{SERVICE}{REPORTING}{RECEIPT_TABLE}{signature}") == [
        "config.toml:receipts.public_url: is missing; channels.sms sends {receipt.url}"
    ]


def test_a_misspelt_table_of_providers_is_told(path: Path) -> None:
    misspelt = '[channels.sms.provider.first]\nadapter = "http"\nurl = "http://h/sms"\n'
    assert problems(path, f"{SERVICE}{misspelt}") == [
        "config.toml:channels.sms.provider: unknown key; did you mean providers?"
    ]
