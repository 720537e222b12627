"""Reads answers as they arrive: strictly, what isn't strict leniently, decoded, and within limits.

It does no I/O: a wire feeds it with what a connection brings.
"""

from __future__ import annotations

from contextlib import suppress

import httptools

from deliveryd.errors import AnswerUnreadable, BrokenOff, OutcomeUnknown, TooLarge
from deliveryd.http.content_coding import Decoder, Layers, Undecodable, decoder_of
from deliveryd.http.lenient_answer import LARGEST_HEAD, LenientAnswer
from deliveryd.http.wire import WireResponse, add_header

MOST_READ_ANEW = 1 << 20
"""Most bytes of an answer in several pieces that are kept, to be read leniently if it isn't strict HTTP."""

BROKE = "the connection broke before the whole answer was there"


class ResponseReader:
    """The answers over one connection, one after the other: `begin`, then feed it until there is an outcome.

    `outcome` is the complete response, or why there is none. `allows_another`: the answer was complete, and
    the peer keeps the connection open. The parser calls the methods whose names begin with `on_`.
    """

    def __init__(self) -> None:
        self.outcome: WireResponse | OutcomeUnknown | None = None
        self.is_awaited = False
        self.allows_another = False
        self._parser = httptools.HttpResponseParser(self)
        self._max_body = 0
        self._overhead = 0  # bytes since the last ones of the body
        self._raw: bytes | bytearray | None = b""  # what came of an answer so far; None: too much to keep
        self._lenient: LenientAnswer | None = None
        self._is_tunnel = False
        self._body = bytearray()
        self._start()

    def begin(self, max_body: int, *, is_tunnel: bool = False) -> None:
        """Await an answer with a body of `max_body` bytes at most; that of a tunnel has none."""
        self.outcome = None
        self.is_awaited = True
        self.allows_another = False
        self._max_body = max_body
        self._is_tunnel = is_tunnel
        self._overhead = 0
        self._raw = b""
        self._start()

    def feed(self, data: bytes) -> None:
        """Read what arrived next. What is more than an awaited answer is never one to the next request."""
        if not self.is_awaited:
            self.allows_another = False
            return
        self._overhead += len(data)
        try:
            if self._lenient is None:
                self._parser.feed_data(data)
            else:
                self._feed_lenient(self._lenient, data)
        except httptools.HttpParserUpgrade:
            self._keep(data)
            self.fail("the answer switches to another protocol")
        except (httptools.HttpParserError, ValueError):
            self._read_leniently(data)
        else:
            if self.is_awaited:
                self._keep(data)
        if self._overhead > LARGEST_HEAD:
            self.fail(f"the answer's head is larger than {LARGEST_HEAD} bytes")

    def end(self) -> None:
        """Note that the peer ended the connection: some bodies end so."""
        if self.is_awaited and self._head_done:
            if self._ends_with_connection():
                self._finish()
            elif (self._raw or b"").endswith(b"\n0\r\n"):  # only the empty line behind the chunks is missing
                with suppress(httptools.HttpParserError):
                    self._parser.feed_data(b"\r\n")
        self.allows_another = False
        self.fail(BROKE)

    def fail(self, reason: str, kind: type[BrokenOff] = BrokenOff) -> None:
        """End an answer that isn't complete; if its head was, the error has its status."""
        if not self.is_awaited:
            return
        self.is_awaited = False
        if self._head_done and (status := self._parser.get_status_code()) >= 200:
            self.outcome = kind(reason, status, self._headers, bytes(self._body))
        else:
            self.outcome = AnswerUnreadable(reason) if self._raw != b"" else OutcomeUnknown(reason)
        self._body = bytearray()

    def _keep(self, data: bytes) -> None:
        """Keep what came of an answer as long as its head or its chunks could turn out not to be strict."""
        if self._raw is None or (self._head_done and not self._is_chunked):
            return
        self._raw = self._raw or bytearray()
        self._raw += data
        if len(self._raw) > MOST_READ_ANEW:
            self._raw = None

    def _read_leniently(self, data: bytes) -> None:
        """Read the answer again, leniently: what has come of it isn't strict HTTP."""
        if not self.is_awaited:  # there is more than the answer
            self.allows_another = False
            return
        self._keep(data)
        raw, self._raw = self._raw, self._raw or b"?"
        if self._lenient is not None or raw is None:
            self.fail("the answer isn't HTTP")
            return
        self._start()
        self._parser = httptools.HttpResponseParser(self)
        self._lenient = LenientAnswer()
        try:
            self._feed_lenient(self._lenient, bytes(raw))
        except (httptools.HttpParserError, ValueError):
            self.fail("the answer isn't HTTP")

    def _feed_lenient(self, answer: LenientAnswer, data: bytes) -> None:
        """Parse what follows in an answer that isn't strict. Raises HttpParserError or ValueError."""
        for piece in answer.feed(data):
            self._parser.feed_data(piece)
        if answer.is_over:
            self._finish()

    def _start(self) -> None:
        self._headers: dict[str, str] = {}
        self._body = bytearray()  # a list would need an object per chunk, even of one byte
        self._decoder: Decoder | Layers | None = None
        self._head_done = False

    def _finish(self) -> None:
        if not self.is_awaited:
            return
        if self._decoder is not None:
            try:
                self._decoder.end()
            except Undecodable as error:
                self.fail(str(error))
                return
        self.is_awaited = False
        self.outcome = WireResponse(self._parser.get_status_code(), self._headers, bytes(self._body))
        self._body = bytearray()

    @property
    def _is_chunked(self) -> bool:
        return "chunked" in self._headers.get("transfer-encoding", "").lower()

    def _ends_with_connection(self) -> bool:
        if self._lenient is not None and self._lenient.breaks_off:
            return False
        return "content-length" not in self._headers and not self._is_chunked

    # what the parser calls

    def on_message_begin(self) -> None:
        if not self.is_awaited:  # a second, unrequested response
            self.allows_another = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:  # otherwise a trailer
            add_header(self._headers, name.lower().decode("latin-1"), value.strip(b" \t").decode("latin-1"))

    def on_headers_complete(self) -> None:
        self._head_done = True
        if self._is_tunnel and self._parser.get_status_code() >= 200:
            self._finish()
        elif "content-encoding" in self._headers:
            try:
                self._decoder = decoder_of(self._headers["content-encoding"], self._max_body)
            except Undecodable as error:
                self.fail(str(error))

    def on_body(self, data: bytes) -> None:
        self._overhead = 0
        try:
            for piece in (data,) if self._decoder is None else self._decoder.decode(data):
                room = self._max_body - len(self._body)
                if len(piece) > room:
                    self._body += piece[:room]
                    self.fail(f"the answer is larger than {self._max_body} bytes", TooLarge)
                    return
                self._body += piece
        except Undecodable as error:
            self.fail(str(error), error.kind)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # 100 Continue and others: the final response is to come
            self._start()
        elif self.is_awaited:
            self.allows_another = bool(self._parser.should_keep_alive())
            self._finish()
