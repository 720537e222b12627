"""The conformance table, run for the built-in adapters, and the look-up of adapters."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from h2.errors import ErrorCodes

from deliveryd.channels.registry import ADAPTERS, AdapterKind, find_adapter
from deliveryd.errors import ConfigError
from deliveryd.model import Customer
from deliveryd.testing.adapters import AdapterConformance, GatewayProvider, ScriptedProvider
from deliveryd.testing.gateway import Gateway, Reply, closed_port, open_gateway
from deliveryd.testing.samples import opened
from support.http2_server import Http2Request, Http2Server, open_http2_server
from support.mail_server import HANG_UP, STALL, MailServer, open_mail_server

AUTHORITY = trustme.CA()


class SecureGatewayProvider(GatewayProvider):
    """A gateway over TLS, whose handshake comes after connecting and before any request."""

    def __init__(self, gateway: Gateway, options: dict[str, Any], tls: ssl.SSLContext) -> None:
        super().__init__(gateway, options)
        self._tls = tls

    def block(self) -> None:
        """Answer as the table of the options says."""
        self.gateway.script.append(Reply(410))

    def before_message(self, act: Callable[[], None]) -> None:
        def greet(*_hello: object) -> None:
            act()

        self._tls.sni_callback = greet


class MailProvider:
    """A mail server behind the smtp adapter."""

    def __init__(self, server: MailServer) -> None:
        self._server = server
        self.options: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": server.port,
            "tls": "none",
            "sender": "news@shop.example",
        }

    def accept(self) -> None:
        """A mail server accepts what nothing was planned for."""

    def refuse(self) -> None:
        self._server.plan("RCPT", "550 no such user")

    def defer(self) -> None:
        self._server.plan("RCPT", "451 later")

    def reject_credentials(self) -> None:
        self._server.plan("MAIL", "530 log in first")

    def disconnect(self) -> None:
        self._server.plan("DATA", HANG_UP)

    def stall(self) -> None:
        self._server.plan("DATA", STALL)

    def before_message(self, act: Callable[[], None]) -> None:
        self._server.on_recipient = act

    async def disappear(self) -> None:
        self.options["port"] = await closed_port()

    def keys(self) -> list[str]:
        lines = [line for data in self._server.data_seen for line in data.split(b"\r\n")]
        return [line.decode() for line in lines if line.startswith(b"Message-ID:")]


class TestHttp(AdapterConformance):
    """The http adapter, over TLS, on both event loops."""

    adapter = "http"
    block = "email"

    @pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.slow)])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    async def provider(self) -> AsyncIterator[ScriptedProvider]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
        with AUTHORITY.cert_pem.tempfile() as ca_file:
            async with open_gateway(context) as gateway:
                options = {
                    "url": f"{gateway.url}/send",
                    "json": {"to": "{customer.email}", "text": "{content.body}"},
                    "provider_id": "/id",
                    "answers": [{"status": [410], "verdict": "stopped"}],
                    "tls": {"ca_file": ca_file},
                }
                yield SecureGatewayProvider(gateway, options, context)


class TestHttpDevices(AdapterConformance):
    """The http adapter, with several devices of a customer."""

    adapter = "http"
    block = "inApp"
    customer = Customer(7, {"tokens": "token-1", "name": "Ada"})
    devices = ("token-1", "token-2", "token-3")

    @pytest.fixture
    async def provider(self) -> AsyncIterator[ScriptedProvider]:
        async with open_gateway() as gateway:
            options = {
                "url": f"{gateway.url}/send",
                "json": {"to": "{customer.tokens}", "text": "{content.description}"},
                "provider_id": "/id",
                "recipient": "{customer.tokens}",
                "devices": True,
            }
            yield GatewayProvider(gateway, options)


class Http2Provider:
    """A gateway that speaks HTTP/2, behind the http adapter."""

    def __init__(self, server: Http2Server) -> None:
        self._server = server
        self._script: deque[Callable[[Http2Request], None]] = deque()
        server.act = self._act
        self.options: dict[str, Any] = {
            "url": f"{server.url}/send",
            "json": {"to": "{customer.phone}", "text": "{content.text}"},
            "provider_id": "/id",
            "http2": True,
        }

    def _act(self, request: Http2Request) -> None:
        (self._script.popleft() if self._script else _accepted)(request)

    def accept(self) -> None:
        self._script.append(_accepted)

    def refuse(self) -> None:
        self._script.append(lambda request: request.answer(400))

    def defer(self) -> None:
        self._script.append(lambda request: request.answer(503))

    def reject_credentials(self) -> None:
        self._script.append(lambda request: request.answer(401))

    def disconnect(self) -> None:
        self._script.append(lambda request: request.connection.abort())

    def stall(self) -> None:
        self._script.append(lambda _request: None)

    def give_back(self) -> None:
        self._script.append(lambda request: request.reset(ErrorCodes.REFUSED_STREAM))

    def before_message(self, act: Callable[[], None]) -> None:
        act()

    async def disappear(self) -> None:
        self.options["url"] = f"http://127.0.0.1:{await closed_port()}/send"

    def keys(self) -> list[str]:
        return [request.headers["idempotency-key"] for request in self._server.seen]


def _accepted(request: Http2Request) -> None:
    request.answer(200, b'{"id": "p-1"}')


class TestHttp2(AdapterConformance):
    """The http adapter over HTTP/2."""

    adapter = "http"

    @pytest.fixture
    async def provider(self) -> AsyncIterator[ScriptedProvider]:
        async with open_http2_server() as server:
            yield Http2Provider(server)


class TestSmtp(AdapterConformance):
    """The smtp adapter; its library runs on asyncio only."""

    adapter = "smtp"
    block = "email"

    @pytest.fixture
    async def provider(self) -> AsyncIterator[ScriptedProvider]:
        async with open_mail_server() as server:
            yield MailProvider(server)


def test_every_adapter_is_in_the_table() -> None:
    """A new built-in adapter joins the table by a class of its own, here or in its own module."""
    tests = Path(__file__).parent.parent
    texts = [path.read_text("utf-8") for path in tests.rglob("test_*.py")]
    joined = r'\(AdapterConformance\):(?:(?!\nclass ).)*?    adapter = "(\w+)"'
    assert {name for text in texts for name in re.findall(joined, text, re.DOTALL)} >= set(ADAPTERS)


@pytest.mark.slow
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
        "from deliveryd.channels.registry import ADAPTERS\nKIND = ADAPTERS['http']()\nOTHER = 1\n"
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
    assert kind.check(options, "sms") == ["json.t: the block sms has no field 'txt'; did you mean text?"]
    with pytest.raises(ValueError, match="is no AdapterKind"):
        find_adapter("odd")
    with pytest.raises(ValueError, match="can't be loaded: ModuleNotFoundError"):
        find_adapter("gone")
