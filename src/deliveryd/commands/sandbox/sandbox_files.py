"""The files for trying deliveryd against a sandbox: configuration, customers, secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, cast, get_args
from urllib.parse import parse_qsl, urlsplit

from deliveryd.channels.mapping import texts_in
from deliveryd.channels.presets.catalogue import PACKAGED, Catalogue, Preset
from deliveryd.channels.presets.file import PresetSandbox, SandboxLookup
from deliveryd.channels.presets.table import examples, keys_of_auth
from deliveryd.errors import ConfigError, DeliverydError, UsageError
from deliveryd.options.suggestion import suggestion
from deliveryd.options.toml_text import toml_value
from deliveryd.sandbox.faults import StandInChannel
from deliveryd.sandbox.impersonation import (
    AccountForm,
    Impersonation,
    LookupForm,
    Mood,
    Shape,
    SigningForm,
    private_key,
    public_key,
)
from deliveryd.sandbox.scenario import Scenario
from deliveryd.sandbox.server import Sandbox

SECRET = "whsec_sandboxSecretOf32CharactersLong0"  # noqa: S105 - a stand-in's secret guards nothing
"""The secret of every provider of the sandbox; Standard Webhooks ask for this form."""

_BASE_USE = "{key.base_url}"
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


def chosen_presets(names: str, folder: Path | None = None) -> list[Preset]:
    """Return the presets of a list such as `twilio,whatsapp`; `folder` has those of an operator.

    Raises ConfigError, DeliverydError.
    """
    catalogue = Catalogue(folder)
    if problems := [f"--presets-dir: {problem}" for problem in catalogue.problems()]:
        raise ConfigError(problems)
    found = []
    for name in filter(None, (each.strip() for each in names.split(","))):
        preset = catalogue.find(name)
        if preset is None:
            raise UsageError(f"--as: there is no preset {name}{suggestion(name, catalogue.names())}")
        if preset.file.sandbox is None:
            raise DeliverydError(f"--as: {preset.path} has no table [sandbox], so {name} can't be played")
        if "base_url" not in preset.file.keys:
            raise DeliverydError(f"--as: {preset.path} has no key base_url, so {name} can't be played")
        found.append(preset)
    return found


def impersonation(preset: Preset) -> Impersonation:
    """Return a preset in the form of the sandbox; `preset.file.sandbox` is set."""
    table = cast("PresetSandbox", preset.file.sandbox)
    channel = cast("StandInChannel", preset.file.channels[0])
    signing, lookup = table.signature, table.lookup
    return Impersonation(
        preset.name,
        channel,
        list(_paths(preset)),
        table.to,
        _shapes(table, *get_args(Mood)),
        reference=table.reference,
        callback=table.callback,
        id=table.id,
        reports=_shapes(table, "delivered", "failed"),
        signature=SigningForm(**signing.model_dump(exclude={"secret"})) if signing is not None else None,
        secret=SECRET,
        path=f"/receipts/{channel}/{preset.name}",
        heeds_keys=preset.file.promises.key == "heeded",
        key_header=table.key_header,
        lookup=None
        if lookup is None
        else LookupForm(lookup.reference, **_shapes(lookup, "found", "missing")),
        account=_account(preset, table),
    )


def _account(preset: Preset, table: PresetSandbox) -> AccountForm | None:
    """Return how the provider is asked about the account; None: it isn't, or at another host."""
    asked = preset.file.table.get("probe", {})
    path, _, query = str(asked.get("url", "")).partition("?")
    if not path.startswith(_BASE_USE):
        return None
    names = frozenset([*dict(parse_qsl(query)), *asked.get("query", {})])
    return AccountForm(
        asked.get("method", "GET"), _pattern(preset, path), names, Shape(**dict(table.account))
    )


def _shapes(table: PresetSandbox | SandboxLookup, *names: str) -> dict[Any, Shape]:
    """Return those of these answers or reports that the table has."""
    found = {name: getattr(table, name) for name in names}
    return {name: Shape(**dict(shape)) for name, shape in found.items() if shape is not None}


def _paths(preset: Preset) -> Iterator[re.Pattern[str]]:
    """Yield the paths of the preset's addresses, below the sandbox's address of the provider."""
    for place, text in texts_in({"table": preset.file.table, "blocks": preset.file.blocks}):
        if place.endswith(".url") and place != "table.probe.url" and text.startswith(_BASE_USE):
            yield _pattern(preset, text.partition("?")[0])


def _pattern(preset: Preset, url: str) -> re.Pattern[str]:
    """Return what the path of an address at `base_url` looks like."""
    base = preset.file.keys["base_url"]
    path = urlsplit(str(base.default or base.example)).path + url.removeprefix(_BASE_USE)
    return re.compile("".join(_path_pieces(preset, path)))


def _path_pieces(preset: Preset, path: str) -> Iterator[str]:
    """Yield the pieces of a pattern for a path; a key stands for one part of it, or for all that follows.

    The recipient is its group `to`.
    """
    for place, piece in enumerate(_PLACEHOLDER.split(path.removeprefix("/"))):
        key = preset.file.keys.get(piece.removeprefix("key."))
        if place % 2 == 0:
            yield re.escape(piece)
        elif piece.startswith("customer.") or (key is not None and str(key.default).startswith("{customer.")):
            yield "(?P<to>[^/]+)"
        else:
            yield ".+" if key is not None and str(key.example).startswith("/") else "[^/]+"


def base_address(preset: Preset, sandbox: str) -> str:
    """Return the provider's address in the sandbox, as the key `base_url`."""
    base = preset.file.keys["base_url"]
    return f"{sandbox}/{preset.name}{urlsplit(str(base.default or base.example)).path}".rstrip("/")


def provider_table(preset: Preset, sandbox: str) -> tuple[list[str], Mapping[str, str]]:
    """Return the lines of a table that uses a provider of the sandbox, and its secrets by their files."""
    given: dict[str, Any] = {
        **examples(preset.file, only_required=True),
        "base_url": base_address(preset, sandbox),
    }
    files = {name: f"{preset.name}-{name}" for name in preset.file.secrets}
    given["secrets"] = files
    secrets = {file: _secret(preset, name) for name, file in files.items()}
    if preset.file.table.get("auth"):  # the sandbox accepts any token
        given = {name: value for name, value in given.items() if name not in keys_of_auth(preset.file)}
        given["auth"] = {"token_file": f"{preset.name}-token"}
        secrets[f"{preset.name}-token"] = SECRET
    if preset.file.table.get("http2"):
        given["http2"] = False  # the sandbox speaks HTTP/1.1
    signing = cast("PresetSandbox", preset.file.sandbox).signature
    if signing is not None and signing.scheme == "sns":
        from deliveryd.sandbox.amazon import certificate  # noqa: PLC0415  # loads much, for few providers

        given[signing.secret] = file = f"{preset.name}-certificate"
        secrets[file] = certificate(SECRET)
    lines = [f"[channels.{preset.file.channels[0]}.providers.{preset.name}]", f'adapter = "{preset.name}"']
    lines += [f"{key} = {toml_value(value)}" for key, value in given.items() if value not in ("", {})]
    return lines, secrets


def _secret(preset: Preset, name: str) -> str:
    """Return the content of a secret's file: where a private key signs, that key or the public one."""
    sign = preset.file.table.get("sign", {})
    if sign.get("scheme") == "jwt" and sign.get("secret") == name:
        return private_key()
    signing = cast("PresetSandbox", preset.file.sandbox).signature
    is_public = signing is not None and signing.scheme == "ecdsa" and signing.secret == name
    return public_key(SECRET) if is_public else SECRET


_CONFIG = Path(__file__).with_name("config.toml")
_CHANNEL = re.compile(r"^(?=\[channels\.(\w+)\]$)", re.MULTILINE)
"""Where the table of a channel begins, with those below it."""

NO_PROVIDERS: Mapping[str, Sequence[str]] = {}

REPORTING = ("sms", "messenger", "inApp")
"""The channels whose providers send receipts."""

TOKEN_FILE, TOKEN = "service-token", "sandbox"
"""The token file for the service of a sandbox with a folder, and its initial content."""


def configuration(
    base_url: str,
    smtp_host: str,
    smtp_port: int,
    receipts_port: int,
    providers: Mapping[str, Sequence[str]] = NO_PROVIDERS,
    *,
    presets_dir: Path | None = None,
) -> str:
    """Return a complete configuration for a worker beside a sandbox at these addresses.

    `providers` are the tables of the providers that the sandbox plays, by their blocks. `presets_dir` has
    the presets of them that aren't in the package.
    """
    own = "" if presets_dir is None else f"[channels]\npresets_dir = {toml_value(str(presets_dir))}\n\n"
    text = Template(_CONFIG.read_text(encoding="utf-8")).substitute(
        base_url=base_url,
        smtp_host=smtp_host,
        smtp_port=smtp_port,
        receipts_port=receipts_port,
        public_url=f'public_url = "http://127.0.0.1:{receipts_port}"\n' if providers else "",
        presets_dir=own,
    )
    common, *channels = _CHANNEL.split(text)
    tables = [
        "\n\n".join(providers[block]) if block in providers else table.rstrip("\n")
        for block, table in zip(channels[::2], channels[1::2], strict=True)
    ]
    return common + "\n\n".join(tables) + "\n"


def aim_receipts(sandbox: Sandbox, receipts: str) -> None:
    """Make the sandbox's providers report to the receipts server at this address."""
    targets = {name: f"{receipts}/receipts/{name}" for name in REPORTING}
    sandbox.state.receipt_targets.update(targets)
    sandbox.state.receipts_server = receipts


def write_files(
    folder: Path, sandbox: Sandbox, scenario: Scenario, receipts_port: int, presets: Sequence[Preset] = ()
) -> Iterator[Path]:
    """Write the files that don't exist, the configuration last; yield each file written."""
    secrets: dict[str, str] = {}
    providers: dict[str, list[str]] = {}
    own_folders = {each.path.parent.resolve() for each in presets if each.path.parent != PACKAGED}
    for preset in presets:
        lines, own = provider_table(preset, sandbox.base_url)
        secrets |= own
        providers.setdefault(preset.file.channels[0], []).append("\n".join(lines))
    config = configuration(
        sandbox.base_url, sandbox.host, sandbox.smtp_port, receipts_port, providers,
        presets_dir=next(iter(own_folders), None),
    )  # fmt: skip
    files = {
        **secrets,
        "customers.jsonl": scenario.customers_jsonl,
        TOKEN_FILE: TOKEN,
        "sms-token": "any token will do",
        "receipts-secret": sandbox.state.receipt_secret,
        "config.toml": config,
    }
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, text in files.items():
        path = folder / name
        if not path.exists() and _write(path, text):
            yield path


def _write(path: Path, text: str) -> bool:
    """Create a file readable by its owner only; return False if it exists, dangling links included."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(file, "w", encoding="utf-8") as written:
        written.write(text)
    return True
