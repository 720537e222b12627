"""The http adapter: sends to any HTTP gateway, by configuration only (design 6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from deliveryd.channels.base import (
    NO_ADDRESS,
    AskLater,
    Dispatch,
    Expired,
    Found,
    InDoubt,
    Misconfigured,
    Refused,
    TryAgain,
    Unknown,
    Unsent,
    Verdict,
)
from deliveryd.channels.filling import MappingContext, Validity, customer_reader, plain_field
from deliveryd.channels.http.address import UNFIT_FOR_PATH, customer_fields_in_path, fits_path
from deliveryd.channels.http.answers import AnswerReader
from deliveryd.channels.http.asking import ProbeResult, read_lookup, read_probe, write_probe
from deliveryd.channels.http.masking import MASK, MOST_SEARCHED, mask
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.http.request import HttpRequest, PartsWriter, RequestWriter, basic_login
from deliveryd.channels.mapping import UNREADABLE_PHONE, Unfit, customer_fields
from deliveryd.errors import (
    AnswerUnreadable,
    BrokenOff,
    ConfigError,
    NoCredentials,
    NotSent,
    OutcomeUnknown,
    OutOfFiles,
    ProxyRefused,
    TooLate,
)
from deliveryd.http.client import HttpClient, build_client
from deliveryd.http.reachability import connect_problem, endpoint_of
from deliveryd.http.responses import is_page
from deliveryd.http.target import target_of
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import Wire, WireResponse
from deliveryd.model import Customer
from deliveryd.options.credentials import open_authentication
from deliveryd.runtime.secret_file import RenewedValue
from deliveryd.runtime.threads import LARGE, Aside

if TYPE_CHECKING:
    from deliveryd.channels.mail.writer import MailWriter
    from deliveryd.channels.phone_numbers import PhoneReader

NO_CONTEXT = MappingContext()
"""What mappings without secrets, filters and receipts depend on."""

_NOT_ALLOWED = frozenset({401, 403})
"""Statuses that mean rejected credentials."""


@dataclass(frozen=True, slots=True)
class PreparedRequests:
    """The parts of requests that depend only on the secrets."""

    secrets: Mapping[str, tuple[str, ...]] = field(repr=False)
    writer: RequestWriter = field(compare=False)
    lookup: PartsWriter | None = field(default=None, compare=False)
    context: MappingContext = field(default=NO_CONTEXT, compare=False, repr=False)
    login: str = field(default="", compare=False, repr=False)

    def masked(self, text: str, also: Iterable[str] = (), most: int = MOST_SEARCHED) -> str:
        """Return the provider's words without the secrets, should it repeat one, as `mask` does."""
        secrets = [self.login, *also, *(value for values in self.secrets.values() for value in values)]
        return mask(text, secrets, most)


def prepare_requests(options: HttpChannelOptions, context: MappingContext) -> PreparedRequests:
    """Read the secrets and prepare requests with them. Raises ValueError."""
    secrets = {name: tuple(file.read() for file in files) for name, files in options.secrets.items()}
    context = context._replace(
        secrets={name: values[0] for name, values in secrets.items()},
        older_secrets={name: values[1:] for name, values in secrets.items()},
    )
    lookup = PartsWriter(options.lookup.parts(), None, context) if options.lookup is not None else None
    writer = RequestWriter(options, context)
    login = basic_login(options.basic, context) if options.basic is not None else ""
    return PreparedRequests(secrets, writer, lookup, context, login)


def mapping_context(options: HttpChannelOptions) -> MappingContext:
    """Return what the mappings of a channel depend on besides messages and secrets."""
    least, most = options.validity_min, options.validity_max
    validity = Validity(
        None if least is None else ceil(least), None if most is None else int(most), options.heeds_keys
    )
    return MappingContext(
        receipt_url=options.receipt_url,
        phones=_phone_reader(options),
        validity=validity,
        mails=_mail_writer(options),
    )


def _phone_reader(options: HttpChannelOptions) -> PhoneReader | None:
    if not options.phone_fields:
        return None
    from deliveryd.channels.phone_numbers import PhoneReader  # noqa: PLC0415  # loaded only where it is used

    return PhoneReader(options.country)


def _mail_writer(options: HttpChannelOptions) -> MailWriter | None:
    if options.mail is None:
        return None
    from deliveryd.channels.mail.writer import MailWriter  # noqa: PLC0415  # loaded only where it is used

    return MailWriter(options.mail)


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
        context: MappingContext = NO_CONTEXT,
    ) -> None:
        self._client = client
        self._prepared = prepared
        self._masked = masked
        self.customer_fields = customer_fields(options.mapped()) - {"id"}
        self._lookup = options.lookup
        self._largest_body = options.largest_body
        self.devices_field: str | None = None
        self.lookup_after = options.lookup.after if options.lookup is not None else None
        address = options.address()
        self._address = customer_reader(address, context) if address is not None else None
        self._plain_address = plain_field(address) if address is not None else None
        self._needs_customer = bool(customer_fields(options.mapped()))
        self._phones = context.phones
        self._mails = context.mails
        self._path_fields = customer_fields_in_path(options.url).union(
            *(customer_fields_in_path(variant.url) for variant in options.variants if variant.url)
        )
        self._phone_fields = [name.field for name in options.phone_fields if name.root == "customer"]
        self._only_field = self._one_field()
        self._endpoint = endpoint_of(options.url, tls, options.proxy)
        self._account_probe, self._basic = options.probe, options.basic
        host = urlsplit(options.url).netloc.rpartition("@")[2]
        self._host = target_of(f"https://{host}")
        self._aside = Aside()
        self._reader = AnswerReader(options.answers, options.provider_id, host, masked=self.masked)

    def _one_field(self) -> str | None:
        """Return the customer's only field that is sent, if nothing but its being readable decides."""
        if len(self.customer_fields) != 1 or self._path_fields:
            return None
        [field] = self.customer_fields
        return field if self._phones is None or self._phone_fields == [field] else None

    def reaches(self, customer: Customer | None) -> bool:
        """Whether every `{customer.FIELD}` of the mappings has a value that fits where it stands."""
        if self._only_field is None or customer is None:
            return self._lack(customer) is None
        value = customer.fields.get(self._only_field)
        return bool(value and (self._phones is None or self._phones.is_readable(value)))

    def unreached(self, customer: Customer | None) -> str:
        """Return whether an address is missing, unfit for a path, or can't be read as a phone number."""
        return self._lack(customer) or NO_ADDRESS

    def _lack(self, customer: Customer | None) -> str | None:
        if customer is None:
            return NO_ADDRESS if self._needs_customer else None
        fields = customer.fields
        for name in self.customer_fields:
            if not fields.get(name):
                return NO_ADDRESS
        for name in self._path_fields:
            if not fits_path(fields[name]):
                return UNFIT_FOR_PATH
        if self._phones is not None:
            for name in self._phone_fields:
                if not self._phones.is_readable(fields[name]):
                    return UNREADABLE_PHONE
        return None

    def recipients(self, customer: Customer) -> tuple[str, ...]:
        """Return the value of the customer's field that is the address, as the mapping sends it."""
        if (field := self._plain_address) is not None:
            value = customer.fields.get(field)
            return (value,) if value else ()
        if self._address is None:
            return ()
        try:
            return (self._address(customer),)
        except Unfit:
            return ()

    async def send(self, dispatch: Dispatch) -> Verdict:
        """Make one request; its `Idempotency-Key` is the message's key."""
        check = dispatch.check_time if dispatch.has_limit else None
        prepared = self._prepared.current()
        try:
            is_slow = dispatch.size > LARGE or self._mails is not None
            request = await self._written(prepared, dispatch) if is_slow else prepared.writer.write(dispatch)
            if self._largest_body is not None and len(request.body) > self._largest_body:
                return Refused(
                    f"the request has {len(request.body)} bytes; {self._largest_body} fit", unsent=True
                )
            answer = await self._client.exchange(*request, check)
            if answer.status in _NOT_ALLOWED and (renewed := self._prepared_after(prepared)) != prepared:
                answer = await self._client.exchange(*await self._written(renewed, dispatch), check)
        except Unfit as error:
            return Refused(str(error), unsent=True)
        except TooLate:
            return Expired()
        except OutOfFiles as error:
            return Unsent(str(error))
        except NotSent as error:
            return _not_sent(error)
        except OutcomeUnknown as error:
            return self._unknown(error)
        return self._reader.verdict(answer)

    def _written(self, prepared: PreparedRequests, dispatch: Dispatch) -> Awaitable[HttpRequest]:
        write = partial(prepared.writer.write, dispatch)  # to compose even a small mail is slow
        return self._aside(write) if self._mails is not None else self._aside.sized(dispatch.size, write)

    def masked(self, text: str, most: int = MOST_SEARCHED) -> str:
        """Return the provider's words without the secrets, should it repeat one, as `mask` does."""
        return self._prepared.current().masked(text, self._client.secrets(), most)

    def _unknown(self, error: OutcomeUnknown) -> Verdict:
        """Return the verdict on an incomplete answer; a status other than 2xx counts as usual.

        The provider's id may stand in its head.
        """
        if not isinstance(error, BrokenOff):
            return InDoubt(str(error), unreadable=isinstance(error, AnswerUnreadable))
        body = error.body if is_page(error.body) else b""
        head = WireResponse(error.status, dict(error.headers), body)
        if not 200 <= error.status < 300:
            return self._reader.verdict(head)
        return InDoubt(str(error), provider_id=self._reader.provider_id(head), unreadable=True)

    async def look_up(self, dispatch: Dispatch) -> Found:
        """Ask by `lookup`."""
        writer = self._prepared.current().lookup
        if self._lookup is None or writer is None:
            return Unknown("the provider can't be asked")
        try:
            answer = await self._client.exchange(*writer.ask(dispatch), None)
        except Unfit as error:
            return Unknown(str(error))
        except (NotSent, OutcomeUnknown) as error:
            return AskLater(f"the provider couldn't be asked whether it has the message: {error}")
        return read_lookup(self._lookup, answer)

    def _prepared_after(self, shown: PreparedRequests) -> PreparedRequests:
        """Reread rejected secrets, unless another request has done so already."""
        if self._prepared.current() == shown:
            self._prepared.renew()
        return self._prepared.current()

    def preview(self, dispatch: Dispatch) -> str:
        """The request as text, every secret shown as `***`, and the mail that it carries."""
        try:
            request = self._masked.write(dispatch)
        except Unfit as error:
            return f"nothing would be sent: {error}"
        address = str(request.target).replace("%2A%2A%2A", MASK)
        lines = [f"{request.method} {address}"]
        lines += [f"{name.decode()}: {value.decode('latin-1')}" for name, value in request.headers]
        lines += ["", body] if (body := request.body.decode("utf-8").replace("%2A%2A%2A", MASK)) else []
        lines += ["", self._mails.compose(dispatch).readable()] if self._mails is not None else []
        return "\n".join(lines)

    def row(self, answer: WireResponse) -> int | None:
        """Return the position of the row of `answers` that fits; None: the status alone counts."""
        return self._reader.row(answer)

    def note_answers(self, note: Callable[[WireResponse], None]) -> None:
        """Call `note` with each answer from now on."""
        self._client = self._client.noted(note)

    async def probe(self) -> str | None:
        """Get what authenticates requests, connect, with TLS for https, and disconnect without a request."""
        problem = await self._client.credentials_problem(self._host)
        return problem or await connect_problem(*self._endpoint)

    async def ask_account(self) -> ProbeResult | None:
        """Ask by `probe`; None: the provider can't be asked. Sends no message."""
        options = self._account_probe
        if options is None:
            return None
        try:
            request = write_probe(options, self._basic, self._prepared.current().context)
            answer = await self._client.exchange(*request, None)
        except (Unfit, ValueError) as error:
            return ProbeResult("rejected", str(error))
        except (NotSent, OutcomeUnknown) as error:
            return ProbeResult("unknown", str(error))
        return read_probe(options, answer)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _not_sent(error: NotSent) -> Verdict:
    """Return the verdict on a request that was not sent. A proxy's refusal is a misconfiguration.

    Without credentials no message can be sent, so none loses a try.
    """
    if isinstance(error, ProxyRefused) and not error.may_pass:
        return Misconfigured(str(error))
    return TryAgain(str(error), counts=not isinstance(error, NoCredentials))


def open_http_channel(
    place: str, block: str, options: HttpChannelOptions, timeout: float, wire: Wire | None = None
) -> HttpChannel:
    """Open the provider whose table is at `place`; `timeout` seconds bound each request as a whole.

    Requests go over `wire`, if it is given, else over connections. Raises ConfigError. Must be called within
    the event loop that the channel will run on.
    """
    problems = options.problems(block)
    if problems:
        raise ConfigError([f"{place}.{problem}" for problem in problems])
    context = mapping_context(options)
    try:
        prepared = RenewedValue(
            [file.path for files in options.secrets.values() for file in files],
            lambda: prepare_requests(options, context),
        )
        masked = RequestWriter(options, context._replace(mask=MASK))
    except ValueError as error:
        raise ConfigError([f"{place}.{error}"]) from None
    tls = (options.tls.files() if options.tls else TlsFiles())._replace(ca_key=f"{place}.tls.ca_file")
    try:
        authentication = open_authentication(options.auth, f"{place}.auth", timeout)
    except (OSError, ValueError) as error:
        raise ConfigError([f"{place}.auth: {error}"]) from None
    if wire is None:
        proxy = options.open_proxy()
        client = build_client(
            timeout=timeout, tls=tls, proxy=proxy, authentication=authentication, http2=options.http2
        )
    else:
        client = HttpClient(wire, timeout=timeout, authentication=authentication)
    return HttpChannel(options, tls, client=client, prepared=prepared, masked=masked, context=context)
