"""What an answer of a provider would mean: read offline, as after an attempt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from urllib.parse import urlsplit

from deliveryd.channels.base import Accepted, Attempted, InDoubt, Misconfigured, Refused, Stopped, TryAgain
from deliveryd.channels.http_answers import AnswerReader
from deliveryd.errors import DeliverydError
from deliveryd.http.raw_message import parse_answer
from deliveryd.inspection.offline import OfflineProvider
from deliveryd.model import SECOND

VERDICT_NAMES: Mapping[type, str] = {
    Accepted: "accepted",
    Refused: "refused",
    Stopped: "stopped",
    TryAgain: "try_again",
    InDoubt: "in_doubt",
    Misconfigured: "misconfigured",
}
CONSEQUENCES: Mapping[type, str] = {
    Accepted: "the message is sent",
    Refused: "a message of the queue isn't repeated here",
    Stopped: "a message of the queue puts its recipient on the list: see deliveryd stopped",
    TryAgain: "a message of the queue is tried again",
    InDoubt: "the message may have been sent; for one of the queue, on_in_doubt decides",
    Misconfigured: "the configuration must be changed; the attempt doesn't count",
}


def verdict_on(
    provider: OfflineProvider, raw: bytes, source: str, now: int, url: str | None = None
) -> Attempted:
    """Return the verdict on a saved answer, which came from `url`, or else from the provider's address.

    Raises DeliverydError if `source` isn't an answer, or `url` no address.
    """
    try:
        answer = parse_answer(raw)
    except ValueError as error:
        raise DeliverydError(f"{source}: {error}") from None
    options = provider.options
    host = _host(options.url if url is None else url)
    at = datetime.fromtimestamp(now / SECOND, UTC)
    return AnswerReader(options.answers, options.provider_id, host, lambda: at).verdict(answer)


def _host(url: str) -> str:
    try:
        host = urlsplit(url).netloc.rpartition("@")[2]
    except ValueError:
        host = ""
    if not host:
        raise DeliverydError(f"{url} is no address such as https://api.example.com/messages")
    return host


def verdict_data(verdict: Attempted) -> Mapping[str, object]:
    """Return a verdict as JSON; `reason` is the provider's own words where a table names them."""
    words = getattr(verdict, "words", None)
    return {
        "verdict": VERDICT_NAMES[type(verdict)],
        "provider_id": getattr(verdict, "provider_id", None),
        "after": getattr(verdict, "after", None),
        "reason": words or getattr(verdict, "reason", None),
    }


def verdict_lines(verdict: Attempted) -> Iterator[str]:
    """Return a verdict for people."""
    yield f"{VERDICT_NAMES[type(verdict)].replace('_', ' ')}: {CONSEQUENCES[type(verdict)]}"
    if (id_ := getattr(verdict, "provider_id", None)) is not None:
        yield f"  provider's id   {id_}"
    if (after := getattr(verdict, "after", None)) is not None:
        yield f"  not before      {after:g} s"
    if (reason := getattr(verdict, "reason", None)) is not None:
        yield f"  reported as     {reason}"
    if (words := getattr(verdict, "words", None)) is not None:
        yield f"  provider's own  {words}"
