"""Deliberate breaks of how a message goes to several devices of a customer."""

from __future__ import annotations

import pytest

from deliveryd.channels import devices as channel
from deliveryd.channels.base import AtDevices, OneVerdict, Refused
from deliveryd.delivery import devices

Patch = pytest.MonkeyPatch


def all_devices_are_repeated(patch: Patch) -> None:
    """Also those that have the message."""
    patch.setattr(devices, "to_repeat", lambda found: [each.device for each in found.each])


def rest_of_the_devices_forgotten(patch: Patch) -> None:
    """Nothing is repeated once a device has the message."""
    patch.setattr(devices, "to_repeat", lambda _found: [])


def one_refusal_refuses_all(patch: Patch) -> None:
    """A message that one device refuses is refused, whatever others may do."""
    common = devices.common

    def of_the_worst(found: AtDevices, reason: str) -> OneVerdict:
        refused = [each.verdict for each in found.each if isinstance(each.verdict, Refused)]
        return refused[0] if refused else common(found, reason)

    patch.setattr(devices, "common", of_the_worst)


def one_key_for_all_devices(patch: Patch) -> None:
    """Each device gets the message's own key."""
    patch.setattr(channel, "device_key", lambda key, _device: key)


def gone_devices_are_asked_on(patch: Patch) -> None:
    """None is suppressed."""
    patch.setattr(devices, "unreachable", lambda _found: ())


def sent_when_all_devices_have_it(patch: Patch) -> None:
    """A message that some devices don't take yet isn't sent."""
    first = devices.first_accepted
    patch.setattr(
        devices, "first_accepted", lambda found: first(found) if not devices.to_repeat(found) else None
    )
