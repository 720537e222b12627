# ruff: noqa: RUF001 - Ukrainian is written in Cyrillic letters, some of which look Latin
"""The demo's scenario: customers, messages and settings that together cover every rule of the interface."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from deliveryd.sandbox.scenario_customers import (
    CUSTOMERS,
    TextsByLanguage,
    customer_groups,
    entity_configurations,
)
from deliveryd.sandbox.scenario_settings import demo_settings
from deliveryd.sandbox.state import Group, SandboxState

FIRST_ID = 1001
PAGE_SIZE = 3
"""Entities per page of customer data: few enough that the scenario needs continuation tokens."""


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A message as raw text of the queue, and a sentence on what it demonstrates."""

    id: int
    text: str
    note: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything the demo starts from; `customers_jsonl` is a customer file for the worker."""

    settings: dict[int, dict[str, Any]]
    exhibits: tuple[Exhibit, ...]
    customers_jsonl: str
    customers: dict[int, dict[Group, list[dict[str, Any]]]]
    entities: dict[tuple[Group, int], TextsByLanguage]

    @property
    def messages(self) -> list[str]:
        """The raw texts of the queue's elements."""
        return [exhibit.text for exhibit in self.exhibits]

    def load_into(self, state: SandboxState) -> None:
        """Load the scenario into this sandbox."""
        state.settings.update(self.settings)
        state.page_size = PAGE_SIZE
        state.customers.update(self.customers)
        for (group, number), texts in self.entities.items():
            state.add_entity(group, number, texts)
        state.notes.update((exhibit.id, exhibit.note) for exhibit in self.exhibits)
        state.enqueue(*self.messages)


# Variables are JSON text, because numbers must arrive in their original notation.
_STORY: tuple[tuple[int, int, str, str], ...] = (
    (501, 1, '{"points": 120, "shop": "Linden Market"}', "A personal greeting by SMS"),
    (501, 6, '{"points": 40, "shop": "Linden Market"}', "No name known: the general greeting"),
    (501, 2, '{"points": 310, "shop": "Linden Markt"}', "German, on the messenger"),
    (501, 3, '{"points": 75, "shop": "Linden Chiado"}', "Portuguese, as a push message in the app"),
    (501, 4, '{"points": 200, "shop": "Linden Поділ"}', "Ukrainian, on the messenger"),
    (501, 7, '{"points": 15, "shop": "Linden Markt"}', "The general greeting in German, in the app"),
    (501, 5, '{"points": 90, "shop": "Linden Paulista"}', "pt-BR falls back to pt"),
    (501, 12, '{"points": 60, "shop": "Linden Marché"}', "No French text: the first language configured"),
    (501, 15, '{"points": 500, "shop": "Linden Markt"}', "Points by e-mail as plain text"),
    (
        502,
        2,
        '{"order.id": "L-20417", "carrier": "DHL", "day": "Freitag"}',
        "Picture and button; a dotted name",
    ),
    (
        502,
        4,
        '{"order.id": "L-20418", "carrier": "Нова пошта", "day": "у п’ятницю"}',
        "The same in Ukrainian",
    ),
    (502, 1, '{"order.id": "L-20419", "carrier": "Royal Mail", "day": "Friday"}', "No messenger, so by SMS"),
    (502, 14, '{"order.id": "L-20420", "carrier": "CTT", "day": "sexta-feira"}', "The same in Portuguese"),
    (502, 6, '{"carrier": "Royal Mail"}', "Two values are missing: one error names both"),
    (503, 1, '{"amount": 10.50, "currency": "GBP", "shop": "Corner Books"}', "10.50 stays 10.50"),
    (503, 2, '{"amount": 1250.00, "currency": "EUR", "shop": "Rad & Tour"}', "No HTML here: & stays &"),
    (503, 5, '{"amount": 89.90, "currency": "BRL", "shop": "Padaria Real"}', "Money in Portuguese"),
    (503, 13, '{"amount": 1e3, "currency": "UAH", "shop": "Книгарня"}', "1e3 stays 1e3, as it was written"),
    (504, 17, '{"shop": "Tom & Jerry <3"}', "HTML: the value is escaped, the braces of the CSS stay"),
    (504, 15, '{"shop": "Linden Markt"}', "A letter in German"),
    (504, 3, '{"shop": "Linden Chiado"}', "A letter in Portuguese"),
    (504, 4, '{"shop": "Linden Поділ"}', "A letter in Ukrainian"),
    (504, 6, '{"shop": "Linden Market"}', "A letter with the general greeting"),
    (505, 1, '{"shop": "Linden Market"}', "Expired: never sent"),
    (505, 2, '{"shop": "Linden Markt"}', "Expired in every language"),
    (506, 8, '{"month": "October", "balance": 1840.25}', "A statement by e-mail"),
    (
        506,
        11,
        '{"month": "October", "balance": 12.00}',
        "The mailbox does not exist, and there is no other way",
    ),
    (506, 14, '{"month": "outubro", "balance": 230.10}', "A statement in Portuguese"),
    (506, 1, '{"month": "October", "balance": 77.70}', "Only an e-mail text, and no e-mail address"),
    (507, 9, "{}", "Messenger refuses for good: the SMS takes over"),
    (507, 10, "{}", "Messenger is busy twice: tried again"),
    (507, 16, "{}", "The SMS gateway is busy twice: tried again"),
    (507, 14, "{}", "A birthday in Portuguese, in time"),
    (507, 13, "{}", "A birthday in Ukrainian, by SMS"),
    (507, 19, "{}", "No address at all for this customer"),
    (508, 8, "{}", "A device but no phone, and only a text for SMS"),
    (508, 6, "{}", "No name and no general greeting: an error"),
    (501, 18, '{"points": 5, "shop": "Linden Market"}', "Sent, then reported as failed by the provider"),
    (501, 8, '{"points": 33, "shop": "{customer.name}"}', "Braces in a value are text like any other"),
    (501, 4711, '{"points": 8, "shop": "Linden Market"}', "A customer that nobody knows"),
    (599, 1, "{}", "Settings that do not exist"),
)


def demo_scenario() -> Scenario:
    """Return the scenario, always the same. No message waits longer than for two refusals of a provider."""
    exhibits = [
        Exhibit(number, _text(number, settings, customer, variables), note)
        for number, (settings, customer, variables, note) in enumerate(_STORY, FIRST_ID)
    ]
    broken = FIRST_ID + len(_STORY)
    unreadable = f'{{"id": {broken}, "settingsId": "five hundred", "customerId": 1, "variables": []}}'
    exhibits.append(Exhibit(broken, unreadable, "Not readable: set aside, the rest of its batch goes on"))
    return Scenario(
        settings=demo_settings(),
        exhibits=tuple(exhibits),
        customers_jsonl="".join(json.dumps(each, ensure_ascii=False) + "\n" for each in CUSTOMERS),
        customers=customer_groups(),
        entities=entity_configurations(),
    )


def _text(number: int, settings: int, customer: int, variables: str) -> str:
    return f'{{"id": {number}, "settingsId": {settings}, "customerId": {customer}, "variables": {variables}}}'
