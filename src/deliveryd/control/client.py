"""The client side of control: requests to this machine's worker on a journal, or orders executed without one.

A journal in a file is opened in place of the worker. In a shared one the command works beside the others: it
becomes a worker of its own for a moment, whose events others report.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio

from deliveryd.control.protocol import (
    CREDENTIALS,
    LONGEST_REPLY,
    MOST_KEYS,
    ControlReply,
    Request,
    as_control_reply,
    claim_of,
    read_reply,
    socket_address,
    socket_at,
    write_request,
)
from deliveryd.errors import JournalError, JournalLocked
from deliveryd.journal.opening import JournalTerms, open_journal, open_reader
from deliveryd.journal.orders import PAUSING, Action, ItemKind, Order
from deliveryd.journal.place import JournalFile, JournalPlace
from deliveryd.journal.sqlite.opening import JournalAbsent
from deliveryd.model import WallClock
from deliveryd.runtime.rights import NotOwn, at_this_machine, check_own_socket, user_name

ANSWER_TIMEOUT = 30.0
WORKER_TIMEOUT = 10.0
"""Seconds to wait for a worker that is starting or stopping: it has the journal and takes no orders."""

CONNECT_PAUSE = 0.1

LOGIN = Path("/proc/self/loginuid")
NOBODY_LOGGED_IN = 2**32 - 1

_BEFORE_THE_FIRST_START = frozenset({Action.PAUSE, Action.STOP})
"""Orders about what is still to come: they create a journal that isn't there yet."""

_NEXT_START = "no worker is running; this counts from the next start"


class ControlClient(NamedTuple):
    """A journal, and the parts of the configuration that orders need; `socket` is `control.socket`.

    `note` gets what an operator should read of an order that was carried out without a worker.
    """

    journal: JournalPlace
    socket: Path
    terms: JournalTerms
    providers: Sequence[str]
    note: Callable[[str], None] = lambda _text: None


class NoWorker(JournalError):
    """No worker is listening at the socket."""


class NoAnswer(JournalError):
    """The request was sent, and no answer came: the worker may have done what it asks for, or do it yet."""


def ask(place: Path, request: Request, timeout: float = ANSWER_TIMEOUT) -> Mapping[str, object]:
    """Send a request to the worker at this socket; return its answer.

    Raises NoWorker, NoAnswer, JournalError if it failed, ConfigError if it was refused for a configuration's
    problems.
    """
    with _connected(place, timeout) as connection:
        try:
            connection.sendall(write_request(request))
            with connection.makefile("rb") as answers:
                return read_reply(answers.readline(LONGEST_REPLY))
        except (OSError, ValueError) as error:
            raise NoAnswer("no answer from the worker") from error


def stream(place: Path, request: Request) -> Iterator[Mapping[str, object]]:
    """Send a request to the worker at this socket; yield its answers until it ends.

    Raises NoWorker, JournalError.
    """
    with _connected(place, ANSWER_TIMEOUT) as connection:
        try:
            connection.sendall(write_request(request))
            connection.settimeout(None)
            with connection.makefile("rb") as answers:
                while line := answers.readline(LONGEST_REPLY):
                    yield read_reply(line)
        except (OSError, ValueError) as error:
            raise JournalError("the connection to the worker broke") from error


def listener_at(place: Path) -> int | None:
    """Return the process of the worker at this socket; None: none listens there, or it isn't visible."""
    try:
        with _connected(place, ANSWER_TIMEOUT) as connection:
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    except JournalError:
        return None
    process, _, _ = CREDENTIALS.unpack(raw)
    return int(process) or None


@contextmanager
def _connected(place: Path, timeout: float) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            check_own_socket(place)
            with socket_address(place) as address:
                connection.connect(address)
        except NotOwn as error:
            raise JournalError(f"can't send the order: {error.strerror}") from None
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoWorker(f"no worker is running: nothing listens at {place}") from None
        except PermissionError:
            raise JournalError(
                f"{place} belongs to another user: run this as the user that deliveryd runs as"
            ) from None
        except OSError as error:
            raise JournalError(f"can't connect to {place}: {error.strerror or error}") from None
        yield connection


def order(
    client: ControlClient,
    verb: Action,
    kind: ItemKind,
    keys: Sequence[str],
    reason: str | None = None,
    *,
    lasts: float | None = None,
) -> ControlReply:
    """Apply an action to everything that these keys name, in portions; a pause lasts this many seconds.

    Raises JournalError; portions completed before it stay done, and are skipped when repeated.
    """
    done: list[str] = []
    skipped: dict[str, str] = {}
    for begin in range(0, len(keys), MOST_KEYS):
        portion = Order(
            verb, kind, tuple(keys[begin : begin + MOST_KEYS]), None, caller(), reason, lasts
        )  # fmt: skip
        answer = _order(client, portion)
        done += answer.done
        skipped |= answer.skipped
    return ControlReply(tuple(done), skipped)


def _order(client: ControlClient, portion: Order) -> ControlReply:
    deadline = time.monotonic() + WORKER_TIMEOUT
    place = socket_at(client.journal, client.socket)
    while True:
        try:
            return as_control_reply(ask(place, portion))
        except NoWorker:
            pass
        except ValueError:
            raise JournalError("the worker's answer can't be read") from None
        except NoAnswer as error:
            text = f"{error}; repeat the command: what is already done will be skipped"
            raise JournalError(text) from error
        try:
            return anyio.run(_carry_out, client, portion)
        except JournalLocked as error:
            if not isinstance(client.journal, JournalFile):
                raise
            if time.monotonic() > deadline:
                raise JournalError(f"a worker has the journal, but takes no orders at {place}") from error
        time.sleep(CONNECT_PAUSE)


async def _carry_out(client: ControlClient, portion: Order) -> ControlReply:
    from deliveryd.delivery.passed_time import at_next_start  # noqa: PLC0415  # not where commands only read

    is_new = _is_absent(client.journal, portion.verb)
    async with open_journal(client.journal, client.terms) as journal:
        me = user_name(os.geteuid())
        order = portion._replace(user=at_this_machine(me) if journal.is_shared else me)
        clock = journal.common_clock or WallClock()
        at = await at_next_start(journal, clock) if order.verb is Action.PAUSE else clock.now()
        decided = await journal.decide(order, at, client.providers)
    if is_new:
        client.note(f"there was no journal at {client.journal.name}: it was created")
    if order.verb in PAUSING and not journal.is_shared:  # of a shared one other machines may have workers
        client.note(_NEXT_START)
    return ControlReply(decided.done, decided.skipped)


def _is_absent(place: JournalPlace, verb: Action) -> bool:
    """Return whether an order creates the journal. Raises JournalAbsent if it needs one, JournalError."""
    try:
        open_reader(place).known((), ())
    except JournalAbsent:
        if verb not in _BEFORE_THE_FIRST_START:
            raise
        return True
    return False


def caller() -> str | None:
    """Return the user who called the command, if it runs as another one: by sudo or by the login."""
    name = claim_of(os.environ.get("SUDO_USER") or _logged_in())
    return None if name == user_name(os.geteuid()) else name


def _logged_in() -> str | None:
    try:
        number = int(LOGIN.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if number == NOBODY_LOGGED_IN else user_name(number)
