"""The option that names a worker's admin server."""

from __future__ import annotations

from urllib.parse import urlsplit

import typer


def checked_url(url: str | None) -> str | None:
    """Return the address of an admin server. Raises BadParameter for anything else."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        usable = parts.scheme == "http" and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise typer.BadParameter("expected an address such as http://127.0.0.1:9470, with a port up to 65535")
    return url
