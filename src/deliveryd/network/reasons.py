"""Reasons for failed connections, worded in one place."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import TypeVar

from deliveryd.errors import NotSent, OutOfFiles
from deliveryd.runtime.process import NoThread, is_out_of_files

_NO_SUCH_HOST = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
"""OpenSSL's codes for a certificate from an authority that isn't trusted (X509_V_ERR_...)."""

_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST"})

E = TypeVar("E", bound=BaseException)


def connect_reason(host: str, port: int, error: BaseException, ca_key: str) -> str:
    """Return why connecting to `host` failed, from the error or its causes.

    `ca_key` is the configuration key that names the authorities to trust there.
    """
    if (distrust := caused_by(error, ssl.SSLCertVerificationError)) is not None:
        return _distrusted(host, port, distrust, ca_key)
    if (broken := caused_by(error, ssl.SSLError)) is not None:
        return f"TLS with {host}:{port} failed: {_tls_reason(broken)}"
    if (unknown := caused_by(error, socket.gaierror)) is not None:
        return f"no connection to {host}:{port}: {_name_reason(unknown)}"
    return f"no connection to {host}:{port}: {_system_reason(error)}"


def not_connected(host: str, port: int, error: BaseException, ca_key: str) -> NotSent:
    """Return the error for a request that wasn't sent, since no connection was made; see `connect_reason`."""
    kind = OutOfFiles if is_out_of_files(error) else NotSent
    return kind(connect_reason(host, port, error, ca_key))


def caused_by(error: BaseException | None, kind: type[E]) -> E | None:
    """Return the error itself or the first of its causes of this type."""
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None


def _distrusted(host: str, port: int, error: ssl.SSLCertVerificationError, ca_key: str) -> str:
    text = f"the certificate of {host}:{port} isn't trusted: {error.verify_message}"
    if error.verify_code not in _UNKNOWN_AUTHORITY:
        return text
    return f"{text}; name the authority that issued it in {ca_key}"


def _tls_reason(error: ssl.SSLError) -> str:
    if error.reason in _NO_TLS:
        return f"the peer doesn't speak TLS ({error.reason})"
    return error.reason or "the connection was closed"


def _name_reason(error: socket.gaierror) -> str:
    if error.errno in _NO_SUCH_HOST:
        return "no such host"
    return f"its name can't be resolved now ({error.strerror})"


def _system_reason(error: BaseException) -> str:
    """Return the message of the first cause with an errno; errors that wrap it have other texts."""
    system: BaseException | None = error
    while system is not None:
        if isinstance(system, NoThread):
            return str(system.strerror)
        if isinstance(system, OSError) and system.errno:
            return "connection refused" if system.errno == errno.ECONNREFUSED else os.strerror(system.errno)
        system = system.__cause__ or system.__context__
    return str(error) or type(error).__name__
