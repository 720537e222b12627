"""`deliveryd health` as container health checks ask it, each 30 s: with the standard library alone.

The command line takes more than twice the CPU to load. What this doesn't handle, such as
`--json`, `--help` and mistakes, `deliveryd.commands.watch.health` does.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from deliveryd.admin.health import check_health, health_url
from deliveryd.commands.common.conventions import CONFIGURATION, FAILED, USUAL_CONFIG
from deliveryd.commands.common.printable import printable
from deliveryd.errors import ConfigError

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
