"""The adapters: a table of built-in ones, and entry points of other packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from deliveryd.channels.base import Channel
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.options import plugins

if TYPE_CHECKING:
    from deliveryd.channels.smtp.options import SmtpOptions
    from deliveryd.channels.webpush.options import WebPushOptions

ADAPTER_ENTRY_POINTS = "deliveryd.channels"


def _nothing_wrong(_options: Any, _block: str) -> list[str]:
    return []


class AdapterKind(NamedTuple):
    """An adapter from a package: the value of an entry point in the group `deliveryd.channels`.

    `options` is the model of a provider's keys, with `extra="forbid"`. `open` takes the place of the table in
    the file, such as `channels.sms`, the block, options and the time-out of an attempt in seconds; it runs
    within the event loop and raises ConfigError, with each problem as `PLACE.key: what`. `check` takes valid
    options and the block, and returns further problems, such as unreadable files, as `key: what`.
    """

    options: type[BaseModel]
    open: Callable[[str, str, Any, float], Channel]
    check: Callable[[Any, str], list[str]] = _nothing_wrong


def _open_http(place: str, block: str, options: HttpChannelOptions, timeout: float) -> Channel:
    from deliveryd.channels.http.adapter import open_http_channel  # noqa: PLC0415  # loaded only where it is configured

    channel = open_http_channel(place, block, options, timeout)
    if (field := options.devices_field) is None:
        return channel
    from deliveryd.channels.devices import DevicesChannel  # noqa: PLC0415  # loaded only where it is configured

    return DevicesChannel(channel, field)


def _open_smtp(place: str, block: str, options: SmtpOptions, timeout: float) -> Channel:
    from deliveryd.channels.smtp.adapter import open_smtp  # noqa: PLC0415  # loads the e-mail libraries

    return open_smtp(place, block, options, timeout)


def _open_webpush(place: str, block: str, options: WebPushOptions, timeout: float) -> Channel:
    from deliveryd.channels.devices import DevicesChannel  # noqa: PLC0415  # loaded only where it is configured
    from deliveryd.channels.webpush.adapter import open_webpush  # noqa: PLC0415  # loads cryptography

    return DevicesChannel(open_webpush(place, block, options, timeout), options.field)


def _http() -> AdapterKind:
    return AdapterKind(HttpChannelOptions, _open_http, HttpChannelOptions.problems)


def _smtp() -> AdapterKind:
    from deliveryd.channels.smtp.options import SmtpOptions  # noqa: PLC0415  # loaded only where it is configured

    return AdapterKind(SmtpOptions, _open_smtp, SmtpOptions.problems)


def _webpush() -> AdapterKind:
    from deliveryd.channels.webpush.options import WebPushOptions  # noqa: PLC0415  # loaded only where it is configured

    return AdapterKind(WebPushOptions, _open_webpush, WebPushOptions.problems)


ADAPTERS: Mapping[str, Callable[[], AdapterKind]] = {"http": _http, "smtp": _smtp, "webpush": _webpush}
"""The built-in adapters. Each is loaded only where it is configured."""


def is_adapter(name: str) -> bool:
    """Whether this is a built-in adapter, or one of a package; only the latter need a look at packages."""
    return name in ADAPTERS or name in _names_in_packages(tuple(sys.path))


@lru_cache(maxsize=1)
def _names_in_packages(_path: tuple[str, ...]) -> frozenset[str]:
    """The adapters of packages, looked for once: each look reads the metadata of every installed package."""
    return frozenset(entry_points(group=ADAPTER_ENTRY_POINTS).names)


def find_adapter(adapter: str, presets: Iterable[str] = ()) -> AdapterKind:
    """Return the adapter of this name, a built-in one first; `presets` are further names to suggest.

    Raises ValueError, with a suggestion, if there is none or it can't be loaded.
    """
    if adapter in ADAPTERS:
        return ADAPTERS[adapter]()
    return plugins.find_kind(
        adapter, AdapterKind, what="adapter", group=ADAPTER_ENTRY_POINTS, others=[*presets, *ADAPTERS]
    )


def open_adapter(
    place: str,
    block: str,
    adapter: str,
    options: BaseModel,
    *,
    timeout: float,
    receipt_url: str | None = None,
) -> Channel:
    """Open the provider whose table is at `place`; its attempts take at most `timeout` seconds.

    `receipt_url` is the public address that it reports to. Must be called within the event
    loop; raises ConfigError, or ValueError for an unknown adapter.
    """
    if isinstance(options, HttpChannelOptions):
        options = options.reporting_to(receipt_url)
    return find_adapter(adapter).open(place, block, options, timeout)
