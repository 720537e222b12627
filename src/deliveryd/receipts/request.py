"""A provider's request as it came: what signatures cover, and what reports are read from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, InitVar, dataclass, field

from deliveryd.http.finder import Document, TextFields, read_pairs, read_texts
from deliveryd.journal.sql.own_values import SignedToken

_NO_FORM = re.compile(rb"""[\s\0\xef\xbb\xbf\xfe\xff]*[\[{"<]|--""")
"""How JSON, XML and multipart begin, after a byte order mark if there is one; a form begins with a name."""

_AROUND = b" \t\r\n\0"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NO_TEXTS: TextFields = {}


class Unreadable(ValueError):
    """A report doesn't match the configuration; the text names the place, never a value."""


class ReceiptHeaders(Mapping[str, str]):
    """ReceiptHeaders by their lower-case names, decoded when one is looked up.

    One that is given several times is a list (RFC 9110, 5.2).
    """

    __slots__ = ("_decoded", "_raw")

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self._raw = raw
        self._decoded: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        """Return a header; raises KeyError."""
        if self._decoded is None:
            self._decoded = {}
            for raw_name, raw_value in self._raw:
                key, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
                earlier = self._decoded.get(key)
                self._decoded[key] = value if earlier is None else f"{earlier}, {value}"
        return self._decoded[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return (name.decode("latin-1") for name, _value in self._raw)

    def __len__(self) -> int:
        """Return how many lines they are."""
        return sum(1 for _ in self._raw)


@dataclass(slots=True, eq=False)
class ReceiptRequest:
    """One request. `base` is `receipts.public_url`, in front of the path that the provider called.

    `sent` is the body as it was sent, if it was compressed. `peer` returns who sent it; None: no peer is
    named.
    `token`: its signature covers this token and not the report, so the token counts for this report only.
    `parsed` is the report once it was looked at.
    """

    method: str
    path: str
    query: bytes
    raw_headers: InitVar[Sequence[tuple[bytes, bytes]]]
    body: bytes
    _: KW_ONLY
    base: str = ""
    sent: bytes | None = None
    peer: Callable[[], str | None] = lambda: None
    token: SignedToken | None = None
    headers: Mapping[str, str] = field(init=False)
    parsed: Document | None = field(init=False, default=None)

    def __post_init__(self, raw_headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.headers = ReceiptHeaders(raw_headers)

    @property
    def url(self) -> str:
        """The address that the provider called, with its query."""
        query = f"?{self.query.decode('latin-1')}" if self.query else ""
        return f"{self.base}{self.path}{query}"

    @property
    def is_form(self) -> bool:
        """Whether the body is a form: the body decides, as its content type isn't signed, and often wrong."""
        return b"=" in self.body and not _NO_FORM.match(self.body)

    @property
    def is_empty(self) -> bool:
        """Whether the body is nothing, or a line end that a program adds to everything.

        The report is in the query then, which the signature has to cover.
        """
        return not self.body.strip(_AROUND)

    def form_pairs(self) -> list[tuple[bytes, bytes]]:
        """Return the fields of a form as they were written, none of another body. Raises ValueError."""
        return read_pairs(self.body) if self.is_form else []

    def query_pairs(self) -> list[tuple[bytes, bytes]]:
        """Return the parameters of the query as they were written. Raises ValueError."""
        return read_pairs(self.query)

    def parameters(self) -> list[tuple[bytes, bytes]]:
        """Return the fields of the form, or without a body those of the query. Raises ValueError."""
        return self.query_pairs() if self.is_empty else self.form_pairs()

    def with_body(self, body: bytes) -> ReceiptRequest:
        """Return the request with another body, such as the content of an envelope."""
        request = copy(self)
        request.body, request.parsed = body, None
        return request

    def with_token(self, token: SignedToken) -> ReceiptRequest:
        """Return the request with the token of its signature."""
        request = copy(self)
        request.token = token
        return request

    def document(self) -> Document:
        """Return the report: a form, JSON, or without a body the query. Raises Unreadable."""
        if self.parsed is None:
            self.parsed = self._read_document()
        return self.parsed

    def _read_document(self) -> Document:
        if self.is_empty:
            if not self.query:
                raise Unreadable("the request has neither a body nor a query")
            query = _texts(self.query, "query")
            return Document(b"", self.headers, query, form=query)
        plain = self.body.removeprefix(_BYTE_ORDER_MARK).strip(_AROUND)
        form = _texts(plain, "form") if self.is_form else None
        document = Document(self.body, self.headers, self._query_if_any(), form)
        if document.is_readable:
            return document
        if self.body.startswith(b"--"):
            raise Unreadable("the body is multipart; only JSON and plain forms can be read")
        raise Unreadable("the body is neither JSON nor a form")

    def _query_if_any(self) -> TextFields:
        """Return the query beside a body; one that can't be read has no parameters."""
        try:
            return read_texts(self.query) if self.query else _NO_TEXTS
        except ValueError:
            return _NO_TEXTS


def _texts(encoded: bytes, what: str) -> TextFields:
    try:
        return read_texts(encoded)
    except ValueError:
        raise Unreadable(f"the {what} has too many fields or escapes") from None
