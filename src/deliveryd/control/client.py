"""The client side of orders: sent to the worker that has the journal, or executed directly without one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import anyio

from deliveryd.control.protocol import (
    LONGEST_LINE,
    MOST_KEYS,
    ControlReply,
    Failed,
    claim_of,
    read_reply,
    socket_address,
    socket_of,
    write_order,
)
from deliveryd.errors import JournalError, JournalLocked
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.sqlite import open_journal
from deliveryd.model import WallClock
from deliveryd.runtime.own_files import NotOwn, check_own_socket
from deliveryd.runtime.rights import user_name

ANSWER_TIMEOUT = 30.0
WORKER_TIMEOUT = 10.0
"""Seconds to wait for a worker that is starting or stopping: it has the journal and takes no orders."""

CONNECT_PAUSE = 0.1

LOGIN = Path("/proc/self/loginuid")
NOBODY_LOGGED_IN = 2**32 - 1


class ControlClient(NamedTuple):
    """A journal, and the parts of the configuration that orders need."""

    journal: Path
    details_field: str
    providers: Sequence[str]
    keep_variables: bool = False


class _NobodyThere(Exception):
    """No worker is listening for orders."""


def order(
    client: ControlClient, verb: Action, kind: ItemKind, keys: Sequence[str], reason: str | None = None
) -> ControlReply:
    """Apply an action to everything that these keys name, in portions.

    Raises JournalError; portions completed before it stay done, and are skipped when repeated.
    """
    done: list[str] = []
    skipped: dict[str, str] = {}
    for begin in range(0, len(keys), MOST_KEYS):
        portion = Order(verb, kind, tuple(keys[begin : begin + MOST_KEYS]), caller=_caller(), reason=reason)
        answer = _order(client, portion)
        done += answer.done
        skipped |= answer.skipped
    return ControlReply(tuple(done), skipped)


def _order(client: ControlClient, portion: Order) -> ControlReply:
    deadline = time.monotonic() + WORKER_TIMEOUT
    while True:
        try:
            return _ask_worker(client.journal, portion)
        except _NobodyThere:
            pass
        try:
            return anyio.run(_carry_out, client, portion)
        except JournalLocked as error:
            if time.monotonic() > deadline:
                place = socket_of(client.journal)
                raise JournalError(f"a worker has the journal, but takes no orders at {place}") from error
        time.sleep(CONNECT_PAUSE)


def _ask_worker(journal: Path, portion: Order) -> ControlReply:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_TIMEOUT)
        try:
            check_own_socket(socket_of(journal))
            with socket_address(socket_of(journal)) as address:
                connection.connect(address)
        except NotOwn as error:
            raise JournalError(f"can't send the order: {error.strerror}") from None
        except (FileNotFoundError, ConnectionRefusedError):
            raise _NobodyThere from None
        except PermissionError:
            raise JournalError(
                f"{socket_of(journal)} belongs to another user: run this as the user that deliveryd runs as"
            ) from None
        try:
            connection.sendall(write_order(portion))
            with connection.makefile("rb") as answers:
                answer = read_reply(answers.readline(LONGEST_LINE))
        except (OSError, ValueError) as error:
            raise JournalError(
                "no answer from the worker; repeat the command: what is already done will be skipped"
            ) from error
    if isinstance(answer, Failed):
        raise JournalError(f"the worker refused: {answer.reason}")
    return answer


async def _carry_out(client: ControlClient, portion: Order) -> ControlReply:
    async with open_journal(
        client.journal, details_field=client.details_field, keep_variables=client.keep_variables
    ) as journal:
        order = portion._replace(user=user_name(os.geteuid()))
        decided = await journal.decide(order, WallClock().now(), client.providers)
    return ControlReply(decided.done, decided.skipped)


def _caller() -> str | None:
    """Return the user who called the command, if it runs as another one: by sudo or by the login."""
    caller = claim_of(os.environ.get("SUDO_USER") or _logged_in())
    return None if caller == user_name(os.geteuid()) else caller


def _logged_in() -> str | None:
    try:
        number = int(LOGIN.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if number == NOBODY_LOGGED_IN else user_name(number)
