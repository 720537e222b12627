"""A remote directory: caches, batches and limits the queries of a source, and notes its outages."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import anyio

from deliveryd.directory.base import Answered, DirectoryAnswer, Source, Terms
from deliveryd.errors import CustomerUnreadable, DirectoryUnavailable
from deliveryd.model import Customer
from deliveryd.network.deadline import within
from deliveryd.runtime.blame import MOST_BLAMED, Blame
from deliveryd.runtime.breaker import Breaker, BreakerPolicy, backoff
from deliveryd.runtime.waits import KEPT_FOR_WAITING, PROMPT
from deliveryd.runtime.wakeup import AutoResetEvent
from deliveryd.telemetry.log_events import Event, log

CUSTOMER_MEMORY_BYTES = 32 << 20
"""Approximate limit of the cache in bytes; the least recently used answers are evicted first."""

ANSWER_BYTES = 500
FIELD_BYTES = 150
"""Approximate overhead in bytes of an answer, and of a field of it."""

UNKNOWN_SECONDS = 30.0
"""Most seconds to cache an unknown customer, or one with a flaw, so that a correction is found soon."""


class _Kept(NamedTuple):
    until: float
    customer: Customer | None
    size: int


class CustomerMemory:
    """Caches answers for `ttl` seconds."""

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._size = 0

    def recall(self, ids: Collection[int]) -> dict[int, Customer | None]:
        """Return the cached answers about `ids`."""
        now = anyio.current_time()
        found = {}
        for id_ in ids:
            kept = self._kept.get(id_)
            if kept is not None and kept.until > now:
                self._kept.move_to_end(id_)
                found[id_] = kept.customer
        return found

    def keep(self, answers: Mapping[int, Customer | None], late: Collection[int] = ()) -> None:
        """Cache answers; `late` are the customers for whose answer messages wait in the journal."""
        now = anyio.current_time()
        for id_, customer in answers.items():
            is_known = customer is not None and customer.flaw is None
            seconds = self._ttl if is_known else min(self._ttl, UNKNOWN_SECONDS)
            if id_ in late:
                seconds = max(seconds, KEPT_FOR_WAITING)
            before = self._kept.pop(id_, None)
            kept = self._kept[id_] = _Kept(now + seconds, customer, _size(customer))
            self._size += kept.size - (before.size if before is not None else 0)
        while self._size > CUSTOMER_MEMORY_BYTES and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._size -= oldest.size


def _size(customer: Customer | None) -> int:
    if customer is None:
        return ANSWER_BYTES
    # Four bytes per character: what Python needs for a text with one emoji.
    texts = sum(len(name) + len(text) for name, text in customer.fields.items())
    return ANSWER_BYTES + FIELD_BYTES * len(customer.fields) + 4 * texts


POLICY = BreakerPolicy(failures=5, pause=0.5, max_pause=5.0, least=0.7)
"""Fewer than five failures in a row may be due to the customers in the question, not to the directory."""

LOG_PAUSE = 60.0
"""Seconds between log lines about failed questions while the directory answers others."""


class DirectoryOutage:
    """Counts failed questions; while the directory is down, allows one question at a time, after pauses.

    Logs each outage once. Unlike a provider's breaker it starts afresh after each outage: pauses are short.
    """

    def __init__(self) -> None:
        self._breaker = Breaker(POLICY)
        self._reason = ""
        self._next_line = float("-inf")

    @property
    def is_on(self) -> bool:
        """Whether the directory counts as down."""
        return self._breaker.is_open

    def hindrance(self) -> DirectoryUnavailable | None:
        """Return the error for a question that may not be asked now, or None."""
        blocked = self.is_on and (self._breaker.is_probing or self._breaker.wait() > 0)
        return DirectoryUnavailable(self._reason) if blocked else None

    def begin(self) -> None:
        """Record that a question is being asked; while the directory is down, it is a probe."""
        if self.is_on:
            self._breaker.probe()

    def withdraw(self) -> None:
        """Record that the question was cancelled, which proves nothing about the directory."""
        self._breaker.withdraw()

    def put_off(self, error: DirectoryUnavailable) -> None:
        """Record a failure that proves nothing about the directory: the pause is as long as before."""
        self._breaker.put_off()
        self._warn(error)

    def answered(self) -> None:
        """Record an answer, which ends the outage."""
        was_on = self.is_on
        seconds = self._breaker.answered()
        if was_on:
            log(Event.CUSTOMERS_RECOVERED, seconds=seconds)
            self._breaker, self._next_line = Breaker(POLICY), float("-inf")

    def failed(self, error: DirectoryUnavailable) -> None:
        """Record a failed question. One asked before the outage began changes nothing."""
        self._reason = str(error)
        if not self.is_on:
            self._warn(error)
            self._breaker.failed(error.after)
        elif self._breaker.is_probing:
            self._breaker.failed(error.after)

    def _warn(self, error: DirectoryUnavailable) -> None:
        if not self.is_on and (now := anyio.current_time()) >= self._next_line:
            self._next_line = now + LOG_PAUSE
            log(Event.CUSTOMERS_UNAVAILABLE, reason=str(error))


MOST_FAILED_ALONE = 15
"""Unusable answers about one customer, while others were answered, after which their messages end."""

ALONE_PAUSE = 5.0
LONGEST_ALONE_PAUSE = 600.0
"""Seconds until such a customer is asked for again: the first pause, and the longest after it was doubled."""


class FailingCustomers:
    """Customers for whom the source failed: whether it fails for them alone, since it answers for others."""

    def __init__(self) -> None:
        self._blame = Blame()
        self._alone: OrderedDict[int, int] = OrderedDict()  # of those that failed: how often they did alone

    def __contains__(self, id_: int) -> bool:
        """Whether the source fails for a customer alone."""
        return self._alone.get(id_, 0) > 0

    def answered(self, ids: Collection[int]) -> None:
        """The source answered a question about these."""
        if self._blame.has_failures:
            for id_ in ids:
                self._blame.served(id_, is_first=self._alone.pop(id_, None) is None)

    def failed(self, id_: int, error: DirectoryUnavailable) -> DirectoryAnswer:
        """What a failed question about one customer means; the error itself: it may be about the source.

        One that asks to wait is: it has too much to do.
        """
        before = self._alone.pop(id_, None)
        is_at_fault = self._blame.failed(id_, id_, is_first=before is None)
        alone = (before or 0) + (is_at_fault and error.after is None)
        if alone >= MOST_FAILED_ALONE and isinstance(error, CustomerUnreadable):
            return Customer(id_, {}, f"the customer directory fails for this customer alone: {error}")
        self._alone[id_] = alone
        if len(self._alone) > MOST_BLAMED:
            self._alone.popitem(last=False)
        if alone == (before or 0):
            return error
        return DirectoryUnavailable(str(error), backoff(ALONE_PAUSE, LONGEST_ALONE_PAUSE, alone))


QUESTION_LINGER = 0.005
"""Seconds that a query with room left waits for more customers."""


class RemoteDirectory:
    """Queries a source, once per customer for all concurrent look-ups, and in batches if it supports them.

    A failed query for many is repeated in halves, so that one customer on which the source fails delays no
    other. A source that fails repeatedly is only probed; it isn't failing where it answers for others.
    """

    def __init__(self, source: Source, terms: Terms) -> None:
        self._source = source
        self._terms = terms
        self._memory = CustomerMemory(terms.cache_ttl)
        self._outage = DirectoryOutage()
        self._failing = FailingCustomers()
        self._pending: dict[int, None] = {}  # not queried yet
        self._halves: deque[Sequence[int]] = deque()
        self._waits: dict[int, list[_Wait]] = {}
        self._askers = 0

    @property
    def is_down(self) -> bool:
        """Whether the source keeps failing, so that only probes are made."""
        return self._outage.is_on

    def at_hand(self, ids: Collection[int]) -> Mapping[int, Customer | None]:
        """Return the cached answers about `ids`."""
        return self._memory.recall(ids)

    async def look_up(self, ids: Collection[int], answered: Answered) -> None:
        """Call `answered` with each of `ids` once: cached ones first, the others as answers arrive."""
        known = self._memory.recall(ids)
        wait = _Wait(id_ for id_ in ids if id_ not in known)
        try:
            async with anyio.create_task_group() as askers:
                self._register(wait)
                for _ in range(self._missing_askers()):
                    self._askers += 1
                    askers.start_soon(self._ask)
                if known:
                    await answered(known)
                while wait.left:
                    await answered(await wait.next())
        finally:
            self._unregister(wait)

    async def probe(self) -> str | None:
        """Return why the source can't be reached, or None."""
        try:
            with anyio.fail_after(self._terms.timeout):
                return await self._source.probe()
        except TimeoutError:
            return _too_late(self._terms.timeout)
        except Exception as error:
            return _broken(error)

    async def aclose(self) -> None:
        """Close the source."""
        await self._source.aclose()

    def _register(self, wait: _Wait) -> None:
        for id_ in wait.left:
            if id_ not in self._waits:
                self._waits[id_] = []
                self._pending[id_] = None
            self._waits[id_].append(wait)

    def _unregister(self, wait: _Wait) -> None:
        """End a cancelled wait; drop pending customers that no look-up waits for."""
        for id_ in wait.left:
            waits = self._waits.get(id_, [])
            if wait in waits:
                waits.remove(wait)
            if not waits and id_ in self._pending:
                del self._pending[id_], self._waits[id_]

    def _missing_askers(self) -> int:
        questions = len(self._halves) - (-len(self._pending) // self._source.batch_size)
        return max(min(questions, self._terms.concurrency - self._askers), 0)

    async def _ask(self) -> None:
        """Query for pending customers, one query after the other, until none is left."""
        try:
            if len(self._pending) < self._source.batch_size and self._source.batch_size > 1:
                await anyio.sleep(QUESTION_LINGER)
            while question := self._next_question():
                self._tell(await self._answers_to(question))
        finally:
            self._askers -= 1

    def _next_question(self) -> Sequence[int]:
        if self._halves:
            return self._halves.popleft()
        question = list(islice(self._pending, self._source.batch_size))
        if (odd := next((id_ for id_ in question if id_ in self._failing), None)) is not None:
            question = [odd]  # alone, so that the others are answered
        for id_ in question:
            del self._pending[id_]
        return question

    async def _answers_to(self, question: Sequence[int]) -> Mapping[int, DirectoryAnswer]:
        """Return the answers to a query; none yet if it has to be split."""
        if (hindrance := self._outage.hindrance()) is not None:
            return dict.fromkeys(question, hindrance)
        self._outage.begin()
        try:
            found = await self._found(question)
        except DirectoryUnavailable as error:
            if len(question) == 1 and (answer := self._failing.failed(question[0], error)) is not error:
                self._outage.put_off(error)
                if isinstance(answer, Customer):
                    self._memory.keep({question[0]: answer})
                return {question[0]: answer}
            self._outage.failed(error)
            if len(question) == 1 or self._outage.is_on:
                return dict.fromkeys(question, error)
            half = len(question) // 2
            self._halves += (question[:half], question[half:])
            return {}
        except BaseException:
            self._outage.withdraw()
            self._tell(dict.fromkeys(question, DirectoryUnavailable("the look-up was cancelled")))
            raise
        self._outage.answered()
        self._failing.answered(question)
        answers = {id_: found.get(id_) for id_ in question}
        self._memory.keep(answers, self._late(question))
        return answers

    def _late(self, question: Sequence[int]) -> Collection[int]:
        """Return the customers of a query whose messages wait in the journal by now."""
        since = anyio.current_time() - PROMPT
        return {id_ for id_ in question if any(wait.since <= since for wait in self._waits.get(id_, ()))}

    async def _found(self, question: Sequence[int]) -> Mapping[int, Customer]:
        """Query the source. Raises DirectoryUnavailable, also for a package's faults."""
        try:
            found: object = await within(self._terms.timeout, partial(self._source.look_up, question))
        except DirectoryUnavailable:
            raise
        except TimeoutError:
            raise DirectoryUnavailable(_too_late(self._terms.timeout)) from None
        except Exception as error:
            raise DirectoryUnavailable(_broken(error)) from error
        if not isinstance(found, Mapping):
            raise DirectoryUnavailable(f"the directory returned a {type(found).__name__}")
        if wrong := {type(value).__name__ for value in found.values() if not isinstance(value, Customer)}:
            raise DirectoryUnavailable(f"the directory returned a {min(wrong)} for a customer")
        return found

    def _tell(self, answers: Mapping[int, DirectoryAnswer]) -> None:
        for id_, answer in answers.items():
            for wait in self._waits.pop(id_, ()):
                wait.tell(id_, answer)


class _Wait:
    """A caller's wait for answers, with those that have arrived."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.left = set(ids)
        self.since = anyio.current_time()
        self._answers: dict[int, DirectoryAnswer] = {}
        self._wakeup = AutoResetEvent()

    def tell(self, id_: int, answer: DirectoryAnswer) -> None:
        self._answers[id_] = answer
        self._wakeup.set()

    async def next(self) -> Mapping[int, DirectoryAnswer]:
        """Wait for answers, and return all that have arrived."""
        while not self._answers:
            await self._wakeup.wait()
        answers, self._answers = self._answers, {}
        self.left -= answers.keys()
        return answers


def _too_late(seconds: float) -> str:
    return f"no answer within {seconds:g} s"


def _broken(error: Exception) -> str:
    return f"the directory failed with {type(error).__name__}"
