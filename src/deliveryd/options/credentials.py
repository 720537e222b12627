"""Opens what authenticates requests as a table of the configuration says."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from deliveryd.http.authentication import Authentication, FileCredentials
from deliveryd.http.client import build_client, raw_header
from deliveryd.http.target import target_of
from deliveryd.http.wire import Headers
from deliveryd.options.authentication import (
    AuthOptions,
    AzureOptions,
    GoogleOptions,
    OAuth2Options,
    SigV4Options,
    check_ascii,
)
from deliveryd.options.tables import Table, leaves
from deliveryd.runtime.secret_file import RenewedValue, SecretFile

if TYPE_CHECKING:
    from deliveryd.http.oauth2 import Proof

TOKEN_SHARE = 0.5
"""The part of a request's time within which a token must come, so that the reason is shown if none does."""


def open_authentication(options: AuthOptions, place: str, timeout: float) -> Authentication | None:
    """Open what authenticates requests that may take so many seconds each; None: nothing does.

    `place` is the table, for errors. Must be called within the event loop. Raises ValueError, or OSError for
    unusable TLS files.
    """
    match options.table:
        case OAuth2Options() as oauth2:
            return _client_tokens(oauth2, f"{place}.oauth2.tls.ca_file", timeout * TOKEN_SHARE)
        case GoogleOptions() as google:
            return _account_tokens(google, timeout * TOKEN_SHARE)
        case SigV4Options() | AzureOptions() as table:
            return _signing(table)
    if not options.is_given:
        return None
    return FileCredentials(_paths(options), partial(file_headers, options))


def file_headers(options: AuthOptions) -> Headers:
    """Return the headers made from files, read now. Raises ValueError."""
    if options.token_file is not None:
        return [raw_header("authorization", f"Bearer {_visible(options.token_file)}")]
    if options.username is not None and options.password_file is not None:
        pair = f"{options.username}:{options.password_file.read()}".encode()
        return [(b"authorization", b"Basic " + base64.b64encode(pair))]
    if options.header is not None and options.value_file is not None:
        return [raw_header(options.header.lower(), _visible(options.value_file))]
    return []


def _client_tokens(options: OAuth2Options, ca_key: str, timeout: float) -> Authentication:
    from deliveryd.http import oauth2  # noqa: PLC0415  # few need it

    form = {"grant_type": "client_credentials", **options.parameters}
    if options.scope is not None:
        form["scope"] = options.scope
    client = build_client(
        timeout=timeout,
        max_body=oauth2.LARGEST_ANSWER,
        tls=options.tls.files(ca_key),
        proxy=options.open_proxy(),
    )
    proof = RenewedValue(_paths(options), partial(client_proof, options))
    return oauth2.open_tokens(client, target_of(options.token_url), form, proof)


def client_proof(options: OAuth2Options) -> Proof:
    """Return what proves a client, from the files as they are now. Raises ValueError."""
    from deliveryd.http import oauth2  # noqa: PLC0415  # few need it

    name = options.client_id
    if options.client_secret_file is not None:
        by_secret = oauth2.by_secret if options.sent_in == "header" else oauth2.by_secret_in_body
        return partial(by_secret, name, options.client_secret_file.read())
    if options.key_file is not None:
        key = oauth2.read_signing_key(options.key_file.read())
        return partial(oauth2.by_key, name, key, options.key_id, options.audience or options.token_url)
    return partial(oauth2.by_certificate, name)


def _account_tokens(options: GoogleOptions, timeout: float) -> Authentication:
    from deliveryd.http import oauth2  # noqa: PLC0415  # few need it

    server = target_of(oauth2.read_service_account(options.key_file.read()).token_uri)
    client = build_client(timeout=timeout, max_body=oauth2.LARGEST_ANSWER, proxy=options.open_proxy())
    proof = RenewedValue(_paths(options), partial(account_proof, options))
    return oauth2.open_tokens(client, server, {}, proof)


def account_proof(options: GoogleOptions) -> Proof:
    """Return what proves a service account, from its file as it is now. Raises ValueError."""
    from deliveryd.http import oauth2  # noqa: PLC0415  # few need it

    return partial(
        oauth2.by_service_account, oauth2.read_service_account(options.key_file.read()), options.scope
    )


def _signing(options: SigV4Options | AzureOptions) -> Authentication:
    from deliveryd.http.request_signing import AwsKey, AzureKey, Signing  # noqa: PLC0415  # few need it

    def key() -> AwsKey | AzureKey:
        if isinstance(options, AzureOptions):
            return AzureKey.read(options.key_file.read())
        token = options.session_token_file
        return AwsKey(
            _visible(options.access_key_file),
            options.secret_key_file.read(),
            options.region,
            options.service,
            _visible(token) if token is not None else None,
        )

    return Signing(_paths(options), key)


def _paths(table: Table) -> Sequence[Path]:
    """Return the secrets' files of a table."""
    return [value.path for _key, value in leaves(table) if isinstance(value, SecretFile)]


def _visible(file: SecretFile) -> str:
    """Return a secret that is sent in a header as it is. Raises ValueError."""
    secret = file.read()
    try:
        check_ascii(secret)
    except ValueError as error:
        raise ValueError(f"{file.path} {error}") from None
    return secret
