"""How one provider reports: its requests verified, read, and answered."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from deliveryd.channels.receipt_options import ChallengeOptions, ReceiptOptions
from deliveryd.channels.signature_schemes import BasicSignature, TokenSignature
from deliveryd.receipts.reading import ReportReader, Slices
from deliveryd.receipts.request import ReceiptRequest
from deliveryd.receipts.signatures.base import Forged, NoReport, Verified
from deliveryd.receipts.verification import open_verifier
from deliveryd.runtime.secret_file import RenewedValue

_MODE, _TOKEN, _CHALLENGE = b"hub.mode", b"hub.verify_token", b"hub.challenge"
_PLAIN = "text/plain; charset=utf-8"


class ReceiptReply(NamedTuple):
    """The response to a provider. `login` asks for user name and password.

    `results` aren't sent: what each report did, in their order.
    """

    status: int
    text: str
    content_type: str = _PLAIN
    login: bool = False
    results: Sequence[str] = ()

    def after(self, results: Sequence[str]) -> ReceiptReply:
        """The same response, after reports that did this."""
        return ReceiptReply(*self[:4], results)


class Inlet:
    """One provider's options, compiled, with what its requests are verified with.

    `max_body` is the size of the largest request of providers that don't say more. The secrets are read now
    and when they are replaced. Raises ValueError.
    """

    def __init__(self, options: ReceiptOptions, max_body: int = 0) -> None:
        answer, signature, challenge = options.answer, options.signature, options.challenge
        self.reply = ReceiptReply(answer.status, answer.body, answer.content_type)
        has_login = isinstance(signature, BasicSignature)
        self.refusal = ReceiptReply(401, "the signature doesn't fit", login=has_login)
        self.has_token_in_path = isinstance(signature, TokenSignature) and signature.at == "path"
        self.largest = options.largest(max_body)
        self._reader = ReportReader(options)
        self._verifier = open_verifier(signature) if signature is not None else None
        self._verify_tokens = _open_tokens(challenge) if challenge is not None else None

    @property
    def is_signed(self) -> bool:
        """Whether requests are verified."""
        return self._verifier is not None

    def answer_challenge(self, request: ReceiptRequest) -> ReceiptReply | None:
        """Return the answer to Meta's verification of the address; None: the request is another."""
        if self._verify_tokens is None or request.method != "GET":
            return None
        try:
            given = dict(request.query_pairs())
        except ValueError:
            return None
        if given.get(_MODE) != b"subscribe":
            return None
        token = given.get(_TOKEN, b"")
        fits = [hmac.compare_digest(token, each) for each in self._verify_tokens.latest()]
        if not any(fits):
            return ReceiptReply(403, "wrong token")
        return ReceiptReply(200, given.get(_CHALLENGE, b"").decode("utf-8", "replace"))

    def verify(self, request: ReceiptRequest, now: int) -> Verified:
        """Return what a genuine request holds. Raises Forged, CertificateMissing.

        Providers sign a compressed body before or after they compress it.
        """
        if self._verifier is None:
            return request
        try:
            return self._verifier.verify(request, now)
        except Forged:
            if request.sent is None or request.is_empty or not self._verifier.scheme.signs_raw_body:
                raise
        verified = self._verifier.verify(request.with_body(request.sent), now)
        return verified.with_body(request.body) if isinstance(verified, ReceiptRequest) else verified

    def reply_to(self, verified: Verified) -> ReceiptReply:
        """Return the response to a genuine request, if it holds no report."""
        if isinstance(verified, NoReport) and verified.answer is not None:
            return ReceiptReply(200, verified.answer, verified.content_type)
        return self.reply

    def unverified(self, request: ReceiptRequest) -> Verified:
        """Return what a request would mean if it were genuine."""
        if self._verifier is not None:
            with suppress(Forged):
                return self._verifier.scheme.unverified(request)
        return request

    def read(self, request: ReceiptRequest, now: int) -> Slices:
        """Read the reports of a request, slice by slice. Raises Unreadable."""
        return (yield from self._reader.read(request.document(), now))


def _open_tokens(challenge: ChallengeOptions) -> RenewedValue[list[bytes]]:
    return RenewedValue(
        [file.path for file in challenge.secret_file],
        lambda: [file.read().encode() for file in challenge.secret_file],
    )


class Inlets(NamedTuple):
    """What providers report to, by one configuration.

    `paths` name the provider that reports to each address, `public_url` is what providers call in front of
    them. `intermediate` are the statuses that are reported to the service.
    """

    by_provider: Mapping[str, Inlet]
    paths: Mapping[str, str]
    public_url: str = ""
    intermediate: Collection[str] = ()
