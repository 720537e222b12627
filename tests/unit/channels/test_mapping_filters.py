"""Placeholders of the message's time, variables and SMS, and the filters after a bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from deliveryd.channels.base import Dispatch
from deliveryd.channels.filling import ABSENT, MappingContext, Validity, compile_tree
from deliveryd.channels.http.address import compile_address
from deliveryd.channels.mapping import Unfit, content_problems, mapping_problems
from deliveryd.channels.phone_numbers import PhoneReader
from deliveryd.model import SECOND, Customer, parse_instant
from deliveryd.testing.samples import dispatch

SECRETS = {"token": "s3cret", "user": "AC01"}
NOW = parse_instant("2026-11-21T18:40:00.250000Z")
EXPIRY = NOW + 600 * SECOND


class At:
    """A clock that stands still."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now(self) -> int:
        return self._now


def sample(
    *,
    text: str = "Hi",
    expires_at: int | None = EXPIRY,
    now: int = NOW,
    begun_at: int = NOW,
    phone: str = "07700 900123",
    variables: Mapping[str, str] | None = None,
) -> Dispatch:
    made = dispatch(
        "sms", {"text": text}, customer=Customer(7, {"phone": phone}), expires_at=expires_at, clock=At(now)
    )
    entry = made.entry._replace(variables=variables or {"code": "10.50", "order.id": "A7"}, begun_at=begun_at)
    return made._replace(entry=entry)


CONTEXT = MappingContext(SECRETS, receipt_url="https://cb.example/receipts/sms", phones=PhoneReader("GB"))


@pytest.mark.parametrize(
    ("mapping", "filled"),
    [
        pytest.param("{variables.code}", "10.50", id="a variable is text as the queue's JSON has it"),
        pytest.param("{variables.order.id}", "A7", id="names of variables may be dotted"),
        pytest.param("{variables.gone}", ABSENT, id="a variable that the message lacks is absent"),
        pytest.param("{message.expiresAt}", "2026-11-21T18:50:00.250000Z", id="an instant is ISO 8601"),
        pytest.param("{message.expiresAt|unix}", 1795287000, id="or Unix seconds, a number"),
        pytest.param("{message.expiresAt|ms}", 1795287000250, id="or Unix milliseconds, a number"),
        pytest.param("{message.validity}", 600, id="validity is a number of seconds"),
        pytest.param("{message.validity|ms}", 600_000, id="or of milliseconds"),
        pytest.param("{message.validity|minutes}", 10, id="or of minutes"),
        pytest.param("PT{message.validity}S", "PT600S", id="within text it is text"),
        pytest.param("{receipt.url}", "https://cb.example/receipts/sms", id="where to report"),
        pytest.param(
            "{receipt.url}?ref={message.key}",
            "https://cb.example/receipts/sms?ref=a-1",
            id="with a key",
        ),
        pytest.param("{content.coding}", "gsm7", id="the coding of the text"),
        pytest.param("{content.parts}", 1, id="the number of its parts, a number"),
        pytest.param("{customer.phone|e164}", "+447700900123", id="a phone number in E.164"),
        pytest.param("{customer.phone|e164|digits}", "447700900123", id="filters in a row"),
        pytest.param("{customer.phone|digits}", "07700900123", id="digits alone read nothing"),
        pytest.param("whatsapp:{customer.phone|e164}", "whatsapp:+447700900123", id="within text"),
        pytest.param("{secret.token|base64}", "czNjcmV0", id="a secret in base64"),
        pytest.param("Basic {secret.user|base64}", "Basic QUMwMQ==", id="a secret in base64 within text"),
        pytest.param("{message.id|base64}", "NDI=", id="a number in base64"),
        pytest.param("{message.id|uuid}", "6790fc7b-9f41-564a-afd8-74f09ca45d57", id="a number as a UUID"),
        pytest.param(
            {"a": "{variables.gone}", "b": "x"}, {"b": "x"}, id="an absent variable leaves its field out"
        ),
    ],
)
def test_filling(mapping: Any, filled: Any) -> None:
    """What a placeholder becomes for one message, and of which type."""
    assert mapping_problems(mapping, SECRETS) == []
    result = compile_tree(mapping, CONTEXT)(sample())
    assert result == filled
    assert type(result) is type(filled)


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("Ann.Lee@Example.com", "Ann.Lee@Example.com"),
        ("ann@Bücher.example", "ann@xn--bcher-kva.example"),
        ("jörg@straße.example", "jörg@xn--strae-oqa.example"),
        ("ann@\u2024.example", "ann@\u2024.example"),
        ("ann", "ann"),
    ],
)
def test_a_domain_is_written_in_punycode(address: str, written: str) -> None:
    """The part before the @ stays, and so does a domain that has no such form."""
    filled = compile_tree({"to": "{customer.phone|punycode}"}, CONTEXT)(sample(phone=address))
    assert filled == {"to": written}


@pytest.mark.parametrize(
    ("text", "coding", "parts"), [("Hi", "gsm7", 1), ("a" * 161, "gsm7", 2), ("Привіт", "ucs2", 1)]
)
def test_coding_and_parts_are_those_of_the_text(text: str, coding: str, parts: int) -> None:
    """A provider that has to be told the coding gets that of the rendered text."""
    filled = compile_tree({"c": "{content.coding}", "n": "{content.parts}"}, CONTEXT)(sample(text=text))
    assert filled == {"c": coding, "n": parts}


def test_only_an_sms_has_a_coding() -> None:
    """Coding and parts are known for the block sms alone."""
    assert content_problems({"form": {"c": "{content.coding}"}}, "sms") == []
    assert content_problems({"form": {"c": "{content.coding}"}}, "messenger") == [
        "form.c: the block messenger has no field 'coding'"
    ]


@pytest.mark.parametrize("value", ["{message.validity}", "{message.validity|ms}", "{message.expiresAt}"])
def test_without_an_expiry_there_is_no_validity(value: str) -> None:
    """A message that never expires leaves the field to the provider's default."""
    assert compile_tree(value, CONTEXT)(sample(expires_at=None)) is ABSENT


@pytest.mark.parametrize(
    ("validity", "left", "seconds"),
    [
        (Validity(), 600.9, 600),
        (Validity(), 0.3, 1),
        (Validity(least=5), 3, 5),
        (Validity(most=36000), 90_000, 36000),
        (Validity(least=20, most=60), 40, 40),
    ],
)
def test_validity_is_within_the_providers_bounds(validity: Validity, left: float, seconds: int) -> None:
    """Whole seconds, rounded down, at least and at most what the provider accepts."""
    fill = compile_tree("{message.validity}", MappingContext(validity=validity))
    assert fill(sample(expires_at=NOW + round(left * SECOND))) == seconds


def test_minutes_are_at_least_one() -> None:
    """Less than a minute is one: zero means unlimited to some providers."""
    assert compile_tree("{message.validity|minutes}", CONTEXT)(sample(expires_at=NOW + 30 * SECOND)) == 1


def test_an_expiry_beyond_the_providers_bound_is_drawn_in() -> None:
    """An absolute expiry is bounded, too: from now on, computed anew for each try."""
    fill = compile_tree("{message.expiresAt|unix}", MappingContext(validity=Validity(least=60, most=300)))
    later = NOW + 100 * SECOND
    assert fill(sample(now=later)) == (later + 300 * SECOND) // SECOND
    assert fill(sample(now=later, expires_at=later + 10 * SECOND)) == (later + 60 * SECOND) // SECOND


def test_where_keys_are_heeded_a_repeat_has_the_same_expiry() -> None:
    """The bounds of a repeat are those of the first try: a provider compares the bytes under one key."""
    validity = Validity(most=300, is_repeated=True)
    fill = compile_tree("{message.expiresAt}", MappingContext(validity=validity))
    assert fill(sample(now=NOW)) == fill(sample(now=NOW + 200 * SECOND)) == "2026-11-21T18:45:00.250000Z"


def test_a_mask_hides_what_a_filter_makes_of_a_secret() -> None:
    """Where secrets are masked, their base64 is masked, too."""
    masked = CONTEXT._replace(mask="***")
    assert compile_tree(["{secret.token|base64}", "x{secret.user}"], masked)(sample()) == ["***", "x***"]


def test_in_an_address_a_filtered_value_is_encoded() -> None:
    """A filter works on the value; the place encodes what comes out."""
    url = "http://h/{customer.phone|e164}/send?v={message.validity|minutes}&cb={receipt.url}"
    assert str(compile_address(url, None, CONTEXT)(sample())) == (
        "http://h/%2B447700900123/send?v=10&cb=https%3A%2F%2Fcb.example%2Freceipts%2Fsms"
    )


def test_half_a_surrogate_pair_has_no_base64() -> None:
    """A value that isn't Unicode text makes the message unfit, also within a filter."""
    with pytest.raises(Unfit):
        compile_tree("{variables.code|base64}", CONTEXT)(sample(variables={"code": "\ud800"}))


def test_without_a_public_address_no_receipt_address_can_be_sent() -> None:
    """{receipt.url} needs the address under which the provider reaches the worker."""
    with pytest.raises(ValueError, match=r"^\{receipt.url\} needs receipts.public_url$"):
        compile_tree("{receipt.url}", MappingContext())
