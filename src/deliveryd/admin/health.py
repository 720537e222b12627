"""The client of /livez, for container health checks. Uses only the standard library."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

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
