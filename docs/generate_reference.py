"""Write the generated parts of docs/reference: configuration keys, commands, log events, metrics and states.

Each page holds its text by hand and, between two markers, what this script makes of the code. Run it after a
change of a model, a command, a log event or a metric; test_reference.py fails while a page differs.
"""  # noqa: INP001  # a script

from __future__ import annotations

import inspect
import logging
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.core import TyperArgument, TyperGroup

from deliveryd.admin.exposition import expose
from deliveryd.channels.http.answer_options import AnswerOptions, PauseOptions
from deliveryd.channels.http.ask_options import (
    LookupAnswerOptions,
    LookupOptions,
    ProbeAnswerOptions,
    ProbeOptions,
)
from deliveryd.channels.http.options import HttpChannelOptions, LimitOptions
from deliveryd.channels.http.request_options import SignOptions
from deliveryd.channels.options import BreakerOptions, ChannelTable, ProviderTable, RetryOptions
from deliveryd.channels.presets.catalogue import Catalogue
from deliveryd.channels.presets.file import (
    FactSource,
    PresetFile,
    PresetKey,
    PresetSandbox,
    PresetSecret,
    Promises,
    SandboxLookup,
    SandboxShape,
    SandboxSignature,
)
from deliveryd.channels.receipt_options import ChallengeOptions, ReceiptAnswerOptions, ReceiptOptions
from deliveryd.channels.signature_schemes import SCHEMES
from deliveryd.channels.smtp.options import SmtpOptions
from deliveryd.channels.webpush.options import WebPushOptions
from deliveryd.commands.app import COMMANDS, build_program
from deliveryd.commands.messages.explanation import STATES
from deliveryd.commands.providers.channels import example_lines, promise_rows
from deliveryd.commands.providers.preset_cases import (
    AnswerCase,
    CaseBody,
    CaseFile,
    ExpectedReply,
    ExpectedReport,
    ExpectedRequest,
    Given,
    LookupCase,
    ReceiptCase,
    RequestCase,
    SignatureCase,
    Skipped,
)
from deliveryd.config import Config
from deliveryd.directory.http_options import HttpDirectoryOptions
from deliveryd.directory.registry import CustomersOptions, FileOptions
from deliveryd.directory.sql_options import SqlOptions
from deliveryd.http.finder import ConditionOptions
from deliveryd.metrics import Levels, Metrics
from deliveryd.model import format_duration
from deliveryd.options import units
from deliveryd.options.authentication import AuthOptions
from deliveryd.options.authentication_tables import AzureOptions, GoogleOptions, OAuth2Options, SigV4Options
from deliveryd.options.connections import ProxyOptions, TlsOptions
from deliveryd.options.tables import LoadedOnUse
from deliveryd.options.toml_text import toml_value
from deliveryd.rules.options import CapOptions, RuleOptions, WindowOptions
from deliveryd.telemetry.log_events import Event

REFERENCE = Path(__file__).parent / "reference"
GENERATED = re.compile(r"(<!-- generated -->\n).*?(<!-- /generated -->\n)", re.DOTALL)

Row = Sequence[str]


class Unit(NamedTuple):
    """A type of the configuration that has a notation of its own: how it is called and written."""

    name: str
    write: Callable[[Any], str]


UNITS: Mapping[object, Unit] = {
    units.parse_duration: Unit("duration", format_duration),
    units.parse_size: Unit("size", units.format_size),
    units.parse_rate: Unit("rate", units.format_rate),
    units.parse_percentage: Unit("percentage", units.format_percentage),
    units.resolve_path: Unit("path", str),
}
SECRETS: Mapping[object, str] = {
    function: name
    for alias, name in (
        (units.SecretPath, "path of a secret"),
        (units.SecretDocumentPath, "path of a secret"),
        (units.SecretPaths, "path of a secret, or a list"),
    )
    for metadata in get_args(alias)[1:]
    if (function := getattr(metadata, "func", None)) is not None
}
PLAIN: Mapping[object, str] = {
    str: "text",
    int: "integer",
    bool: "true or false",
    float: "number",
    datetime: "time",
    Any: "any",
}
BOUNDS: Mapping[str, str] = {"ge": "at least", "gt": "more than", "le": "at most"}


def table(head: Row, rows: Iterator[Row] | Sequence[Row]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def sentences(text: str | None) -> str:
    """A docstring as one line, without references to the design."""
    return re.sub(r" \(design \d\)", "", " ".join((text or "").split()))


# Configuration


def metadata_of(annotation: object, field: FieldInfo | None = None) -> list[object]:
    """What an annotation is annotated with, at any depth of aliases and optional parts."""
    found: list[object] = list(field.metadata) if field is not None else []
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        return [*metadata_of(inner), *metadata, *found]
    if get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            found += metadata_of(part)
    return found


def unit_of(annotation: object, field: FieldInfo | None = None) -> Unit | None:
    """The notation of durations, sizes, rates and paths; None for any other type."""
    for metadata in metadata_of(annotation, field):
        function = getattr(metadata, "func", None)
        if function in SECRETS:
            return Unit(SECRETS[function], str)
        if function in UNITS:
            return UNITS[function]
    return None


def kind_of(annotation: Any, field: FieldInfo | None = None) -> str:
    """A type in the words of somebody who writes the file."""
    if (unit := unit_of(annotation, field)) is not None:
        return unit.name
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return "table" if isinstance(arguments[1], LoadedOnUse) else kind_of(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(kind_of(part) for part in arguments if part is not type(None)))
    if origin is Literal:
        return ", ".join(f'`"{value}"`' for value in arguments)
    if origin in (tuple, list) and arguments[0] is Any:
        return "list"
    if origin in (tuple, list):
        return f"list of {kind_of(arguments[0])}"
    if origin in (dict, Mapping) or (inspect.isclass(annotation) and issubclass(annotation, BaseModel)):
        return "table"
    return PLAIN.get(annotation, "text")


def bounds_of(field: FieldInfo) -> str:
    """The least and the most that a value may be."""
    unit = unit_of(field.annotation, field)
    return ", ".join(
        f"{words} {unit.write(bound) if unit and bound else bound}"
        for metadata in metadata_of(field.annotation, field)
        for name, words in BOUNDS.items()
        if (bound := getattr(metadata, name, None)) is not None
    )


def default_of(field: FieldInfo) -> str:
    """The default as the file would have it."""
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "required"
    if default is None or isinstance(default, BaseModel):
        return "-"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if default == ():
        return "-" if unit_of(field.annotation, field) else "`[]`"
    if (unit := unit_of(field.annotation, field)) is not None:
        return f'`"{unit.write(default)}"`'
    if isinstance(default, tuple | list):
        return f"`[{', '.join(chr(34) + str(value) + chr(34) for value in default)}]`"
    if isinstance(default, dict):
        return "`{}`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"


def keys_of(model: type[BaseModel], *, without: type[BaseModel] | None = None) -> Iterator[Row]:
    """A row for each key of a model, but those that it inherits from `without`."""
    inherited = without.model_fields if without is not None and issubclass(model, without) else {}
    for name, field in model.model_fields.items():
        if field.exclude or name in inherited:
            continue
        annotation = [kind_of(field.annotation, field), bounds_of(field)]
        yield (
            f"`{field.alias or name}`",
            ", ".join(filter(None, annotation)),
            default_of(field),
            (field.description or ""),
        )


def section(heading: str, model: type[BaseModel], *, without: type[BaseModel] | None = None) -> Iterator[str]:
    """A heading, what the table is for, and its keys."""
    yield from (f"## {heading}", "", sentences(inspect.getdoc(model)), "")
    yield from table(("key", "value", "default", "meaning"), keys_of(model, without=without))
    yield ""


SHARED: Mapping[str, type[BaseModel]] = {
    "Keys for a proxy": ProxyOptions,
    "auth": AuthOptions,
    "auth.oauth2": OAuth2Options,
    "auth.google": GoogleOptions,
    "auth.sigv4": SigV4Options,
    "auth.azure": AzureOptions,
    "tls": TlsOptions,
}


def configuration() -> Iterator[str]:
    """All tables but those of customers and channels."""
    for name, field in Config.model_fields.items():
        if name in ("customers", "channels", "rules"):
            continue
        model = field.annotation
        yield from section(f"[{name}]", model, without=ProxyOptions)  # type: ignore[arg-type]
    yield from section("[[rules]]", RuleOptions)
    yield from section("window, in [[rules]]", WindowOptions)
    yield from section("cap, in [[rules]]", CapOptions)
    for heading, model in SHARED.items():
        without = ProxyOptions if model is not ProxyOptions else None
        yield from section(heading, model, without=without)


def customers() -> Iterator[str]:
    """The table of customers, and what each source adds to it."""
    yield from section("[customers]", CustomersOptions)
    for source, model in (("file", FileOptions), ("http", HttpDirectoryOptions), ("sql", SqlOptions)):
        yield from section(f'source = "{source}"', model, without=ProxyOptions)


def channels() -> Iterator[str]:
    """The table of a channel, and what each adapter adds to it."""
    yield from section("[channels]", Config.model_fields["channels"].annotation)  # type: ignore[arg-type]
    yield from section("[channels.NAME]", ChannelTable)
    yield from section("[channels.NAME.providers.PROVIDER]", ProviderTable)
    yield from section("[channels.NAME.providers.PROVIDER.retry]", RetryOptions)
    yield from section("[channels.NAME.providers.PROVIDER.breaker]", BreakerOptions)
    yield from section('adapter = "http"', HttpChannelOptions, without=ProxyOptions)
    yield from section("[channels.NAME.providers.PROVIDER.sign]", SignOptions)
    yield from section("[[channels.NAME.providers.PROVIDER.answers]]", AnswerOptions)
    yield from section("where", ConditionOptions)
    yield from section("after, as a table", PauseOptions)
    yield from section("[channels.NAME.providers.PROVIDER.lookup]", LookupOptions)
    yield from section("[[channels.NAME.providers.PROVIDER.lookup.answers]]", LookupAnswerOptions)
    yield from section("[channels.NAME.providers.PROVIDER.probe]", ProbeOptions)
    yield from section("[[channels.NAME.providers.PROVIDER.probe.answers]]", ProbeAnswerOptions)
    yield from section("[[channels.NAME.providers.PROVIDER.limits]]", LimitOptions)
    yield from section('adapter = "smtp"', SmtpOptions)
    yield from section('adapter = "webpush"', WebPushOptions)


def receipts() -> Iterator[str]:
    """How providers report."""
    yield from section("[channels.NAME.receipt]", ReceiptOptions)
    yield from section("[channels.NAME.receipt.answer]", ReceiptAnswerOptions)
    yield from section("[channels.NAME.receipt.challenge]", ChallengeOptions)
    for scheme, model in SCHEMES.items():
        yield from section(f'[channels.NAME.receipt.signature] scheme = "{scheme}"', model)


# Commands


PAGE_OF: Mapping[str, str] = {
    **dict.fromkeys(
        ("explain", "audit", "overdue", "find", "decisions", "forget", "erase"), "commands-messages.md"
    ),
    **dict.fromkeys(("in-doubt", "dead", "failed"), "command-groups-messages.md"),
    **dict.fromkeys(("pause", "resume", "paused"), "command-groups-pauses.md"),
    **dict.fromkeys(("channels", "presets", "receipts", "stopped"), "command-groups-providers.md"),
    **dict.fromkeys(("customers", "rules", "cache", "config", "workers"), "command-groups.md"),
}
"""The page of each command or group that commands.md doesn't describe."""


def commands() -> Iterator[str]:
    """A list of all commands, then those that no other page has."""
    rows = []
    for name, command in all_commands().items():
        page_of = PAGE_OF.get(name, "")
        for words, leaf in leaves_of(name, command):
            rows.append(
                (f"[`deliveryd {words}`]({page_of}#deliveryd-{words.replace(' ', '-')})", first_line(leaf))
            )
    yield from table(("command", "what it does"), rows)
    yield from commands_of("commands.md")


def commands_of(page: str) -> Iterator[str]:
    """Each command of a page with its arguments and options."""
    for name, command in all_commands().items():
        if PAGE_OF.get(name, "commands.md") != page:
            continue
        if not isinstance(command, TyperGroup):
            yield from described(name, command)
            continue
        yield from ("", f"## deliveryd {name}", "", *paragraphs(command))
        for words, leaf in leaves_of(name, command):
            yield from described(words, leaf, level="###")


def all_commands() -> Mapping[str, Any]:
    """The commands and groups of the program, in the order of its help."""
    return build_program(COMMANDS).commands


def leaves_of(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands below a group, or the command itself."""
    if not isinstance(command, TyperGroup):
        yield name, command
        return
    for inner, child in command.commands.items():
        yield from leaves_of(f"{name} {inner}", child)


def first_line(command: Any) -> str:
    """The sentence that lists of commands show."""
    return str(command.help or "").strip().partition("\n")[0]


def paragraphs(command: Any) -> Iterator[str]:
    """The help of a command."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from (" ".join(paragraph.split()), "")


def described(name: str, command: Any, *, level: str = "##") -> Iterator[str]:
    """One command: its help, and its parameters."""
    yield from ("", f"{level} deliveryd {name}", "", *paragraphs(command))
    rows = [parameter(each) for each in command.params if each.name not in ("help", "config")]
    if rows:
        yield from table(("argument or option", "meaning"), rows)


def parameter(each: Any) -> Row:
    """An argument or an option, its help, and its default."""
    meaning = " ".join((each.help or "").split()) + (" Required." if each.required else "")
    if isinstance(each, TyperArgument):
        name = (each.metavar or each.name or "").upper()
        return f"`{name}{'...' if each.nargs == -1 else ''}`", meaning
    flag = ", ".join([*each.opts, *each.secondary_opts])
    if each.is_flag:
        return f"`{flag}`", meaning
    default = each.default if isinstance(each.default, int | str) and each.default != "" else None
    return f"`{flag} {each.metavar or each.name.upper()}`", meaning + (
        f" Default: {default}." if default else ""
    )


# Events, metrics, states


def log_events() -> Iterator[str]:
    """Name, level and meaning of each event."""
    yield from table(
        ("event", "level", "meaning"),
        [(f"`{event}`", logging.getLevelName(event.level).lower(), event.meaning) for event in Event],
    )


def metrics() -> Iterator[str]:
    """Name, type, labels and meaning of each metric."""
    counted = Metrics(["sms"], "1.0")
    sms = {"sms": False}
    counted.levels = lambda: Levels({}, 0, 0, sms, sms, pauses={"channel": 0}, in_doubt={"sms": 0})
    text, _ = expose(counted, "")
    rows = []
    for family in text_string_to_metric_families(text.decode()):
        if family.name.startswith("deliveryd_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            rows.append(
                (
                    f"`{name}`",
                    family.type,
                    ", ".join(f"`{label}`" for label in labels) or "-",
                    family.documentation,
                )
            )
    yield from table(("metric", "type", "labels", "meaning"), rows)


def states() -> Iterator[str]:
    """Each state in the words of `explain`."""
    yield from table(
        ("state", "meaning"), [(f"`{state.name.lower()}`", meaning) for state, meaning in STATES.items()]
    )


# Presets


def preset_format() -> Iterator[str]:
    """Every table of a preset file."""
    yield from section("The file", PresetFile)
    yield from section("[promises]", Promises)
    yield from section("[keys.NAME]", PresetKey)
    yield from section("[secrets.NAME]", PresetSecret)
    yield from section("[[sources]]", FactSource)
    yield from section("[sandbox]", PresetSandbox)
    yield from section("An answer or a report of the sandbox", SandboxShape)
    yield from section("[sandbox.signature]", SandboxSignature)
    yield from section("[sandbox.lookup]", SandboxLookup)


def preset_cases() -> Iterator[str]:
    """Every table of a case file."""
    yield from section("The file", CaseFile)
    yield from section("[given]", Given)
    yield from section("A body", CaseBody)
    yield from section("[[request]]", RequestCase, without=Given)
    yield from section("[request.expect]", ExpectedRequest, without=CaseBody)
    yield from section("[[answer]]", AnswerCase, without=CaseBody)
    yield from section("[[lookup]]", LookupCase, without=CaseBody)
    yield from section("[[receipt]]", ReceiptCase, without=CaseBody)
    yield from section("An element of reports", ExpectedReport)
    yield from section("[receipt.answer]", ExpectedReply)
    yield from section("[[signature]]", SignatureCase, without=CaseBody)
    yield from section("[[skipped]]", Skipped)


# Providers


def providers() -> Iterator[str]:
    """A row for each preset, with its page."""
    catalogue = Catalogue()
    rows = []
    for name in catalogue.names():
        preset = preset_of(name)
        promises = preset.promises
        rows.append(
            (
                f"[{preset.title}](providers/{name}.md)",
                f"`{name}`",
                ", ".join(preset.channels),
                "yes" if promises.receipts else "no",
                promises.key.replace("_", " "),
                promises.settles_doubt,
            )
        )
    yield from table(("provider", "`adapter`", "sends", "receipts", "repeats", "doubts"), rows)


def provider(name: str) -> Iterator[str]:
    """What a preset promises, a configuration to copy, its keys and secrets, and the sources of its facts."""
    preset = preset_of(name)
    rows = [(label, text) for label, text in promise_rows(preset.channels, preset.promises)]
    yield from table(("subject", "what to expect"), [*rows, ("documentation", f"<{preset.documentation}>")])
    if preset.notes:
        yield from ("", *(f"- {note}" for note in preset.notes))
    service = ("[service]", 'base_url = "https://queue.example.com"', "")
    yield from ("", "## Configuration", "", "```toml", *service, *example_lines(name, preset), "```", "")
    yield from ("## Keys", "")
    keys = preset.keys.items()
    yield from table(
        ("key", "default", "meaning"),
        [(f"`{key}`", default_in(each), each.description) for key, each in keys],
    )
    if preset.secrets:
        yield from ("", "## Secrets", "", "Each names a file, or several while it rotates.", "")
        secrets = preset.secrets.items()
        yield from table(
            ("secret", "needed", "meaning"),
            [(f"`{key}`", "yes" if each.required else "no", each.description) for key, each in secrets],
        )
    yield from ("", "## Sources", "", *(f"- {each.fact}: {each.source}" for each in preset.sources))


def preset_of(name: str) -> PresetFile:
    """The preset of this name."""
    found = Catalogue().find(name)
    assert found is not None  # noqa: S101  # the name is one of the catalogue
    return found.file


def default_in(key: PresetKey) -> str:
    """The default of a preset's key as the file would have it."""
    if key.required:
        return "required"
    return "-" if key.default is None else f"`{toml_value(key.default)}`"


PAGES: Mapping[str, Callable[[], Iterator[str]]] = {
    "configuration.md": configuration,
    "configuration-customers.md": customers,
    "configuration-channels.md": channels,
    "configuration-receipts.md": receipts,
    "commands.md": commands,
    **{name: partial(commands_of, name) for name in sorted(set(PAGE_OF.values()))},
    "log-events.md": log_events,
    "metrics.md": metrics,
    "states.md": states,
    "presets.md": preset_format,
    "preset-cases.md": preset_cases,
    "providers.md": providers,
    **{f"providers/{name}.md": partial(provider, name) for name in Catalogue().names()},
}


def page(name: str) -> str:
    """A page as it should be: its own text, with the generated part made again."""
    text = (REFERENCE / name).read_text(encoding="utf-8")
    made = re.sub(r"\n{3,}", "\n\n", "\n".join(PAGES[name]())).strip("\n")
    return GENERATED.sub(lambda match: f"{match[1]}\n{made}\n\n{match[2]}", text)


def begin_provider_pages() -> None:
    """Write the frame of each page that isn't there yet."""
    for name in Catalogue().names():
        path = REFERENCE / "providers" / f"{name}.md"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            told = FRAME.format(title=preset_of(name).title, name=name)
            path.write_text(told, encoding="utf-8")


FRAME = """\
# {title}

`adapter = "{name}"` in `[channels.CHANNEL]` or in `[channels.CHANNEL.providers.NAME]`:
[use a provider](../../how-to/use-a-provider.md) shows how.
`deliveryd channels show {name}` prints the tables behind it.

<!-- generated -->
<!-- /generated -->
"""


if __name__ == "__main__":
    begin_provider_pages()
    for name in PAGES:
        text = page(name)  # before it is opened for writing
        (REFERENCE / name).write_text(text, encoding="utf-8")
