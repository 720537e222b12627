"""What messages can say: templates, values, and elements of the queue that are no messages."""

from __future__ import annotations

from collections.abc import Mapping

Content = Mapping[str, Mapping[str, Mapping[str, str]]]
"""By language, block and field."""

SMS = {"text": "Hello {word}, {greeting}"}
SPACED = {"text": "Hello { word }, { greeting\u00a0} {a name}{wo\u200brd} { }"}
MAIL = {"subject": "News of {word}", "body": "{greeting} {word} <b>{tid.0}</b>"}
PLAIN_MAIL = {"subject": "News", "body": "{word} {braces"}
STYLED_MAIL = {
    "subject": "News of { word }",
    "body": "<style>b { color: red }</style><b>{ word }</b>{a name}",
}
CHAT = {"text": "{word} {tid.0}", "button.text": "Go {customer.name}", "button.url": "https://example.org"}
GREETINGS = {"general": "dear customer", "personal": "dear {customer.name}"}
GERMAN = {"text": "Hallo {word}"}

WITHOUT_SUBJECT = {"body": "{word}"}
WITHOUT_ADDRESS = {"text": "{word}", "button.text": "Go"}

CONTENTS: tuple[Content, ...] = (
    {"en": {"sms": GERMAN}},
    {"en": {"sms": SMS, "greetings": GREETINGS}},
    {"en": {"sms": GERMAN, "email": PLAIN_MAIL}},
    {"en": {"messenger": CHAT, "sms": GERMAN}},
    {"en": {"messenger": GERMAN, "sms": GERMAN, "email": PLAIN_MAIL}},
    {"en": {"messenger": GERMAN, "sms": GERMAN, "email": MAIL, "greetings": GREETINGS}},
    {"de": {"sms": GERMAN}, "en": {"email": PLAIN_MAIL}},
    {"de": {"email": PLAIN_MAIL}},
    {"en": {"sms": SPACED, "email": STYLED_MAIL, "greetings": GREETINGS}},
    {"en": {"sms": GERMAN, "email": WITHOUT_SUBJECT}},
    {"de": {"sms": {}}, "en": {"messenger": WITHOUT_ADDRESS, "sms": GERMAN}},
    {"en": {"messenger": WITHOUT_ADDRESS, "email": WITHOUT_SUBJECT}},
)

WHOLE = {"word": "one", "tid.0": "10.50"}
NAMED = {"word": "one", "tid.0": "10.50", "a name": "Ann"}
VARIABLES: tuple[Mapping[str, str], ...] = (
    *(WHOLE,) * 6,
    *(NAMED,) * 3,
    {"word": "{tid.0}", "tid.0": "7"},
    {"word": "w"},
    {"tid.0": "7"},
    {" word ": "spaced", "word": "w"},
)

MALFORMED: tuple[object, ...] = (
    {"id": 900, "settingsId": "x", "customerId": 1, "variables": {}},
    {"id": 901},
    {"customerId": 2},
    "text",
    {"id": 902, "settingsId": 1, "customerId": 1, "variables": {"a": [1]}},
    {"id": "seven"},
    {"id": 903.0, "settingsId": 1.5, "customerId": 1, "variables": {}},
    None,
)
