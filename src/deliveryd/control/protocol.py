"""The protocol of orders: over a socket beside the journal, one line of JSON each way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from deliveryd.journal.orders import Action, ItemKind, Order

LONGEST_LINE = 256 * 1024
MOST_KEYS = 500
"""Most keys in one order, so that lines and transactions stay small."""

LONGEST_NAME = 64
LONGEST_REASON = 500

_LONGEST_PATH = 100  # of a socket's address, which the system limits to 107 bytes


class ControlReply(NamedTuple):
    """The reply to an order: the keys that it was done for, and why the others were skipped."""

    done: tuple[str, ...]
    skipped: Mapping[str, str]


class Failed(NamedTuple):
    """No part of the order was executed."""

    reason: str


def socket_of(journal: Path) -> Path:
    """Return the socket at which the worker on this journal takes orders."""
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


def write_order(order: Order) -> bytes:
    """Encode an order. The server determines its user."""
    return _line(
        {
            "verb": order.verb,
            "kind": order.kind,
            "keys": order.keys,
            "caller": order.caller,
            "reason": order.reason,
        }
    )


def read_order(line: bytes) -> Order:
    """Decode an order. Raises ValueError."""
    match _object(line):
        case {"verb": str(verb), "kind": str(kind), "keys": list(keys), **rest} if len(keys) <= MOST_KEYS:
            if all(isinstance(key, str) for key in keys):
                caller, reason = claim_of(rest.get("caller")), check_reason(rest.get("reason"))
                return Order(Action(verb), ItemKind(kind), tuple(keys), caller=caller, reason=reason)
    raise ValueError("not an order")


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


def write_reply(answer: ControlReply | Failed) -> bytes:
    """Encode a reply."""
    return _line(answer._asdict())


def read_reply(line: bytes) -> ControlReply | Failed:
    """Decode a reply. Raises ValueError."""
    match _object(line):
        case {"reason": str(reason)}:
            return Failed(reason)
        case {"done": list(done), "skipped": dict(skipped)}:
            return ControlReply(tuple(map(str, done)), {str(key): str(why) for key, why in skipped.items()})
    raise ValueError("not a reply")


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _object(line: bytes) -> object:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
