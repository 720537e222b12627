"""The files for trying deliveryd against a sandbox: configuration, customers, secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template

from deliveryd.channels.presets.catalogue import PACKAGED, Preset
from deliveryd.commands.sandbox.impersonations import provider_table
from deliveryd.options.toml_text import toml_value
from deliveryd.sandbox.scenario import Scenario
from deliveryd.sandbox.server import Sandbox

CONFIG = Template("""\
[service]
base_url = "$base_url"       # the sandbox; in production something like https://queue.example.com
auth = { token_file = "service-token" }

[content]
languages = ["en"]

[customers]
source = "file"
path = "customers.jsonl"        # {"id": 7, "name": "Ann", "language": "en", "phone": "+447700900101"}

[journal]
url = "sqlite:///journal.db"    # relative paths are relative to this file

[settings]
cache_dir = "settings-cache"

[receipts]
listen = "127.0.0.1:$receipts_port"       # where providers report what was delivered
$public_url
$presets_dir$channels""")

CHANNEL_TABLES = {
    "sms": """\
[channels.sms]
adapter = "http"
url = "$base_url/sms"
json = { to = "{customer.phone}", text = "{content.text}", reference = "{message.id}" }
headers = { Authorization = "Bearer {secret.token}" }
secrets = { token = "sms-token" }
provider_id = "/id"

[channels.sms.receipt]
$receipt
""",
    "messenger": """\
[channels.messenger]
adapter = "http"
url = "$base_url/messenger"
provider_id = "/id"

[channels.messenger.json]
to = "{customer.messenger}"
reference = "{message.id}"
text = "{content.text}"
image = "{content.image}"
button = { text = "{content.button.text}", url = "{content.button.url}" }

[channels.messenger.receipt]
$receipt
""",
    "inApp": """\
[channels.inApp]
adapter = "http"
url = "$base_url/inApp"
provider_id = "/id"

[channels.inApp.json]
to = "{customer.device}"
reference = "{message.id}"
name = "{content.name}"
description = "{content.description}"
image = "{content.image}"
button = { text = "{content.button.text}", url = "{content.button.url}" }
notification = { title = "{content.notification.title}", body = "{content.notification.body}" }

[channels.inApp.receipt]
$receipt
""",
    "email": """\
[channels.email]
adapter = "smtp"
host = "$smtp_host"
port = $smtp_port
tls = "none"                    # the sandbox has no certificate; by default TLS is required
sender = "Linden Club <club@example.com>"
""",
}
"""A channel for each block, unless the sandbox plays real providers of it."""

NO_PROVIDERS: Mapping[str, Sequence[str]] = {}

RECEIPT = """\
provider_id = "/id"
status = "/status"
delivered = ["delivered"]
failed = ["failed"]
reported_at = "/at"
signature = { header = "X-Signature", secret_file = "receipts-secret" }"""

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
    own = None if presets_dir is None else f"[channels]\npresets_dir = {toml_value(str(presets_dir))}\n\n"
    filled = {"base_url": base_url, "smtp_host": smtp_host, "smtp_port": smtp_port, "receipt": RECEIPT}
    tables = [
        "\n\n".join(providers[block]) + "\n" if block in providers else Template(channel).substitute(filled)
        for block, channel in CHANNEL_TABLES.items()
    ]
    return CONFIG.substitute(
        base_url=base_url,
        receipts_port=receipts_port,
        public_url=f'public_url = "http://127.0.0.1:{receipts_port}"\n' if providers else "",
        presets_dir=own or "",
        channels="\n".join(tables),
    )


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
