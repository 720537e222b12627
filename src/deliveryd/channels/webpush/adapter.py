"""The webpush adapter: encrypts each message for its subscription, and posts it to the push service."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from functools import partial

from deliveryd import __version__
from deliveryd.channels.base import (
    NO_ADDRESS,
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
from deliveryd.channels.filling import ABSENT, MappingContext, compile_tree
from deliveryd.channels.http.answer_options import AnswerOptions
from deliveryd.channels.http.answers import AnswerReader
from deliveryd.channels.mapping import Unfit, customer_fields
from deliveryd.channels.webpush.encryption import PushSubscription, encrypted, read_subscription
from deliveryd.channels.webpush.options import WebPushOptions
from deliveryd.channels.webpush.services import Allowed, PushServices
from deliveryd.channels.webpush.vapid import Vapid, read_vapid_key
from deliveryd.errors import (
    AnswerUnreadable,
    ConfigError,
    NotSent,
    OutcomeUnknown,
    OutOfFiles,
    ProxyRefused,
    TooLate,
)
from deliveryd.http.client import HttpClient, build_client
from deliveryd.http.tls import TlsFiles
from deliveryd.http.wire import Header, Target, WireResponse
from deliveryd.model import SECOND, Customer
from deliveryd.network.resolver import Resolver
from deliveryd.runtime.json_numbers import dumps_exact
from deliveryd.runtime.secret_file import RenewedValue

TOPIC_LENGTH = 32
"""Characters of a topic at most (RFC 8030, 5.4)."""

_TOKEN_REJECTED = frozenset({401, 403})

ANSWERS = [
    AnswerOptions(status=[404, 410], verdict="stopped"),
    AnswerOptions(status=[401, 403], verdict="misconfigured"),
    AnswerOptions(status=[429], verdict="try_again"),
    AnswerOptions(status=[503], verdict="try_again"),
]
"""What push services answer; the other statuses mean the usual."""


class WebPushChannel:
    """Messages to browsers: `client` posts them to the push services that the options allow."""

    devices_field = None
    lookup_after = None  # push services can't be asked

    def __init__(
        self, options: WebPushOptions, client: HttpClient, vapid: RenewedValue[Vapid], services: PushServices
    ) -> None:
        self._options = options
        self._client = client
        self._vapid = vapid
        self._services = services
        self._field = options.field
        self.customer_fields = customer_fields([options.recipient, options.mapped]) - {"id"}
        self._fill = compile_tree(options.mapped, MappingContext())
        self._reader = AnswerReader(ANSWERS, "header:Location", "the push service")

    def reaches(self, customer: Customer | None) -> bool:
        """Whether the customer has a subscription, and what else the payload needs."""
        return customer is not None and all(customer.fields.get(name) for name in self.customer_fields)

    def unreached(self, _customer: Customer | None) -> str:
        """Return that there is no subscription."""
        return NO_ADDRESS

    def recipients(self, customer: Customer) -> tuple[str, ...]:
        """Return the address that the subscription's messages go to."""
        try:
            return (self._subscription(customer).endpoint,)
        except Unfit:
            return ()

    def _subscription(self, customer: Customer | None) -> PushSubscription:
        text = customer.fields.get(self._field) if customer is not None else None
        if not text:
            raise Unfit("the customer has no subscription")
        return read_subscription(text)

    async def send(self, dispatch: Dispatch) -> Verdict:
        """Post one message to the push service of its subscription."""
        try:
            to = self._subscription(dispatch.customer)
            target, service = self._services.find(to.endpoint)
            body = encrypted(self._payload(dispatch), to)
            addresses = await self._addresses(target)
        except Unfit as error:
            return Refused(str(error), unsent=True)
        if addresses is None:
            return TryAgain(f"{service.written} has no address", only_this=service.is_open)
        return await self._posted(target, service, addresses, body, dispatch)

    async def _addresses(self, target: Target) -> Sequence[str | None] | None:
        """Return the addresses to connect to, or None in place of one that a proxy resolves; None: none."""
        if self._options.proxy is not None:
            return [None]
        try:
            return await self._services.addresses(target)
        except (OSError, TimeoutError):
            return None

    def _payload(self, dispatch: Dispatch) -> bytes:
        filled = self._fill(dispatch)
        return dumps_exact({} if filled is ABSENT else filled)

    def _headers(self, target: Target, dispatch: Dispatch) -> list[Header]:
        left = self._options.ttl
        if dispatch.expires_at is not None:
            left = min(left, max((dispatch.expires_at - dispatch.clock.now()) / SECOND, 0))
        topic = urlsafe_b64encode(hashlib.sha256(dispatch.key.encode()).digest())[:TOPIC_LENGTH]
        return [
            (b"User-Agent", f"deliveryd/{__version__}".encode()),
            (b"Content-Type", b"application/octet-stream"),
            (b"Content-Encoding", b"aes128gcm"),
            (b"TTL", str(int(left)).encode()),
            (b"Urgency", self._options.urgency.encode()),
            (b"Topic", topic),
            self._vapid.current().header(f"{target.scheme}://{target.authority}", dispatch.clock),
        ]

    async def _posted(
        self,
        target: Target,
        service: Allowed,
        addresses: Sequence[str | None],
        body: bytes,
        dispatch: Dispatch,
    ) -> Verdict:
        """Post to the first address that takes the request; reasons name the list's entry, not the host."""
        check = dispatch.check_time if dispatch.has_limit else None
        headers = self._headers(target, dispatch)
        verdict: Verdict = TryAgain(f"no connection to {service.written}", only_this=service.is_open)
        for address in addresses:
            try:
                answer = await self._client.exchange(
                    "POST", target._replace(address=address), headers, body, check
                )
            except TooLate:
                return Expired()
            except OutOfFiles as error:
                return Unsent(str(error))
            except ProxyRefused as error:
                reason = f"the proxy answered {error.status}"
                return TryAgain(reason) if error.may_pass else Misconfigured(reason)
            except NotSent:
                continue
            except OutcomeUnknown as error:
                reason = f"{service.written} gave no whole answer"
                return InDoubt(reason, unreadable=isinstance(error, AnswerUnreadable))
            return self._verdict(answer)
        return verdict

    def _verdict(self, answer: WireResponse) -> Verdict:
        if answer.status in _TOKEN_REJECTED:
            self._vapid.renew()
        return self._reader.verdict(answer)

    async def look_up(self, dispatch: Dispatch) -> Found:
        """A push service can't be asked."""
        return Unknown(f"the push service can't be asked for message {dispatch.entry.id}")

    def preview(self, dispatch: Dispatch) -> str:
        """What the browser would get, before it is encrypted, and where it would be posted."""
        try:
            target, _ = self._services.find(self._subscription(dispatch.customer).endpoint)
            body = self._payload(dispatch).decode()
        except Unfit as error:
            return f"nothing would be sent: {error}"
        shown = [
            f"{name.decode()}: {value.decode()}" for name, value in self._headers(target, dispatch)[1:-1]
        ]
        return "\n".join([f"POST {target.scheme}://{target.authority}/***", *shown, "", body])

    async def probe(self) -> str | None:
        """Look up the names of the push services that are written out; a proxy does so itself."""
        return None if self._options.proxy is not None else await self._services.problem()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def open_webpush(place: str, block: str, options: WebPushOptions, timeout: float) -> WebPushChannel:
    """Open the provider whose table is at `place`. Raises ConfigError.

    Must be called within the event loop that the channel will run on.
    """
    if problems := options.problems(block):
        raise ConfigError([f"{place}.{problem}" for problem in problems])
    tls = (options.tls.files() if options.tls else TlsFiles())._replace(ca_key=f"{place}.tls.ca_file")
    client = build_client(timeout=timeout, tls=tls, proxy=options.open_proxy())
    services = PushServices(options.allowed_hosts, options.parsed_networks, Resolver(), timeout)
    vapid = RenewedValue([options.key_file.path], partial(_vapid, options))
    return WebPushChannel(options, client, vapid, services)


def _vapid(options: WebPushOptions) -> Vapid:
    return Vapid(read_vapid_key(options.key_file.read()), options.subject)
