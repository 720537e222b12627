"""What the service's bodies come to, however they are written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deliveryd.commands.common.output import json_text
from deliveryd.errors import ServiceUnreadable
from deliveryd.model import parse_instant
from deliveryd.service.customer_area import read_customer_data
from deliveryd.service.wire import read_settings

# settings


def settings(text: str) -> Any:
    return read_settings(5, text.encode())


def test_every_block_of_the_settings() -> None:
    """All fields that the interface names arrive under their dotted names; others are let be."""
    button = {"text": "t", "url": "u", "colour": "red"}
    language = {
        "greetings": {"general": "Hello", "personal": "Hello {customer.name}"},
        "messenger": {"text": "m", "image": "i", "button": button},
        "sms": {"text": "s"},
        "inApp": {
            "name": "n",
            "description": "d",
            "image": "i",
            "button": button,
            "notification": {"title": "T", "body": "B"},
        },
        "email": {"subject": "S", "body": "<b>B</b>"},
        "fax": {"text": 5},
    }
    read = settings(
        json.dumps(
            {
                "reference": "r-1",
                "delivery": {"expiresAt": "2030-01-01T00:00:00.000001Z", "window": 7},
                "content": {"en": language, "de": {}, "pt-BR": {"sms": {"text": ""}}},
            }
        )
    )
    assert (read.id, read.reference) == (5, "r-1")
    assert read.expires_at == parse_instant("2030-01-01T00:00:00.000001Z")
    english = read.content["en"]
    assert (english.general, english.personal) == ("Hello", "Hello {customer.name}")
    assert english.blocks == {
        "messenger": {"text": "m", "image": "i", "button.text": "t", "button.url": "u"},
        "sms": {"text": "s"},
        "inApp": {
            "name": "n",
            "description": "d",
            "image": "i",
            "button.text": "t",
            "button.url": "u",
            "notification.title": "T",
            "notification.body": "B",
        },
        "email": {"subject": "S", "body": "<b>B</b>"},
    }
    assert read.content["de"].blocks == {}
    assert read.content["pt-BR"].blocks == {"sms": {"text": ""}}


@pytest.mark.parametrize(
    "text",
    [
        '{"content": {}}',
        '{"content": {"en": {"sms": null, "greetings": null}}, "delivery": null}',
        '{"content": {}, "delivery": {}}',
        '{"content": {}, "delivery": {"expiresAt": null}}',
    ],
)
def test_what_is_optional_may_be_missing(text: str) -> None:
    """Only `content` is required; nothing else makes a delivery expire."""
    read = settings(text)
    assert read.expires_at is None
    assert all(not language.blocks for language in read.content.values())


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{}", "content: is missing"),
        ('{"content": []}', "content: "),
        ('{"content": {"en": []}}', "content.en: "),
        ('{"content": {"en": {"sms": {}}}}', "content.en.sms.text: is missing"),
        ('{"content": {"en": {"sms": {"text": null}}}}', "content.en.sms.text: "),
        ('{"content": {"en": {"sms": {"text": 12.50}}}}', "content.en.sms.text: expected a text"),
        ('{"content": {"en": {"sms": {"text": true}}}}', "content.en.sms.text: "),
        ('{"content": {"en": {"sms": {"text": ["Ada"]}}}}', "content.en.sms.text: "),
        ('{"content": {"en": {"sms": {"text": "\\ud83d"}}}}', "content.en.sms.text: "),
        ('{"content": {"en": {"email": {"subject": "Ada"}}}}', "content.en.email.body: is missing"),
        (
            '{"content": {"en": {"inApp": {"button": {"text": "Ada"}}}}}',
            "content.en.inApp.button.url: is missing",
        ),
        (
            '{"content": {"en": {"inApp": {"notification": {"title": ""}}}}}',
            "inApp.notification.body: is missing",
        ),
        ('{"content": {"en": {"messenger": {"button": "Ada"}}}}', "content.en.messenger.button: "),
        ('{"content": {"en": {"greetings": {"personal": 1}}}}', "content.en.greetings.personal: "),
        ('{"content": {}, "delivery": []}', "delivery: "),
        ('{"content": {}, "delivery": {"expiresAt": 1800000000}}', "delivery.expiresAt: "),
        ('{"content": {}, "delivery": {"expiresAt": ""}}', "delivery.expiresAt isn't an ISO 8601 instant"),
        ('{"content": {}, "delivery": {"expiresAt": "2030-01-01"}}', "delivery.expiresAt isn't an ISO 8601"),
        ('{"content": {}, "delivery": {"expiresAt": "tomorrow at noon"}}', "delivery.expiresAt isn't an"),
        ('{"content": {}, "delivery": {"expiresAt": "2030-13-01T00:00:00Z"}}', "delivery.expiresAt isn't an"),
        (
            '{"content": {}, "delivery": {"expiresAt": "0001-01-01T00:00:00+23:59"}}',
            "delivery.expiresAt isn't an",
        ),
        ("[]", "settings 5: "),
        ("null", "settings 5: "),
        ("", "isn't JSON"),
        ("{", "isn't JSON"),
        ('{"content": ' + '{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_unreadable_settings_name_what_is_wrong(text: str, path: str) -> None:
    """The path of the mistake is told, and nothing of the texts."""
    with pytest.raises(ServiceUnreadable) as caught:
        settings(text)
    assert path in str(caught.value)
    assert "Ada" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("2030-01-01T00:00Z", "2030-01-01T00:00:00.000000Z"),
        ("2030-01-01T00:00:00", "2030-01-01T00:00:00.000000Z"),
        ("2030-01-01 00:00:00Z", "2030-01-01T00:00:00.000000Z"),
        ("2030-01-01T02:00:00+02:00", "2030-01-01T00:00:00.000000Z"),
        ("2029-12-31T19:00:00.5-05:00", "2030-01-01T00:00:00.500000Z"),
        ("2030-01-01T00:00:00.1234567Z", "2030-01-01T00:00:00.123456Z"),
    ],
)
def test_the_forms_of_an_expiry(written: str, same: str) -> None:
    """With and without seconds, fractions and offset; without an offset it is UTC."""
    read = settings(json.dumps({"content": {}, "delivery": {"expiresAt": written}}))
    assert read.expires_at == parse_instant(same)


def test_half_characters_in_keys_of_the_settings() -> None:
    """A language or a field with half a character in its name is no crash."""
    with pytest.raises(ServiceUnreadable):
        settings('{"content": {"\\ud800": {"sms": {"text": "a"}}}}')
    assert settings('{"content": {"en": {"\\ud800": 1}}, "\\udfff": 2}').content["en"].blocks == {}


FLAWED = {
    "a required field": ("email", '{"subject": "Ada"}', "email.body: is missing"),
    "a number": ("email", '{"subject": 12.50, "body": "Ada"}', "email.subject: expected a text"),
    "null for a required field": ("email", '{"subject": null, "body": ""}', "email.subject: expected a text"),
    "half a character": ("sms", '{"text": "\\ud83d"}', "sms.text: holds half a surrogate pair"),
    "a list": ("email", '["Ada"]', "email: expected an object"),
    "a text": ("inApp", '"Ada"', "inApp: expected an object"),
    "a button without a link": ("inApp", '{"button": {"text": "Ada"}}', "inApp.button.url: is missing"),
    "a button that is none": ("messenger", '{"button": "Ada"}', "messenger.button: expected an object"),
    "a notification": ("inApp", '{"notification": {"body": ""}}', "inApp.notification.title: is missing"),
    "two mistakes": ("email", "{}", "email.subject: is missing; content.de.email.body: is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", FLAWED)
def test_a_block_that_cannot_be_read_is_passed_over_with_its_reason(case: str) -> None:
    """The other blocks and languages are as they would be without it; the reason quotes no text."""
    block, text, reason = FLAWED[case]
    name = "messenger" if block == "sms" else "sms"
    good = f'"{name}": {{"text": "hi"}}, "greetings": {{"general": "Hello"}}'
    read = settings(f'{{"content": {{"de": {{{good}, "{block}": {text}}}, "en": {{{good}}}}}}}')
    assert read.content["de"].blocks == read.content["en"].blocks == {name: {"text": "hi"}}
    assert read.content["de"].general == "Hello"
    assert read.content["de"].unreadable == {block: f"content.de.{reason}"}
    assert read.unreadable == (f"content.de.{reason}",)
    assert not read.content["en"].unreadable


@pytest.mark.parametrize("language", ["null", "[]", "5", '"Ada"', "true"])
def test_a_language_that_is_no_object_is_passed_over_with_its_reason(language: str) -> None:
    """None of its blocks is there, each for the same reason."""
    read = settings(f'{{"content": {{"de": {language}, "en": {{"sms": {{"text": "hi"}}}}}}}}')
    assert read.content["en"].blocks == {"sms": {"text": "hi"}}
    assert not read.content["de"].blocks
    assert set(read.content["de"].unreadable) == {"greetings", "inApp", "messenger", "sms", "email"}
    assert read.unreadable == ("content.de: expected an object",)


@pytest.mark.parametrize(
    ("greetings", "general", "personal", "reason"),
    [
        ('{"general": "Hello", "personal": 5}', "Hello", None, ".personal: expected a text"),
        ('{"general": ["Ada"], "personal": "Dear"}', None, "Dear", ".general: expected a text"),
        ('{"general": "\\ud83d", "personal": "Dear"}', None, "Dear", ".general: holds half a surrogate pair"),
        ('"Ada"', None, None, ": expected an object"),
        ("[]", None, None, ": expected an object"),
    ],
)  # fmt: skip
def test_a_greeting_that_cannot_be_read_spoils_nothing_else(
    greetings: str, general: str | None, personal: str | None, reason: str
) -> None:
    """The other greeting is for other customers, and blocks may do without any."""
    read = settings(f'{{"content": {{"en": {{"greetings": {greetings}, "sms": {{"text": "hi"}}}}}}}}')
    english = read.content["en"]
    assert (english.general, english.personal) == (general, personal)
    assert english.blocks == {"sms": {"text": "hi"}}
    assert english.unreadable == {"greetings": f"content.en.greetings{reason}"}


@pytest.mark.parametrize("reference", ["5", "[]", '"\\ud83d"', "null"])
def test_a_reference_that_cannot_be_read_counts_as_none(reference: str) -> None:
    """No message is made from it."""
    read = settings(f'{{"reference": {reference}, "content": {{"en": {{"sms": {{"text": "hi"}}}}}}}}')
    assert read.reference is None
    assert read.content["en"].blocks == {"sms": {"text": "hi"}}
    assert not read.unreadable


def test_a_language_named_with_half_a_character_spoils_no_other() -> None:
    """Nobody speaks it; its reason can be stored and sent."""
    read = settings('{"content": {"\\ud800": {"sms": {"text": "a"}}, "en": {"sms": {"text": "hi"}}}}')
    assert read.content["en"].blocks == {"sms": {"text": "hi"}}
    assert read.unreadable == ("content.\\ud800: holds half a surrogate pair",)


def test_an_expiry_that_cannot_be_read_is_an_error_whatever_the_blocks_are() -> None:
    """Until when they may be sent is never guessed."""
    for delivery in ('{"expiresAt": 5}', '{"expiresAt": "soon"}', '"2030-01-01T00:00:00Z"'):
        with pytest.raises(ServiceUnreadable, match="delivery"):
            settings(f'{{"delivery": {delivery}, "content": {{"en": {{"sms": {{"text": "hi"}}}}}}}}')


# customer data


def test_a_page_of_customer_data() -> None:
    """Entities keep what the interface doesn't name; a token says that there is more."""
    read = read_customer_data(
        b'{"value": {"merchants": {"list": [{"id": 1, "configUrl": "u", "rank": 1.5}],'
        b' "continuationToken": "t"}, "regions": {"list": []}, "total": 7, "news": {"list": 3}}}'
    )
    assert list(read.value) == ["merchants", "regions"]
    [merchant] = read.value["merchants"].list
    assert (merchant.id, merchant.config_url, merchant.model_extra) == (1, "u", {"rank": 1.5})
    assert read.value["merchants"].continuation_token == "t"
    assert read.value["regions"].continuation_token is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"value": []}',
        b'{"value": {"offers": []}}',
        b'{"value": {"offers": {"list": [{"id": "Ada", "configUrl": "u"}]}}}',
        b'{"value": {"offers": {"list": [{"id": 1}]}}}',
        b'{"value": {"offers": {"list": [], "continuationToken": 5}}}',
        b'{"value": ' + b"[" * 100_000,
        b"\xff",
    ],
)
def test_unreadable_customer_data(body: bytes) -> None:
    """Anything else is told without its values."""
    with pytest.raises(ServiceUnreadable, match="customer data") as caught:
        read_customer_data(body)
    assert "Ada" not in str(caught.value)


def test_one_group_that_cannot_be_read_hides_no_other() -> None:
    """It is named with the reason."""
    read = read_customer_data(
        b'{"value": {"offers": {"list": 3}, "regions": {"list": [{"id": 6.0, "configUrl": "u"}]}}}'
    )
    assert [entity.id for entity in read.value["regions"].list] == [6]
    assert list(read.unreadable) == ["offers"]


def test_numbers_of_customer_data_stay_as_they_are_written() -> None:
    """Those that a float would write otherwise, too; an empty token is none."""
    text = b'{"id": 1, "configUrl": "u", "a": 10.50, "b": 1.5, "c": 1e2, "d": 12345678901234567890.1}'
    read = read_customer_data(b'{"value": {"offers": {"list": [' + text + b'], "continuationToken": ""}}}')
    [offer] = read.value["offers"].list
    assert json_text(offer.model_extra) == '{"a": 10.50, "b": 1.5, "c": 1E+2, "d": 12345678901234567890.1}'
    assert read.value["offers"].continuation_token is None
