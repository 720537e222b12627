"""The documents: what they show can be used, what they list is all there is, their links lead somewhere."""

from __future__ import annotations

import ast
import hmac
import json
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import anyio
import pytest
from pydantic import BaseModel

from deliveryd.channels.base import Accepted, Refused, TryAgain, Verdict
from deliveryd.channels.registry import open_adapter
from deliveryd.commands.app import COMMANDS, Program, build_program
from deliveryd.config import Config, load
from deliveryd.delivery.backlog import TOO_MANY, TOO_MANY_PAUSED
from deliveryd.delivery.recorder import DISK_FULL, UNREACHABLE
from deliveryd.delivery.settings import MOST_FETCHES
from deliveryd.http.client import MAX_BODY
from deliveryd.http.expressions import SEARCHED_TEXT
from deliveryd.http.lenient_answer import LARGEST_HEAD
from deliveryd.journal.orders import Action
from deliveryd.service.batch import LARGEST_BATCH, LARGEST_ELEMENT
from deliveryd.telemetry.log_events import Event
from deliveryd.testing.gateway import Gateway, Reply, open_gateway
from deliveryd.testing.samples import dispatch
from deliveryd.worker.health import MISPLACED
from deliveryd.worker.health import __file__ as vitals_file
from deliveryd.worker.reload import Change, needs_restart
from support.issued_keys import issued
from support.messages import message, sms_settings
from support.places import ROOT
from support.terminal import command
from support.verdicts import nameless
from support.world import World, open_world

REFERENCE = ROOT / "docs" / "reference"
NIGHT = ROOT / "docs" / "how-to" / "night"
TUTORIAL = ROOT / "docs" / "tutorial" / "first-messages.md"
GATEWAYS = ROOT / "docs" / "how-to" / "add-a-channel.md"
ADAPTERS = ROOT / "docs" / "how-to" / "write-an-adapter.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
GROUP = "deliveryd.channels"


class Block(NamedTuple):
    """A fenced block: where it begins, its language, what it holds."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> Iterator[Block]:
    lines = iter(enumerate(document.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        indent = line[: len(line) - len(line.lstrip(" "))]  # of a block within a list
        if line.startswith(f"{indent}```"):
            held = []
            for _, inner in lines:
                if inner == f"{indent}```":
                    break
                held.append(inner.removeprefix(indent))
            yield Block(document, number, line.strip().removeprefix("```"), "\n".join(held) + "\n")


BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
CONFIGURATIONS = [
    block
    for block in BLOCKS
    if block.language == "toml"
    and "[project]" not in block.text
    and block.document.name != "write-a-directory.md"  # test_adding_a_directory.py
]
(PACKAGE,) = (
    block
    for block in BLOCKS
    if block.language == "toml" and "[project]" in block.text and block.document == ADAPTERS
)
ADAPTER = next(block.text for block in BLOCKS if block.document == ADAPTERS and block.language == "python")


def rows(document: Path, heading: str) -> list[list[str]]:
    """The cells of the first table behind a heading, without its own two rows."""
    _, _, after = document.read_text(encoding="utf-8").partition(f"{heading}\n")
    table = re.search(r"^(?:\|.*\n)+", after, re.MULTILINE)
    assert table is not None, heading
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[0].splitlines()[2:]]


# Configurations


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The document's own adapter, as an installer would leave it."""
    project = tomllib.loads(PACKAGE.text)["project"]
    (name, target), *_ = project["entry-points"][GROUP].items()
    folder = tmp_path / "packages"
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {target}\n", encoding="utf-8")
    (folder / f"{target.partition(':')[0]}.py").write_text(ADAPTER, encoding="utf-8")
    return folder


def written(folder: Path, text: str) -> Path:
    """A configuration in a folder of its own, with every secret that it names in that folder too."""
    text = re.sub(r'"/(run|etc)/', rf'"{folder}/\1/', text)
    for path in secret_files(tomllib.loads(text)):
        secret = folder / path
        secret.parent.mkdir(parents=True, exist_ok=True)
        secret.touch(mode=0o600)
        secret.write_text(word_for(secret.name), encoding="utf-8")
    config = folder / "config.toml"
    config.write_text(text, encoding="utf-8")
    return config


def word_for(name: str) -> str:
    """What a secret's file holds: a word, or what has a form."""
    return issued(name) or "secret-word-of-a-document"


def secret_files(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from value.values() if key == "secrets" else secret_files(value)
        elif key.endswith("_file"):
            yield from [value] if isinstance(value, str) else value


@pytest.mark.parametrize("block", CONFIGURATIONS, ids=str)
def test_every_configuration_that_is_shown_can_be_used(
    block: Block, tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All TOML that is shown is a whole configuration, and has no mistake in it."""
    monkeypatch.syspath_prepend(packages)
    assert load(written(tmp_path, block.text), environ={}).channels.configured


def test_the_key_that_the_document_overrides_from_the_environment_is_overridden(tmp_path: Path) -> None:
    """Names of variables that the documents give reach the keys that they say."""
    (block,) = (block for block in CONFIGURATIONS if block.document == TUTORIAL)
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text("other", encoding="utf-8")
    shown = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    variables = {
        "DELIVERYD_QUEUE__BATCH_SIZE": "50",
        "DELIVERYD_SERVICE__AUTH__TOKEN_FILE": str(other),
        "DELIVERYD_CHANNELS__SMS__SECRETS__TOKEN": str(other),
    }
    assert all(name in shown for name in variables)
    config = load(written(tmp_path, block.text), environ=variables)
    assert config.queue.batch_size == 50
    assert config.service.auth.token_file is not None
    assert config.service.auth.token_file.read() == "other"


# Gateways without code


def example(heading: str) -> Block:
    """The configuration below a heading of the document about channels."""
    text = GATEWAYS.read_text(encoding="utf-8")
    line = text[: text.index(f"\n## {heading}\n")].count("\n")
    return next(block for block in CONFIGURATIONS if block.document == GATEWAYS and block.line > line)


async def sent_by(config: Config, gateway: Gateway) -> Verdict:
    channel = config.channels.providers["sms"]
    options = channel.options.model_copy(
        update={
            "url": str(getattr(channel.options, "url", "")).replace("https://sms.example.com", gateway.url)
        }
    )
    opened = open_adapter(channel.place, channel.block, channel.common.adapter, options, timeout=5.0)
    try:
        return await opened.send(dispatch("sms", {"text": "Hi & bye"}, key="a-1"))
    finally:
        await opened.aclose()


def test_the_json_gateway_gets_what_its_example_says(tmp_path: Path) -> None:
    """The example's mapping fills the whole body, and the id is found where the gateway puts it."""
    config = load(written(tmp_path, example("A gateway that takes JSON").text), environ={})

    async def play() -> None:
        async with open_gateway() as gateway:
            gateway.script.append(Reply(body=b'{"message": {"id": "m-81"}}'))
            assert await sent_by(config, gateway) == Accepted("m-81")
            assert gateway.json() == {
                "to": "+15550111",
                "text": "Hi & bye",
                "sender": "Linden Club",
                "reference": 42,
                "options": {"report": True, "dedupe": "a-1"},
            }
            assert gateway.seen[0].headers["authorization"] == "Bearer secret-word-of-a-document"

    anyio.run(play)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"OK id=4711", Accepted("4711")),
        (b"BUSY", TryAgain("provider answered 200 (code BUSY)")),
        (b"ERROR 17", Refused("provider answered 200 (code ERROR)", ends_channel=True)),
    ],
)
def test_the_get_gateway_is_understood_as_its_example_says(
    tmp_path: Path, answer: bytes, expected: Verdict
) -> None:
    """The word in the answer decides, though all of them are 200; the query is encoded."""
    config = load(written(tmp_path, example("A gateway that is asked with GET").text), environ={})

    async def play() -> None:
        async with open_gateway() as gateway:
            gateway.script.append(Reply(body=answer))
            assert nameless(await sent_by(config, gateway)) == expected
            query = "account=linden&password=secret-word-of-a-document&to=%2B15550111&text=Hi%20%26%20bye"
            assert gateway.seen[0].target == f"/cgi/send?{query}"

    anyio.run(play)


# An adapter of your own


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


@pytest.mark.slow
def test_a_worker_sends_through_the_adapter_of_the_document(world: World, packages: Path) -> None:
    """Installed, the adapter is a channel like any other: a message goes through it, signed and once."""
    key = world.folder / "tower-key"
    key.touch(mode=0o600)
    key.write_text("secret-word-of-a-document", encoding="utf-8")
    common, _, _ = world.config.read_text(encoding="utf-8").partition("[channels.sms]")
    world.write_config(
        f"{common}[channels.sms]\n"
        f'adapter = "tower"\nkey_file = "tower-key"\nurl = "{world.state.base_url}/sms"\n'
    )
    world.customers([{"id": 1, "name": "Ann", "phone": "+447000000001"}])
    world.state.settings[1] = sms_settings()
    world.state.enqueue(message(1001))
    checked = world.command("check", "--offline", "--config", str(world.config), PYTHONPATH=str(packages))
    assert checked.returncode == 0, checked.stderr
    world.run_until_idle(PYTHONPATH=str(packages))
    (received,) = world.state.received
    assert world.state.statuses(1001) == ["dequeued", "sent"]
    assert received.payload == {"to": "+447000000001", "reference": 1001, "text": "en Ann w"}
    signature = hmac.digest(
        b"secret-word-of-a-document", json.dumps(received.payload).encode(), "sha256"
    ).hex()
    assert received.headers["x-signature"] == signature
    assert received.idempotency_key


# Commands

COMMAND_LINE = re.compile(r"^\$ (?:.*[\s/])?deliveryd ((?:" + "|".join(COMMANDS) + r")\b.*)$", re.MULTILINE)
SHOWN = [
    (str(block), shlex.split(call, comments=True))
    for block in BLOCKS
    if block.language == "console"
    for call in COMMAND_LINE.findall(block.text.replace("\\\n", " "))
]
"""Every call of ours in a block of a console: where it is shown, and its words."""


@pytest.fixture(scope="module")
def program() -> Program:
    """The command line with all commands loaded."""
    return build_program(COMMANDS)


@pytest.mark.parametrize(
    "words", [words for _, words in SHOWN], ids=[f"{at} {words[0]}" for at, words in SHOWN]
)
def test_every_command_that_is_shown_exists_with_its_options(words: list[str], program: Program) -> None:
    """Nothing that a document tells to type is refused as wrong usage."""
    program.commands[words[0]].make_context(words[0], words[1:]).close()


@pytest.mark.parametrize("words", [words for _, words in SHOWN if words[:2] == ["config", "init"]])
def test_a_configuration_is_written_as_shown(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answered = command(*words)
    assert (answered.status, "deliveryd.toml was written" in answered.out) == (0, True), answered.err


def test_every_command_is_shown() -> None:
    """There is no command without an example."""
    assert {words[0] for _, words in SHOWN} >= set(COMMANDS) - {"demo"}


# Tables


@pytest.mark.slow
def test_the_events_that_nothing_writes_are_the_ones_that_the_document_names() -> None:
    """Nobody waits for a line that never comes."""
    used = {
        node.attr
        for path in (ROOT / "src" / "deliveryd").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Event"
    }
    unused = [str(event) for event in Event if event.name not in used]
    named = re.search(
        r"This version doesn't write: ([^:]*?)\.\n", (REFERENCE / "log-events.md").read_text(encoding="utf-8")
    )
    assert (re.findall(r"`([a-z._]+)`", named[1]) if named else []) == unused


def test_every_metric_that_an_alert_or_a_sentence_names_exists() -> None:
    """A rule over a metric that isn't there would never fire."""
    known = {cells[0].strip("`") for cells in rows(REFERENCE / "metrics.md", "# Metrics")}
    shown = "".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    named = set(re.findall(r"\b(deliveryd_[a-z_]+)", shown)) - {"deliveryd_tower", "deliveryd_lighthouse"}
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in named} <= known


@pytest.mark.parametrize(
    ("function", "title"), [("ready", "## Readiness"), ("receiving", "## Readiness for receipts")]
)
def test_every_sentence_of_readiness_is_explained(function: str, title: str) -> None:
    """Whatever /readyz and /readyz/receipts say is found in the document."""
    tree = ast.parse(Path(vitals_file).read_text(encoding="utf-8"))
    (ready,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function
    )
    returned = [
        node.value.elts[1]
        for node in ast.walk(ready)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    ]
    sentences = {node.value for node in returned if isinstance(node, ast.Constant)}
    sentences |= {MISPLACED, DISK_FULL, UNREACHABLE}
    if function == "ready":
        sentences |= {TOO_MANY, TOO_MANY_PAUSED, "paused: intake since ... by ... (reason)"}
    assert {cells[0] for cells in rows(REFERENCE / "admin-pages.md", title)} == sentences
    if function == "ready":
        night = "".join(page.read_text(encoding="utf-8") for page in NIGHT.glob("*.md"))
        cells = [row[0] for row in rows(NIGHT / "queue-stands-still.md", "# The queue stands still")]
        quoted = re.findall(r"`/readyz` reports `([^`]+)`", night) + re.findall(r"`([^`]+)`", "".join(cells))
        begins = {each.partition("...")[0].rstrip() for each in quoted}
        known = list(map(str, sentences))
        assert {each for each in begins if not any(text.startswith(each) for text in known)} == set()


def test_every_key_that_the_table_of_decisions_names_exists() -> None:
    """An operator who wants it another way finds the key that changes it."""
    listed = rows(REFERENCE / "interface-decisions.md", "# What the interface leaves open")
    keys = {key for cells in listed for key in re.findall(r"`([a-z]+\.[a-z_]+)(?: = true)?`", cells[2])}
    assert len(listed) >= 20
    for table, key in sorted(key.split(".") for key in keys if not key.startswith("receipt.")):
        options = Config.model_fields[table].annotation
        assert options is not None
        assert key in options.model_fields, f"{table}.{key}"


# Links and words


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SVG = "{http://www.w3.org/2000/svg}"
PERFORMANCE = ROOT / "docs" / "explanation" / "performance.md"
PICTURES = dict(runpy.run_path(str(ROOT / "docs" / "draw_performance.py"))["pictures"]())
"""What `make docs` draws, by its path from that page; it isn't in a checkout."""


def prose(document: Path) -> str:
    """A document without its fenced blocks and its code."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(document: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(document: Path) -> None:
    """Files and headings that a document points to are there."""
    for link in LINK.findall(prose(document)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists() or (document == PERFORMANCE and name in PICTURES), link
        assert ROOT in target.parents, link
        if anchor:
            assert anchor in anchors(target), link


def test_the_pictures_of_the_figures_are_those_that_the_page_shows() -> None:
    """Each is well-formed, and has a mark for each subject or size that was measured."""
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", PERFORMANCE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(PICTURES)
    results = ROOT / "benchmarks" / "results"
    curves = json.loads(results.joinpath("growth.json").read_text(encoding="utf-8"))["curves"]
    subjects = json.loads(results.joinpath("bench.json").read_text(encoding="utf-8"))["figures"]
    drawn = {name: ElementTree.fromstring(content) for name, content in PICTURES.items()}  # noqa: S314
    words = {text.text for text in drawn["performance/bench.svg"].iter(f"{SVG}text")}
    assert {one["title"] for one in subjects} <= words
    for name, kept in curves.items():
        marks = list(drawn[f"performance/growth-{name}.svg"].iter(f"{SVG}circle"))
        assert len(marks) == 2 * len(kept["points"]), name


UNFIT = re.compile(
    r"TO" r"DO|FIX" r"ME|/home/\w|/root/|/Users/"
    r"|\b(?:pypi|pythonhosted|npmjs|crates|rubygems)\.(?:org|com|io)\b"
)  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_document_holds_what_only_concerns_one_machine(document: Path) -> None:
    """No note to oneself, no home directory, no package registry."""
    assert UNFIT.search(document.read_text(encoding="utf-8")) is None


ABOLISHED = {
    r"anew": "again",
    r"desks?": "control",
    r"elsewhere": "on another host, in another table",
    r"hears?|heard": "receives",
    r"homeless": "unowned",
    r"kits?": "attempt parts, conformance tests",
    r"knows": "has, can tell by",
    r"lanes?": "dispatcher",
    r"left (?:behind|over)": "orphan",
    r"nobody|somebody|everybody": "no worker, an operator, all users",
    r"outlasts?": "the lease covers it",
    r"pictures?": "overview, diagram, image",
    r"roads?": "channel route",
    r"says?|said": "reports, prints, states",
    r"so many": "the number itself",
    r"standing(?! still)": "obstacle",
    r"the stopped list|stopped recipients?": "suppression list, suppressed",
    r"tells?|told": "reports, logs, receives",
    r"wants": "needs, requests",
}
"""Words that readers don't find in texts any more, as patterns, and what is written instead."""

WORDS = re.compile(rf"\b(?:{'|'.join(ABOLISHED)})\b", re.IGNORECASE)
RECORDED = {str(Action.BEGIN_ANEW), str(Action.BEGIN_ANEW_ANYWAY)}
"""Values in journals and in JSON, which keep their words."""

NO_TEXTS = {"journal/sql/schema.py", "sandbox/scenario.py"}
"""Modules whose strings are no texts for readers: the tables as they were made, streets."""


def texts_of(path: Path) -> Iterator[str]:
    """The texts in a file: prose, or strings of more than one word that are no docstrings."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield prose(path).partition("\n## Write English\n")[0]
    elif path.suffix == ".js":
        yield from (each for each in re.findall(r"\"[^\"\n]*\"|`[^`]*`", content) if " " in each)
    elif path.suffix == ".py":
        tree = ast.parse(content)
        aside = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in aside:
                yield node.value if " " in node.value and node.value not in RECORDED else ""
    else:
        yield from re.findall(r"#+ (.*)|description: (.*)", content)


READ = [
    *DOCUMENTS,
    *(ROOT / "deploy").rglob("*.md"),
    ROOT / "deploy" / "prometheus" / "rules.yml",
    *(ROOT / "src").rglob("*.js"),
    *(path for path in (ROOT / "src").rglob("*.py") if not path.as_posix().endswith(tuple(NO_TEXTS))),
]


@pytest.mark.parametrize("path", READ, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_text_has_a_word_that_was_abolished(path: Path) -> None:
    """One word for one thing, and no program that hears or tells: `ABOLISHED` has what to write instead."""
    found = [word for text in texts_of(path) for word in WORDS.findall("".join(text))]
    assert found == []


TEMPORARY = re.compile(r"(?:^|[^\w.])/(?:var/)?tmp/[\w.-]|\$\{?TMPDIR\}?/[\w.-]|/dev/shm/\w")
"""A name in a folder where everybody may make it first; a folder alone, such as a tmpfs, has no name."""

SCRIPTS = sorted(
    path
    for pattern in (
        "Makefile",
        "Containerfile",
        ".ci/*",
        "systemd/*",
        "deploy/**/*",
        "benchmarks/*.py",
        "src/**/*.py",
    )
    for path in ROOT.glob(pattern)
    if path.is_file()
)


@pytest.mark.parametrize("path", [*DOCUMENTS, *SCRIPTS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_uses_a_fixed_name_in_a_folder_of_everybody(path: Path) -> None:
    """Another user could have made it, and have root install what lies in it."""
    found = TEMPORARY.search(path.read_text(encoding="utf-8", errors="replace"))
    assert found is None, found[0]


def test_the_keys_that_need_a_restart_are_the_ones_that_the_document_names() -> None:
    """A table stands for all of its keys where none of them is applied."""
    tables = {
        name: {
            f"{name}.{field.alias or key}"
            for key, field in type(options).model_fields.items()
            if not field.exclude
        }
        for name, options in load(ROOT / "config.example.toml", {})
        if isinstance(options, BaseModel)
    }
    needed = {
        key
        for name, keys in tables.items()
        for key in keys
        if needs_restart(Change(key)) and any(not needs_restart(Change(each)) for each in keys)
    }
    whole = {name for name, keys in tables.items() if all(needs_restart(Change(key)) for key in keys)}
    section = (
        ROOT.joinpath("docs/how-to/reload.md")
        .read_text(encoding="utf-8")
        .partition("## What needs a restart")[2]
    )
    named = set(re.findall(r"`([a-z_.]+)`", section.partition("A reload with")[0]))
    assert named == needed.union(*({name} if name in named else tables[name] for name in whole))


BOUNDS = {
    "an answer of the queue": LARGEST_BATCH,
    "one of its elements": LARGEST_ELEMENT,
    "requests for settings at a time": MOST_FETCHES,
    "an answer of a provider": MAX_BODY,
    "the head of any answer": LARGEST_HEAD,
    "text that a regular expression of the configuration searches": SEARCHED_TEXT,
}
"""Rows of the table of bounds, and the constants that they are about."""


@pytest.mark.parametrize("row", BOUNDS)
def test_a_bound_is_the_one_that_the_document_names(row: str) -> None:
    """In the units that the row has."""
    text = REFERENCE.joinpath("bounds.md").read_text(encoding="utf-8")
    cell = re.search(rf"^\| {re.escape(row)} \| ([^|]+) \|", text, re.MULTILINE)
    assert cell is not None
    number, unit = re.findall(r"([0-9,]+) ?([KM]iB)?", cell[1])[0]
    assert int(number.replace(",", "")) * {"KiB": 1 << 10, "MiB": 1 << 20}.get(unit, 1) == BOUNDS[row]
