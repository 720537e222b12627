# ruff: noqa: RUF001 - Ukrainian is written in Cyrillic letters, some of which look Latin
"""The settings of the demo: a shop with a loyalty programme and a card of its own, in four languages."""

from __future__ import annotations

from typing import Any

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
