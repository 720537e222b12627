"""Asks an HTTP provider whether it has a message in doubt."""

from __future__ import annotations

from collections.abc import Mapping

from deliveryd import __version__
from deliveryd.channels.base import AskLater, Dispatch, Found, NotTaken, Taken, Unknown
from deliveryd.channels.filling import ABSENT, MappingContext, TextTemplate, compile_tree
from deliveryd.channels.filters import Unfit
from deliveryd.channels.http.address import compile_address
from deliveryd.channels.http.answer_options import LONGEST_PAUSE
from deliveryd.channels.http.lookup_options import LookupOptions
from deliveryd.channels.http.request import HttpRequest, write_json
from deliveryd.errors import NotSent, OutcomeUnknown
from deliveryd.http.client import HttpClient, raw_header
from deliveryd.http.finder import Document, all_hold, compile_conditions, compile_finder
from deliveryd.http.responses import is_page, retry_after
from deliveryd.http.target import target_of
from deliveryd.http.wire import WireResponse

_LATER = frozenset({408, 425, 429})


class LookupWriter:
    """Writes the question about one message; it carries no idempotency key, since it sends nothing."""

    def __init__(self, options: LookupOptions, context: MappingContext) -> None:
        self._method = options.method
        self._address = compile_address(options.url, options.query, context)
        self._body = None if options.json_body is None else compile_tree(options.json_body, context)
        self._headers = [(name, TextTemplate(value, context)) for name, value in _with_own(options).items()]

    def write(self, dispatch: Dispatch) -> HttpRequest:
        """Return the request. Raises Unfit."""
        headers = []
        for name, template in self._headers:
            value = template.fill(dispatch)
            if value is ABSENT or not (value.isascii() and value.isprintable()):
                raise Unfit(f"the header {name} can't carry the value")
            headers.append(raw_header(name, value))
        body = b"" if self._body is None else write_json(self._body(dispatch))
        return HttpRequest(self._method, target_of(self._address.fill(dispatch)), headers, body)


def _with_own(options: LookupOptions) -> Mapping[str, str]:
    """Return the configured headers, and the adapter's own unless they are among them."""
    own = {"User-Agent": f"deliveryd/{__version__}", "Accept": "application/json"}
    if options.json_body is not None:
        own["Content-Type"] = "application/json"
    given = {name.lower() for name in options.headers}
    return {**options.headers, **{name: value for name, value in own.items() if name.lower() not in given}}


class LookupReader:
    """Reads the answers to the question."""

    def __init__(self, options: LookupOptions) -> None:
        self._rows = [(row.statuses, compile_conditions(row.where), row.verdict) for row in options.answers]
        self._provider_id = compile_finder(options.provider_id) if options.provider_id else None

    def read(self, answer: WireResponse) -> Found:
        """Return what the answer says."""
        document = Document(answer.body, answer.headers)
        for statuses, conditions, verdict in self._rows:
            if answer.status in statuses and all_hold(conditions, document):
                if not conditions and is_page(answer.body):
                    return AskLater(f"{_said(answer)} with a page, which says nothing of the message")
                if verdict == "taken":
                    return Taken(self._provider_id.find(document) if self._provider_id else None)
                return NotTaken() if verdict == "not_taken" else Unknown(_said(answer))
        if answer.status >= 500 or answer.status in _LATER:
            return AskLater(_said(answer), retry_after(answer.headers.get("retry-after"), LONGEST_PAUSE))
        return Unknown(_said(answer))


def _said(answer: WireResponse) -> str:
    return f"asked whether it has the message, the provider answered {answer.status}"


class HttpLookup:
    """Asks one provider. `after` is the least time in seconds between a doubt and the question."""

    def __init__(self, client: HttpClient, options: LookupOptions) -> None:
        self.after = options.after
        self._client = client
        self._reader = LookupReader(options)

    async def ask(self, writer: LookupWriter, dispatch: Dispatch) -> Found:
        """Ask once."""
        try:
            request = writer.write(dispatch)
            answer = await self._client.exchange(*request, None)
        except Unfit as error:
            return Unknown(str(error))
        except (NotSent, OutcomeUnknown) as error:
            return AskLater(f"the provider couldn't be asked whether it has the message: {error}")
        return self._reader.read(answer)
