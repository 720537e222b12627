"""The customers of the demo: the issuer's data and the service's data about them."""

from __future__ import annotations

from typing import Any

from deliveryd.sandbox.state import Group

TextsByLanguage = dict[str, dict[str, Any]]

CUSTOMERS: tuple[dict[str, Any], ...] = (
    {"id": 1, "name": "Ann Whitfield", "language": "en", "phone": "+447700900101"},
    {
        "id": 2,
        "name": "Jonas Brandt",
        "language": "de",
        "phone": "+491713920002",
        "messenger": "jonas.brandt",
    },
    {
        "id": 3,
        "name": "Inês Carvalho",
        "language": "pt",
        "device": "device-ines",
        "email": "ines@example.com",
    },
    {"id": 4, "name": "Олена Шевчук", "language": "uk", "messenger": "olena.s", "email": "olena@example.com"},
    {"id": 5, "name": "Rafael Souza", "language": "pt-BR", "phone": "+5511900000005"},
    {"id": 6, "language": "en", "phone": "+447700900106", "email": "guest@example.com"},
    {"id": 7, "language": "de", "device": "device-7"},
    {"id": 8, "name": "Priya Nair", "language": "en", "device": "device-priya", "email": "priya@example.com"},
    {
        "id": 9,
        "name": "Lea Hofmann",
        "language": "de",
        "messenger": "permerror-lea",
        "phone": "+491713920009",
    },
    {"id": 10, "name": "Tiago Lopes", "language": "pt", "messenger": "temperror-tiago"},
    {"id": 11, "name": "Sam Okoro", "language": "en", "email": "permerror@example.com"},
    {"id": 12, "name": "Claire Martin", "language": "fr", "phone": "+33700000012"},
    {"id": 13, "name": "Богдан Ткач", "language": "uk", "phone": "+380500000013"},
    {
        "id": 14,
        "name": "Marta Dias",
        "language": "pt",
        "messenger": "marta.dias",
        "email": "marta@example.com",
    },
    {"id": 15, "name": "Felix Krüger", "language": "de", "email": "felix@example.com"},
    {"id": 16, "name": "Noor Haddad", "language": "en", "phone": "+15550101"},
    {"id": 17, "name": "Tom & Jerry <3", "language": "en", "email": "tom.and.jerry@example.com"},
    {"id": 18, "name": "Dev Patel", "language": "en", "phone": "+15550103"},
    {"id": 19, "name": "Uwe Lang", "language": "de"},
)
"""The lines of the customer file."""

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
    return {customer["id"]: _groups_of(customer["id"]) for customer in CUSTOMERS}


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
