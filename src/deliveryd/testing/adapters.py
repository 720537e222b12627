"""The conformance table of channel adapters: the same conduct of a provider leads to the same verdict.

Subclass `AdapterConformance`, name the adapter, and supply the fixture `provider`:

    class TestTower(AdapterConformance):
        adapter = "tower"

        @pytest.fixture
        async def provider(self, secret_file):
            async with open_gateway() as gateway:
                options = {"url": f"{gateway.url}/send", "key_file": secret_file}
                yield GatewayProvider(gateway, options)

The adapter is looked up as `[channels.NAME] adapter` is, so its package must be installed with its entry
point. A provider that speaks HTTP is a `GatewayProvider`, or a subclass that answers as the real one; for
any other protocol, write a class with the methods of `ScriptedProvider`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest
from pydantic import ValidationError

from deliveryd.channels.base import (
    Accepted,
    AtDevices,
    Attempted,
    Channel,
    Dispatch,
    Expired,
    InDoubt,
    Misconfigured,
    Refused,
    Stopped,
    TryAgain,
    Unknown,
)
from deliveryd.channels.devices import at_device, devices_of, with_devices
from deliveryd.channels.registry import find_adapter
from deliveryd.model import Customer
from deliveryd.testing.gateway import Disconnect, Gateway, Reply, Stall, closed_port
from deliveryd.testing.samples import ADA, CONTENT, dispatch, opened


class ScriptedProvider(Protocol):
    """A provider on a loopback socket that does to the next message what a test asks for.

    Instructions that are given in a row are for messages in a row; without any it accepts. A provider that
    can report a recipient as not reachable any more also has the method `block`: its answer to the next
    message must lead to `Stopped`. One that can give a message back unread, as a server of HTTP/2 does, has
    the method `give_back`: that must lead to `TryAgain` without a doubt.
    """

    options: dict[str, Any]
    """The adapter's keys in `[channels.NAME]`, aimed at this provider. A test reads them after it gave its
    instructions."""

    def accept(self) -> None:
        """Accept the next message."""

    def refuse(self) -> None:
        """Refuse the next message for good: it must lead to `Refused`."""

    def defer(self) -> None:
        """Refuse the next message temporarily, without accepting it: it must lead to `TryAgain`."""

    def reject_credentials(self) -> None:
        """Refuse the sender, whatever the message: it must lead to `Misconfigured`."""

    def disconnect(self) -> None:
        """Read the next message to its end, and close the connection: it must lead to `InDoubt`."""

    def stall(self) -> None:
        """Read the next message to its end, and send nothing: it must lead to `InDoubt`."""

    def before_message(self, act: Callable[[], None]) -> None:
        """Call `act` during the next exchange, as late as possible before the message itself arrives.

        A provider that takes no part in the exchange before the message calls `act` at once.
        """

    async def disappear(self) -> None:
        """Point `options` at a port on which nothing listens."""

    def keys(self) -> list[str]:
        """Return one value for each message that was read, by which the provider can recognise a repeat."""


class GatewayProvider:
    """A provider behind an HTTP gateway: 200 accepts, 400 refuses, 503 defers, 401 rejects credentials.

    Override a method where the real provider does it in another way. `options` are the adapter's keys; their
    `url`, if they have one, is replaced by `disappear`.
    """

    def __init__(self, gateway: Gateway, options: dict[str, Any]) -> None:
        self.gateway = gateway
        self.options = options

    def accept(self) -> None:
        """Answer 200 with the provider's id in `/id`."""
        self.gateway.script.append(Reply())

    def refuse(self) -> None:
        """Answer 400."""
        self.gateway.script.append(Reply(400))

    def defer(self) -> None:
        """Answer 503."""
        self.gateway.script.append(Reply(503))

    def reject_credentials(self) -> None:
        """Answer 401."""
        self.gateway.script.append(Reply(401))

    def disconnect(self) -> None:
        """Close the connection instead of answering."""
        self.gateway.script.append(Disconnect())

    def stall(self) -> None:
        """Keep the connection open and never answer."""
        self.gateway.script.append(Stall())

    def before_message(self, act: Callable[[], None]) -> None:
        """Call `act` at once: over plain HTTP nothing arrives before the request."""
        act()

    async def disappear(self) -> None:
        """Point `url` at a port on which nothing listens."""
        self.options["url"] = f"http://127.0.0.1:{await closed_port()}/send"

    def keys(self) -> list[str]:
        """Return the Idempotency-Key of each request."""
        return [request.headers["idempotency-key"] for request in self.gateway.seen]


class SettableClock:
    """A clock that shows what a test sets, in microseconds since 1970."""

    def __init__(self) -> None:
        self.instant = 0

    def now(self) -> int:
        """Return the instant that was set."""
        return self.instant


CONDUCT: list[tuple[str, type[Attempted]]] = [
    ("accept", Accepted),
    ("refuse", Refused),
    ("defer", TryAgain),
    ("reject_credentials", Misconfigured),
    ("disconnect", InDoubt),
    ("stall", InDoubt),
]
"""Methods of `ScriptedProvider`, and the verdict that each must lead to."""


class AdapterConformance:
    """What every channel adapter must do. Subclass it as `Test…`; see this module for the ten lines.

    Supply the class attribute `adapter`, the name of the entry point, and the fixture `provider`, which
    yields a new `ScriptedProvider` for each test. Override `anyio_backend` to run on trio as well. An adapter
    that sends to several devices of a customer has three of them in `devices`.

    Checked: the verdict for each conduct of a provider, and that no reason quotes text or address; that a
    message isn't sent after its expiry, also when it expires while the provider is being reached; that a
    repeat carries the same key; that an acceptance carries the provider's id; who can be reached, and by
    which address; that `probe` and `preview` send nothing; that each of several devices has a verdict and a
    key of its own; that the options refuse unknown keys and are frozen.
    """

    pytestmark = pytest.mark.anyio

    adapter: ClassVar[str]
    """The name of the adapter, as `[channels.NAME] adapter` has it."""

    block: ClassVar[str] = "sms"
    """The block of the settings that the channel sends: sms, messenger, inApp or email."""

    customer: ClassVar[Customer] = ADA
    """A customer whom the adapter can reach: by default with `phone` and `email`."""

    devices: ClassVar[Sequence[str]] = ()
    """Three devices of one customer, as members of the list in the field that `devices_field` names."""

    stall_timeout: ClassVar[float] = 1.0
    """The time-out of an attempt, in seconds, in the test in which the provider sends nothing."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        """The event loop: asyncio, on which the worker runs."""
        return "asyncio"

    def dispatch(self, **more: Any) -> Dispatch:
        """Make an attempt with the sample content of the block; keywords as for `samples.dispatch`."""
        return dispatch(self.block, CONTENT[self.block], **{"customer": self.customer, **more})

    @pytest.fixture
    def secret_file(self, tmp_path: Path) -> str:
        """The path of a file that holds `secret` and is closed to others, for options that name one."""
        path = tmp_path / "secret"
        path.touch(mode=0o600)
        path.write_text("secret", encoding="utf-8")
        return str(path)

    @pytest.fixture
    async def channel(self, provider: ScriptedProvider) -> AsyncIterator[Channel]:
        """The adapter, opened with the provider's options."""
        async with opened(self.adapter, provider.options, block=self.block) as channel:
            yield channel

    @pytest.mark.parametrize(("conduct", "verdict"), CONDUCT, ids=[conduct for conduct, _ in CONDUCT])
    async def test_verdict(self, provider: ScriptedProvider, conduct: str, verdict: type[Attempted]) -> None:
        """Each conduct leads to its verdict, and the reason quotes neither the text nor the address."""
        getattr(provider, conduct)()
        timeout = self.stall_timeout if conduct == "stall" else 5.0
        async with opened(self.adapter, provider.options, block=self.block, timeout=timeout) as channel:
            given = await channel.send(self.dispatch())
        assert type(given) is verdict
        quoted = [*CONTENT[self.block].values(), *self.customer.fields.values()]
        assert [value for value in quoted if len(value) > 3 and value in str(given)] == []

    async def test_blocked_recipient(self, provider: ScriptedProvider) -> None:
        """A recipient who blocked the sender is `Stopped`; the reason quotes no address."""
        block = getattr(provider, "block", None)
        if block is None:
            return
        block()
        async with opened(self.adapter, provider.options, block=self.block) as channel:
            given = await channel.send(self.dispatch())
            assert type(given) is Stopped
            addresses = channel.recipients(self.customer)
            assert addresses
            assert not any(address in given.reason for address in addresses)

    async def test_message_given_back(self, provider: ScriptedProvider, channel: Channel) -> None:
        """A message that the provider gives back unread surely wasn't sent."""
        give_back = getattr(provider, "give_back", None)
        if give_back is None:
            return
        give_back()
        given = await channel.send(self.dispatch())
        assert isinstance(given, TryAgain)
        assert not given.may_have_arrived

    async def test_unreachable_provider(self, provider: ScriptedProvider) -> None:
        """Without a connection nothing was sent, so the verdict is TryAgain; `probe` gives a reason."""
        await provider.disappear()
        async with opened(self.adapter, provider.options, block=self.block) as channel:
            assert isinstance(await channel.send(self.dispatch()), TryAgain)
            assert await channel.probe()

    async def test_send_at_the_instant_of_expiry(self, channel: Channel) -> None:
        """A message may be sent up to and including the instant of its expiry."""
        clock = SettableClock()
        clock.instant = 1000
        assert isinstance(await channel.send(self.dispatch(expires_at=1000, clock=clock)), Accepted)

    async def test_expiry_while_connecting(self, provider: ScriptedProvider, channel: Channel) -> None:
        """The expiry is checked immediately before the message is sent; the next message is sent."""
        clock = SettableClock()
        provider.before_message(lambda: setattr(clock, "instant", 1001))
        assert isinstance(await channel.send(self.dispatch(expires_at=1000, clock=clock)), Expired)
        assert provider.keys() == []
        assert isinstance(await channel.send(self.dispatch(expires_at=2000, clock=clock)), Accepted)

    async def test_acceptance_carries_the_provider_id(self, channel: Channel) -> None:
        """Receipts find their message by the provider's id."""
        verdict = await channel.send(self.dispatch())
        assert isinstance(verdict, Accepted)
        assert verdict.provider_id

    async def test_repeat_carries_the_same_key(self, provider: ScriptedProvider, channel: Channel) -> None:
        """After a lost answer the provider can recognise the repeat; another message has another key."""
        provider.disconnect()
        assert isinstance(await channel.send(self.dispatch(key="a-1")), InDoubt)
        assert isinstance(await channel.send(self.dispatch(key="a-1")), Accepted)
        assert isinstance(await channel.send(self.dispatch(key="a-2")), Accepted)
        first, repeated, other = provider.keys()
        assert first == repeated != other

    async def test_reach(self, provider: ScriptedProvider, channel: Channel) -> None:
        """A customer without an address isn't reached: sending is refused, and doesn't raise.

        An adapter that reaches an unknown customer needs no address, and reaches every customer.
        """
        assert channel.reaches(self.customer)
        empty = dict.fromkeys(self.customer.fields, "")
        without = [None, Customer(7, {}), Customer(7, {"name": "Ada"}), Customer(7, empty)]
        if channel.reaches(None):
            assert all(channel.reaches(customer) for customer in without)
            return
        assert "" not in channel.recipients(self.customer)
        assert not any(channel.recipients(customer) for customer in without if customer is not None)
        for customer in without:
            assert not channel.reaches(customer)
            assert isinstance(await channel.send(self.dispatch(customer=customer)), Refused)
        assert provider.keys() == []

    async def test_devices(self, provider: ScriptedProvider, channel: Channel) -> None:
        """Each device has its own verdict, and its own key, also when it is alone or without a list."""
        field = channel.devices_field
        if field is None or not self.devices:
            return
        several = with_devices(self.customer, field, self.devices)
        assert channel.reaches(several)
        assert len(set(channel.recipients(several))) == len(self.devices)
        for conduct in ("accept", "disconnect", "refuse"):
            getattr(provider, conduct)()
        found = await channel.send(self.dispatch(customer=several))
        assert isinstance(found, AtDevices)
        assert [each.device for each in found.each] == list(devices_of(several, field))
        assert {type(each.verdict) for each in found.each} == {Accepted, InDoubt, Refused}
        keys = set(provider.keys())
        assert len(keys) == len(self.devices)
        for device in self.devices:
            for _ in range(2):
                alone = await channel.send(self.dispatch(customer=with_devices(several, field, [device])))
                assert isinstance(alone, AtDevices)
                assert [type(each.verdict) for each in alone.each] == [Accepted]
            first, again = provider.keys()[-2:]
            assert first == again
            keys.remove(first)
            assert channel.reaches(at_device(several, field, device))
            await channel.send(self.dispatch(customer=at_device(several, field, device)))
            assert provider.keys()[-1] == first

    async def test_customer_fields(self, channel: Channel) -> None:
        """The fields that are kept for a repeat are a set of names."""
        assert isinstance(channel.customer_fields, frozenset)
        assert all(isinstance(name, str) for name in channel.customer_fields)

    async def test_probe_and_preview_send_nothing(self, provider: ScriptedProvider, channel: Channel) -> None:
        """`probe` finds no problem, `preview` shows the content, `look_up` waits for `lookup_after`."""
        if channel.lookup_after is None:
            assert isinstance(await channel.look_up(self.dispatch()), Unknown)
        assert await channel.probe() is None
        assert max(CONTENT[self.block].values(), key=len) in channel.preview(self.dispatch())
        assert provider.keys() == []

    def test_strict_options(self) -> None:
        """The model of the options refuses unknown keys, and is frozen."""
        model = find_adapter(self.adapter).options
        with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
            model.model_validate({"no_such_key": 1})
        assert model.model_config.get("frozen")
