"""`deliveryd health` as container health checks ask it, each 30 s: with the standard library alone.

The command line takes more than twice the CPU to load. What this doesn't handle, such as
`--json`, `--help` and mistakes, `deliveryd.commands.watch.health` does.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from deliveryd.commands.common.conventions import CONFIGURATION, FAILED, USUAL_CONFIG
from deliveryd.commands.common.printable import printable
from deliveryd.errors import ConfigError
from deliveryd.http.addresses import parse_listen

_TIMEOUT = 3.0
_LONGEST_ANSWER = 4096
_LONGEST_QUOTE = 120


def health_url(listen: str) -> str:
    """Return the URL of a worker that listens on `listen`, as seen from the same machine.

    Raises ValueError if `listen` isn't an address, or its port isn't fixed.
    """
    host, port = parse_listen(listen)
    if port == 0:
        raise ValueError("port 0 means any free port, so the actual port is unknown")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        host = "::1" if address.version == 6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if address.version == 6 else f"http://{host}:{port}"


def check_health(url: str) -> tuple[bool, str]:
    """Request /livez; return whether the worker is alive, and its answer or why there is none."""
    parts = urlsplit(url)
    try:
        answer = _answer_of(parts.hostname or "", parts.port or 80, parts.netloc)
    except OSError as error:
        return False, f"no answer from {url}: {error.strerror or error}"
    head, _, body = answer.partition("\r\n\r\n")
    _, _, status = head.partition("\r\n")[0].partition(" ")
    text = body.strip()
    first = text.partition("\n")[0]
    if first not in ("alive", "stuck"):
        said = f"GET /livez was answered with {status[:3]} {first[:_LONGEST_QUOTE]!r}"
        return False, f"the server at {url} isn't deliveryd's admin server: {said}"
    return status.startswith("200"), text


def _answer_of(host: str, port: int, authority: str) -> str:
    """Return an answer as it came. Without http.client, which takes longer to load than all else here."""
    with socket.create_connection((host, port), _TIMEOUT) as connection:
        connection.sendall(f"GET /livez HTTP/1.0\r\nHost: {authority}\r\n\r\n".encode("ascii", "replace"))
        answer = b""
        while len(answer) < _LONGEST_ANSWER and (data := connection.recv(_LONGEST_ANSWER)):
            answer += data
    return answer.decode(errors="replace")


USUAL_LISTEN = "127.0.0.1:9470"


def answer_health(arguments: Sequence[str]) -> int | None:
    """Check a worker and print its answer; return the exit status, or None: the arguments need the program.

    `arguments` are those after `health`: none, or `--config FILE`.
    """
    match arguments:
        case []:
            config = Path(named) if (named := os.environ.get("DELIVERYD_CONFIG")) else USUAL_CONFIG
            is_usual = named is None
        case ["--config" | "-c", name] if not name.startswith("-"):
            config, is_usual = Path(name), False
        case _:
            return None
    try:
        url = configured_url(config) if not is_usual or config.exists() else health_url(USUAL_LISTEN)
    except ConfigError as error:
        print("\n".join(map(printable, error.problems)), file=sys.stderr)
        return CONFIGURATION
    is_alive, text = check_health(url)
    print("\n".join(map(printable, text.splitlines())), file=sys.stdout if is_alive else sys.stderr)
    return 0 if is_alive else FAILED


def configured_url(config: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of the worker's admin server. Of the file only admin.listen is read.

    Raises ConfigError.
    """
    listen = environ.get("DELIVERYD_ADMIN__LISTEN")
    if listen is None:
        listen = _listen_in(config)
    try:
        return health_url(listen)
    except ValueError as error:
        reason = str(error) if listen else "it is empty, so the admin server is turned off"
        raise ConfigError(
            [f"{config}:admin.listen: {reason}; give --url, or an address with a port"]
        ) from None


def _listen_in(config: Path) -> str:
    try:
        tables = tomllib.loads(config.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError([f"{config}: can't be read: {error.strerror}"]) from None
    except ValueError as error:  # of the text, or of TOML
        raise ConfigError([f"{config}: {error}"]) from None
    admin = tables.get("admin", {})
    listen = admin.get("listen", USUAL_LISTEN) if isinstance(admin, dict) else None
    if not isinstance(listen, str):
        raise ConfigError([f"{config}:admin.listen: expected an address such as {USUAL_LISTEN}"])
    return listen
