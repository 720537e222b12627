"""The ids of traces and spans. They follow from the message, so that one trace goes on over a restart."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from deliveryd.model import Entry

_WHOLE = 1 << 64


class TraceIds(NamedTuple):
    """Makes ids. `namespace` is the journal's, and `sample` the share of messages that are traced, 0 to 1."""

    namespace: str
    sample: float

    def trace(self, message_id: int) -> bytes:
        """The 16 bytes of a message's trace, over all of its beginnings."""
        return _digest(16, self.namespace, message_id)

    def is_sampled(self, trace: bytes) -> bool:
        """Whether the trace is exported: all of it or nothing."""
        return int.from_bytes(trace[8:]) < self.sample * _WHOLE

    def message(self, message_id: int, beginning: int = 1) -> bytes:
        """The 8 bytes of the span of a message, the root of its trace; each beginning has its own."""
        return _digest(8, self.namespace, message_id, "message", beginning)

    def attempt(self, entry: Entry) -> bytes:
        """The span of the attempt that an entry describes after its intent."""
        return _digest(
            8, self.namespace, entry.id, "attempt", entry.beginning, entry.provider, entry.key, entry.number
        )

    def part(self, parent: bytes, *names: object) -> bytes:
        """The span of something below another span."""
        return _digest(8, parent.hex(), *names)

    def traceparent(self, trace: bytes, span: bytes) -> str:
        """The header of W3C Trace Context that continues a trace at a provider."""
        return f"00-{trace.hex()}-{span.hex()}-{'01' if self.is_sampled(trace) else '00'}"


def _digest(size: int, *parts: object) -> bytes:
    return hashlib.blake2b(" ".join(map(str, parts)).encode(), digest_size=size).digest()
