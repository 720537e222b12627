"""`deliveryd journal`: move it to another kind of place, undo that, and name its service's new address."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import anyio
import typer

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, WhyOption
from deliveryd.commands.common.output import print_errors, print_json, print_lines
from deliveryd.commands.common.tables import ProgressLine
from deliveryd.commands.storage.cache import clear_settings
from deliveryd.config import SQLITE, load_part
from deliveryd.control.client import caller
from deliveryd.errors import DeliverydError, JournalUnreachable, JournalUnusable
from deliveryd.journal.orders import Action, ItemKind, Order
from deliveryd.journal.place import NOT_INSTALLED, JournalDatabase, JournalFile, JournalPlace, both_are
from deliveryd.journal.service_adoption import adopt_service
from deliveryd.journal.sqlite.opening import reopen_file
from deliveryd.runtime.privileges import work_as_owner
from deliveryd.runtime.rights import at_this_machine, user_name

_POSTGRESQL = ("postgresql://", "postgres://")
_OF_DATABASE = ("the journal's database can't be", "journal.password_file", "journal.url ")
"""How errors begin that are about the connection to a database."""

journal = CommandGroup(
    no_args_is_help=True,
    help="Move the journal, or have it follow a service that moved.\n\n"
    "A worker has to be stopped for that; see the documents for how.",
)

From = Annotated[
    str | None,
    typer.Option("--from", metavar="URL", help="Where the journal is; left out: journal.url."),
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="URL", help="Where it shall be; left out: journal.url."),
]
PasswordOfEither = Annotated[
    Path | None,
    typer.Option(
        "--password-file", metavar="FILE",
        help="The password of the database that --from or --to names; that of journal.url is in"
        " journal.password_file.",
    ),
]  # fmt: skip
PasswordOfUrl = Annotated[
    Path | None,
    typer.Option(
        "--password-file", metavar="FILE",
        help="The password of the database that --url names; that of journal.url is in"
        " journal.password_file.",
    ),
]  # fmt: skip
OnceMore = Annotated[
    bool,
    typer.Option("--accept-duplicates", help="What was sent from the other place since may be sent again."),
]


@journal.command()
def move(
    *,
    config: ConfigOption = USUAL_CONFIG,
    from_: From = None,
    to: To = None,
    password_file: PasswordOfEither = None,
    as_data: AsData = False,
) -> None:
    """Move the journal to an empty place of the other kind.

    All that it holds goes along. Keys stay the same, so nothing is sent twice. Afterwards set journal.url to
    the new place. The old one is left as it was, and refuses workers. Delete it, since neither
    journal.retention nor erase reaches what it holds.
    """
    if from_ is None and to is None:
        raise typer.BadParameter("give --to or --from: the other one is journal.url")
    source, target = _place(from_, "--from", password_file), _place(to, "--to", password_file)
    if source is None or target is None:
        configured = load_part(config, ("journal",)).config.journal.place
        source, target = source or configured, target or configured
    if type(source) is type(target):
        raise JournalUnusable(both_are(source))
    _work_as_owner_of(source, target)
    try:
        from deliveryd.journal.moving.move import move_journal  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise DeliverydError(f"a journal's URL {NOT_INSTALLED}") from error
    line = ProgressLine(beside_output=False)
    try:
        moved = move_journal(source, target, time.time_ns() // 1000, line.came_to, _say)
    except (JournalUnreachable, JournalUnusable) as error:
        raise _by_options(error, {"--from": from_, "--to": to}) from None
    finally:
        line.close()
    if as_data:
        figures = {"taken": moved.account.taken, "ended": moved.account.ended, "seconds": moved.seconds}
        print_json({"from": _url(source), "to": _url(target), **figures})
        return
    print_lines(
        f"moved {moved.account.taken:,} messages in {moved.seconds:,.0f} s to {_url(target)}",
        f'set journal.url = "{_url(target)}" before a worker starts;'
        f" {_url(source)} is left as it was, and refuses workers",
        "what it holds of customers stays there: neither journal.retention nor deliveryd erase reaches it;"
        " delete it as soon as the new journal is in use",
    )


@journal.command()
def reopen(
    *,
    config: ConfigOption = USUAL_CONFIG,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Where the old journal is; left out: journal.url."),
    ] = None,
    password_file: PasswordOfUrl = None,
    accept_duplicates: OnceMore = False,
) -> None:
    """Let workers use a journal again that was moved.

    It is as it was then, without what happened at its new place since: never use both. To bring
    that back, move it back instead.
    """
    place = _place(url, "--url", password_file) or load_part(config, ("journal",)).config.journal.place
    if not accept_duplicates:
        raise typer.BadParameter(
            "what was sent from its new place since would be sent again: move it back instead,"
            " or give --accept-duplicates"
        )
    _work_as_owner_of(place)
    try:
        is_reopened = reopen_file(place.path) if isinstance(place, JournalFile) else _reopen_database(place)
    except (JournalUnreachable, JournalUnusable) as error:
        raise _by_options(error, {"--url": url}) from None
    if not is_reopened:
        raise DeliverydError(f"the journal at {_url(place)} wasn't moved: workers can use it")
    print_lines(f"workers can use the journal at {_url(place)} again")


def _reopen_database(place: JournalDatabase) -> bool:
    try:
        from deliveryd.journal.moving.move import reopen_database  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise DeliverydError(f"a journal's URL {NOT_INSTALLED}") from error
    return reopen_database(place)


@journal.command("adopt-service")
def take_over_service(
    *, config: ConfigOption = USUAL_CONFIG, why: WhyOption = None, as_data: AsData = False
) -> None:
    """Accept service.base_url as the service's new address.

    It must be the same service, with the same ids, at another address: messages of another one would be lost,
    or reported as sent. A worker has to be stopped for that. If the address is the journal's already, nothing
    is done.
    """
    loaded = load_journal_as_owner(config, "service.base_url", "settings.cache_dir", "settings.size_limit")
    service = loaded.service.address
    user = at_this_machine(user_name(os.geteuid()))
    order = Order(Action.ADOPT, ItemKind.SERVICE, (service,), user, caller(), why)
    before = adopt_service(loaded.journal.place, order, time.time_ns() // 1000)
    if as_data:
        print_json({"service": service, "before": before})
    elif before == service:
        print_lines(f"nothing to do: the journal belongs to the service at {service} already")
    else:
        was = "" if before is None else f", and belonged to the one at {before} before"
        print_lines(f"the journal belongs to the service at {service} now{was}")
    if before != service:
        anyio.run(clear_settings, loaded)  # it may have been at this address before, with other templates


def _place(url: str | None, option: str, password_file: Path | None) -> JournalPlace | None:
    if url is None:
        return None
    if url.startswith(_POSTGRESQL):
        return JournalDatabase(url, password_file)
    path = url.removeprefix(SQLITE)
    if not url.startswith(SQLITE) or not path or "?" in path or path.endswith("/"):
        raise typer.BadParameter(
            f'must look like "{SQLITE}/var/lib/deliveryd/journal.db" or "postgresql://HOST/DATABASE"',
            param_hint=option,
        )
    return JournalFile(Path(path).absolute())


def _say(text: str) -> None:
    print_errors(f"deliveryd: {text}")


def _by_options(
    error: JournalUnreachable | JournalUnusable, given: Mapping[str, str | None]
) -> JournalUnreachable | JournalUnusable:
    """Name the option instead of the key where the database of an option can't be used."""
    option = next((name for name, url in given.items() if url and url.startswith(_POSTGRESQL)), None)
    text = str(error)
    if option is None or not text.startswith(_OF_DATABASE):
        return error
    text = text.replace("set journal.password_file", "give --password-file")
    text = text.replace("journal.password_file", "--password-file")
    return type(error)(text.replace("journal.url", option))


def _work_as_owner_of(*places: JournalPlace) -> None:
    for place in places:
        if isinstance(place, JournalFile):
            work_as_owner(place.path)


def _url(place: JournalPlace) -> str:
    return f"{SQLITE}{place.path}" if isinstance(place, JournalFile) else place.url
