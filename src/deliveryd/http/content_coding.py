"""Decoding of compressed responses as they arrive, within limits: a few kB can expand to many GB."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from deliveryd.errors import BrokenOff, TooLarge

PIECE = 256 * 1024
"""Most bytes decoded at a time."""

LARGER_AT_MOST = 64 * 1024
"""Bytes by which a compressed body may exceed its limit: it could be endless and expand to nothing."""

MOST_GZIP_MEMBERS = 1000
"""Most members of a gzip body."""

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_BARE = -zlib.MAX_WBITS
_GZIP_NAMES = frozenset({"gzip", "x-gzip"})


class Undecodable(Exception):
    """A body can't be decoded; the text says why, and `kind` is the error of its exchange."""

    kind: type[BrokenOff] = BrokenOff


class TooMuch(Undecodable):
    """A body is larger than the limit before it is decoded."""

    kind = TooLarge


class Decoder:
    """Decodes one body, of `max_size` bytes at most, by its `Content-Encoding`. Raises Undecodable."""

    def __init__(self, encoding: str, max_size: int) -> None:
        if encoding not in _GZIP_NAMES and encoding != "deflate":
            raise Undecodable(f"the answer is encoded as {encoding[:40]!a}, which can't be read")
        self._is_gzip = encoding in _GZIP_NAMES
        self._max_size = max_size
        self._received = 0
        self._decoded = 0
        self._members = 0
        self._head = b""  # too short yet to detect its format
        self._stream: zlib._Decompress | None = None

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decode the next piece of the body, in small pieces; stop one byte beyond the limit."""
        self._received += len(data)
        if self._received > self._max_size + LARGER_AT_MOST:
            raise TooMuch(f"the compressed answer is larger than {self._max_size} bytes")
        data, self._head = self._head + data, b""
        is_full = False  # the stream has more output, though all input is consumed
        while (data or is_full) and self._decoded <= self._max_size:
            stream = self._stream or self._begin(data)
            if stream is None:
                self._head = data
                return
            most = min(PIECE, self._max_size + 1 - self._decoded)
            try:
                piece = stream.decompress(data, most)
            except zlib.error:
                raise Undecodable("the compression of the answer is broken") from None
            self._decoded += len(piece)
            self._stream = None if stream.eof else stream
            data = stream.unused_data or stream.unconsumed_tail
            is_full = len(piece) == most and not stream.eof
            yield piece

    def end(self) -> None:
        """Check that the body is complete; an empty one is."""
        if self._stream is not None or self._head:
            raise Undecodable("the compressed answer breaks off")

    def _begin(self, data: bytes) -> zlib._Decompress | None:
        """Begin a gzip member, or the deflate stream, which some servers send without its header.

        Returns None if more data is needed.
        """
        if self._members >= (MOST_GZIP_MEMBERS if self._is_gzip else 1):
            raise Undecodable("the compressed answer is followed by more data")
        if not self._is_gzip and len(data) < 2:
            return None
        self._members += 1
        if self._is_gzip:
            return zlib.decompressobj(_GZIP)
        has_header = data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
        return zlib.decompressobj(_ZLIB if has_header else _BARE)
