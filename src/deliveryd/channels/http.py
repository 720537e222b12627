"""The http adapter: sends to any HTTP gateway, by configuration only (design 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from deliveryd.channels.base import Dispatch, Expired, InDoubt, Misconfigured, Refused, TryAgain, Verdict
from deliveryd.channels.http_options import HttpChannelOptions
from deliveryd.channels.http_request import RequestWriter
from deliveryd.channels.http_verdicts import AnswerReader, failure
from deliveryd.channels.mapping import Unfit, customer_fields
from deliveryd.errors import BrokenOff, ConfigError, NotSent, OutcomeUnknown, ProxyRefused, TooLate
from deliveryd.http.client import HttpClient, build_client
from deliveryd.http.reachability import connect_problem, endpoint_of
from deliveryd.http.tls import TlsFiles
from deliveryd.model import Customer
from deliveryd.runtime.renewal import RenewedValue

MASK = "***"

_LATER = frozenset({408, 425, 429})
_NOT_ALLOWED = frozenset({401, 403})
"""Statuses that mean rejected credentials."""


@dataclass(frozen=True, slots=True)
class PreparedRequests:
    """The parts of requests that depend only on the secrets."""

    secrets: Mapping[str, str] = field(repr=False)
    writer: RequestWriter = field(compare=False)


def prepare_requests(options: HttpChannelOptions) -> PreparedRequests:
    """Read the secrets and prepare requests with them. Raises ValueError."""
    secrets = {name: files[0].read() for name, files in options.secrets.items()}
    return PreparedRequests(secrets, RequestWriter(options, secrets))


class HttpChannel:
    """One configured gateway."""

    def __init__(
        self,
        options: HttpChannelOptions,
        tls: TlsFiles,
        *,
        client: HttpClient,
        prepared: RenewedValue[PreparedRequests],
        masked: RequestWriter,
    ) -> None:
        self._client = client
        self._prepared = prepared
        self._masked = masked
        self._reader = AnswerReader(options)
        self.customer_fields = customer_fields(options.mapped()) - {"id"}
        self._needs_customer = bool(customer_fields(options.mapped()))
        self._endpoint = endpoint_of(options.url, tls, options.proxy)
        self._host = urlsplit(options.url).netloc.rpartition("@")[2]

    def reaches(self, customer: Customer | None) -> bool:
        """Whether every `{customer.FIELD}` of the mappings has a value."""
        if customer is None:
            return not self._needs_customer
        return all(map(customer.fields.get, self.customer_fields))

    async def send(self, dispatch: Dispatch) -> Verdict:
        """Make one request; its `Idempotency-Key` is the message's key."""
        check = dispatch.check_time if dispatch.expires_at is not None else None
        prepared = self._prepared.current()
        try:
            answer = await self._client.exchange(*prepared.writer.write(dispatch), check)
            if answer.status in _NOT_ALLOWED and (renewed := self._prepared_after(prepared)) != prepared:
                answer = await self._client.exchange(*renewed.writer.write(dispatch), check)
        except Unfit as error:
            return Refused(str(error))
        except TooLate:
            return Expired()
        except NotSent as error:
            return _not_sent(error)
        except OutcomeUnknown as error:
            verdict = _unknown(error)
        else:
            verdict = self._reader.verdict(answer)
        return verdict._replace(by=self._host) if isinstance(verdict, Refused | Misconfigured) else verdict

    def _prepared_after(self, shown: PreparedRequests) -> PreparedRequests:
        """Reread rejected secrets, unless another request has done so already."""
        if self._prepared.current() == shown:
            self._prepared.renew()
        return self._prepared.current()

    def preview(self, dispatch: Dispatch) -> str:
        """The request as text, every secret shown as `***`."""
        try:
            request = self._masked.write(dispatch)
        except Unfit as error:
            return f"nothing would be sent: {error}"
        address = str(request.target).replace("%2A%2A%2A", MASK)
        lines = [f"{request.method} {address}"]
        lines += [f"{name.decode()}: {value.decode('latin-1')}" for name, value in request.headers]
        body = request.body.decode("utf-8").replace("%2A%2A%2A", MASK)
        return "\n".join([*lines, "", body] if body else lines)

    async def probe(self) -> str | None:
        """Connect, with TLS for https, and disconnect without a request."""
        return await connect_problem(*self._endpoint)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _not_sent(error: NotSent) -> Verdict:
    """Return the verdict on a request that was not sent. A proxy's refusal is a misconfiguration."""
    if isinstance(error, ProxyRefused) and error.status < 500 and error.status not in _LATER:
        return Misconfigured(str(error))
    return TryAgain(str(error))


def _unknown(error: OutcomeUnknown) -> Verdict:
    """Return the verdict on an incomplete answer; a status other than 2xx counts as usual."""
    if isinstance(error, BrokenOff) and not 200 <= error.status < 300:
        return failure(error.status, error.headers.get("retry-after"))
    return InDoubt(str(error))


def open_http_channel(place: str, block: str, options: HttpChannelOptions, timeout: float) -> HttpChannel:
    """Open the provider whose table is at `place`; `timeout` seconds bound each request as a whole.

    Raises ConfigError. Must be called within the event loop that the channel will run on.
    """
    problems = options.problems(block)
    if problems:
        raise ConfigError([f"{place}.{problem}" for problem in problems])
    try:
        prepared = RenewedValue(
            [files[0].path for files in options.secrets.values()], lambda: prepare_requests(options)
        )
    except ValueError as error:
        raise ConfigError([f"{place}.{error}"]) from None
    masked = RequestWriter(options, dict.fromkeys(options.secrets, MASK))
    tls = (options.tls.files() if options.tls else TlsFiles())._replace(ca_key=f"{place}.tls.ca_file")
    client = build_client(timeout=timeout, tls=tls, proxy=options.open_proxy())
    return HttpChannel(options, tls, client=client, prepared=prepared, masked=masked)
