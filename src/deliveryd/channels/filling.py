"""Fills mappings: values of a message go as data into a parsed structure (design 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from deliveryd.channels.base import Dispatch
from deliveryd.channels.mapping import (
    COMPUTED_FIELDS,
    FILTERS,
    PHONE,
    FilterStep,
    Name,
    Unfit,
    kind_after,
    names_in,
    placeholder_kind,
    split,
)
from deliveryd.channels.sms_text import SmsParts, sms_parts
from deliveryd.model import SECOND, SETTINGS_REFERENCE, Customer, format_instant

if TYPE_CHECKING:
    from deliveryd.channels.mail.writer import MailWriter
    from deliveryd.channels.phone_numbers import PhoneReader


NOT_UNICODE = "a value isn't valid Unicode text"


class Absent(Enum):
    """The type of `ABSENT`: a placeholder without a value, which leaves its field out."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT

Value = str | int | Absent
Getter = Callable[[Dispatch], Value]
Encode = Callable[[str], str]


class Validity(NamedTuple):
    """The seconds of validity that a provider accepts. None: no bound.

    `is_repeated`: the provider heeds the key of a repeat, whose bounds are therefore those of the first try.
    """

    least: int | None = None
    most: int | None = None
    is_repeated: bool = False

    def seconds(self, dispatch: Dispatch) -> Value:
        """Return the whole seconds that are left, within the bounds; ABSENT without an expiry."""
        if dispatch.expires_at is None:
            return ABSENT
        left = max((dispatch.expires_at - dispatch.clock.now()) // SECOND, self.least or 1)
        return left if self.most is None else min(left, self.most)

    def expiry(self, dispatch: Dispatch) -> Value:
        """Return the instant of expiry, within the bounds; ABSENT without an expiry."""
        expires_at = dispatch.expires_at
        if expires_at is None:
            return ABSENT
        since = dispatch.entry.begun_at if self.is_repeated else dispatch.clock.now()
        if self.least is not None:
            expires_at = max(expires_at, since + self.least * SECOND)
        return expires_at if self.most is None else min(expires_at, since + self.most * SECOND)


class MappingContext(NamedTuple):
    """What the placeholders of a provider's mappings depend on besides the message.

    `secrets` are sent; `older_secrets` sign beside them while they rotate. `phones` is needed for the filter
    `e164`, `mails` for `{message.mime}`. `mask` stands in place of every secret.
    """

    secrets: Mapping[str, str] = {}
    older_secrets: Mapping[str, tuple[str, ...]] = {}
    mask: str | None = None
    receipt_url: str | None = None
    phones: PhoneReader | None = None
    validity: Validity = Validity()
    mails: MailWriter | None = None

    def constant(self, name: Name) -> str | None:
        """Return the value of a placeholder that is the same for all messages, else None."""
        if name.root == "secret":
            if self.mask is not None:
                return self.mask
            return str(_through(_steps(name, self.phones), self.secrets[name.field]))
        if name.root == "receipt":
            if self.receipt_url is None:
                raise ValueError("{receipt.url} needs receipts.public_url")
            return str(_through(_steps(name, self.phones), self.receipt_url))
        return None


class TextTemplate:
    """A compiled string with placeholders: secrets and `{receipt.url}` are built in, others come per message.

    `literal` encodes text of the configuration, `value` encodes values, `constant` those that are built in
    (None: like the others); `prefix` is prepended unencoded.
    """

    __slots__ = ("_pieces", "_value", "constant")

    def __init__(
        self,
        text: str,
        context: MappingContext,
        *,
        literal: Encode = str,
        value: Encode = str,
        constant: Encode | None = None,
        prefix: str = "",
    ) -> None:
        self._value = value
        self._pieces: list[str | Getter] = [prefix]
        for piece in split(text):
            if isinstance(piece, str):
                self._add_literal(literal(piece))
            elif (built_in := context.constant(piece)) is not None:
                self._add_literal((constant or value)(built_in))
            else:
                self._pieces.append(getter(piece, context))
        self.constant = "".join(map(str, self._pieces)) if len(self._pieces) == 1 else None

    def _add_literal(self, text: str) -> None:
        if self._pieces and isinstance(self._pieces[-1], str):
            self._pieces[-1] += text
        else:
            self._pieces.append(text)

    def fill(self, dispatch: Dispatch) -> str | Absent:
        """Return the string for one message, or ABSENT if a placeholder has no value. Raises Unfit."""
        if self.constant is not None:
            return self.constant
        filled: list[str] = []
        for piece in self._pieces:
            if isinstance(piece, str):
                filled.append(piece)
                continue
            found = piece(dispatch)
            if found is ABSENT:
                return ABSENT
            try:
                filled.append(self._value(str(found)))
            except UnicodeEncodeError:
                raise Unfit(NOT_UNICODE) from None
        return "".join(filled)


def _provider_id(dispatch: Dispatch) -> Value:
    if dispatch.provider_id is None:
        raise Unfit("the provider gave no id by which it can be asked")
    return dispatch.provider_id


_MESSAGE: Mapping[str, Getter] = {
    "id": lambda dispatch: dispatch.entry.id,
    "settingsId": lambda dispatch: dispatch.entry.settings_id,
    "customerId": lambda dispatch: dispatch.entry.customer_id,
    "key": lambda dispatch: dispatch.key,
    "providerId": _provider_id,
}
_COMPUTED: Mapping[str, Callable[[SmsParts], Value]] = {
    "coding": lambda sms: "gsm7" if sms.encoding == "GSM-7" else "ucs2",
    "parts": lambda sms: sms.parts,
}


def getter(name: Name, context: MappingContext) -> Getter:
    """Return a function that reads a placeholder's value.

    It raises Unfit for a customer's field without a value, for a phone number that can't be read, and for a
    mail that can't be composed.
    """
    read = _reader(name, context)
    steps = _steps(name, context.phones)
    if not steps:
        return read

    def filtered(dispatch: Dispatch) -> Value:
        value = read(dispatch)
        return value if value is ABSENT else _through(steps, value)

    return filtered


def _reader(name: Name, context: MappingContext) -> Getter:
    """Return a function that reads a placeholder's value as it is before its filters."""
    root, field, _ = name
    match root:
        case "content" if field in COMPUTED_FIELDS:
            return lambda dispatch: _computed(dispatch, _COMPUTED[field])
        case "content":
            return lambda dispatch: dispatch.rendered.fields.get(field, ABSENT)
        case "settings":
            return lambda dispatch: dispatch.rendered.fields.get(SETTINGS_REFERENCE, ABSENT)
        case "customer":
            return lambda dispatch: _customer_value(dispatch.customer, field)
        case "variables":
            return lambda dispatch: dispatch.entry.variables.get(field, ABSENT)
    match field:
        case "validity":
            return context.validity.seconds
        case "expiresAt":
            return context.validity.expiry
        case "mime":
            return partial(_mime, context.mails)
    return _MESSAGE[field]


def _mime(mails: MailWriter | None, dispatch: Dispatch) -> str:
    if mails is None:
        raise Unfit("no mail can be composed here")
    try:
        return mails.compose(dispatch).content().decode()
    except ValueError as error:
        raise Unfit(str(error)) from None


def _computed(dispatch: Dispatch, of: Callable[[SmsParts], Value]) -> Value:
    text = dispatch.rendered.fields.get("text")
    return ABSENT if text is None else of(sms_parts(text))


def _steps(name: Name, phones: PhoneReader | None) -> list[FilterStep]:
    """Return the functions that a value goes through; an instant that isn't filtered is written as text."""
    kind = placeholder_kind(name)
    if kind == "instant" and not name.filters:
        return [_written_instant]
    steps: list[FilterStep] = []
    for filter_ in name.filters:
        if filter_ == PHONE:
            if phones is None:
                raise ValueError(f"{name.written} needs a reader of phone numbers")
            steps.append(phones.e164)
        else:
            steps.append(FILTERS[filter_][kind].step)
        kind = kind_after(kind, filter_) or kind
    return steps


def _through(steps: list[FilterStep], value: str | int) -> str | int:
    try:
        for step in steps:
            value = step(value)
    except UnicodeEncodeError:
        raise Unfit(NOT_UNICODE) from None
    return value


def _written_instant(instant: str | int) -> str:
    return format_instant(int(instant))


def plain_field(text: str) -> str | None:
    """Return the field of the customer that one placeholder stands for without a filter, if it does."""
    [name] = (piece for piece in split(text) if isinstance(piece, Name))
    return None if name.filters or name.field == "id" else name.field


def customer_reader(text: str, context: MappingContext) -> Callable[[Customer], str]:
    """Return a function that reads the value of one placeholder of a customer. It raises Unfit."""
    [name] = (piece for piece in split(text) if isinstance(piece, Name))
    field, steps = name.field, _steps(name, context.phones)

    def read(customer: Customer) -> str:
        value: str | int = customer.fields.get(field) or ""
        if not value or field == "id":
            value = _customer_value(customer, field)
        try:
            for step in steps:
                value = step(value)
        except UnicodeEncodeError:
            raise Unfit(NOT_UNICODE) from None
        return str(value)

    return read


def _customer_value(customer: Customer | None, field: str) -> str | int:
    if customer is not None:
        if field == "id":
            return customer.id
        value = customer.fields.get(field)
        if value:
            return value
    raise Unfit("the customer has no address on this channel")


def compile_tree(value: object, context: MappingContext) -> Callable[[Dispatch], object]:
    """Compile a parsed value into a function that fills it; a string of one placeholder keeps the type.

    A string with a placeholder without a value is ABSENT. An object or a list leaves absent members out, and
    is ABSENT itself when that leaves none.
    """
    if isinstance(value, str):
        return _compile_string(value, context)
    if not any(True for _ in names_in(value)):
        return lambda _: value
    if isinstance(value, Mapping):
        members = [(str(key), compile_tree(member, context)) for key, member in value.items()]
        return lambda dispatch: _fill_object(members, dispatch)
    items = [compile_tree(member, context) for member in value] if isinstance(value, list | tuple) else []
    return lambda dispatch: [got for fill in items if (got := fill(dispatch)) is not ABSENT] or ABSENT


def _fill_object(members: list[tuple[str, Callable[[Dispatch], object]]], dispatch: Dispatch) -> object:
    filled = {}
    for key, fill in members:
        value = fill(dispatch)
        if value is not ABSENT:
            filled[key] = value
    return filled or ABSENT


def is_constant(name: Name) -> bool:
    """Whether a placeholder's value is the same for all messages."""
    return name.root in ("secret", "receipt")


def _compile_string(text: str, context: MappingContext) -> Callable[[Dispatch], object]:
    match list(split(text)):
        case [Name() as name] if not is_constant(name):
            return getter(name, context)
    template = TextTemplate(text, context)
    return template.fill if (constant := template.constant) is None else lambda _: constant
