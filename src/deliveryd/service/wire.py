"""The service's bodies as pydantic models (interface 2 and 6), and their translation into our own values.

Fields that the interface doesn't name are let be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from deliveryd.errors import ServiceUnreadable
from deliveryd.model import BLOCKS, LanguageContent, Malformed, QueuedMessage, Settings, parse_instant
from deliveryd.service import number_text
from deliveryd.service.number_text import NumberText, TooDeep

GROUPS = ("merchants", "offers", "privileges", "rewards", "regions", "benefits")
"""The groups of a customer's data (interface 2.4)."""

_INTEGER = re.compile(r"-?\d{1,19}")
_INT64 = range(-(2**63), 2**63)


def _integer(value: object) -> int:
    if not isinstance(value, NumberText) or not _INTEGER.fullmatch(value) or int(value) not in _INT64:
        raise ValueError("expected an integer of 64 bits")
    return int(value)


def _variable(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a text or a number")  # noqa: TRY004 - pydantic collects ValueErrors
    return _whole(value)


def _text(value: object) -> object:
    if isinstance(value, NumberText):
        raise ValueError("expected a text")  # noqa: TRY004 - pydantic collects ValueErrors
    return _whole(value) if isinstance(value, str) else value


def _whole(text: str) -> str:
    """The text. Half a surrogate pair, which JSON can escape, can be neither stored nor sent."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("holds half a surrogate pair") from None
    return text


Integer = Annotated[int, BeforeValidator(_integer)]
Variable = Annotated[str, BeforeValidator(_variable)]
Text = Annotated[str, BeforeValidator(_text)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class QueuedMessageBody(_Wire):
    """An element of the queue's answer (interface 2.1)."""

    id: Integer
    settings_id: Integer = Field(alias="settingsId")
    customer_id: Integer = Field(alias="customerId")
    variables: dict[Text, Variable]


class ButtonBody(_Wire):
    """A button of a messenger or inApp block."""

    text: Text
    url: Text


class NotificationBody(_Wire):
    """The notification of an inApp block."""

    title: Text
    body: Text


class GreetingsBody(_Wire):
    """The greetings of a language."""

    general: Text | None = None
    personal: Text | None = None


class MessengerBody(_Wire):
    """What a messenger message is made from."""

    text: Text | None = None
    image: Text | None = None
    button: ButtonBody | None = None


class SmsBody(_Wire):
    """What a text message is made from."""

    text: Text


class InAppBody(_Wire):
    """What an in-app message is made from."""

    name: Text | None = None
    description: Text | None = None
    image: Text | None = None
    button: ButtonBody | None = None
    notification: NotificationBody | None = None


class EmailBody(_Wire):
    """What an e-mail is made from."""

    subject: Text
    body: Text


class LanguageBody(_Wire):
    """One language of the settings (interface 2.2)."""

    greetings: GreetingsBody | None = None
    messenger: MessengerBody | None = None
    sms: SmsBody | None = None
    inApp: InAppBody | None = None  # noqa: N815 - the interface's own name, which is a channel's name too
    email: EmailBody | None = None


class DeliveryBody(_Wire):
    """The constraints of a delivery."""

    expires_at: Text | None = Field(default=None, alias="expiresAt")


class SettingsBody(_Wire):
    """The settings (interface 2.2)."""

    reference: Text | None = None
    delivery: DeliveryBody | None = None
    content: dict[Text, LanguageBody]


class EntityBody(BaseModel):
    """An entity of a customer; whatever else it carries is kept (interface 2.4)."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: StrictInt
    config_url: str = Field(alias="configUrl")


class GroupBody(_Wire):
    """One page of a group of entities."""

    list: list[EntityBody]
    continuation_token: str | None = Field(default=None, alias="continuationToken")


def _known_groups(value: object) -> object:
    return {name: value[name] for name in GROUPS if name in value} if isinstance(value, dict) else value


class CustomerDataBody(_Wire):
    """A customer's groups by their names (interface 2.4)."""

    value: Annotated[dict[str, GroupBody], BeforeValidator(_known_groups)]


class Batch(NamedTuple):
    """An answer of the queue: its messages, and the elements that are none."""

    messages: list[QueuedMessage]
    malformed: list[Malformed]

    @property
    def size(self) -> int:
        """How many elements the queue gave."""
        return len(self.messages) + len(self.malformed)


_queue = TypeAdapter(list[QueuedMessageBody])


def read_queue(body: bytes) -> Batch:
    """Read an answer of the queue; what isn't a message is set apart, the rest goes on (design 5).

    Raises ServiceUnreadable when the answer as a whole isn't a JSON array.
    """
    text = _decoded(body)
    parsed = _parsed_array(text)
    try:
        return Batch(_messages(_queue.validate_python(parsed)), [])
    except ValidationError as error:
        wrong = dict(_by_element(error))
    raw = number_text.elements(text)
    good = [element for index, element in enumerate(parsed) if index not in wrong]
    malformed = [Malformed(raw[index], reason, _id_of(parsed[index])) for index, reason in wrong.items()]
    return Batch(_messages(_queue.validate_python(good)), malformed)


def _parsed_array(text: str) -> list[Any]:
    """The array's elements. One that is nested too deeply to be read becomes None, and spoils no other."""
    try:
        parsed = number_text.loads(text)
    except TooDeep:
        parsed = _parsed_one_by_one(text)
    except ValueError as error:
        raise _not_json(error) from None
    if not isinstance(parsed, list):
        raise ServiceUnreadable("the queue's answer isn't a JSON array")
    return parsed


def _parsed_one_by_one(text: str) -> list[Any] | None:
    if not text.lstrip(" \t\r\n").startswith("["):
        return None
    try:
        return [_parsed_or_none(raw) for raw in number_text.elements(text)]
    except ValueError as error:
        raise _not_json(error) from None


def _parsed_or_none(raw: str) -> Any:
    try:
        return number_text.loads(raw)
    except TooDeep:
        return None


def _messages(bodies: list[QueuedMessageBody]) -> list[QueuedMessage]:
    return [QueuedMessage(body.id, body.settings_id, body.customer_id, body.variables) for body in bodies]


def _by_element(error: ValidationError) -> Iterator[tuple[int, str]]:
    problems: dict[int, list[str]] = {}
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        index, *path = problem["loc"]
        problems.setdefault(int(index), []).append(_sentence(path, problem))
    for index, sentences in sorted(problems.items()):
        yield index, "; ".join(list(dict.fromkeys(sentences))[:5])


_EXPECTED = {
    "missing": "is missing",
    "model_type": "expected an object",
    "dict_type": "expected an object",
    "list_type": "expected an array",
    "string_type": "expected a text",
    "string_unicode": "holds half a surrogate pair",
}


def _sentence(path: list[int | str] | tuple[int | str, ...], problem: ErrorDetails) -> str:
    """Where, and what was expected there. Names of variables stay out of it: they may say what is private."""
    public = path[: path.index("variables") + 1] if "variables" in path else path
    where = ".".join(str(part)[:60] for part in public)
    what = _EXPECTED.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    text = f"{where}: {what}" if where else what
    return text.encode("utf-8", "backslashreplace").decode()


def _id_of(element: object) -> int | None:
    try:
        return _integer(element.get("id")) if isinstance(element, dict) else None
    except ValueError:
        return None


def read_settings(settings_id: int, body: bytes) -> Settings:
    """Read settings. Raises ServiceUnreadable, naming the path of everything that is missing or wrong."""
    try:
        wire = SettingsBody.model_validate(_parsed(_decoded(body)))
    except ValidationError as error:
        raise ServiceUnreadable(f"settings {settings_id}: {_problems(error)}") from None
    expires_at = wire.delivery.expires_at if wire.delivery else None
    try:
        instant = parse_instant(expires_at) if expires_at is not None else None
    except ValueError:
        reason = "delivery.expiresAt is no ISO 8601 instant"
        raise ServiceUnreadable(f"settings {settings_id}: {reason}") from None
    content = {language: _language(block) for language, block in wire.content.items()}
    return Settings(settings_id, instant, content, wire.reference)


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(_sentence(problem["loc"], problem) for problem in found[:5])


def _language(body: LanguageBody) -> LanguageContent:
    greetings = body.greetings or GreetingsBody()
    present = {name: block for name in BLOCKS if (block := getattr(body, name)) is not None}
    blocks = {name: dict(_fields(block.model_dump(exclude_none=True))) for name, block in present.items()}
    return LanguageContent(greetings.general, greetings.personal, blocks)


def _fields(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read_customer_data(body: bytes) -> CustomerDataBody:
    """Read a page of customer data. Raises ServiceUnreadable."""
    try:
        return CustomerDataBody.model_validate_json(body)
    except ValidationError as error:
        raise ServiceUnreadable(f"customer data: {_problems(error)}") from None


def _decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ServiceUnreadable("the answer isn't UTF-8") from None


def _parsed(text: str) -> Any:
    try:
        return number_text.loads(text)
    except ValueError as error:
        raise _not_json(error) from None


def _not_json(error: ValueError) -> ServiceUnreadable:
    place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
    return ServiceUnreadable(f"the answer isn't JSON{place}")
