"""Opens what requests tokens and what signs requests."""

from __future__ import annotations

from functools import partial

from deliveryd.http import oauth2
from deliveryd.http.apns_tokens import ProviderKey, ProviderTokens
from deliveryd.http.authentication import Authentication
from deliveryd.http.client import build_client
from deliveryd.http.request_signing import (
    AwsKey,
    AzureKey,
    Signing,
    access_key_id,
    secret_access_key,
    session_token,
)
from deliveryd.http.target import target_of
from deliveryd.model import WallClock
from deliveryd.options.authentication import AuthTable, secret_paths
from deliveryd.options.authentication_tables import (
    ApnsOptions,
    AzureOptions,
    GoogleOptions,
    OAuth2Options,
    SigV4Options,
)
from deliveryd.runtime.secret_file import RenewedValue

TOKEN_SHARE = 0.5
"""The part of a request's time within which a token must come, so that the reason is shown if none does."""


def open_table(table: AuthTable, place: str, timeout: float) -> Authentication:
    """Open what authenticates requests that may take so many seconds each. Raises ValueError and OSError."""
    match table:
        case OAuth2Options():
            return _client_tokens(table, f"{place}.tls.ca_file", timeout * TOKEN_SHARE)
        case GoogleOptions(from_environment=True):
            from deliveryd.http.found_credentials import identity_tokens  # noqa: PLC0415  # for few

            return identity_tokens(table.scope, table.open_proxy(), timeout * TOKEN_SHARE)
        case SigV4Options(from_environment=True):
            from deliveryd.http.found_credentials import RoleSigning  # noqa: PLC0415  # for few

            return RoleSigning(table.region, table.service, timeout * TOKEN_SHARE)
        case GoogleOptions():
            return _account_tokens(table, timeout * TOKEN_SHARE)
        case SigV4Options() | AzureOptions():
            return _signing(table)
        case ApnsOptions():
            key = RenewedValue(secret_paths(table), lambda: ProviderKey.read(table.key_file.read()))
            return ProviderTokens(key, table.key_id, table.team_id, WallClock())
        case _:
            raise TypeError(f"{place} is no table that authenticates")


def _client_tokens(options: OAuth2Options, ca_key: str, timeout: float) -> Authentication:
    form = {"grant_type": "client_credentials", **options.parameters}
    if options.scope is not None:
        form["scope"] = options.scope
    client = build_client(
        timeout=timeout,
        max_body=oauth2.LARGEST_ANSWER,
        tls=options.tls.files(ca_key),
        proxy=options.open_proxy(),
    )
    proof = RenewedValue(secret_paths(options), partial(client_proof, options))
    return oauth2.open_tokens(client, target_of(options.token_url), form, proof)


def client_proof(options: OAuth2Options) -> oauth2.Proof:
    """Return what proves a client, from the files as they are now. Raises ValueError."""
    name = options.client_id
    if options.client_secret_file is not None:
        by_secret = oauth2.by_secret if options.sent_in == "header" else oauth2.by_secret_in_body
        return partial(by_secret, name, options.client_secret_file.read())
    if options.key_file is not None:
        key = oauth2.read_signing_key(options.key_file.read())
        return partial(oauth2.by_key, name, key, options.key_id, options.audience or options.token_url)
    return partial(oauth2.by_certificate, name)


def _account_tokens(options: GoogleOptions, timeout: float) -> Authentication:
    server = target_of(_account(options).token_uri)
    client = build_client(timeout=timeout, max_body=oauth2.LARGEST_ANSWER, proxy=options.open_proxy())
    proof = RenewedValue(secret_paths(options), partial(account_proof, options))
    return oauth2.open_tokens(client, server, {}, proof)


def account_proof(options: GoogleOptions) -> oauth2.Proof:
    """Return what proves a service account, from its file as it is now. Raises ValueError."""
    return partial(oauth2.by_service_account, _account(options), options.scope)


def _account(options: GoogleOptions) -> oauth2.ServiceAccount:
    if options.key_file is None:
        raise ValueError("there is no key_file")
    return oauth2.read_service_account(options.key_file.read())


def _signing(options: SigV4Options | AzureOptions) -> Authentication:
    def key() -> AwsKey | AzureKey:
        if isinstance(options, AzureOptions):
            return AzureKey.read(options.key_file.read())
        if options.access_key_file is None or options.secret_key_file is None:
            raise ValueError("there is no access_key_file, or no secret_key_file")
        token = options.session_token_file
        return AwsKey(
            access_key_id(options.access_key_file.read()),
            secret_access_key(options.secret_key_file.read()),
            options.region,
            options.service,
            session_token(token.read()) if token is not None else None,
        )

    return Signing(secret_paths(options), key)
