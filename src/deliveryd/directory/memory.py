"""A cache of a remote directory's answers, limited in time and size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import NamedTuple

import anyio

from deliveryd.model import Customer
from deliveryd.runtime.waits import KEPT_FOR_WAITING

CUSTOMER_MEMORY_BYTES = 32 << 20
"""Approximate limit of the cache in bytes; the least recently used answers are evicted first."""

ANSWER_BYTES = 500
FIELD_BYTES = 150
"""Approximate overhead in bytes of an answer, and of a field of it."""

UNKNOWN_SECONDS = 30.0
"""Most seconds to cache an unknown customer, so that one added since is found soon."""


class _Kept(NamedTuple):
    until: float
    customer: Customer | None
    size: int


class Memory:
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
            seconds = min(self._ttl, UNKNOWN_SECONDS) if customer is None else self._ttl
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
