"""One table of scenarios for every adapter: the same failure means the same, whatever the provider speaks."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import anyio
import pytest
import trustme
from pydantic import ValidationError

from channel_samples import ADA, dispatch, opened
from deliveryd.channels.base import (
    Accepted,
    Dispatch,
    Expired,
    InDoubt,
    Misconfigured,
    Refused,
    TryAgain,
    Verdict,
)
from deliveryd.channels.registry import ADAPTERS, AdapterKind, check_channel, find_adapter
from deliveryd.errors import ConfigError
from deliveryd.model import Customer
from mail_server import HANG_UP, STALL, open_mail_server
from scripted_gateway import HangUp, Reply, Stall, closed_port, open_gateway

pytestmark = pytest.mark.anyio

AUTHORITY = trustme.CA()


class Provider(Protocol):
    """What a scenario does to a provider, and what it may ask it afterwards."""

    options: dict[str, Any]

    def accept(self) -> None:
        """Take the next message."""

    def refuse(self) -> None:
        """Refuse the next message for good."""

    def put_off(self) -> None:
        """Refuse the next message for now."""

    def reject_us(self) -> None:
        """Refuse whoever sends, whatever the message."""

    def lose_answer(self) -> None:
        """Read the next message to its end, and hang up."""

    def say_nothing(self) -> None:
        """Read the next message to its end, and stay silent."""

    def on_contact(self, act: Callable[[], None]) -> None:
        """Call `act` before the message can have come: as late as this provider can."""

    async def vanish(self) -> None:
        """Be gone before anyone connects."""

    def keys(self) -> list[str]:
        """By what the provider could tell that messages it read are the same."""


class HttpProvider:
    """A gateway behind the http adapter."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self.options: dict[str, Any] = {
            "url": f"{gateway.url}/send",
            "json": {"to": "{customer.email}", "text": "{content.body}"},
            "provider_id": "/id",
        }

    def accept(self) -> None:
        self._gateway.script.append(Reply())

    def refuse(self) -> None:
        self._gateway.script.append(Reply(400))

    def put_off(self) -> None:
        self._gateway.script.append(Reply(503))

    def reject_us(self) -> None:
        self._gateway.script.append(Reply(401))

    def lose_answer(self) -> None:
        self._gateway.script.append(HangUp())

    def say_nothing(self) -> None:
        self._gateway.script.append(Stall())

    def on_contact(self, act: Callable[[], None]) -> None:
        act()

    async def vanish(self) -> None:
        self.options["url"] = f"http://127.0.0.1:{await closed_port()}/send"

    def keys(self) -> list[str]:
        return [seen.headers["idempotency-key"] for seen in self._gateway.seen]


class SecureHttpProvider(HttpProvider):
    """The same over TLS, whose handshake comes after connecting and before any request."""

    def __init__(self, gateway: Any, tls: ssl.SSLContext, ca_file: Path) -> None:
        super().__init__(gateway)
        self.options["tls"] = {"ca_file": str(ca_file)}
        self._tls = tls

    def on_contact(self, act: Callable[[], None]) -> None:
        def greet(*_hello: object) -> None:
            act()

        self._tls.sni_callback = greet


class SmtpProvider:
    """A mail server behind the smtp adapter."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.options: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": server.port,
            "tls": "none",
            "sender": "news@shop.example",
        }

    def accept(self) -> None:
        pass

    def refuse(self) -> None:
        self._server.plan("RCPT", "550 no such user")

    def put_off(self) -> None:
        self._server.plan("RCPT", "451 later")

    def reject_us(self) -> None:
        self._server.plan("MAIL", "530 log in first")

    def lose_answer(self) -> None:
        self._server.plan("DATA", HANG_UP)

    def say_nothing(self) -> None:
        self._server.plan("DATA", STALL)

    def on_contact(self, act: Callable[[], None]) -> None:
        self._server.on_recipient = act

    async def vanish(self) -> None:
        self.options["port"] = await closed_port()

    def keys(self) -> list[str]:
        lines = [line for data in self._server.data_seen for line in data.split(b"\r\n")]
        return [line.decode() for line in lines if line.startswith(b"Message-ID:")]


@asynccontextmanager
async def http_provider() -> AsyncIterator[Provider]:
    """A provider that speaks HTTP over TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    with AUTHORITY.cert_pem.tempfile() as ca_file:
        async with open_gateway(context) as gateway:
            yield SecureHttpProvider(gateway, context, Path(ca_file))


@asynccontextmanager
async def smtp_provider() -> AsyncIterator[Provider]:
    """A provider that speaks SMTP."""
    async with open_mail_server() as server:
        yield SmtpProvider(server)


class Setting(NamedTuple):
    """An adapter on an event loop that it runs on."""

    adapter: str
    provider: Callable[[], AbstractAsyncContextManager[Provider]]


PROVIDERS: Mapping[str, Callable[[], AbstractAsyncContextManager[Provider]]] = {
    "http": http_provider,
    "smtp": smtp_provider,
}
LOOPS = [("http", "asyncio"), ("http", "trio"), ("smtp", "asyncio")]


@pytest.fixture(scope="module", params=LOOPS, ids="-".join)
def adapter_on_loop(request: pytest.FixtureRequest) -> tuple[str, str]:
    pair: tuple[str, str] = request.param
    return pair


@pytest.fixture(scope="module")
def anyio_backend(adapter_on_loop: tuple[str, str]) -> str:
    return adapter_on_loop[1]


@pytest.fixture
def setting(adapter_on_loop: tuple[str, str]) -> Setting:
    adapter = adapter_on_loop[0]
    return Setting(adapter, PROVIDERS[adapter])


def mail(key: str = "a-1", customer: Customer | None = ADA, **more: Any) -> Dispatch:
    fields = {"subject": "Hi", "body": "Bonjour"}
    return dispatch("email", fields, customer=customer, key=key, **more)


class Watch:
    """A time of day that stands where a test puts it."""

    def __init__(self) -> None:
        self.instant = 0

    def now(self) -> int:
        return self.instant


SCENARIOS: list[tuple[str, type[Verdict]]] = [
    ("accept", Accepted),
    ("refuse", Refused),
    ("put_off", TryAgain),
    ("reject_us", Misconfigured),
    ("lose_answer", InDoubt),
    ("say_nothing", InDoubt),
]


@pytest.mark.parametrize(("scenario", "expected"), SCENARIOS)
async def test_verdicts(setting: Setting, scenario: str, expected: type[Verdict]) -> None:
    """The same conduct leads to the same verdict, and a reason quotes neither address nor text."""
    async with setting.provider() as provider:
        getattr(provider, scenario)()
        timeout = 1.0 if scenario == "say_nothing" else 5.0
        async with opened(setting.adapter, provider.options, block="email", timeout=timeout) as channel:
            verdict = await channel.send(mail())
    assert type(verdict) is expected
    assert "ada@example.com" not in str(verdict)
    assert "Bonjour" not in str(verdict)


async def test_a_provider_that_is_gone(setting: Setting) -> None:
    """Without a connection nothing was sent, so the message may go again; a probe says what is wrong."""
    async with setting.provider() as provider:
        await provider.vanish()
        async with opened(setting.adapter, provider.options, block="email") as channel:
            assert isinstance(await channel.send(mail()), TryAgain)
            assert await channel.probe()


async def test_what_is_in_time_is_sent(setting: Setting) -> None:
    """Up to its last instant a message may be sent."""
    watch = Watch()
    async with (
        setting.provider() as provider,
        opened(setting.adapter, provider.options, block="email") as channel,
    ):
        watch.instant = 1000
        assert isinstance(await channel.send(mail(expires_at=1000, clock=watch)), Accepted)


async def test_what_expires_while_the_provider_is_being_reached_is_not_sent(setting: Setting) -> None:
    """The last look is immediately before the message can't be taken back; the next message goes out."""
    watch = Watch()
    async with (
        setting.provider() as provider,
        opened(setting.adapter, provider.options, block="email") as channel,
    ):
        provider.on_contact(lambda: setattr(watch, "instant", 1001))
        assert isinstance(await channel.send(mail(expires_at=1000, clock=watch)), Expired)
        assert provider.keys() == []
        assert isinstance(await channel.send(mail(expires_at=2000, clock=watch)), Accepted)


async def test_an_acceptance_names_the_message(setting: Setting) -> None:
    """An accepted message has a name at the provider, by which receipts find it."""
    async with (
        setting.provider() as provider,
        opened(setting.adapter, provider.options, block="email") as channel,
    ):
        verdict = await channel.send(mail())
        assert isinstance(verdict, Accepted)
        assert verdict.provider_id


async def test_the_same_attempt_has_the_same_key(setting: Setting) -> None:
    """An attempt repeated after a lost answer can be told by the provider."""
    async with setting.provider() as provider:
        provider.lose_answer()
        async with opened(setting.adapter, provider.options, block="email") as channel:
            assert isinstance(await channel.send(mail("a-1")), InDoubt)
            assert isinstance(await channel.send(mail("a-1")), Accepted)
            assert isinstance(await channel.send(mail("a-2")), Accepted)
        first, repeated, other = provider.keys()
    assert first == repeated != other


async def test_whom_it_reaches(setting: Setting) -> None:
    """Only customers with an address can be reached; sending to one without is refused, not raised."""
    async with (
        setting.provider() as provider,
        opened(setting.adapter, provider.options, block="email") as channel,
    ):
        assert channel.reaches(ADA)
        for nobody in (None, Customer(7, {"name": "Ada"}), Customer(7, {"email": ""})):
            assert not channel.reaches(nobody)
            assert isinstance(await channel.send(mail(customer=nobody)), Refused)
        assert provider.keys() == []


async def test_a_probe_and_a_preview_send_nothing(setting: Setting) -> None:
    """Looking leaves no trace at the provider."""
    async with (
        setting.provider() as provider,
        opened(setting.adapter, provider.options, block="email") as channel,
    ):
        assert await channel.probe() is None
        assert "Bonjour" in channel.preview(mail())
        assert provider.keys() == []


@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_options_are_strict(adapter: str) -> None:
    """Every adapter's model refuses keys that it doesn't know, and can't be changed afterwards."""
    model = ADAPTERS[adapter].options
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        model.model_validate({"no_such_key": 1})
    assert model.model_config.get("frozen")


def test_every_adapter_is_in_the_table() -> None:
    """A new adapter has to join these scenarios."""
    assert set(ADAPTERS) == set(PROVIDERS) == {adapter for adapter, _ in LOOPS}


def test_reading_the_options_loads_no_mail_library() -> None:
    """A worker without e-mail starts without the libraries for it."""
    script = (
        "import sys, deliveryd.channels.registry; print({'aiosmtplib', 'email_validator'} & {*sys.modules})"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"


def test_smtp_says_which_loop_it_needs() -> None:
    """On trio the smtp adapter can't work, and says so when it is opened."""

    async def open_it() -> None:
        async with opened("smtp", {"host": "h", "sender": "news@shop.example"}, block="email"):
            pass

    with pytest.raises(ConfigError, match="smtp runs on asyncio only"):
        anyio.run(open_it, backend="trio")


def test_an_unknown_adapter_is_named_with_a_suggestion() -> None:
    """A typing error in an adapter's name says which name was meant."""
    with pytest.raises(ValueError, match=r"adapter 'htpp'; did you mean http\? \(there are: http, smtp"):
        find_adapter("htpp")


@pytest.fixture
def installed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with adapters of its own, as an installer would leave it."""
    (tmp_path / "pigeon_post.py").write_text(
        "from deliveryd.channels.registry import ADAPTERS\nKIND = ADAPTERS['http']\nOTHER = 1\n"
    )
    info = tmp_path / "pigeon_post-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[deliveryd.channels]\n"
        "pigeon = pigeon_post:KIND\nodd = pigeon_post:OTHER\ngone = no_such_module:KIND\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_adapters_of_other_packages() -> None:
    """An installed package adds its adapter by an entry point; what can't be used says why."""
    kind = find_adapter("pigeon")
    assert isinstance(kind, AdapterKind)
    options = kind.options.model_validate({"url": "http://h/", "json": {"t": "{content.txt}"}})
    assert check_channel("sms", "sms", "pigeon", options) == [
        "channels.sms.json.t: the block sms has no field 'txt'; did you mean text?"
    ]
    with pytest.raises(ValueError, match="is no AdapterKind"):
        find_adapter("odd")
    with pytest.raises(ValueError, match="can't be loaded: ModuleNotFoundError"):
        find_adapter("gone")
