"""The log: the list of event names, the list of fields, and what writes a line.

Only what is on the lists is logged: texts, names, addresses, variables and secrets have no field.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Literal, Self, TypedDict, Unpack

Layout = Literal["auto", "console", "json", "journal"]
"""How lines of the log are written; auto: as suits where they go."""

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class Event(StrEnum):
    """Everything that deliveryd logs: name, level, meaning.

    Events of single messages are debug; those of batches and components are info or above.
    """

    WORKER_STARTED = "worker.started", INFO, "the process is up and opens its parts"
    WORKER_READY = "worker.ready", INFO, "every part is open and messages are taken"
    WORKER_DRAINING = "worker.draining", INFO, "no more messages are taken; those under way are finished"
    WORKER_CUT_OFF = "worker.cut_off", WARNING, "run.drain_timeout ended before everything was finished"
    WORKER_HUNG = "worker.hung", ERROR, "something hangs; the process ends as by a kill, and loses no message"
    WORKER_STOPPED = "worker.stopped", INFO, "everything is closed"
    WORKER_DIED = "worker.died", ERROR, "unexpected error; the process ends"
    WORKER_STUCK = "worker.stuck", ERROR, "a loop made no progress for too long"
    SERVER_LISTENING = "server.listening", INFO, "a server has bound its address"
    SERVER_UNENCRYPTED = (
        "server.unencrypted",
        WARNING,
        "the token of the status page's actions crosses the network in plain text",
    )

    QUEUE_TAKEN = "queue.taken", INFO, "a batch from the queue is in the journal"
    QUEUE_UNAVAILABLE = "queue.unavailable", WARNING, "the queue gave no usable answer; tried again later"
    QUEUE_BATCH_LOST = (
        "queue.batch_lost",
        ERROR,
        "a batch was requested, and didn't arrive whole or wasn't recorded",
    )
    QUEUE_ELEMENT_MALFORMED = "queue.element_malformed", WARNING, "an element of a batch was set aside"
    QUEUE_PAUSED = "queue.paused", WARNING, "no more messages are taken until the cause is gone"
    QUEUE_RESUMED = "queue.resumed", INFO, "taking continues after a pause or an outage"

    MESSAGE_SENT = "message.sent", DEBUG, "a channel accepted the message"
    MESSAGE_FAILED = "message.failed", WARNING, "count messages ended with an error event for this reason"
    MESSAGE_ENDED = "message.ended", DEBUG, "the message ended with an error event"
    MESSAGE_WAITING = "message.waiting", DEBUG, "the message is tried again at its due time"
    MESSAGE_SET_ASIDE = "message.set_aside", WARNING, "the service refused its dequeued event: it isn't sent"
    MESSAGE_REOPENED = "message.reopened", INFO, "the service accepted a dequeued event that it had refused"
    MESSAGE_IN_DOUBT = "message.in_doubt", WARNING, "an attempt left and its outcome is unknown"
    ATTEMPT_RETRY = "attempt.retry", DEBUG, "an attempt failed for certain and another one follows"
    CHANNEL_MISCONFIGURED = "channel.misconfigured", ERROR, "a provider rejects the channel's set-up"
    CHANNEL_ID_MISSING = (
        "channel.id_missing",
        WARNING,
        "accepted without the ID that `provider_id` names: receipts may not match",
    )
    CHANNEL_DEVICES_LEFT_OUT = (
        "channel.devices_left_out",
        WARNING,
        "customers have more devices than a message goes to; count of them were left out",
    )
    CHANNEL_REFUSES_SETTINGS = (
        "channel.refuses_settings",
        WARNING,
        "a provider refuses all messages of a settings ID; they wait, and only probes are sent",
    )
    CHANNEL_ACCEPTS_SETTINGS = (
        "channel.accepts_settings",
        INFO,
        "a provider accepted a message of a waiting settings ID; the others follow",
    )
    CHANNEL_UNAVAILABLE = "channel.unavailable", WARNING, "a provider keeps failing; only probes are sent"
    CHANNEL_PROBE_FAILED = "channel.probe_failed", DEBUG, "a probe of a failing provider failed"
    CHANNEL_RECOVERED = "channel.recovered", INFO, "a provider works again"
    CHANNEL_GIVEN_UP = (
        "channel.given_up",
        WARNING,
        "all providers of a channel are down for long; its messages go to the next one",
    )
    CHANNEL_AVAILABLE = "channel.available", INFO, "a channel that was given up works again"
    CHANNEL_SLOW = "channel.slow", WARNING, "a provider's deliveries take long; a part of its share moves"
    CHANNEL_LESS_SLOW = "channel.less_slow", INFO, "a part of a slow provider's share comes back"

    SETTINGS_HELD = "settings.held", WARNING, "SMS of a settings ID suddenly have more parts: they are paused"
    SETTINGS_FETCHED = "settings.fetched", DEBUG, "settings were fetched from the service"
    SETTINGS_UNAVAILABLE = (
        "settings.unavailable",
        WARNING,
        "settings can't be fetched; their messages wait, or use an old copy",
    )
    SETTINGS_OLD = (
        "settings.old",
        WARNING,
        "the service gives no settings; copies older than settings.ttl are used",
    )
    SETTINGS_CURRENT = (
        "settings.current",
        INFO,
        "the service answers for settings again; old copies are fetched again",
    )
    SETTINGS_UNUSABLE = "settings.unusable", WARNING, "settings don't exist or can't be read"
    SETTINGS_FLAWED = "settings.flawed", WARNING, "blocks of the settings can't be read and are skipped"
    CACHE_BROKEN = "cache.broken", WARNING, "a disk cache fails and isn't used"
    CACHE_ROW_REFUSED = "cache.row_refused", WARNING, "a disk cache held a row that deliveryd didn't write"

    EVENTS_ACCEPTED = "events.accepted", INFO, "the service accepted a batch of status events"
    EVENTS_REFUSED = "events.refused", ERROR, "the service refused a status event, which was set aside"
    EVENTS_REFUSED_AGAIN = (
        "events.refused_again",
        WARNING,
        "events that were refused before were refused again",
    )
    EVENTS_FAILING = (
        "events.failing",
        ERROR,
        "the service fails at a status event and accepts others; it waits, and is posted alone",
    )
    EVENTS_TOO_LARGE = (
        "events.too_large",
        WARNING,
        "the service refused count events as too large; the next posts are smaller",
    )
    EVENTS_UNAVAILABLE = "events.unavailable", WARNING, "status events can't be posted; the outbox keeps them"
    EVENTS_RECOVERED = "events.recovered", INFO, "status events can be posted again"

    CUSTOMERS_UNAVAILABLE = "customers.unavailable", WARNING, "the directory fails; its messages wait"
    CUSTOMERS_RECOVERED = "customers.recovered", INFO, "the directory answers again"
    CUSTOMERS_FILE_PROBLEM = "customers.file_problem", WARNING, "the customer file, or a row of it, is wrong"

    RECIPIENTS_STOPPED = "recipients.stopped", INFO, "count recipients were suppressed on a channel"
    RECIPIENTS_RESUMED = "recipients.resumed", INFO, "count recipients may be sent to on a channel again"

    SAFETY_LIMITED = "safety.limited", WARNING, "[safety] is in force: messages to others end with an error"
    SAFETY_LIFTED = (
        "safety.lifted",
        INFO,
        "a reload removed [safety]: messages go to all customers",
    )

    BUDGET_NEARLY_SPENT = "budget.nearly_spent", WARNING, "80 % of a budget are used in its present period"
    BUDGET_SPENT = "budget.spent", WARNING, "a budget is spent until its next period"

    RECEIPT_ACCEPTED = "receipt.accepted", DEBUG, "a receipt changed a message"
    RECEIPT_REPEATED = "receipt.repeated", DEBUG, "a receipt was recorded before"
    RECEIPT_UNMATCHED = "receipt.unmatched", INFO, "a receipt matches no message yet; it is kept"
    RECEIPT_MALFORMED = "receipt.malformed", WARNING, "a receipt can't be read"
    RECEIPT_FORGED = "receipt.forged", WARNING, "a receipt has no valid signature"
    RECEIPT_UNCONFIRMED = (
        "receipt.unconfirmed",
        INFO,
        "count messages weren't confirmed by receipt_deadline; they go to the next channel",
    )
    RECEIPT_NOT_AWAITED = (
        "receipt.not_awaited",
        WARNING,
        "count messages stay sent without a deadline: their provider isn't configured any more",
    )
    RECEIPT_SILENT = (
        "receipt.silent",
        ERROR,
        "a provider reports nothing though over 100 deadlines passed; its deadlines stand still",
    )
    RECEIPT_REPORTING = (
        "receipt.reporting",
        INFO,
        "a silent provider reports again; its deadlines start again",
    )
    RECEIPT_OVERDUE = (
        "receipt.overdue",
        WARNING,
        "count more messages weren't confirmed for receipt_overdue; deliveryd overdue lists all",
    )
    RECEIPT_TURNED_AWAY = (
        "receipt.turned_away",
        WARNING,
        "a request to the receipts server was no receipt of a channel, or too large",
    )

    SECRET_RENEWED = "secret.renewed", INFO, "a secret or certificate was replaced; the new one is used"
    SECRET_UNUSABLE = (
        "secret.unusable",
        WARNING,
        "a changed secret or certificate can't be used; the previous one stays in use",
    )

    JOURNAL_RECOVERED = "journal.recovered", INFO, "the journal holds messages of a previous run"
    JOURNAL_CREATED = "journal.created", INFO, "there was no journal at journal.url, and a new one was made"
    JOURNAL_AWAITED = "journal.awaited", INFO, "a command uses the journal; the start waits for it"
    JOURNAL_ACCOUNT = "journal.account", INFO, "the sums of all messages ever taken"
    JOURNAL_GAP = "journal.gap", ERROR, "messages are missing from the journal; deliveryd audit lists them"
    JOURNAL_MISPLACED = "journal.misplaced", ERROR, "the open journal was deleted, moved or replaced"
    JOURNAL_IN_PLACE = "journal.in_place", INFO, "the journal is back in its place; the line continues"
    JOURNAL_FILLING = (
        "journal.filling",
        WARNING,
        "half, or four fifths, of queue.max_waiting is reached; names the largest cause",
    )
    JOURNAL_FULL = "journal.full", ERROR, "the journal's disk is full; the line waits"
    JOURNAL_ROOM = "journal.room", INFO, "the journal's disk has room again; the line continues"
    JOURNAL_UNREACHABLE = (
        "journal.unreachable",
        ERROR,
        "the journal's database can't be reached, or for another reason now; the line waits",
    )
    JOURNAL_REACHED = "journal.reached", INFO, "the journal's database is reached again; the line continues"
    JOURNAL_JOINED = (
        "journal.joined",
        INFO,
        "the name of this worker of a shared journal, and of those whose leases aren't over",
    )
    JOURNAL_ADOPTED = (
        "journal.adopted",
        WARNING,
        "the leases of other workers ran out, or were ended; this one adopted their logs",
    )
    JOURNAL_HANDED_OVER = (
        "journal.handed_over",
        INFO,
        "other workers released their leases; this one adopted their logs",
    )
    JOURNAL_LOST = "journal.lost", ERROR, "the journal records nothing more for this worker, which ends"
    JOURNAL_COMMITS_LOST = (
        "journal.commits_lost",
        ERROR,
        "the database lost count commits that it had acknowledged; all workers stop",
    )
    JOURNAL_EXPOSED = "journal.exposed", WARNING, "other users could read the journal or change its folder"
    JOURNAL_CLEANING = "journal.cleaning", INFO, "messages older than the retention are removed; count so far"
    JOURNAL_CLEANED = "journal.cleaned", INFO, "messages older than the retention were removed"

    FILES_FEW = "files.few", WARNING, "the limit on open files is too low: providers' concurrency is lowered"
    FILES_EXHAUSTED = (
        "files.exhausted",
        ERROR,
        "no more files can be opened, or threads begun; what needs one waits",
    )

    CLOCK_STEPPED = "clock.stepped", WARNING, "the clock was corrected; due times follow it"

    CONFIG_RELOADED = "config.reloaded", INFO, "a changed configuration is in force"
    CONFIG_REFUSED = "config.refused", ERROR, "a configuration was not applied; the one before stays in force"
    MESSAGE_REPEATED = "message.repeated", INFO, "messages held in doubt are repeated by a new configuration"
    PAUSE_ENDED = "pause.ended", INFO, "the time of a pause is over; its messages continue"

    DESK_DECIDED = "desk.decided", INFO, "an operator's order was carried out"
    DESK_CLOSED = "desk.closed", WARNING, "the worker can't receive operators' orders"

    OTLP_UNAVAILABLE = "otlp.unavailable", WARNING, "the OTLP collector takes nothing; tried again later"
    OTLP_RECOVERED = "otlp.recovered", INFO, "the OTLP collector takes spans and metrics again"

    LIBRARY_MESSAGE = "library.message", WARNING, "a library logged something"
    LOG_DROPPED = "log.dropped", WARNING, "count lines are missing here: the log's reader took nothing"

    level: int
    meaning: str

    def __new__(cls, name: str, level: int, meaning: str) -> Self:
        """Make the member a string with its level and its meaning."""
        event = str.__new__(cls, name)
        event._value_ = name
        event.level = level
        event.meaning = meaning
        return event


class Fields(TypedDict, total=False):
    """Every field that a line may have; mypy rejects others.

    Strings are names and rules from deliveryd or its configuration, never data of customers or templates.
    Durations are in seconds.
    """

    accepted: int
    asked: int
    attempt_id: str
    cache: str
    channel: str
    channels: list[str]
    provider: str
    count: int
    delay: float
    delivered: int
    endpoint: str
    error: BaseException
    failed: int
    file: str
    forgotten: int
    gap: int
    host: str
    in_doubt: int
    in_flight: int
    kept: int
    key: str
    kind: str
    library: str
    limit: int
    line: int
    listen: str
    loop: str
    malformed: int
    message_id: int
    oldest: float
    outbox: int
    path: str
    pid: int
    pruned: int
    reason: str
    refused: int
    repeated: int
    rows: int
    seconds: float
    sent: int
    set_aside: int
    share: float
    server: str
    settings_id: int
    signal: str
    size: int
    skipped: int
    source: str
    state: Enum
    status: int
    taken: int
    tries: int
    verb: str
    verdict: str
    version: str
    waiting: int
    worker: str
    workers: list[str]
    words: str


FIELDS = frozenset(Fields.__annotations__)
"""The field names that pass redaction."""

GATE = logging.getLogger("deliveryd")
"""Its level is the lowest that is written: none, before `log_writing.configure`."""

GATE.setLevel(logging.CRITICAL + 1)


def enabled(level: int) -> bool:
    """Whether lines of this level are written, for callers that would compute a field first."""
    if not GATE.isEnabledFor(level):
        return False
    import structlog  # noqa: PLC0415  # loaded by `configure`, which opens the gate; most commands log nothing

    return structlog.is_configured()


def log(event: Event, /, **fields: Unpack[Fields]) -> None:
    """Write one line at the event's level. Never raises for failures of the output.

    Before `log_writing.configure` nothing is written.
    """
    if enabled(event.level):
        import structlog  # noqa: PLC0415  # as above

        structlog.get_logger().log(event.level, str(event), **fields)


REPORT_INTERVAL = 10.0
"""Seconds between two lines about the same work."""


class LoggedProgress:
    """Counts work, and logs the count and the seconds since the beginning as an event."""

    def __init__(self, event: Event, now: Callable[[], float] = time.monotonic) -> None:
        self._event = event
        self._now = now
        self._begun = now()
        self._due = self._begun + REPORT_INTERVAL
        self.count = 0

    def add(self, count: int) -> None:
        """Count more work; log the progress if it is time."""
        self.count += count
        now = self._now()
        if now >= self._due:
            self._due = now + REPORT_INTERVAL
            log(self._event, count=self.count, seconds=now - self._begun)

    @property
    def seconds(self) -> float:
        """Return how long the work has taken."""
        return self._now() - self._begun
