"""The client of /livez, for container health checks. Uses only the standard library."""

from __future__ import annotations

import http.client
import ipaddress
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
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        connection.request("GET", "/livez")
        answer = connection.getresponse()
        text = answer.read(_LONGEST_ANSWER).decode(errors="replace").strip()
        first = text.partition("\n")[0]
    except (OSError, http.client.HTTPException) as error:
        system = error.strerror if isinstance(error, OSError) else None
        reason = system or str(error) or type(error).__name__
        return False, f"no answer from {url}: {reason}"
    else:
        if first not in ("alive", "stuck"):
            said = f"GET /livez was answered with {answer.status} {first[:_LONGEST_QUOTE]!r}"
            return False, f"the server at {url} isn't deliveryd's admin server: {said}"
        return answer.status == 200, text
    finally:
        connection.close()
