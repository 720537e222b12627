"""The control protocol: over a socket of the machine, one line of JSON each way.

The answer to a request is one line, or for `tail` one line for each event until the client disconnects.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from deliveryd.errors import ConfigError, DeliverydError, JournalError
from deliveryd.journal.orders import LONGEST_ORDERED_PAUSE, Action, ItemKind, Order
from deliveryd.journal.place import JournalFile, JournalPlace

LONGEST_LINE = 256 * 1024
LONGEST_REPLY = 4 << 20
MOST_KEYS = 500
"""Most keys in one order, so that lines and transactions stay small."""

ANSWER_WITHIN = 5.0
"""Seconds that a worker has to report its state."""

LONGEST_NAME = 64
LONGEST_REASON = 500
CREDENTIALS = struct.Struct("3i")
"""What the system reports about the peer at a socket: its process, user and group."""

_LONGEST_PATH = 100  # of a socket's address, which the system limits to 107 bytes


class ReloadRequest(NamedTuple):
    """Read the configuration again and apply it; `accept_orphans` allows the removal of busy providers.

    `accept_customers` has the customer file used though more than half of its customers are gone.
    """

    accept_orphans: bool = False
    caller: str | None = None
    accept_customers: bool = False


class ForgetSettingsRequest(NamedTuple):
    """Remove these settings from memory, so that they are read again; None: all."""

    settings: int | None = None


class StatusRequest(NamedTuple):
    """Describe the worker."""


class TailRequest(NamedTuple):
    """Stream what happens to messages: of one channel, of one message, or failures only."""

    channel: str | None = None
    message: int | None = None
    failed: bool = False


Request = Order | ReloadRequest | ForgetSettingsRequest | StatusRequest | TailRequest


Portion = list[Mapping[str, Any]]
"""Some events of a tail, in the order in which they happened; the first portion is empty."""


class ControlReply(NamedTuple):
    """The reply to an order: the keys that it was done for, and why the others were skipped."""

    done: tuple[str, ...]
    skipped: Mapping[str, str]


def socket_at(place: JournalPlace, configured: Path) -> Path:
    """Return the socket at which this machine's worker on a journal takes requests.

    It is beside a journal's file; for a database it is where the configuration puts it (`control.socket`).
    """
    return socket_of(place.path) if isinstance(place, JournalFile) else configured


def socket_of(journal: Path) -> Path:
    """Return the socket at which the worker on the journal in this file takes requests."""
    return journal.with_name(journal.name + ".sock")


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Provide an address of the socket that fits the system's limit, however deep its folder is."""
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


# requests


def write_request(request: Request) -> bytes:
    """Encode a request. The server determines its user."""
    fields = request._asdict()
    fields.pop("user", None)
    return _line({"request": _NAMES[type(request)], **fields})


def read_request(line: bytes) -> Request:
    """Decode a request. Raises ValueError."""
    match _object(line):
        case {"request": str(name), **fields} if name in _READERS:
            return _READERS[name](fields)
    raise ValueError("not a request")


def _order(fields: _Fields) -> Order:
    match fields:
        case {"verb": str(verb), "kind": str(kind), "keys": list(keys), **rest} if len(keys) <= MOST_KEYS:
            if all(isinstance(key, str) for key in keys):
                caller, reason = claim_of(rest.get("caller")), check_reason(rest.get("reason"))
                lasts = _length(rest.get("lasts"))
                return Order(Action(verb), ItemKind(kind), tuple(keys), None, caller, reason, lasts)
    raise ValueError("not an order")


def _length(seconds: object) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, int | float) and 0 < seconds <= LONGEST_ORDERED_PAUSE:
        return float(seconds)
    raise ValueError("not a length of time")


def _reload(fields: _Fields) -> ReloadRequest:
    match fields:
        case {"accept_orphans": bool(accept_orphans), **rest}:
            accept_customers = rest.get("accept_customers") is True
            return ReloadRequest(accept_orphans, claim_of(rest.get("caller")), accept_customers)
    raise ValueError("not a request to reload")


def _forget_settings(fields: _Fields) -> ForgetSettingsRequest:
    settings = fields.get("settings", "")
    if not (settings is None or type(settings) is int):
        raise ValueError("not an id of settings")
    return ForgetSettingsRequest(settings)


def _tail(fields: _Fields) -> TailRequest:
    channel, message, failed = fields.get("channel"), fields.get("message"), fields.get("failed")
    if not (channel is None or isinstance(channel, str)):
        raise ValueError("not a channel")
    if not (message is None or type(message) is int):
        raise ValueError("not a message")
    return TailRequest(channel, message, failed is True)


_Fields = Mapping[object, object]
_NAMES: Mapping[type[Request], str] = {
    Order: "order",
    ReloadRequest: "reload",
    ForgetSettingsRequest: "forget settings",
    StatusRequest: "status",
    TailRequest: "tail",
}
_READERS: Mapping[str, Callable[[_Fields], Request]] = {
    "order": _order,
    "reload": _reload,
    "forget settings": _forget_settings,
    "status": lambda _fields: StatusRequest(),
    "tail": _tail,
}
"""What reads the fields of each kind of request. Raises ValueError."""


def claim_of(caller: object) -> str | None:
    """Return the user that a command claims to act for, if it can be a user name."""
    if isinstance(caller, str) and caller.isprintable() and 0 < len(caller) <= LONGEST_NAME:
        return caller
    return None


def check_reason(reason: object) -> str | None:
    """Return an operator's reason for an order. Raises ValueError if it can't be kept."""
    if reason is None:
        return None
    if not isinstance(reason, str) or not reason.strip() or not reason.isprintable():
        raise ValueError("the reason must be one line of printable characters")
    if len(reason) > LONGEST_REASON:
        raise ValueError(f"the reason has {len(reason)} characters; at most {LONGEST_REASON} are kept")
    return reason


# replies


def write_reply(answer: Mapping[str, object]) -> bytes:
    """Encode a reply, or one line of a stream."""
    return _line(answer)


def write_refusal(error: DeliverydError) -> bytes:
    """Encode why no part of a request was executed."""
    return _line({"problems": error.problems} if isinstance(error, ConfigError) else {"reason": str(error)})


def read_reply(line: bytes) -> Mapping[str, object]:
    """Decode a reply, or one line of a stream.

    Raises ValueError, JournalError if the request was refused, ConfigError if for a configuration's problems.
    """
    match _object(line):
        case {"reason": str(reason), **rest} if not rest:
            raise JournalError(f"the worker refused: {reason}")
        case {"problems": list(problems), **rest} if not rest:
            raise ConfigError(list(map(str, problems)))
        case dict(answer):
            return answer
    raise ValueError("not a reply")


def as_control_reply(answer: Mapping[str, object]) -> ControlReply:
    """Return the reply to an order. Raises ValueError."""
    match answer:
        case {"done": list(done), "skipped": dict(skipped)}:
            return ControlReply(tuple(map(str, done)), {str(key): str(why) for key, why in skipped.items()})
    raise ValueError("not a reply to an order")


def events_of(line: object) -> Portion:
    """Return the events of a portion as it was sent. Raises DeliverydError."""
    match line:
        case {"events": list(events)} if all(isinstance(event, dict) for event in events):
            return events
    raise DeliverydError("the worker's events can't be read: is it of another version?")


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _object(line: bytes) -> object:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
