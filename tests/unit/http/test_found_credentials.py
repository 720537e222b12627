"""Keys of roles and tokens of identities, which the libraries of AWS and Google find on real sockets."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import anyio
import httpx
import pytest
from botocore.exceptions import ConfigParseError, CredentialRetrievalError, PartialCredentialsError
from google.auth.exceptions import DefaultCredentialsError
from pydantic import ValidationError

from deliveryd.errors import NotSent, OutOfFiles
from deliveryd.http import credential_search, found_credentials
from deliveryd.http.authentication import Authentication, OutgoingRequest
from deliveryd.http.client import HttpClient
from deliveryd.http.found_credentials import Search
from deliveryd.http.target import target_of
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.credentials import open_authentication
from support.memory_wire import MemoryWire

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REQUEST = OutgoingRequest("POST", target_of("https://sns.eu-west-1.amazonaws.com/"), [], b"Action=Publish")
GOOGLE: dict[str, dict[str, object]] = {
    "google": {"from_environment": True, "scope": "https://www.googleapis.com/auth/firebase.messaging"}
}
ISSUED = {
    "token_type": "Bearer",
    "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
}
AWS: dict[str, dict[str, object]] = {
    "sigv4": {"from_environment": True, "region": "eu-west-1", "service": "sns"}
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Metadata(ThreadingHTTPServer):
    """Gives a container's role, and exchanges tokens of an identity; nothing unless `status` is 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.status = 200
        self.body: bytes | None = None
        self.lifetime = timedelta(hours=1)
        self.is_silent = Event()
        self.is_endless = Event()
        self.released = Event()
        self.asked: Counter[str] = Counter()

    @property
    def host(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.server_port}"

    def document(self, path: str) -> object:
        """What it answers."""
        number = self.asked[path]
        ends = datetime.now(UTC) + self.lifetime
        if path == "/role":
            return {
                "AccessKeyId": f"AKID{number}", "SecretAccessKey": f"s3cret{number}", "Token": "t0ken",
                "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
            }  # fmt: skip
        if path.endswith("/default/"):
            return {"email": "worker@example.iam", "scopes": ["scope"], "aliases": []}
        return {
            "access_token": f"ya29.{number}", "expires_in": 3599, **ISSUED,
        }  # fmt: skip


class _Answer(BaseHTTPRequestHandler):
    server: Metadata

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked[path] += 1
        if self.server.is_silent.is_set():
            self.server.released.wait()
        body = self.server.body
        if body is None:
            body = json.dumps(self.server.document(path)).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Metadata-Flavor", "Google")
        if not self.server.is_endless.is_set():
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(body)
            while self.server.is_endless.is_set():
                self.wfile.write(bytes(1 << 20))

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def federated(host: str, folder: Path) -> dict[str, object]:
    """An identity of another platform, whose token Google's server exchanges."""
    (folder / "subject").write_text("a token of the platform", encoding="utf-8")
    return {
        "type": "external_account",
        "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"http://{host}/token",
        "credential_source": {"file": str(folder / "subject")},
    }


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Metadata]:
    with Metadata() as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://{server.host}/role")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        identity = tmp_path / "identity.json"
        identity.write_text(json.dumps(federated(server.host, tmp_path)), encoding="utf-8")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(identity))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.delenv(name, raising=False)
        yield server
        server.released.set()
        server.shutdown()
        serving.join()


def opened(auth: Mapping[str, object], timeout: float = 60.0) -> Authentication:
    authentication = open_authentication(AuthOptions.model_validate(auth), "auth", timeout)
    assert authentication is not None
    return authentication


async def test_a_request_is_signed_by_the_keys_of_a_role(metadata: Metadata) -> None:
    signing = opened(AWS)
    headers = {name: value.decode() for name, value in await signing.headers(REQUEST)}
    assert headers[b"x-amz-security-token"] == "t0ken"
    assert headers[b"authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID1/")
    assert "/eu-west-1/sns/aws4_request" in headers[b"authorization"]
    assert {*signing.secrets()} == {"s3cret1", "t0ken"}
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(signing.headers, REQUEST)
    assert metadata.asked["/role"] == 1


async def test_a_token_of_an_identity_is_shared(metadata: Metadata) -> None:
    tokens = opened(GOOGLE)
    shown = await tokens.headers(REQUEST)
    [(name, value)] = shown
    assert (name, value[:12]) == (b"authorization", b"Bearer ya29.")
    assert await tokens.headers(REQUEST) == shown
    assert await tokens.renew(shown)
    assert await tokens.headers(REQUEST) != shown


@pytest.mark.parametrize(("auth", "maker"), [(AWS, "AWS gives no keys"), (GOOGLE, "Google gives no token")])
async def test_a_machine_without_any_says_so(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch, auth: Mapping[str, object], maker: str
) -> None:
    metadata.status = 404
    monkeypatch.setenv("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1")
    authentication = opened(auth)
    with pytest.raises(NotSent, match=maker):
        await authentication.headers(REQUEST)


@pytest.mark.parametrize("auth", [AWS, GOOGLE], ids=["aws", "google"])
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"<html>", b"\xff", b'{"access_token": 5}'])
async def test_whatever_the_server_answers_is_an_outage(
    metadata: Metadata, auth: Mapping[str, object], body: bytes
) -> None:
    """And no end of the worker: these libraries raise whatever they meet."""
    metadata.body = body
    with pytest.raises(NotSent, match=r"gives no (keys|token) \((AWS|GOOGLE)_\w+\)"):
        await opened(auth).headers(REQUEST)


def searching(timeout: float = 60.0) -> Search:
    """A search for a role."""
    return Search(lambda: {"search": "role", "with": {}}, timeout, "none", ())


@pytest.mark.parametrize("auth", [AWS, GOOGLE], ids=["aws", "google"])
async def test_an_answer_without_end_fills_no_memory(metadata: Metadata, auth: Mapping[str, object]) -> None:
    metadata.is_endless.set()
    with pytest.raises(NotSent, match=r"_\w+\): what answered is longer than 256 MiB$"):
        await opened(auth, timeout=60.0).headers(REQUEST)


async def test_a_search_loads_no_library_of_a_maker_into_the_worker(metadata: Metadata) -> None:
    """With each search by them a process fills more memory, and nothing else is computed meanwhile."""
    program = (
        "import asyncio, sys\n"
        "from deliveryd.http.found_credentials import RoleSigning\n"
        "async def fetched(): return await RoleSigning('r', 's', 60.0)._fetch()\n"
        "print(*asyncio.run(fetched())[0].secrets(), 'botocore' in sys.modules)"
    )
    ended = await anyio.run_process([sys.executable, "-c", program])
    assert ended.stdout.split() == [b"s3cret1", b"t0ken", b"False"]


async def test_a_server_that_hangs_is_waited_for_once(metadata: Metadata) -> None:
    """Each request waits its time, one search asks, and what comes late is there for the next."""
    metadata.is_silent.set()
    authentication = opened(AWS, timeout=0.2)
    lent = authentication._lent  # type: ignore[attr-defined]
    for _ in range(3):
        lent._next_request = float("-inf")  # as after its pause
        with pytest.raises(NotSent, match=r"within 0\.1 s"):
            await authentication.headers(REQUEST)
    metadata.is_silent.clear()
    metadata.released.set()
    await asyncio.wait([authentication._search._under_way])  # type: ignore[attr-defined]
    lent._next_request = float("-inf")
    headers = dict(await authentication.headers(REQUEST))
    assert b"Credential=AKID1/" in headers[b"authorization"]
    assert metadata.asked.total() == 1


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A pipe of a program that AWS's library runs, which never ends."""
    pipe, config = tmp_path / "pipe", tmp_path / "aws.cfg"
    os.mkfifo(pipe)
    program = tmp_path / "program"
    program.write_text(f"exec 3>'{pipe}'; echo $PPID >&3; exec sleep 4711", encoding="ascii")
    config.write_text(f"[default]\ncredential_process = /bin/sh '{program}'\n", encoding="ascii")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    return pipe


def read_to_its_end(pipe: Path, begun: Callable[[int], object]) -> None:
    """Return when the program has ended; `begun` is called with the process that began it."""
    with pipe.open(encoding="ascii") as lines:
        begun(int(lines.readline()))
        assert lines.read() == ""


async def test_a_search_ends_with_the_programs_that_it_began(hanging: Path) -> None:
    signing = opened(AWS, timeout=0.2)
    begun = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(
            anyio.to_thread.run_sync,
            read_to_its_end,
            hanging,
            lambda _: anyio.from_thread.run_sync(begun.set),
        )
        with pytest.raises(NotSent, match=r"within 0\.1 s"):
            await signing.headers(REQUEST)
        await begun.wait()
        await signing.aclose()


async def test_a_search_that_never_ends_is_ended_and_the_next_who_asks_is_told(hanging: Path) -> None:
    search = searching(timeout=0.01)
    with pytest.raises(NotSent, match=r"none within 0\.01 s"):
        await search.found(300.0)
    await anyio.to_thread.run_sync(read_to_its_end, hanging, lambda process: os.kill(process, signal.SIGALRM))
    search._timeout = 60.0
    with pytest.raises(NotSent, match="none: a search found nothing in 60 s"):
        await search.found(300.0)


async def test_what_came_late_is_not_used_for_long(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = searching(timeout=0.01)
    for number in (1, 2):
        with pytest.raises(NotSent, match="within"):
            await search.found(300.0)
        assert search._under_way is not None
        await search._under_way
        assert metadata.asked["/role"] == number
        monkeypatch.setattr(found_credentials, "LATE_KEPT", -1.0)


async def test_the_metadata_of_an_instance_are_asked_without_a_proxy(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in a process: Google's library reads where they are when it is loaded."""
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, metadata.host)
    [(_, value)] = await opened({"google": {**GOOGLE["google"], "proxy": "http://127.0.0.1:9"}}).headers(
        REQUEST
    )
    assert value.startswith(b"Bearer ya29.")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("s3cret"), "ValueError"),
        (SystemExit("s3cret"), "SystemExit"),
        (EOFError("s3cret"), "a profile asks for a code (mfa_serial), which a worker hasn't"),
        (
            ValueError("Unsupported host 'example.com'.  Can only"),
            "Unsupported host 'example.com'. Can only",
        ),
        (ConfigParseError(path="/run/aws.cfg"), "Unable to parse config file: /run/aws.cfg"),
        (
            DefaultCredentialsError("Failed to load /run/key.json", ValueError("s3cret")),  # type: ignore[no-untyped-call]
            "Failed to load /run/key.json",
        ),
        (
            CredentialRetrievalError(provider="custom-process", error_msg="s3cret"),
            "CredentialRetrievalError (custom-process)",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "/run/token"),
            "/run/token: No such file or directory",
        ),
        (ModuleNotFoundError("No module named 'requests'"), "No module named 'requests'"),
        (
            PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
            "Partial credentials found in env, missing: AWS_SECRET_ACCESS_KEY",
        ),
    ],
    ids=str,
)
def test_whatever_is_raised_is_named(error: BaseException, reason: str) -> None:
    assert credential_search.told(error) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[default]\ncredential_process = echo s3cret\n", "what credential_process printed, .* isn't JSON"),
        ("s3cret\n", "Unable to parse config file: .*aws.cfg"),
    ],
)
async def test_a_file_of_aws_that_cannot_be_used_is_named(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, reason: str
) -> None:
    config = tmp_path / "aws.cfg"
    config.write_text(text, encoding="ascii")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    with pytest.raises(NotSent, match=rf"^AWS gives no keys \(.*AWS_CONFIG_FILE\): {reason}$"):
        await opened(AWS).headers(REQUEST)


async def test_the_next_search_finds_what_the_one_before_did_not(metadata: Metadata) -> None:
    search = searching()
    metadata.body = b"{}"
    with pytest.raises(NotSent, match="none: KeyError"):
        await search.found(300.0)
    metadata.body = None
    assert (await search.found(300.0))[0] == ["AKID2", "s3cret2", "t0ken"]


@pytest.mark.parametrize("code", ["__import__('os')._exit(3)", "print('s3cret')"])
async def test_a_search_without_an_answer_is_no_end_of_the_worker(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(found_credentials, "_PROGRAM", (sys.executable, "-c", code))
    with pytest.raises(NotSent, match=r"^none: a search ended with status [03]$"):
        await searching().found(300.0)


@contextmanager
def no_files_left() -> Iterator[None]:
    """This process can open no more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    lowered = os.dup(0)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowered + 1, before[1]))
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in (lowered, *held):
            os.close(each)


async def test_a_lack_of_files_is_no_lack_of_credentials(metadata: Metadata) -> None:
    """The messages go on when there are files again; nothing is wrong with the configuration."""
    search = searching()
    with (
        no_files_left(),
        pytest.raises(OutOfFiles, match=r"none: no process can be begun; files .*Too many open files"),
    ):
        await search.found(300.0)
    assert (await search.found(300.0))[0] == ["AKID1", "s3cret1", "t0ken"]


async def test_a_lack_of_files_in_a_search_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise RuntimeError("s3cret") from OSError(errno.ENFILE, "too many", "/run/token")

    monkeypatch.setattr(credential_search, "_role", find)
    answer = credential_search.answer_to({"search": "role", "with": {}})
    assert answer == {"failure": "RuntimeError", "lacks_files": True}


async def test_keys_are_used_until_their_end_at_the_latest(metadata: Metadata) -> None:
    metadata.lifetime = timedelta(seconds=-5)
    with pytest.raises(NotSent, match="AWS gives no keys"):
        await opened(AWS).headers(REQUEST)


async def test_a_token_that_has_ended_when_it_comes_is_named_with_its_maker(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "document", lambda _: {"access_token": "t", "expires_in": -1, **ISSUED})
    with pytest.raises(NotSent, match=r"^Google gives no token \(GOOGLE_\w+\): .* has ended already"):
        await opened(GOOGLE).headers(REQUEST)


async def test_keys_that_no_header_can_hold_are_named(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line break in a variable is usual where secrets come from files."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    with pytest.raises(NotSent, match=r"AWS_ACCESS_KEY_ID.*: what was found holds blanks, line breaks"):
        await opened(AWS).headers(REQUEST)
    assert not metadata.asked


async def test_rejected_keys_are_looked_up_again(metadata: Metadata) -> None:
    signing = opened(AWS)
    shown = await signing.headers(REQUEST)
    assert await signing.renew(shown)
    headers = dict(await signing.headers(REQUEST))
    assert b"Credential=AKID2/" in headers[b"authorization"]
    assert metadata.asked["/role"] == 2


EXPIRED = {
    "ses": httpx.Response(
        403, headers={"x-amzn-ErrorType": "ExpiredTokenException"}, json={"message": "expired"}
    ),
    "ses in another version": httpx.Response(
        400, headers={"x-amzn-ErrorType": "UnrecognizedClientException:http:"}
    ),
    "sns": httpx.Response(
        403, content=b"<ErrorResponse><Error><Type>Sender</Type><Code>InvalidClientTokenId</Code></Error>"
    ),
    "end-user-messaging": httpx.Response(
        400, json={"__type": "com.amazon.coral.service#ExpiredTokenException", "message": "expired"}
    ),
    "a wrong secret": httpx.Response(403, json={"__type": "InvalidSignatureException"}),
}
DENIED = {
    "a right": httpx.Response(403, headers={"x-amzn-ErrorType": "AccessDeniedException"}),
    "a message": httpx.Response(400, json={"__type": "ValidationException", "message": "ExpiredToken"}),
    "another server": httpx.Response(403, content=b"ExpiredToken"),
    "a repeat": httpx.Response(500, headers={"x-amzn-ErrorType": "ExpiredTokenException"}),
}


@pytest.mark.parametrize("answer", [*EXPIRED, *DENIED])
async def test_keys_that_aws_rejects_are_replaced_and_the_request_is_sent_again(
    metadata: Metadata, answer: str
) -> None:
    """Once: AWS answers 400 or 403, and names the error; other errors aren't about the keys."""
    shown = []

    def handle(request: httpx.Request) -> httpx.Response:
        shown.append(request.headers["authorization"].partition("/")[0].partition("=")[2])
        if shown[-1] == "AKID1":
            return {**EXPIRED, **DENIED}[answer]
        return httpx.Response(200)

    client = HttpClient(MemoryWire(handle), timeout=5.0, authentication=opened(AWS))
    sent = await client.send("POST", str(REQUEST.target), body=REQUEST.body)
    is_rejection = answer in EXPIRED
    assert shown == (["AKID1", "AKID2"] if is_rejection else ["AKID1"])
    assert (sent.status == 200) is is_rejection


async def test_keys_that_aws_goes_on_rejecting_are_not_looked_up_for_each_request(metadata: Metadata) -> None:
    """The account may be closed: the machine's own server is spared, and each request is sent once."""
    count = 0

    def handle(_request: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        return EXPIRED["sns"]

    client = HttpClient(MemoryWire(handle), timeout=5.0, authentication=opened(AWS))
    for _ in range(10):
        assert (await client.send("POST", str(REQUEST.target))).status == 403
    assert count == 11
    assert metadata.asked["/role"] == 2


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        (
            {"sigv4": {"region": "eu-west-1", "service": "sns"}},
            "give access_key_file and secret_key_file, or",
        ),
        ({"sigv4": {**AWS["sigv4"], "access_key_file": "k"}}, "needs no files of keys"),
        ({"google": {"scope": "s"}}, "give one of key_file and from_environment = true"),
        (
            {"google": {**GOOGLE["google"], "key_file": "k"}},
            "give one of key_file and from_environment = true",
        ),
    ],
)
async def test_one_source_is_given(auth: Mapping[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        AuthOptions.model_validate(auth)
