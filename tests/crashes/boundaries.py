"""The places where a worker may die, found in its code: a part or a step that is new is found as well."""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from pydantic import BaseModel

from deliveryd import channels
from deliveryd.channels.base import Channel
from deliveryd.delivery import common
from deliveryd.directory.base import NoDirectory
from deliveryd.directory.file import FileDirectory
from deliveryd.directory.remote import RemoteDirectory
from deliveryd.journal import log
from deliveryd.journal.journal import Journal
from deliveryd.journal.sqlite import journal as sqlite
from deliveryd.receipts import app as receipts
from deliveryd.worker import supervisor, wiring

ONLY_TELL = frozenset(
    {"Heartbeats", "Metrics", "Notifier", "LineClock", "RenewedValue", "WallClock", "WorkerHealth"}
)
"""Parts that watch and tell: no message depends on what they have done or not."""

ONLY_SIGNAL = frozenset({"Backlog", "Memory", "OutboxSignals", "ReadyMessages"})
"""Parts of the memory that keep counts and signals in memory, between its steps."""

DIRECTORY = ("aclose", "at_hand", "look_up", "probe")

_ADOPTING = (
    *("Availability", "Dispatcher", "Intake", "OverdueReceipts", "Preparer", "ReceiptDeadlines", "Receipts"),
    *("Reporting", "SettingsCache"),
)
_REMOVING = ("held", "leave", "orphans")

_LIMITING = (
    "claim", "digest", "given_back", "levels", "note", "refresh", "route", "shortage", "spent", "take_freed",
)  # fmt: skip

NEVER_PASSED: Mapping[str, str] = {
    "DevicesChannel.send": "each customer has one address: see test_devices.py",
    "WebPushChannel.send": "no customer has a browser",
    "CompiledSettings.expiry_of": "messages live without end: see test_default_lifetime.py",
    "COMMIT.cut_log": "no transaction: what it does is a checkpoint, as SQLite does it by itself",
    "Waiting.bound_due_times": "for journals that workers share: see test_journal_workers.py",
    "COMMIT.account": "only reads, and not in the thread that writes",
    "COMMIT.open_work": "only reads, and not in the thread that writes",
    "COMMIT.largest_cause": "only reads, and only when far more messages wait than the scenario has",
    **dict.fromkeys(
        (
            "COMMIT.put_last",
            "Operations.put_last",
            "SqliteJournal.put_last",
            "Recorder.keep_back",
            "Posting.keep_back",
        ),
        "the scenario's service fails at no event: see test_reporting.py",
    ),
    "COMMIT.retime_pauses": "no other worker has the journal",
    "Waiting.follow_clock": "nobody sets the clock; at a start it is followed by the same commit",
    "FileDirectory.probe": "for an operator's command",
    "FileDirectory.read_to_accept": "for an operator's command",
    "Inlet.reply_to": "the scenario's providers begin no handshake: see tests/unit/receipts",
    "Inlet.unverified": "the scenario's reports are all genuine",
    "Posting.forget_size": "for a reload",
    "SettingsCache.forget": "for an operator's command; the next message asks the service, as after a start",
    "ViewHandler.tail": "only reads, for those who watch",
    "DoubtPolicy.after_hold": "for the start after a life in which messages were held in doubt",
    "DoubtPolicy.after_question": "the scenario's providers can't be asked: see test_lookup.py",
    "IdsByEra.all_of": "reports of many messages at once: see test_receipts_together.py",
    "Matching.match_after": "no receipt of the scenario comes before its outcome is recorded",
    "Matching.match_before": "no receipt of the scenario comes before its outcome is recorded",
    "Matching.match_again": "an operator's order like any other: see COMMIT.decide",
    "Outbox.note_step": "the scenario's clock isn't put back",
    "Outbox.put_last": "an operator's order like any other: see COMMIT.decide",
    **dict.fromkeys(
        (f"{name}Directory.{step}" for name in ("No", "Remote") for step in DIRECTORY),
        "the scenario has a file of customers",
    ),
    "COMMIT.count_overdue": "nothing is overdue: nothing is noted",
    "Choice.weigh": "no channel of the scenario has several providers: see tests/line/test_slow_providers.py",
    **dict.fromkeys(
        ("Choice.has_other_for", "Provider.defer", "Provider.may_try", "Provider.refuses"),
        "the scenario's queues are never full, and its providers refuse no settings: see test_refusals.py",
    ),
    **dict.fromkeys(
        (
            *(
                "COMMIT.follow",
                "COMMIT.look_around",
                "COMMIT.renew",
                "Recorder.follow",
                "SqliteJournal.follow",
            ),
            *(f"Availability.{step}" for step in ("follow", "forget_others")),
            "Provider.expect_waiting",
            "Sharing.run",
        ),
        "a file has one worker; those of a shared journal are killed in tests/fleet",
    ),
    "Orders.end_pauses": "no pause of the scenario ends by itself",
    "ListeningTime.skip": "the scenario's disk isn't full",
    **dict.fromkeys(
        (
            *(
                f"{owner}.{step}"
                for owner in ("COMMIT", "SqliteJournal")
                for step in ("keep_parts", "kept_parts")
            ),
            "CostGuard.admit",
        ),
        "no channel of the scenario has a cost_guard: see tests/process/test_held_settings.py",
    ),
    **dict.fromkeys(
        ("Safety.admits", "Safety.admits_customer", "Safety.lists"),
        "the scenario's worker sends to everybody: see tests/process/test_only_to_these.py",
    ),
    **dict.fromkeys(
        (
            *(f"{owner}.use_token" for owner in ("COMMIT", "Recorder", "SqliteJournal")),
            "ReceiptRequest.with_token",
            *(f"Pages.{step}" for step in ("get", "note_missing")),
        ),
        "the scenario's reports are signed by a keyed hash: see test_receipts_taken_in.py",
    ),
    **dict.fromkeys(
        (f"ReceiptRequest.{step}" for step in ("form_pairs", "parameters", "query_pairs", "with_body")),
        "only reads; the scenario's reports are JSON",
    ),
    **dict.fromkeys(
        (
            *(f"Pauses.{step}" for step in ("holding", "is_in_force", "of_message")),
            *(f"{owner}.{step}" for owner in ("COMMIT", "SqliteJournal") for step in ("end_pauses", "park")),
            "Dispatcher.route_paused",
        ),
        "nobody pauses anything: see test_pause_commands.py, and the simulation's pausing.py",
    ),
    **dict.fromkeys(
        (
            *(f"{part}.adopt" for part in _ADOPTING),
            *(f"{owner}.{step}" for owner in ("COMMIT", "SqliteJournal") for step in _REMOVING),
            "Waiting.held",
            *(f"Dispatchers.{step}" for step in ("add", "begin", "end", "remove")),
            *(f"Dispatcher.{step}" for step in ("leave", "route_all_again")),
            *(f"Provider.{step}" for step in ("follow", "probe_soon")),
            *(f"{part}.reload" for part in ("Reloader", "Supervisor")),
            "DueMessages.adopt",
            "SettingsCache.ask_again",
        ),
        "nobody reloads anything: see test_reload_under_load.py, and the simulation's reloading.py",
    ),
    **dict.fromkeys(
        ("Intake.give_up", "Pipeline.end_take"),
        "the scenario's queue answers before the end: see test_intake.py and test_supervisor.py",
    ),
    "COMMIT.budget_uses": "only reads, and not in the thread that writes",
    **dict.fromkeys(
        (f"SendingLimits.{step}" for step in _LIMITING),
        "the scenario has no budgets and no caps: see test_limits_through_kills.py",
    ),
    "Peers.forwarded": "only reads, and only where a proxy is trusted",
    "Provider.lacks_files": "the scenario's worker has files enough; it only tells",
    "Provider.left_out": "the scenario's customers have no hundred devices; it only tells",
    "Provider.lacks_id": "the scenario's providers answer with their ids; it only tells",
    "CurrentDirectory.aclose": "whoever opened the directory closes it",
    "CurrentDirectory.probe": "for an operator's command",
    "LoggedProgress.add": "nothing lasts long: it only tells",
    **dict.fromkeys(
        (*(f"ViewHandler.{step}" for step in ("status", "tail")),),
        "only reads, for those who look",
    ),
    "ServiceClient.configuration": "no message needs the area of customer data",
    "ServiceClient.customer_data": "no message needs the area of customer data",
    "ServiceClient.customer_page": "no message needs the area of customer data",
    "ServiceClient.entity": "no message needs the area of customer data",
    "SqliteJournal.room": "only reads, for those who look",
    **dict.fromkeys(
        ("COMMIT.others_at_work", "SqliteJournal.others_at_work"), "only reads, for an operator's command"
    ),
    "SqliteJournal.largest_cause": "only reads: see COMMIT.largest_cause",
    "SqliteJournal.retime_pauses": "no other worker has the journal",
    "ServiceClient.look": "for an operator's command",
    "Supervisor.stop": "for programs that run a worker within them; a process is told by signals",
}
"""Steps that the scenario doesn't take, and why that is no loss."""

IF_TIMELY = frozenset({
    "ListeningTime.until",
    *(f"{owner}.accept_early" for owner in ("COMMIT", "Operations", "SqliteJournal", "Recorder", "Posting")),
    *(f"{owner}.settle" for owner in ("Recorder", "Posting")),
})  # fmt: skip
"""Steps that are taken only if the worker looks for deadlines before they are over, or posts events while it
still looks for a refused one ahead of them."""

SIDES = ("before", "after")


class Boundary(NamedTuple):
    """A step that can be wrapped: attribute `step` of the class `owner`, which may have inherited it."""

    owner: type
    step: str

    @property
    def name(self) -> str:
        """As `Class.step`."""
        return f"{self.owner.__name__}.{self.step}"

    @property
    def is_awaited(self) -> bool:
        """Whether others have their turns within the step."""
        step = inspect.getattr_static(self.owner, self.step)
        return inspect.iscoroutinefunction(step.__func__ if isinstance(step, staticmethod) else step)


def boundaries() -> list[Boundary]:
    """The public steps of the worker's parts, the journal's operations and the adapters' sending."""
    modules = (wiring, supervisor, common, log, sqlite, receipts)
    directories = (FileDirectory, NoDirectory, RemoteDirectory)  # each is imported where it is configured
    parts = [*(part for module in modules for part in _parts(module)), *directories, sqlite.SqliteJournal]
    found = [Boundary(part, step) for part in parts if part is not Journal for step in _steps(part)]
    found += [Boundary(sqlite.SqliteJournal, step) for step in _steps(Journal)]
    found += [Boundary(adapter, "send") for adapter in adapters()]
    return sorted(set(found), key=lambda boundary: boundary.name)


@cache
def commits() -> list[str]:
    """Operations of the journal's protocol that end in a commit."""
    return [name for name, step in _functions(Journal) if inspect.iscoroutinefunction(step)]


def asked_by() -> str:
    """The operation of the journal's protocol that is asked for at present; "": none is."""
    known = commits()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in known and isinstance(frame.f_locals.get("self"), Journal):
            return frame.f_code.co_name
        frame = frame.f_back
    return ""


def telling_names() -> list[str]:
    """The failpoints of which none leaves behind what another one leaves.

    A step that isn't awaited commits nothing and sends nothing: a process killed at its beginning leaves the
    same files and the same peers as at its end. What another thread commits meanwhile has its own failpoints.
    """
    within = {each.name for each in boundaries() if not each.is_awaited}
    return [name for name in names() if name.endswith("/before") or name.rpartition("/")[0] not in within]


def names() -> list[str]:
    """The names of all failpoints."""
    steps = [boundary.name for boundary in boundaries()] + [commit_name(each) for each in commits()]
    return [f"{step}/{side}" for step in steps for side in SIDES]


def commit_name(operation: str) -> str:
    """The name for the COMMIT of a transaction in which this operation was done."""
    return f"COMMIT.{operation}"


def adapters() -> list[type]:
    """Every class of the channels' package that can do what a channel must."""
    needed = {name for name, _ in _functions(Channel)}
    modules = [
        import_module(module.name)
        for module in pkgutil.walk_packages(channels.__path__, f"{channels.__name__}.")
    ]
    found = (each for module in modules for each in _classes(module))
    return [each for each in found if needed <= vars(each).keys() and each != Channel]


def _parts(module: ModuleType) -> Iterator[type]:
    """Classes of ours that a module uses, values and protocols aside."""
    for part in _classes(module):
        if part.__name__ not in ONLY_TELL | ONLY_SIGNAL and not _is_value(part):
            yield part


def _classes(module: ModuleType) -> Iterator[type]:
    for _, value in inspect.getmembers(module, inspect.isclass):
        if value.__module__.startswith("deliveryd.") and not value.__name__.startswith("_"):
            yield value


def _is_value(part: type) -> bool:
    kinds: tuple[Any, ...] = (BaseModel, tuple, Exception)
    return issubclass(part, kinds) or getattr(part, "_is_protocol", False) or issubclass(part, int | str)


def _steps(part: type) -> Iterator[str]:
    for name, _ in _functions(part):
        yield name


def _functions(part: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(part).items():
        function = value.__func__ if isinstance(value, staticmethod) else value
        if isinstance(function, FunctionType) and not name.startswith("_"):
            yield name, function
