"""The journal of a run in a SQLite file, which one worker has at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from deliveryd.journal.journal import Journal
from deliveryd.journal.opening import JournalTerms, open_journal
from deliveryd.journal.orders import ItemKind
from deliveryd.journal.place import JournalFile
from deliveryd.journal.reader import Reader, file_reader
from deliveryd.journal.sqlite.journal import open_journal_file
from deliveryd.journal.sqlite.opening import prepare_file
from deliveryd.runtime.threads import Blocking, inline
from simulation.disk import SMALL_PAGE, FileDisk
from simulation.kept import Audited, Intent, Letter, Row, audited
from simulation.plan import Plan

JOURNAL = "journal.db"
"""Its name in the folder of a run."""

USUAL_PAGE = 4096

_INTENT = """
SELECT (SELECT value FROM meta WHERE key = 'namespace'), generation FROM message
WHERE id = ? AND state = 4 AND provider = ?
"""
_PROVIDER_IDS = "SELECT provider_id FROM receipt WHERE seq IN (SELECT value FROM json_each(?))"


class FileJournal:
    """A SQLite file in the folder of the run."""

    is_shared = False

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._path = folder / JOURNAL
        self.place = JournalFile(self._path)
        self.disk = FileDisk(plan.shortages)
        self._observer: sqlite3.Connection | None = None
        self._path.touch(mode=0o600)
        self._path.write_bytes(_empty_journal(SMALL_PAGE if plan.shortages else USUAL_PAGE))

    @contextmanager
    def worked_with(self) -> Iterator[None]:
        """The configuration names it."""
        yield

    def joined(self, terms: JournalTerms, blocking: Blocking) -> AbstractAsyncContextManager[Journal]:
        """Open it as a worker does."""
        return open_journal(self.place, terms, blocking=blocking)

    def at_rest(self) -> AbstractAsyncContextManager[Journal]:
        """Open it as a command does that finds no worker."""
        return open_journal_file(self._path, blocking=inline)

    def end_leases(self, at: int) -> None:
        """A dead worker has nothing of a file."""

    def reader(self) -> Reader:
        """What commands read it with."""
        return file_reader(self._path)

    def rows(self) -> Mapping[int, Row]:
        """All messages, by their ids."""
        found = self._ask("SELECT id, state, provider FROM message")
        return {row.id: row for row in (Row(*row) for row in found)}  # type: ignore[arg-type]

    def pruned(self) -> frozenset[int]:
        """Messages of which only a tombstone is left."""
        return frozenset(int(str(id_)) for (id_,) in self._ask("SELECT id FROM tombstone"))

    def forgotten(self) -> frozenset[int]:
        """Those of which only is known how often they began."""
        return frozenset(int(str(id_)) for (id_,) in self._ask("SELECT id FROM generation"))

    def malformed(self) -> frozenset[str]:
        """The elements of the queue that are no messages, as they came."""
        return frozenset(str(raw) for (raw,) in self._ask("SELECT raw FROM malformed"))

    def intents(self, message_id: int, provider: str) -> Sequence[Intent]:
        """The intent to send a message to a provider, if it is being sent there."""
        found = self._ask(_INTENT, message_id, provider)
        return [Intent(str(namespace), int(str(beginning))) for namespace, beginning in found]

    def in_line(self) -> int:
        """How many messages are taken, ready, or being sent."""
        ((count,),) = self._ask("SELECT count(*) FROM message WHERE state IN (1, 2, 4)")
        return int(str(count))

    def has_deadlines(self) -> bool:
        """Whether a message that was sent waits for its receipt deadline."""
        return bool(self._ask("SELECT 1 FROM message WHERE confirm_by IS NOT NULL LIMIT 1"))

    def has_mail(self) -> bool:
        """There is one worker at a time."""
        return False

    def has_logs_of_others(self) -> bool:
        """There is one log."""
        return False

    def held_in_doubt(self) -> Sequence[int]:
        """The messages that an operator has to decide about."""
        return [doubtful.message_id for doubtful in file_reader(self._path).in_doubt(None, None)]

    def dead_letters(self, kind: ItemKind) -> Sequence[Letter]:
        """What else of a kind needs an operator's decision."""
        return [
            Letter(one.key, one.message_id) for one in file_reader(self._path).dead_letters([kind], 0, "")
        ]

    def provider_ids(self, receipts: Collection[str]) -> Sequence[str]:
        """The providers' ids that unmatched receipts name."""
        return [str(id_) for (id_,) in self._ask(_PROVIDER_IDS, f"[{','.join(receipts)}]")]

    def audit(self) -> Audited:
        """Look for contradictions."""
        return audited(file_reader(self._path))

    def close(self) -> None:
        """Look no more."""
        if self._observer is not None:
            self._observer.close()

    def _ask(self, question: str, *values: object) -> list[tuple[object, ...]]:
        """Read what is committed, over a connection of our own."""
        if self._observer is None:
            self._observer = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, isolation_level=None)
        return self._observer.execute(question, values).fetchall()


@lru_cache(maxsize=2)
def _empty_journal(page: int) -> bytes:
    """A journal that no worker has used yet, with pages of so many bytes."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / JOURNAL
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute(f"PRAGMA page_size = {page}")
            prepare_file(db)
            db.execute("PRAGMA journal_mode = WAL")
        return path.read_bytes()
