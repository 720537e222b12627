"""What a start loads: less than the libraries would on their own, since each of them takes its time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from deliveryd.commands.app import COMMANDS
from deliveryd.telemetry.log_writing import absent

pytestmark = pytest.mark.slow

LOADED = "import sys, json; print(json.dumps(sorted(sys.modules)))"


def loaded_by(statement: str) -> set[str]:
    """The modules that are there after a statement, in a Python of its own."""
    answer = subprocess.run(
        [sys.executable, "-c", f"{statement}; {LOADED}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(answer.stdout))


def among(modules: Iterable[str], unwanted: Iterable[str]) -> list[str]:
    return sorted(module for module in modules if module.partition(".")[0] in unwanted)


NOT_FOR_A_START = {
    "aiosmtpd", "aiosmtplib", "attr", "click", "cryptography", "email_validator", "greenlet", "h11",
    "httpcore", "httpx", "jwt", "langcodes", "markdown_it", "multiprocessing", "prometheus_client",
    "pygments", "rich", "socketserver", "sqlalchemy", "standardwebhooks", "starlette", "uvicorn", "wsgiref",
}  # fmt: skip


def test_a_worker_is_loaded_without_what_it_may_never_need() -> None:
    """A start takes as long as its imports: who adds one of these to them doubles it bit by bit.

    Servers, metrics and further tries load theirs when they are first asked for, terminals theirs for tables.
    """
    assert among(loaded_by("import deliveryd.commands.run.run"), NOT_FOR_A_START) == []


ONLY_FOR_COMMANDS = {
    "commands.check", "commands.config", "commands.customers", "commands.lint", "commands.messages",
    "commands.orders", "commands.providers", "commands.render", "commands.sandbox", "commands.storage",
    "commands.watch", "control.client", "directory.http_options", "directory.sql_options", "journal.audit",
    "journal.dead_letters", "journal.history", "journal.personal_data", "sandbox", "service.configurations",
    "service.customer_area", "service.hosts",
}  # fmt: skip


NOT_CONFIGURED = {
    "deliveryd.channels.smtp.options", "deliveryd.directory.file", "deliveryd.directory.remote",
    "deliveryd.http.oauth2", "deliveryd.http.request_signing", "deliveryd.options.authentication_tables",
    "deliveryd.otlp",
}  # fmt: skip


def test_a_worker_is_loaded_without_what_is_not_configured() -> None:
    """Mail, customers, traces: their modules are loaded where a table asks for them."""
    assert sorted(loaded_by("import deliveryd.commands.run.run") & NOT_CONFIGURED) == []


def test_a_worker_is_loaded_without_what_only_commands_use() -> None:
    """Our own modules take time too: two dozen that a run never calls made its start 5 % slower."""
    loaded = loaded_by("import deliveryd.commands.run.run")
    assert sorted(module for module in ONLY_FOR_COMMANDS if f"deliveryd.{module}" in loaded) == []


SHORT = """
[service]
base_url = "http://127.0.0.1:1/"
[channels.sms]
adapter = "http"
url = "http://127.0.0.1:1/sms"
json = { to = "{customer.phone}", text = "{content.text}" }
[journal]
url = "sqlite:///journal.db"
"""

NOT_FOR_A_GATEWAY = {"presets.file", "presets.table", "signature_schemes", "smtp.options"}

NOT_BUILT = """
from deliveryd.channels import receipt_options, signature_options
from deliveryd.channels.http import answer_options, ask_options, request_options
from pydantic import BaseModel
modules = answer_options, ask_options, receipt_options, request_options, signature_options
models = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
print(sorted(each.__name__ for each in models
    if issubclass(each, BaseModel) and each is not BaseModel and each.__pydantic_complete__))
"""


def test_the_options_of_a_gateway_are_read_without_those_that_it_does_not_have(tmp_path: Path) -> None:
    """A gateway without receipts, answers and look-ups starts without the models of those tables."""
    path = tmp_path / "config.toml"
    path.write_text(SHORT)
    loads = f"from deliveryd.config import load; from pathlib import Path; load(Path({str(path)!r}))"
    loaded = loaded_by(f"import deliveryd.commands.run.run; {loads}")
    assert sorted(each for each in NOT_FOR_A_GATEWAY if f"deliveryd.channels.{each}" in loaded) == []
    built = subprocess.run(
        [sys.executable, "-c", f"{loads}\n{NOT_BUILT}"], capture_output=True, text=True, check=True
    )
    assert built.stdout == "[]\n"


RUN = """
import json, sys
from deliveryd.__main__ import main
sys.argv[0] = "deliveryd"
try:
    main()
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by_command(*words: str) -> set[str]:
    """The modules that are there after a command."""
    answer = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=True)
    return set(json.loads(answer.stdout.splitlines()[-1]))


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_the_version_loads_nothing(option: str) -> None:
    """Not even the command line: scripts ask for it."""
    loaded = loaded_by_command(option)
    own = {name for name in loaded if name.partition(".")[0] == "deliveryd"}
    assert own == {"deliveryd", "deliveryd.__main__"}
    assert among(loaded, {*NOT_FOR_A_START, "argparse", "asyncio", "inspect", "pydantic", "typer"}) == []


def test_the_help_loads_no_command() -> None:
    """Nor anything that reads a configuration."""
    loaded = loaded_by_command("--help")
    rooms = {name.split(".")[1] for name in loaded if name.startswith("deliveryd.")}
    assert rooms <= {"__main__", "commands", "errors", "options", "runtime", "telemetry"}
    commands = {name.split(".")[2] for name in loaded if name.startswith("deliveryd.commands.")}
    assert commands == {"app", "common"}
    assert among(loaded, {*NOT_FOR_A_START, "anyio", "asyncio", "pydantic", "structlog"}) == []


READING = (
    ("explain", "1"), ("find",), ("overdue",), ("audit",), ("decisions",), ("paused",), ("dead", "list"),
    ("failed", "list"), ("in-doubt", "list"), ("stopped", "list"), ("status",), ("tail",),
)  # fmt: skip
"""What an operator asks in an emergency: it answers at once."""

NOT_FOR_READING = {
    "deliveryd.channels.http.adapter", "deliveryd.channels.smtp.options", "deliveryd.delivery",
    "deliveryd.directory.file", "deliveryd.directory.remote", "deliveryd.http.client",
    "deliveryd.journal.rules", "deliveryd.journal.sql.deadlines", "deliveryd.journal.sql.statements",
    "deliveryd.journal.sql.recovery", "deliveryd.metrics", "deliveryd.network.resolver", "deliveryd.sandbox",
    "deliveryd.telemetry.log_writing", "deliveryd.transitions", "deliveryd.worker",
}  # fmt: skip


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_command_that_reads_is_loaded_without_what_sends_and_writes(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """It loads its own room and those below, and no event loop, no log, no HTTP client, no part of a worker,
    and nothing that takes a step of a message.

    There is no journal and no worker here.
    """
    path = tmp_path / "config.toml"
    path.write_text(SHORT)
    loaded = loaded_by_command(*words, "--config", str(path))
    unwanted = NOT_FOR_A_START - ({"rich"} if words[0] in ("status", "tail") else set())
    assert among(loaded, {*unwanted, "asyncio", "diskcache", "httptools", "phonenumbers", "structlog"}) == []
    assert sorted(loaded & NOT_FOR_READING) == []
    rooms = {name.split(".")[2] for name in loaded if name.startswith("deliveryd.commands.")}
    own = COMMANDS[words[0]].module.partition(".")[0]
    assert rooms <= {"app", "common", own} | ({"messages"} if own == "orders" else set())


@pytest.mark.parametrize("command", ["in-doubt", "check"])
def test_a_command_is_loaded_without_servers_and_tables(command: str) -> None:
    unwanted = {"attr", "pygments", "rich", "starlette", "uvicorn", "prometheus_client"}
    assert among(loaded_by(f"import deliveryd.commands.{COMMANDS[command].module}"), unwanted) == []


def test_what_is_absent_for_one_is_there_for_all_others() -> None:
    """A library's absence ends with the block, also for one that had been loaded before."""
    import colorsys  # noqa: PLC0415  # stands for any library

    with absent("colorsys", "nowhere"), pytest.raises(ImportError):
        import colorsys as gone  # noqa: F401, PLC0415
    assert sys.modules["colorsys"] is colorsys
    assert "nowhere" not in sys.modules


def test_the_log_and_the_tables_get_along() -> None:
    """Tables are drawn with the library that the log does without, whichever comes first."""
    table = "commands.customers.customer_table"
    for first, second in (("telemetry", table), (table, "telemetry")):
        statement = f"import deliveryd.{first}; import deliveryd.{second}"
        assert "rich.table" in loaded_by(statement)
