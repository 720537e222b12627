"""`check` asks providers about the account where their presets know how, and sends nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest

from deliveryd.channels.presets.catalogue import Catalogue
from deliveryd.sandbox.impersonation import public_key
from support.terminal import Answered, command

SUSPENDED = {"sid": "AC1", "status": "suspended"}
SCOPES = {"scopes": ["mail.send", "alerts.read"]}


class Provider:
    """A provider on a loopback socket that gives one answer to everything."""

    def __init__(self) -> None:
        self.answer: tuple[int, object] = (200, {})
        self.seen: list[tuple[str, str, dict[str, str], str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.seen.append((self.command, self.path, headers, body))
                status, said = outer.answer
                raw = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_POST = do_GET  # noqa: N815 - the name that the base class calls

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    thread = Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


class Asked(NamedTuple):
    """A preset with keys, and the request that must go out."""

    preset: str
    keys: dict[str, Any]
    method: str
    path: str
    header: tuple[str, str] | None = None
    body: object = None


BEARER = ("authorization", "Bearer s3cret")
BASIC_AC1 = ("authorization", "Basic QUMxOnMzY3JldA==")
BASIC_AB12 = ("authorization", "Basic YWIxMjpzM2NyZXQ=")
BASIC_MA1 = ("authorization", "Basic TUExOnMzY3JldA==")
ASKED = [
    Asked("twilio", {"account": "AC1", "from": "Acme"}, "GET", "/2010-04-01/Accounts/AC1.json", BASIC_AC1),
    Asked("telegram", {}, "GET", "/bots3cret/getMe"),
    Asked("sendgrid", {"from": "a@example.com"}, "GET", "/v3/scopes", BEARER),
    Asked("vonage", {"api_key": "ab12", "from": "Acme"}, "GET", "/account/get-balance", BASIC_AB12),
    Asked("plivo", {"auth_id": "MA1", "from": "1"}, "GET", "/v1/Account/MA1/", BASIC_MA1),
    Asked("messagebird", {"from": "Acme"}, "GET", "/balance", ("authorization", "AccessKey s3cret")),
    Asked("postmark", {"from": "a@example.com"}, "GET", "/server", ("x-postmark-server-token", "s3cret")),
    Asked("sinch", {"service_plan": "p1", "from": "1"}, "GET", "/xms/v1/p1/batches?page_size=1", BEARER),
    Asked("viber", {"sender": "Acme"}, "POST", "/pa/get_account_info", None, {"auth_token": "s3cret"}),
    Asked("whatsapp", {"phone_number_id": "12"}, "GET", "/v25.0/12", BEARER),
    Asked("facebook", {}, "GET", "/v25.0/me", BEARER),
]  # fmt: skip
CHANNELS = ("channels.sms", "channels.messenger", "channels.email", "channels.sms.providers.main")
GOOD = {"sendgrid": SCOPES, "viber": {"status": 0}, "twilio": {"status": "active"}}


def configured(folder: Path, asked: Asked, url: str, name: str = "") -> Path:
    """A configuration with this provider, in the short form or below `providers.NAME`."""
    folder.chmod(0o700)
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text("s3cret", encoding="utf-8")
    long = folder / "long"
    long.touch(mode=0o600)
    long.write_text("s3cret of requests", encoding="utf-8")
    public = folder / "public"
    public.touch(mode=0o600)
    public.write_text(public_key("a webhook"), encoding="utf-8")
    preset = Catalogue().find(asked.preset)
    assert preset is not None
    channel = preset.file.channels[0]
    keys = {"adapter": asked.preset, "base_url": url, **asked.keys}
    text = f"""\
[service]
base_url = "{url}"
[admin]
listen = ""
[receipts]
listen = "127.0.0.1:0"
public_url = "https://receipts.example.com"
[journal]
url = "sqlite:///journal.db"
[settings]
cache_dir = "cache"
[customers]
source = "http"
url = "{url}/customers/{{customerId}}"
fields = {{ phone = "/p", email = "/e", telegram = "/t", viber = "/v", facebook = "/f" }}
[channels.{channel}{f".providers.{name}" if name else ""}]
"""
    text += "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    text += "".join(f'secrets.{each} = "{_FILES.get(each, "secret")}"\n' for each in preset.file.secrets)
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


_FILES = {
    "receipt_token": "long",
    "webhook_token": "long",
    "webhook_password": "long",
    "webhook_key": "public",
}
"""The files of secrets with a form: those that requests carry have 16 characters at least."""


def check(path: Path, *options: str) -> Answered:
    return command("check", "--config", path, *options)


def finding(answered: Answered) -> dict[str, str]:
    """What was found about the provider."""
    (found,) = [
        each for each in answered.data["checks"]
        if each["key"] in CHANNELS
    ]  # fmt: skip
    return dict(found)


def requests_to_provider(provider: Provider) -> list[tuple[str, str, dict[str, str], str]]:
    return [each for each in provider.seen if not each[1].startswith(("/settings", "/deliveryd-check"))]


@pytest.mark.parametrize("asked", ASKED, ids=[asked.preset for asked in ASKED])
def test_a_good_account(asked: Asked, provider: Provider, tmp_path: Path) -> None:
    """One request with the credentials, no message, no key; the finding says that the account is accepted."""
    provider.answer = (200, GOOD.get(asked.preset, {"ok": True}))
    found = finding(check(configured(tmp_path, asked, provider.url), "--json"))
    assert found["level"] == "ok", found
    assert found["text"] == f"{provider.url} can be reached, and accepts the account"
    ((method, path, headers, body),) = requests_to_provider(provider)
    assert (method, path) == (asked.method, asked.path)
    assert asked.header is None or headers[asked.header[0]] == asked.header[1]
    assert (json.loads(body) if body else None) == asked.body
    assert "idempotency-key" not in headers


@pytest.mark.parametrize("asked", ASKED, ids=[asked.preset for asked in ASKED])
def test_rejected_credentials(asked: Asked, provider: Provider, tmp_path: Path) -> None:
    """The secret is shown nowhere, although the answer repeats it."""
    provider.answer = (401, {"error": {"code": 190, "message": "s3cret"}})
    answered = check(configured(tmp_path, asked, provider.url), "--json")
    found = finding(answered)
    assert (found["level"], answered.status) == ("failed", 1)
    assert found["text"].startswith("the provider answered 401: it rejects the ")
    assert "s3cret" not in answered.out + answered.err


@pytest.mark.parametrize(
    ("preset", "answer", "level", "text"),
    [
        (
            "twilio",
            (200, SUSPENDED),
            "failed",
            "the provider answered 200: the account is suspended or closed",
        ),
        ("twilio", (404, {}), "failed", "it has no such account"),
        ("twilio", (503, {}), "warning", "answered 503, which doesn't show"),
        ("twilio", (302, {}), "failed", "a redirect, which isn't followed"),
        ("sendgrid", (200, {"scopes": ["alerts.read"]}), "failed", "no right to send mail"),
        ("sendgrid", (200, "broken"), "failed", "no right to send mail"),
        ("viber", (200, {"status": 2}), "failed", "it rejects the token"),
        ("viber", (200, {"status": 7}), "failed", "the account can't send"),
        ("whatsapp", (400, {"error": {"code": 100}}), "failed", "doesn't reach this phone number id"),
    ],
)
def test_what_else_answers_mean(  # noqa: PLR0917 - a row of the table, and fixtures
    preset: str, answer: tuple[int, object], level: str, text: str, provider: Provider, tmp_path: Path
) -> None:
    asked = next(each for each in ASKED if each.preset == preset)
    provider.answer = answer
    found = finding(check(configured(tmp_path, asked, provider.url), "--json"))
    assert found["level"] == level
    assert text in found["text"]


def test_a_finding_names_the_provider_of_a_channel(provider: Provider, tmp_path: Path) -> None:
    provider.answer = (401, {})
    path = configured(tmp_path, ASKED[0], provider.url, name="main")
    assert finding(check(path, "--json"))["key"] == "channels.sms.providers.main"


def test_offline_nobody_is_asked(provider: Provider, tmp_path: Path) -> None:
    assert check(configured(tmp_path, ASKED[0], provider.url), "--offline").status == 0
    assert provider.seen == []


def test_a_probe_of_ones_own_has_only_secrets(tmp_path: Path, provider: Provider) -> None:
    """A gateway without a preset has it too; a placeholder of a message is an error at its key."""
    path = configured(tmp_path, ASKED[0], provider.url)
    text = path.read_text(encoding="utf-8")
    own = (
        f'adapter = "http"\nurl = "{provider.url}/sms"\njson = {{ text = "{{content.text}}" }}\n'
        f'secrets = {{ token = "secret" }}\n'
        f'probe = {{ url = "{provider.url}/me", headers = {{ X-Key = "{{secret.token}}" }} }}\n'
    )
    path.write_text(text[: text.index("[channels.sms]")] + "[channels.sms]\n" + own, encoding="utf-8")
    assert finding(check(path, "--json"))["text"].endswith("accepts the account")
    path.write_text(path.read_text(encoding="utf-8").replace("/me", "/{customer.id}"), encoding="utf-8")
    answered = check(path, "--offline")
    assert answered.status == 78
    assert ":channels.sms.probe: " in answered.err
    assert "there is no message, so only {secret.NAME} has a value" in answered.err
