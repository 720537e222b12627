# ruff: noqa: RUF001 - Ukrainian is written in Cyrillic letters, some of which look Latin
"""The demo's scenario: customers, messages and settings that together cover every rule of the interface."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from deliveryd.sandbox.state import Group, SandboxState

TextsByLanguage = dict[str, dict[str, Any]]

_CUSTOMERS = """\
{"id": 1, "name": "Ann Whitfield", "language": "en", "phone": "+447700900101"}
{"id": 2, "name": "Jonas Brandt", "language": "de", "phone": "+491713920002", "messenger": "jonas.brandt"}
{"id": 3, "name": "Inês Carvalho", "language": "pt", "device": "device-ines", "email": "ines@example.com"}
{"id": 4, "name": "Олена Шевчук", "language": "uk", "messenger": "olena.s", "email": "olena@example.com"}
{"id": 5, "name": "Rafael Souza", "language": "pt-BR", "phone": "+5511900000005"}
{"id": 6, "language": "en", "phone": "+447700900106", "email": "guest@example.com"}
{"id": 7, "language": "de", "device": "device-7"}
{"id": 8, "name": "Priya Nair", "language": "en", "device": "device-priya", "email": "priya@example.com"}
{"id": 9, "name": "Lea Hofmann", "language": "de", "messenger": "permerror-lea", "phone": "+491713920009"}
{"id": 10, "name": "Tiago Lopes", "language": "pt", "messenger": "temperror-tiago"}
{"id": 11, "name": "Sam Okoro", "language": "en", "email": "permerror@example.com"}
{"id": 12, "name": "Claire Martin", "language": "fr", "phone": "+33700000012"}
{"id": 13, "name": "Богдан Ткач", "language": "uk", "phone": "+380500000013"}
{"id": 14, "name": "Marta Dias", "language": "pt", "messenger": "marta.dias", "email": "marta@example.com"}
{"id": 15, "name": "Felix Krüger", "language": "de", "email": "felix@example.com"}
{"id": 16, "name": "Noor Haddad", "language": "en", "phone": "+15550101"}
{"id": 17, "name": "Tom & Jerry <3", "language": "en", "email": "tom.and.jerry@example.com"}
{"id": 18, "name": "Dev Patel", "language": "en", "phone": "+15550103"}
{"id": 19, "name": "Uwe Lang", "language": "de"}
"""
"""The customer file."""

_SHOPS: tuple[tuple[str, str, str, float, float], ...] = (
    ("Linden Market", "Food", "2 Linden Road, London", 51.5416, -0.0034),
    ("Corner Books", "Books", "14 Mill Lane, London", 51.5519, -0.1936),
    ("Rad & Tour", "Bicycles", "Lindenstraße 8, Berlin", 52.5063, 13.3958),
    ("Padaria Real", "Bakery", "Rua das Flores 31, Lisboa", 38.7108, -9.1437),
    ("Книгарня", "Books", "вул. Сагайдачного 5, Київ", 50.4595, 30.5205),
    ("Linden Chiado", "Food", "Rua Garrett 70, Lisboa", 38.7107, -9.1409),
    ("Linden Marché", "Food", "3 rue du Tilleul, Lyon", 45.7676, 4.8344),
)
_OFFERS = (
    {"en": "Every tenth coffee is free", "de": "Jeder zehnte Kaffee gratis"},
    {"en": "Two books for one", "de": "Zwei Bücher zum Preis von einem"},
    {"en": "Spring check for bicycles", "de": "Frühjahrscheck fürs Rad"},
    {"en": "Double points on Fridays", "de": "Freitags doppelte Punkte"},
)
_NAMED: dict[Group, tuple[dict[str, str], ...]] = {
    "offers": _OFFERS,
    "benefits": ({"en": "Free delivery", "de": "Kostenlose Lieferung"},),
    "privileges": (
        {"en": "Early opening on Saturdays", "de": "Samstags früher einkaufen"},
        {"en": "A parking space", "de": "Ein Parkplatz"},
    ),
    "regions": ({"en": "London", "de": "London"}, {"en": "Lisbon", "de": "Lissabon"}),
    "rewards": (
        {"en": "A slice of cake", "de": "Ein Stück Kuchen"},
        {"en": "A shopping bag", "de": "Eine Einkaufstasche"},
        {"en": "A cinema ticket", "de": "Eine Kinokarte"},
    ),
}
_ABOUT = {"en": "{name} takes your Linden card.", "de": "{name} nimmt Ihre Linden-Karte."}
_BUTTON = {"en": "Visit us", "de": "Besuchen Sie uns"}


def entity_configurations() -> dict[tuple[Group, int], TextsByLanguage]:
    """The configuration of each entity by language (interface 2.5, 4.5)."""
    shops: dict[tuple[Group, int], TextsByLanguage] = {
        ("merchants", number): {language: _merchant(number, language) for language in _ABOUT}
        for number in range(1, len(_SHOPS) + 1)
    }
    named: dict[tuple[Group, int], TextsByLanguage] = {
        (group, number): {language: {"id": number, "name": name} for language, name in names.items()}
        for group, entities in _NAMED.items()
        for number, names in enumerate(entities, 1)
    }
    return shops | named


def customer_groups() -> dict[int, dict[Group, list[dict[str, Any]]]]:
    """What the service lists for each customer of the file (interface 2.4)."""
    return {id_: _groups_of(id_) for id_ in (json.loads(line)["id"] for line in _CUSTOMERS.splitlines())}


def _groups_of(customer: int) -> dict[Group, list[dict[str, Any]]]:
    shops: list[dict[str, Any]] = [
        {"id": number, "points": 10 * customer + number} for number in range(1, len(_SHOPS) + 1)
    ]
    named: dict[Group, list[dict[str, Any]]] = {
        group: [{"id": number} for number in range(1, len(names) + 1)] for group, names in _NAMED.items()
    }
    return {"merchants": shops, **named}


def _merchant(number: int, language: str) -> dict[str, Any]:
    name, category, address, lat, lon = _SHOPS[number - 1]
    return {
        "id": number,
        "marketName": name,
        "legalName": f"{name} Ltd.",
        "about": _ABOUT[language].format(name=name),
        "phones": "+44 7700 900100",
        "emails": "shop@example.com",
        "website": f"https://shops.example.com/{number}",
        "category": category,
        "buttonText": _BUTTON[language],
        "buttonUrl": f"https://shops.example.com/{number}",
        "locations": [
            {"name": name, "lat": lat, "lon": lon, "address": address, "schedule": "Mon-Sat 9:00-18:00"}
        ],
    }


GREETINGS: dict[str, dict[str, str]] = {
    "en": {"personal": "Hello {customer.name},", "general": "Hello,"},
    "de": {"personal": "Guten Tag {customer.name},", "general": "Guten Tag,"},
    "pt": {"personal": "Olá, {customer.name}!", "general": "Olá!"},
    "uk": {"personal": "Вітаємо, {customer.name}!", "general": "Вітаємо!"},
}

_POINTS = {
    "en": ("{points} points for you", "{greeting} {points} points from {shop} are now on your Linden card."),
    "de": ("{points} Punkte für Sie", "{greeting} {points} Punkte von {shop} sind auf Ihrer Linden-Karte."),
    "pt": (
        "{points} pontos para si",
        "{greeting} {points} pontos da loja {shop} já estão no seu cartão Linden.",
    ),
    "uk": ("Вам {points} балів", "{greeting} {points} балів від «{shop}» уже на вашій картці Linden."),
}
_POINTS_BUTTON = {
    "en": "See my points",
    "de": "Zu meinen Punkten",
    "pt": "Ver os meus pontos",
    "uk": "Мої бали",
}

_PARCEL = {
    "en": "{greeting} your order {order.id} is on its way with {carrier} and should arrive on {day}.",
    "de": "{greeting} Ihre Bestellung {order.id} ist mit {carrier} unterwegs und soll am {day} ankommen.",
    "pt": "{greeting} A sua encomenda {order.id} segue com a {carrier} e deve chegar na {day}.",
    "uk": "{greeting} Замовлення {order.id} вже в дорозі ({carrier}). Очікуйте його {day}.",
}
_PARCEL_BUTTON = {"en": "Track it", "de": "Sendung verfolgen", "pt": "Seguir a encomenda", "uk": "Відстежити"}

_PAYMENT = {
    "en": "Linden card: {amount} {currency} paid at {shop}. Not you? Call the number on your card.",
    "de": (
        "Linden-Karte: {amount} {currency} bei {shop} bezahlt. "
        "Das waren nicht Sie? Rufen Sie die Nummer auf der Karte an."
    ),
    "pt": "Cartão Linden: pagou {amount} {currency} em {shop}. Não foi você? Ligue para o número no cartão.",
    "uk": (
        "Картка Linden: сплачено {amount} {currency}, {shop}. Це не ви? Зателефонуйте за номером на картці."
    ),
}

_LETTER = {
    "en": (
        "Welcome to Linden",
        "Your card is ready at <b>{shop}</b>. Show it at the till and every tenth coffee is on us.",
        "See you soon",
    ),
    "de": (
        "Willkommen bei Linden",
        "Ihre Karte liegt bei <b>{shop}</b> bereit. Damit geht jeder zehnte Kaffee auf uns.",
        "Bis bald",
    ),
    "pt": (
        "Bem-vindo à Linden",
        "O seu cartão já está na loja <b>{shop}</b>. Mostre-o na caixa e cada décimo café é por nossa conta.",
        "Até breve",
    ),
    "uk": (
        "Ласкаво просимо до Linden",
        "Ваша картка чекає на вас у <b>{shop}</b>. На касі кожна десята кава — за наш рахунок.",
        "До зустрічі",
    ),
}

_BIRTHDAY = {
    "en": "{greeting} happy birthday! A slice of cake is waiting for you until Sunday.",
    "de": "{greeting} alles Gute zum Geburtstag! Bis Sonntag wartet ein Stück Kuchen auf Sie.",
    "pt": "{greeting} Feliz aniversário! Tem uma fatia de bolo à sua espera até domingo.",
    "uk": "{greeting} З днем народження! До неділі на вас чекає шматочок торта.",
}

_STATEMENT = {
    "en": ("Your statement for {month}", "your statement for {month} is ready. Balance: {balance} EUR."),
    "de": ("Ihr Kontoauszug für {month}", "Ihr Kontoauszug für {month} ist da. Saldo: {balance} EUR."),
    "pt": ("O seu extrato de {month}", "O seu extrato de {month} já está disponível. Saldo: {balance} EUR."),
    "uk": ("Ваша виписка за {month}", "Ваша виписка за {month} готова. Баланс: {balance} EUR."),
}

_STYLE = (
    "body { font: 16px/1.5 system-ui, sans-serif; color: #26332b; margin: 0; padding: 24px }"
    " h1 { font-size: 22px; margin: 0 0 12px; color: #2f6b4f }"
    " .foot { color: #7b877f; font-size: 13px; border-top: 1px solid #dfe6e1; padding-top: 12px }"
)


def demo_settings() -> dict[int, dict[str, Any]]:
    """The settings of the demo by their id."""
    return {
        501: _settings({language: _points(language) for language in GREETINGS}),
        502: _settings({language: _parcel(language) for language in GREETINGS}),
        503: _settings({language: {"sms": {"text": text}} for language, text in _PAYMENT.items()}),
        504: _settings({language: _letter(language) for language in GREETINGS}),
        505: _settings(
            {language: {"sms": {"text": "{greeting} 20 % {shop}"}} for language in GREETINGS},
            expires_at="2024-01-31T23:00:00Z",
        ),
        506: _settings({language: _statement(language) for language in GREETINGS}),
        507: _settings(
            {language: _birthday(language) for language in GREETINGS}, expires_at="2099-12-31T23:00:00Z"
        ),
        508: {
            "reference": "survey",
            "content": {
                "en": {
                    "greetings": {"personal": GREETINGS["en"]["personal"]},
                    "sms": {"text": "{greeting} how was your visit? Answer 1 to 5."},
                }
            },
        },
    }


def _settings(blocks: dict[str, dict[str, Any]], expires_at: str | None = None) -> dict[str, Any]:
    content = {language: {"greetings": GREETINGS[language], **block} for language, block in blocks.items()}
    if expires_at is None:
        return {"content": content}
    return {"delivery": {"expiresAt": expires_at}, "content": content}


def _points(language: str) -> dict[str, Any]:
    title, text = _POINTS[language]
    button = {"text": _POINTS_BUTTON[language], "url": "https://linden.example.com/points"}
    return {
        "inApp": {
            "name": title,
            "description": text,
            "image": "https://images.example.com/points.png",
            "button": button,
            "notification": {"title": title, "body": text},
        },
        "messenger": {"text": text, "button": button},
        "sms": {"text": text},
        "email": {"subject": title, "body": text},
    }


def _parcel(language: str) -> dict[str, Any]:
    text = _PARCEL[language]
    return {
        "messenger": {
            "text": text,
            "image": "https://images.example.com/parcel.jpg",
            "button": {
                "text": _PARCEL_BUTTON[language],
                "url": "https://linden.example.com/track/{order.id}",
            },
        },
        "sms": {"text": text},
    }


def _letter(language: str) -> dict[str, Any]:
    subject, text, close = _LETTER[language]
    body = (
        f'<!doctype html><html lang="{language}"><head><style>{_STYLE}</style></head><body>'
        f'<h1>{subject}</h1><p>{{greeting}}</p><p>{text}</p><p class="foot">{close}, Linden</p></body></html>'
    )
    return {"email": {"subject": subject, "body": body}}


def _birthday(language: str) -> dict[str, Any]:
    text = _BIRTHDAY[language]
    return {
        "messenger": {"text": text, "image": "https://images.example.com/cake.jpg"},
        "sms": {"text": text},
    }


def _statement(language: str) -> dict[str, Any]:
    subject, text = _STATEMENT[language]
    return {"email": {"subject": subject, "body": f"{{greeting}}\n\n{text}\n\nLinden"}}


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
        "Image and button; a dotted name",
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
    (501, 4711, '{"points": 8, "shop": "Linden Market"}', "A customer who isn't known"),
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
        customers_jsonl=_CUSTOMERS,
        customers=customer_groups(),
        entities=entity_configurations(),
    )


def _text(number: int, settings: int, customer: int, variables: str) -> str:
    return f'{{"id": {number}, "settingsId": {settings}, "customerId": {customer}, "variables": {variables}}}'
