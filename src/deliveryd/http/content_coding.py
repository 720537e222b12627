"""Decoding of compressed responses as they arrive, within limits: a few kB can expand to many GB."""

from __future__ import annotations

import re
import zlib
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence

from deliveryd.errors import BrokenOff, TooLarge

PIECE = 256 * 1024
"""Most bytes decoded at a time."""

LARGER_AT_MOST = 64 * 1024
"""Bytes by which a compressed body may exceed its limit: it could be endless and expand to nothing."""

MOST_GZIP_MEMBERS = 1000
"""Most members of a gzip body."""

MOST_LAYERS = 2
"""Most codings of a body, one in the other."""

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_BARE = -zlib.MAX_WBITS
_GZIP_NAMES = frozenset({"gzip", "x-gzip"})
_GZIP_BEGIN = b"\x1f\x8b"
_NAME = re.compile(r"[a-z0-9-]+")
_NO_TEXT = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f]")
_JSON_BEGIN = re.compile(rb'\[|\{["} \t\r\n]')
"""No deflate stream of UTF-8 begins so: its first character would be none (RFC 1951, 3.2.6)."""
_Utf8 = getincrementaldecoder("utf-8")
_READ = _GZIP_NAMES | {"deflate"}
_NOT_READ = frozenset({"br", "compress", "x-compress", "zstd", "dcb", "dcz"})


class Undecodable(Exception):
    """A body can't be decoded; the text has the reason, and `kind` is the error of its exchange."""

    kind: type[BrokenOff] = BrokenOff


class TooMuch(Undecodable):
    """A body is larger than the limit before it is decoded."""

    kind = TooLarge


def decoder_of(encoding: str, max_size: int) -> Decoder | Layers | None:
    """Return the decoder of a body of `max_size` bytes at most, by its `Content-Encoding` (RFC 9110 8.4).

    None: it isn't encoded. What is no coding, such as `utf-8` or nothing, has no effect, nor does what
    stands around one, as in `gzip;q=1.0` or `application/gzip`. Raises Undecodable.
    """
    codings = [name for name in _NAME.findall(encoding.lower()) if name in _READ or name in _NOT_READ]
    if len(codings) > MOST_LAYERS:
        raise Undecodable(f"the answer is encoded as {encoding[:40]!a}, which can't be read")
    decoders = [Decoder(coding, max_size) for coding in reversed(codings)]
    if len(decoders) > 1:
        return Layers(*decoders)
    return decoders[0] if decoders else None


class Layers:
    """Decodes a body that was encoded twice, or once if two servers on its way each name the same coding."""

    def __init__(self, outer: Decoder, inner: Decoder) -> None:
        self._outer, self._inner = outer, inner

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decode the next piece of the body, as `Decoder` does."""
        for piece in self._outer.decode(data):
            yield from self._inner.decode(piece)

    def end(self) -> None:
        """Check that the body is complete in both."""
        self._outer.end()
        self._inner.end()


class Decoder:
    """Decodes one body. A text that claims to be encoded is read as it is. Raises Undecodable."""

    def __init__(self, encoding: str, max_size: int) -> None:
        self._encoding = encoding
        self._is_gzip = encoding in _GZIP_NAMES
        self._max_size = max_size
        self._received = 0
        self._decoded = 0
        self._members = 0
        self._head = b""  # too short yet to detect its format
        self._stream: zlib._Decompress | None = None
        self._text = _Utf8() if encoding not in _READ else None
        self._is_padding = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Decode the next piece of the body, in small pieces; stop one byte beyond the limit."""
        self._received += len(data)
        if self._received > self._max_size + LARGER_AT_MOST:
            raise TooMuch(f"the compressed answer is larger than {self._max_size} bytes")
        data, self._head = self._head + data, b""
        if self._text is not None:
            yield from self._as_it_is(data)
            return
        is_full = False  # the stream has more output, though all input is consumed
        while (data or is_full) and self._decoded <= self._max_size and not self._is_padding:
            stream = self._stream or self._begin(data)
            if stream is None:
                yield from self._as_it_is(data)
                return
            most = min(PIECE, self._max_size + 1 - self._decoded)
            try:
                piece = stream.decompress(data, most)
            except zlib.error:
                if self._is_gzip or self._received > len(data):
                    raise Undecodable("the compression of the answer is broken") from None
                self._stream, self._text = None, _Utf8()
                yield from self._as_it_is(data)
                return
            self._decoded += len(piece)
            self._stream = None if stream.eof else stream
            data = stream.unused_data or stream.unconsumed_tail
            is_full = len(piece) == most and not stream.eof
            yield piece

    def _as_it_is(self, data: bytes, *, is_last: bool = False) -> Sequence[bytes]:
        """Return the next piece of a text that isn't encoded; nothing of any other body."""
        if self._text is None:
            return ()
        try:
            self._text.decode(data, is_last)
            is_text = not _NO_TEXT.search(data)
        except UnicodeDecodeError:
            is_text = False
        if not is_text:
            raise Undecodable(f"the answer is encoded as {self._encoding!a}, which can't be read")
        return (data,)

    def end(self) -> None:
        """Check that the body is complete; an empty one is."""
        self._as_it_is(b"", is_last=True)
        if self._stream is not None or self._head:
            raise Undecodable("the compressed answer breaks off")

    def _begin(self, data: bytes) -> zlib._Decompress | None:
        """Begin a gzip member, or the deflate stream, which some servers send without its header.

        Returns None if more data is needed, if nothing is compressed, or if only padding is left.
        """
        if self._is_gzip and not data.startswith(_GZIP_BEGIN[: len(data)]):
            self._is_padding = self._members > 0
            self._text = None if self._is_padding else _Utf8()
            return None
        if self._members >= (MOST_GZIP_MEMBERS if self._is_gzip else 1):
            raise Undecodable("the compressed answer is followed by more data")
        if len(data) < 2:
            self._head = data
            return None
        if not self._is_gzip and not self._members and _JSON_BEGIN.match(data):
            self._text = _Utf8()
            return None
        has_header = data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
        self._members += 1
        if self._is_gzip:
            return zlib.decompressobj(_GZIP)
        return zlib.decompressobj(_ZLIB if has_header else _BARE)
