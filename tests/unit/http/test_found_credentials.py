"""Keys of roles and tokens of identities, which the libraries of AWS and Google find on real sockets."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import anyio
import httpx
import pytest
from botocore.exceptions import PartialCredentialsError
from pydantic import ValidationError

from deliveryd.errors import NotSent, OutOfFiles
from deliveryd.http import found_credentials
from deliveryd.http.authentication import Authentication, OutgoingRequest
from deliveryd.http.client import HttpClient
from deliveryd.http.found_credentials import Search
from deliveryd.http.target import target_of
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.credentials import open_authentication
from support.memory_wire import MemoryWire

pytestmark = pytest.mark.anyio

REQUEST = OutgoingRequest("POST", target_of("https://sns.eu-west-1.amazonaws.com/"), [], b"Action=Publish")
GOOGLE: dict[str, dict[str, object]] = {
    "google": {"from_environment": True, "scope": "https://www.googleapis.com/auth/firebase.messaging"}
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
            "access_token": f"ya29.{number}", "expires_in": 3599, "token_type": "Bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
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
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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
        for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        yield server
        server.released.set()
        server.shutdown()
        serving.join()


def opened(auth: Mapping[str, object], timeout: float = 5.0) -> Authentication:
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
    authentication = opened(auth, timeout=1.0)
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
        await opened(auth, timeout=1.0).headers(REQUEST)


async def test_a_server_that_hangs_is_waited_for_once(metadata: Metadata) -> None:
    """Each request waits its time, one thread asks, and what comes late is there for the next."""
    metadata.is_silent.set()
    authentication = opened(AWS, timeout=0.2)
    lent = authentication._lent  # type: ignore[attr-defined]
    for _ in range(3):
        lent._next_request = float("-inf")  # as after its pause
        with pytest.raises(NotSent, match=r"within 0\.1 s"):
            await authentication.headers(REQUEST)
    assert metadata.asked.total() == 1
    metadata.is_silent.clear()
    metadata.released.set()
    headers = None
    while headers is None:
        lent._next_request = float("-inf")
        with suppress(NotSent):
            headers = await authentication.headers(REQUEST)
    assert metadata.asked.total() <= 2


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


def searching(*found: str | BaseException, timeout: float = 5.0) -> Search[str]:
    """A search that finds these, one after the other."""
    left = iter(found)

    def find() -> str:
        each = next(left)
        if isinstance(each, str):
            return each
        raise each

    return Search(find, timeout, "none", ())


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("s3cret"), "none: ValueError"),
        (SystemExit("s3cret"), "none: SystemExit"),
        (FileNotFoundError(2, "No such file or directory", "/run/token"), "none: /run/token: No such file"),
        (ModuleNotFoundError("No module named 'requests'"), "none: No module named 'requests'"),
        (PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), "AWS_SECRET_ACCESS_KEY"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_whatever_is_raised_is_named_and_the_next_search_finds(error: BaseException, told: str) -> None:
    search = searching(error, "key")
    with pytest.raises(NotSent, match=told) as caught:
        await search.found()
    assert "s3cret" not in str(caught.value)
    assert await search.found() == "key"


async def test_a_search_that_never_ends_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, begun = Event(), iter(("first", "second"))

    def find() -> str:
        name = next(begun)
        if name == "first":
            goes_on.wait()
        return name

    search = Search(find, 0.01, "none", ())
    for _ in range(2):
        with pytest.raises(NotSent, match=r"none within 0\.01 s"):
            await search.found()
    monkeypatch.setattr(found_credentials, "HANGING", 0.0)
    search._timeout = 5.0
    assert await search.found() == "second"
    goes_on.set()


async def test_a_failure_that_came_late_is_not_told_to_whoever_asks_next() -> None:
    goes_on, begun = Event(), iter((ValueError(), "key"))

    def find() -> str:
        goes_on.wait()
        each = next(begun)
        if isinstance(each, str):
            return each
        raise each

    search = Search(find, 0.01, "none", ())
    with pytest.raises(NotSent, match="within"):
        await search.found()
    goes_on.set()
    under_way = search._under_way
    assert under_way is not None
    with pytest.raises(NotSent):
        await under_way.result
    search._timeout = 5.0
    assert await search.found() == "key"


async def test_a_process_that_can_begin_no_thread_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    search = searching("key")
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", start)
        with pytest.raises(OutOfFiles, match="can't start new thread"):
            await search.found()
    assert await search.found() == "key"


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


def _is_told(error: BaseException) -> BaseException:
    wrapped = RuntimeError("s3cret")
    wrapped.__context__ = error
    return wrapped


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
async def test_a_lack_of_files_is_no_lack_of_credentials(code: int) -> None:
    """The messages go on when there are files again; nothing is wrong with the configuration."""
    search = searching(_is_told(OSError(code, "too many", "/run/token")), "key")
    with pytest.raises(OutOfFiles, match=r"^none: Too many open files$"):
        await search.found()
    assert await search.found() == "key"


async def test_a_lack_of_files_that_a_library_hides_is_named() -> None:
    """AWS's reads no shared file that it can't open, and finds no role at an instance that it can't ask."""
    with no_files_left(), pytest.raises(OutOfFiles, match="Too many open files"):
        await searching(NotSent("this machine has no role")).found()


async def test_keys_are_used_until_their_end_at_the_latest(metadata: Metadata) -> None:
    metadata.lifetime = timedelta(seconds=-5)
    with pytest.raises(NotSent, match="AWS gives no keys"):
        await opened(AWS).headers(REQUEST)


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
