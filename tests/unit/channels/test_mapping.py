"""Mappings are filled as data: what a placeholder may be, and what an absent value does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deliveryd.channels.filling import ABSENT, MappingContext, compile_tree
from deliveryd.channels.http.address import address_problem, compile_address
from deliveryd.channels.mapping import FILTER_NAMES, Unfit, content_problems, mapping_problems
from deliveryd.model import Customer
from deliveryd.testing.samples import dispatch

SECRETS = {"token": "s3cret"}
CONTEXT = MappingContext(SECRETS)
MESSENGER = {"text": "Hi {content.image}", "button.text": "Go", "empty": ""}


def fill(mapping: Any, customer: Customer | None = None, fields: dict[str, str] | None = None) -> Any:
    known = customer or Customer(7, {"phone": "+1555", "loyalty card": "77"})
    sample = dispatch("messenger", MESSENGER if fields is None else fields, customer=known)
    return compile_tree(mapping, CONTEXT)(sample)


@pytest.mark.parametrize(
    ("mapping", "filled"),
    [
        pytest.param("{message.id}", 42, id="a lone message id stays a number"),
        pytest.param("{message.settingsId}", 5, id="a lone settings id stays a number"),
        pytest.param("{message.customerId}", 7, id="a lone customer id stays a number"),
        pytest.param("no. {message.id}", "no. 42", id="with text around it, a number becomes text"),
        pytest.param("{message.key}", "a-1", id="the attempt's id can be sent"),
        pytest.param("Bearer {secret.token}", "Bearer s3cret", id="a secret is filled in"),
        pytest.param("{customer.loyalty card}", "77", id="directories name their fields freely"),
        pytest.param("{customer.id}", 7, id="the customer's id needs no field"),
        pytest.param("{content.text}", "Hi {content.image}", id="a value is never looked at again"),
        pytest.param("{content.button.text}", "Go", id="fields of a block are dotted"),
        pytest.param("{content.empty}", "", id="an empty value is a value"),
        pytest.param("{content.image}", ABSENT, id="a lone absent field is absent"),
        pytest.param("see {content.image}", ABSENT, id="text with an absent field is absent as a whole"),
        pytest.param({"to": "x", "image": "{content.image}"}, {"to": "x"}, id="an absent member is left out"),
        pytest.param(["{content.image}", "{content.text}"], ["Hi {content.image}"], id="out of lists, too"),
        pytest.param(
            {"button": {"url": "{content.image}"}, "n": 1}, {"n": 1}, id="an object that it leaves empty goes"
        ),
        pytest.param({"options": {}, "l": []}, {"options": {}, "l": []}, id="what was empty stays"),
        pytest.param({"a": 1.5, "b": True, "c": None}, {"a": 1.5, "b": True, "c": None}, id="constants stay"),
        pytest.param('{"a": {}} { x } {}', '{"a": {}} { x } {}', id="other braces stay"),
        pytest.param("{{message.id}}", "{42}", id="double braces are braces around a placeholder"),
    ],
)
def test_filling(mapping: Any, filled: Any) -> None:
    """What a mapping becomes for one message."""
    result = fill(mapping)
    assert result == filled
    assert type(result) is type(filled)


@pytest.mark.parametrize("customer", [Customer(7, {}), Customer(7, {"phone": ""})])
def test_a_customer_without_the_field_cannot_be_sent_to(customer: Customer) -> None:
    """A customer's field without a value makes the message unfit, and the reason quotes nothing."""
    with pytest.raises(Unfit, match=r"^the customer has no address on this channel$"):
        fill({"to": "{customer.phone}"}, customer)


THERE_ARE = (
    "; there are {message.id}, {message.key}, {message.expiresAt}, {message.validity}, {settings.reference},"
    " {customer.FIELD}, {content.FIELD}, {variables.NAME}, {receipt.url} and {secret.NAME}"
)


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ({"to": "{customer}"}, "to: {customer} needs a field, such as {customer.phone}"),
        ({"a": {"b": ["{foo.bar}"]}}, f"a.b.0: unknown placeholder {{foo.bar}}{THERE_ARE}"),
        ({"key": "{attempt.id}"}, f"key: unknown placeholder {{attempt.id}}{THERE_ARE}"),
        ({"id": "{message.ID}"}, "id: unknown placeholder {message.ID}; did you mean {message.id}?"),
        ({"t": "{secret.tokn}"}, "t: {secret.tokn} isn't defined in secrets; did you mean token?"),
        ({"{message.id}": 1}, "'{message.id}': placeholders are allowed in values only"),
        ("{text}", "unknown placeholder {text}; did you mean {content.text}?"),
        ("{phone}", "unknown placeholder {phone}; did you mean {customer.phone}?"),
        ("{token}", "unknown placeholder {token}; did you mean {secret.token}?"),
        ("{costumer.phone}", "unknown placeholder {costumer.phone}; did you mean {customer.phone}?"),
        ("{Customer.phone}", "unknown placeholder {Customer.phone}; did you mean {customer.phone}?"),
        (
            "{contents.button.url}",
            "unknown placeholder {contents.button.url}; did you mean {content.button.url}?",
        ),
        (
            "{mesage.settingsid}",
            "unknown placeholder {mesage.settingsid}; did you mean {message.settingsId}?",
        ),
        ("{secrets.token}", "unknown placeholder {secrets.token}; did you mean {secret.token}?"),
        ("{customer}", "{customer} needs a field, such as {customer.phone}"),
        ("{variable.code}", "unknown placeholder {variable.code}; did you mean {variables.code}?"),
        ("{receipt.uri}", "unknown placeholder {receipt.uri}; did you mean {receipt.url}?"),
        ("{variables}", "{variables} needs a field, such as {variables.code}"),
        ("{customer.phone|e146}", "{customer.phone|e146}: unknown filter 'e146'; did you mean e164?"),
        ("{phone|e164}", "unknown placeholder {phone}; did you mean {customer.phone}?"),
        (
            "{customer.phone|plain}",
            f"{{customer.phone|plain}}: unknown filter 'plain'; there are {', '.join(FILTER_NAMES)}",
        ),
        (
            "{customer.phone|minutes}",
            "{customer.phone|minutes}: the filter minutes doesn't apply to this value",
        ),
        (
            "{message.expiresAt|minutes}",
            "{message.expiresAt|minutes}: the filter minutes doesn't apply to this value",
        ),
        ({"to": "+{customer.phone"}, "to: '{customer.phone' isn't closed; write {customer.phone}"),
    ],
)
def test_mistakes_are_named(mapping: Any, problem: str) -> None:
    """A placeholder that can't be filled is a configuration error that says where it stands."""
    assert mapping_problems(mapping, SECRETS) == [problem]


def test_a_content_field_that_the_block_never_has_is_a_mistake() -> None:
    """A typing error in {content.FIELD} would leave the text out of every message, so it is found before."""
    assert content_problems({"json": {"text": "{content.txt}"}}, "sms") == [
        "json.text: the block sms has no field 'txt'; did you mean text?"
    ]


@given(st.text())
def test_any_value_arrives_as_it_is(value: str) -> None:
    """No text of a value can change the structure around it, nor be taken for a placeholder."""
    assert fill({"a": "{content.text}", "b": ["<{content.text}>"]}, fields={"text": value}) == {
        "a": value,
        "b": [f"<{value}>"],
    }


@pytest.mark.parametrize(
    ("url", "fields", "filled"),
    [
        ("http://h/a/{content.text}/b", {"text": "x y?z#ü &"}, "http://h/a/x%20y%3Fz%23%C3%BC%20%26/b"),
        ("http://h?t={content.text}&k={secret.token}", {"text": "1&k=2"}, "http://h/?t=1%26k%3D2&k=s3cret"),
        ("http://h/s?a=1&t={content.text}", {}, "http://h/s?a=1"),
        ("http://h/s?t={content.text}", {}, "http://h/s"),
        ("http://h/v{message.id}.json", {}, "http://h/v42.json"),
    ],
)
def test_addresses(url: str, fields: dict[str, str], filled: str) -> None:
    """In an address, values are encoded fully, and a query value without a value is left out."""
    sample = dispatch("sms", fields)
    assert str(compile_address(url, None, CONTEXT)(sample)) == filled


def test_the_query_table_comes_after_the_addresss_own_query() -> None:
    """A table of the query is encoded as a whole; lists repeat their key."""
    query = {"to": "{customer.phone}", "ü": [1, True, "a b"], "gone": "{content.text}"}
    address = compile_address("http://h/s?a=1", query, CONTEXT)
    assert (
        str(address(dispatch("sms", {}))) == "http://h/s?a=1&to=%2B15550111&%C3%BC=1&%C3%BC=true&%C3%BC=a%20b"
    )


@pytest.mark.parametrize("text", ["..", ".", ""])
def test_no_value_leads_to_another_address(text: str) -> None:
    """A value that would be a step up or an empty step in the path is refused."""
    with pytest.raises(Unfit):
        compile_address("http://h/messages/{content.text}/send", None, CONTEXT)(
            dispatch("sms", {"text": text})
        )


@pytest.mark.parametrize(
    "url",
    [
        "http://{content.text}/x",
        "http://h:{content.text}/x",
        "{content.text}://h/",
        "ftp://h/x",
        "http:///x",
        "http://user:word@h/",
        "http://h/x#{content.text}",
        "http://h/x?{content.text}=1",
        "http://h/ü",
        "http://h/a b",
        "h/x",
    ],
)
def test_addresses_that_cannot_be_configured(url: str) -> None:
    """Scheme, host and port never come from a message."""
    assert address_problem(url)
