"""Several devices of one customer: a field that holds a list, and an attempt for each member of it."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Iterator, Sequence

import anyio

from deliveryd.channels.base import (
    AtDevice,
    AtDevices,
    Channel,
    Dispatch,
    Found,
    InDoubt,
    Refused,
    Unknown,
    Verdict,
    of_one,
)
from deliveryd.field_lists import compact_json, is_list, members_of
from deliveryd.model import Customer

LONGEST_KEY = 40
"""Characters of a key at most."""

MOST_DEVICES = 100
"""Devices that one message goes to: the last ones, as lists grow at their end."""

REQUESTS_AT_A_TIME = 10
"""Most requests under way for one message."""


def device_key(key: str, device: str) -> str:
    """The idempotency key of a message at a device, whatever else the list holds: as long as keys may be."""
    start, _, tag = key.rpartition("-")
    digest = hashlib.blake2s(f"{tag} {device}".encode(errors="surrogatepass"), digest_size=10).digest()
    return f"{start}-{b32encode(digest).decode().lower()}"[: max(len(key), LONGEST_KEY)]


def devices_of(customer: Customer, field: str) -> tuple[str, ...]:
    """The devices that a customer has in a field."""
    return members_of(customer.fields.get(field, ""))


def with_devices(customer: Customer, field: str, devices: Sequence[str]) -> Customer:
    """The customer with a list of these devices and no others."""
    return at_device(customer, field, compact_json(list(devices)))


def at_device(customer: Customer, field: str, device: str) -> Customer:
    """The customer with one device, which isn't in a list."""
    return Customer(customer.id, {**customer.fields, field: device})


class DevicesChannel:
    """A provider whose recipient is a field that may hold a list: it makes one request for each member.

    `channel` makes them, each for a customer with one device in `field`.
    """

    lookup_after = None  # a message in doubt has several keys

    def __init__(self, channel: Channel, field: str) -> None:
        self.channel = channel
        self.devices_field: str | None = field
        self.customer_fields = channel.customer_fields
        self._field = field

    def _devices(self, customer: Customer | None) -> tuple[str, ...]:
        return () if customer is None else devices_of(customer, self._field)

    def _each(self, customer: Customer | None) -> Iterator[Customer]:
        if customer is not None:
            for device in self._devices(customer):
                yield at_device(customer, self._field, device)

    def reaches(self, customer: Customer | None) -> bool:
        """Whether any of the devices can be reached."""
        return any(map(self.channel.reaches, self._each(customer)))

    def unreached(self, customer: Customer | None) -> str:
        """Why the first of the devices can't be reached, or that there is none."""
        return self.channel.unreached(next(self._each(customer), None))

    def recipients(self, customer: Customer) -> tuple[str, ...]:
        """The addresses of all devices."""
        return tuple(address for each in self._each(customer) for address in self.channel.recipients(each))

    async def send(self, dispatch: Dispatch) -> Verdict:
        """Make one request for each device, some at a time; a field without a list has one verdict."""
        found = self._dispatches(dispatch)
        if not self._is_list(dispatch.customer):
            return await self.channel.send(next(iter(found.values()), dispatch))
        if not found:
            return Refused("the customer has no device", unsent=True)
        verdicts: dict[str, AtDevice] = {}
        limiter = anyio.CapacityLimiter(REQUESTS_AT_A_TIME)

        async def send_to(device: str, one: Dispatch) -> None:
            async with limiter:
                try:
                    verdict = of_one(await self.channel.send(one))
                except Exception as error:  # the others go on
                    verdict = InDoubt(f"the adapter failed with {type(error).__name__}")
            address = next(iter(self.recipients(one.customer)), None) if one.customer else None
            verdicts[device] = AtDevice(device, address, verdict)

        async with anyio.create_task_group() as requests:
            for device, one in found.items():
                requests.start_soon(send_to, device, one)
        left_out = len(self._devices(dispatch.customer)) - len(found)
        return AtDevices(tuple(verdicts[device] for device in found), left_out)

    def _is_list(self, customer: Customer | None) -> bool:
        return customer is not None and is_list(customer.fields.get(self._field, ""))

    def _dispatches(self, dispatch: Dispatch) -> dict[str, Dispatch]:
        """What is sent to each device, `MOST_DEVICES` at most, under a key of its own.

        Content that is kept for devices has a list: a text was sent, under the message's key, before the
        channel sent to several devices.
        """
        customer = dispatch.customer
        if customer is None or (dispatch.entry.content is not None and not self._is_list(customer)):
            return {}
        return {
            device: dispatch._replace(
                key=device_key(dispatch.key, device), customer=at_device(customer, self._field, device)
            )
            for device in devices_of(customer, self._field)[-MOST_DEVICES:]
        }

    async def look_up(self, dispatch: Dispatch) -> Found:
        """A message for several devices isn't asked for."""
        return Unknown(f"the devices of message {dispatch.entry.id} can't be asked for")

    def preview(self, dispatch: Dispatch) -> str:
        """What would be sent to each device."""
        found = self._dispatches(dispatch)
        return "\n\n".join(map(self.channel.preview, found.values() or [dispatch]))

    async def probe(self) -> str | None:
        """Connect as the one that makes the requests."""
        return await self.channel.probe()

    async def aclose(self) -> None:
        """Release the resources of the one that makes the requests."""
        await self.channel.aclose()


def at_one_device(channel: Channel) -> Channel:
    """The provider that makes the request for one device, or for one address."""
    return channel.channel if isinstance(channel, DevicesChannel) else channel
