"""Opens what authenticates requests, from a table of the configuration."""

from __future__ import annotations

import base64
from functools import partial

from deliveryd.http.authentication import Authentication, FileCredentials
from deliveryd.http.client import raw_header
from deliveryd.http.wire import Headers
from deliveryd.options.authentication import AuthOptions, secret_paths, visible


def open_authentication(options: AuthOptions, place: str, timeout: float) -> Authentication | None:
    """Open what authenticates requests that may take so many seconds each; None: nothing does.

    `place` is the table, for errors. Must be called within the event loop. Raises ValueError, or OSError for
    unusable TLS files.
    """
    if (table := options.table) is not None:
        from deliveryd.options.token_credentials import open_table  # noqa: PLC0415  # few need it

        return open_table(table, f"{place}.{options.way}", timeout)
    if not options.is_given:
        return None
    return FileCredentials(secret_paths(options), partial(file_headers, options))


def file_headers(options: AuthOptions) -> Headers:
    """Return the headers made from files, read now. Raises ValueError."""
    if options.token_file is not None:
        return [raw_header("authorization", f"Bearer {visible(options.token_file)}")]
    if options.username is not None and options.password_file is not None:
        pair = f"{options.username}:{options.password_file.read()}".encode()
        return [(b"authorization", b"Basic " + base64.b64encode(pair))]
    if options.header is not None and options.value_file is not None:
        return [raw_header(options.header.lower(), visible(options.value_file))]
    return []
