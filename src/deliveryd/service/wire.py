"""The service's bodies as pydantic models (interface 2 and 6), and their conversion to our own values.

Fields outside the interface are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails

from deliveryd.errors import ServiceUnreadable
from deliveryd.model import (
    BLOCKS,
    INT64,
    LanguageContent,
    QueuedMessage,
    Settings,
    first_of,
    parse_instant,
)
from deliveryd.runtime.json_numbers import NumberText
from deliveryd.service import exact_json

GROUPS = ("merchants", "offers", "privileges", "rewards", "regions", "benefits")
"""The groups of a customer's data (interface 2.4)."""

MOST_PAGES = 10_000
"""Most pages of one group, after which its chain counts as endless."""

LARGEST_SETTINGS = 2 << 20
MOST_LANGUAGES = 1000

MOST_ID_DIGITS = 100
"""Most digits of an element's ID that is reported to the service, though no message may have it."""


def _integer(value: object) -> int:
    if type(value) is int and value in INT64:  # True and False are integers too
        return value
    if isinstance(value, NumberText):
        read = exact_json.integer_of(value)
        if read is not None and read in INT64:
            return read
    raise ValueError("expected a 64-bit integer")


def _variables(value: object) -> dict[str, str]:
    """Parse the variables; stop at the first invalid one, since names are never reported."""
    if not isinstance(value, dict):
        raise ValueError("expected an object")  # noqa: TRY004 - pydantic collects ValueErrors
    texts = {name: text if type(text) is str else _text_of_number(text) for name, text in value.items()}
    _whole("".join([*texts, *texts.values()]))
    return texts


def _text_of_number(value: object) -> str:
    if isinstance(value, NumberText):
        return value
    if type(value) is int:  # True and False are integers too
        return NumberText(value)
    raise ValueError("expected a text or a number")


def _not_too_many(languages: object) -> object:
    if isinstance(languages, dict) and len(languages) > MOST_LANGUAGES:
        raise ValueError(f"more than {MOST_LANGUAGES} languages")
    return languages


def _text(value: object) -> object:
    if isinstance(value, NumberText):
        raise ValueError("expected a text")  # noqa: TRY004 - pydantic collects ValueErrors
    return _whole(value) if isinstance(value, str) else value


def _text_or_none(value: object) -> str | None:
    """Return a text that isn't message content; an invalid one counts as none."""
    try:
        text = _text(value)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _whole(text: str) -> str:
    """Return the text. Lone surrogates, which JSON can escape, can be neither stored nor sent."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("holds half a surrogate pair") from None
    return text


Integer = Annotated[int, BeforeValidator(_integer)]
Variables = Annotated[dict[str, str], PlainValidator(_variables)]
WireText = Annotated[str, BeforeValidator(_text)]


class ServiceBody(BaseModel):
    """A body, or a part of one."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class QueuedMessageBody(ServiceBody):
    """An element of the queue's answer (interface 2.1)."""

    id: Integer
    settings_id: Integer = Field(alias="settingsId")
    customer_id: Integer = Field(alias="customerId")
    variables: Variables


class ButtonBody(ServiceBody):
    """A button of a messenger or inApp block."""

    text: WireText
    url: WireText


class NotificationBody(ServiceBody):
    """The notification of an inApp block."""

    title: WireText
    body: WireText


class GreetingsBody(ServiceBody):
    """The greetings of a language."""

    general: WireText | None = None
    personal: WireText | None = None


class MessengerBody(ServiceBody):
    """The content of a messenger message."""

    text: WireText | None = None
    image: WireText | None = None
    button: ButtonBody | None = None


class SmsBody(ServiceBody):
    """The content of a text message."""

    text: WireText


class InAppBody(ServiceBody):
    """The content of an in-app message."""

    name: WireText | None = None
    description: WireText | None = None
    image: WireText | None = None
    button: ButtonBody | None = None
    notification: NotificationBody | None = None


class EmailBody(ServiceBody):
    """The content of an e-mail."""

    subject: WireText
    body: WireText


_BLOCKS: Mapping[str, type[ServiceBody]] = {
    "inApp": InAppBody,
    "messenger": MessengerBody,
    "sms": SmsBody,
    "email": EmailBody,
}
"""The channel blocks of a language (interface 2.2)."""


class DeliveryBody(ServiceBody):
    """The constraints of a delivery."""

    expires_at: WireText | None = Field(default=None, alias="expiresAt")


class SettingsBody(ServiceBody):
    """The settings (interface 2.2). The blocks of the languages are parsed separately."""

    reference: Annotated[str | None, PlainValidator(_text_or_none)] = None
    delivery: DeliveryBody | None = None
    content: Annotated[dict[Any, Any], BeforeValidator(_not_too_many)]


def message_of(element: Any) -> QueuedMessage:
    """Convert an element of the queue's answer to a message. Raises ValidationError.

    The model is used only for invalid elements, to describe the problem.
    """
    try:
        return QueuedMessage(
            _integer(element["id"]),
            _integer(element["settingsId"]),
            _integer(element["customerId"]),
            _variables(element["variables"]),
        )
    except (KeyError, TypeError, ValueError):
        body = QueuedMessageBody.model_validate(element)
        return QueuedMessage(body.id, body.settings_id, body.customer_id, body.variables)


def why(error: ValidationError) -> str:
    """Return why an element isn't a message, as a sentence without its values."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    sentences = [_sentence(problem["loc"], problem) for problem in problems]
    return "; ".join(list(dict.fromkeys(sentences))[:5])


_EXPECTED = {
    "missing": "is missing",
    "model_type": "expected an object",
    "dict_type": "expected an object",
    "list_type": "expected an array",
    "string_type": "expected a text",
    "string_unicode": "holds half a surrogate pair",
}


def _sentence(path: Sequence[int | str], problem: ErrorDetails) -> str:
    return _at(path, _EXPECTED.get(problem["type"]) or problem["msg"].removeprefix("Value error, "))


def _at(path: Sequence[int | str], what: str) -> str:
    """Return the place and the problem, without names of variables, which may be private."""
    public = path[: path.index("variables") + 1] if "variables" in path else path
    where = ".".join(str(part)[:60] for part in public)
    return _printable(f"{where}: {what}" if where else what)


def _printable(text: str) -> str:
    """Return the text with lone surrogates escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def id_of(value: object) -> int | None:
    """Return a JSON value as an integer of at most `MOST_ID_DIGITS`, or None if it isn't one."""
    if isinstance(value, NumberText):
        return exact_json.integer_of(value, MOST_ID_DIGITS)
    if type(value) is int and abs(value) < 10**MOST_ID_DIGITS:  # True and False are integers too
        return value
    return None


def read_settings(settings_id: int, body: bytes) -> Settings:
    """Parse settings. An unreadable block is skipped, and its language keeps the reason (design 5).

    Raises ServiceUnreadable, with the path of the problem, if no block can be read, or the expiry can't.
    """
    if len(body) > LARGEST_SETTINGS:
        raise settings_too_large(settings_id)
    try:
        wire = SettingsBody.model_validate(exact_json.read_exact(body))
    except ValidationError as error:
        raise ServiceUnreadable(f"settings {settings_id}: {problems_of(error)}") from None
    expires_at = wire.delivery.expires_at if wire.delivery else None
    try:
        instant = parse_instant(expires_at) if expires_at is not None else None
    except ValueError:
        reason = "delivery.expiresAt isn't an ISO 8601 instant"
        raise ServiceUnreadable(f"settings {settings_id}: {reason}") from None
    content = {_printable(tag): _language(tag, language) for tag, language in wire.content.items()}
    settings = Settings(settings_id, instant, content, wire.reference)
    if settings.unreadable and not any(any(language.blocks.values()) for language in content.values()):
        raise ServiceUnreadable(f"settings {settings_id}: {'; '.join(first_of(settings.unreadable))}")
    return settings


def settings_too_large(settings_id: int) -> ServiceUnreadable:
    """Return the error for settings of more than `LARGEST_SETTINGS` bytes."""
    return ServiceUnreadable(f"settings {settings_id}: larger than {LARGEST_SETTINGS} bytes")


def problems_of(error: ValidationError, where: tuple[str, ...] = ()) -> str:
    """Return where a body doesn't match its model, as a sentence without its values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(_sentence((*where, *problem["loc"]), problem) for problem in found[:5])


def _language(tag: str, raw: object) -> LanguageContent:
    if not isinstance(raw, dict) or tag != _printable(tag):
        what = "holds half a surrogate pair" if isinstance(raw, dict) else "expected an object"
        reason = _at(("content", tag), what)
        return LanguageContent(unreadable=dict.fromkeys(("greetings", *BLOCKS), reason))
    unreadable: dict[str, str] = {}
    greetings = _greetings(tag, raw.get("greetings"), unreadable)
    blocks: dict[str, dict[str, str]] = {}
    for name, model in _BLOCKS.items():
        if raw.get(name) is not None:
            try:
                blocks[name] = dict(_fields(model.model_validate(raw[name]).model_dump(exclude_none=True)))
            except ValidationError as error:
                unreadable[name] = problems_of(error, ("content", tag, name))
    return LanguageContent(greetings.general, greetings.personal, blocks, unreadable)


def _greetings(tag: str, raw: object, unreadable: dict[str, str]) -> GreetingsBody:
    """Return the readable greetings: each one serves different customers."""
    try:
        return GreetingsBody() if raw is None else GreetingsBody.model_validate(raw)
    except ValidationError as error:
        unreadable["greetings"] = problems_of(error, ("content", tag, "greetings"))
        wrong = {name for problem in error.errors() for name in problem["loc"][:1]}
        rest = (
            {name: text for name, text in raw.items() if name not in wrong} if isinstance(raw, dict) else {}
        )
        return GreetingsBody.model_validate(rest)


def _fields(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
