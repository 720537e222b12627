"""`deliveryd channels`: what a channel can be, and what its provider's answers mean."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from deliveryd.channels.mapping import texts_in
from deliveryd.channels.presets.catalogue import Catalogue, Preset
from deliveryd.channels.presets.file import PresetFile, PresetKey, Promises
from deliveryd.channels.presets.table import examples
from deliveryd.channels.registry import ADAPTER_ENTRY_POINTS, ADAPTERS, find_adapter
from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.offline import ProviderChoice, offline_provider
from deliveryd.commands.common.options import AsData, AtOption, ConfigOption, instant_of
from deliveryd.commands.common.output import print_json, print_lines
from deliveryd.commands.common.tables import aligned, table, widths_of
from deliveryd.commands.providers.trying import (
    KeysOption,
    PresetOption,
    PresetsDirOption,
    ProviderOption,
    SecretsOption,
    TriedChannel,
    read_message,
    verdict_data,
    verdict_lines,
    verdict_on,
)
from deliveryd.config import examine
from deliveryd.errors import ConfigError, UsageError
from deliveryd.model import BLOCKS, format_duration
from deliveryd.options.suggestion import suggestion
from deliveryd.options.toml_text import toml_lines, toml_value

KEY_MEANINGS = {
    "heeded": "a repeat under the same key isn't sent again",
    "ignored": "a repeat is a second message",
    "rejects_repeats": "a repeat under the same key is refused",
    "replaces_shown": "a repeat under the same key replaces what the device shows",
}
DOUBT_MEANINGS = {
    "receipt": "a receipt that echoes the message's key settles it",
    "lookup": "the provider is asked",
    "no": "nothing settles it",
}
_BUILT_IN = {
    "http": (BLOCKS, "any HTTP gateway"),
    "smtp": (("email",), "any mail server"),
    "webpush": (("inApp",), "browsers"),
}


class AdapterRow(NamedTuple):
    """An adapter or a preset in the list. None: that is up to the configuration, or to the plug-in."""

    name: str
    kind: str
    sends: Sequence[str]
    title: str
    receipts: bool | None = None
    repeats: str | None = None
    doubts: str | None = None


def adapter_rows(catalogue: Catalogue) -> list[AdapterRow]:
    """Return the built-in adapters, those of plug-ins, and the presets. Raises ConfigError."""
    rows = [AdapterRow(name, "adapter", *_BUILT_IN[name]) for name in ADAPTERS]
    points = sorted(entry_points(group=ADAPTER_ENTRY_POINTS), key=lambda each: each.name)
    rows += [AdapterRow(each.name, "plug-in", (), each.value.partition(":")[0]) for each in points]
    for name in catalogue.names():
        if (preset := catalogue.find(name)) is not None:
            promises = preset.file.promises
            rows.append(
                AdapterRow(name, "preset", preset.file.channels, preset.file.title, promises.receipts)
                ._replace(repeats=promises.key, doubts=promises.settles_doubt)
            )  # fmt: skip
    return rows


def row_lines(rows: Sequence[AdapterRow]) -> Iterator[str]:
    """Return the list as aligned lines."""
    cells = [
        (
            row.name,
            row.kind,
            ", ".join(row.sends) or "-",
            "-" if row.receipts is None else "yes" if row.receipts else "no",
            (row.repeats or "-").replace("_", " "),
            row.doubts or "-",
            row.title,
        )
        for row in rows
    ]
    return table(("name", "kind", "sends", "receipts", "repeats", "doubts", "provider"), cells)


def describe_adapter(catalogue: Catalogue, name: str) -> Mapping[str, Any]:
    """Return what there is to know of an adapter or a preset, as JSON. Raises UsageError."""
    if (preset := _found(catalogue, name)) is not None:
        return {"name": name, "kind": "preset", **preset.file.model_dump(mode="json")} | {
            "example": "\n".join(example_lines(name, preset.file))
        }
    options = find_adapter(name).options
    keys = {key: {"description": field.description, **_default(field)} for key, field in _fields(options)}
    return {"name": name, "kind": "adapter", "description": _about(options), "keys": keys}


def adapter_lines(catalogue: Catalogue, name: str) -> Iterator[str]:
    """Return the same for people. Raises UsageError."""
    if (preset := _found(catalogue, name)) is not None:
        yield from _preset_lines(preset)
        return
    options = find_adapter(name).options
    yield f"{name}: {_about(options)}"
    yield ""
    yield from _aligned(
        [(key, _written_default(field), field.description or "") for key, field in _fields(options)]
    )


def _found(catalogue: Catalogue, name: str) -> Preset | None:
    """Return the preset; None: it is an adapter. Raises UsageError."""
    try:
        find_adapter(name)
    except ValueError as error:
        preset = catalogue.find(name)
        if preset is None:
            known = [*ADAPTERS, *catalogue.names()]
            hint = suggestion(name, known) or f"; there are: {', '.join(known)}"
            raise UsageError(f"{str(error).partition(' (')[0]}{hint}") from None
        return preset
    return None


def _preset_lines(preset: Preset) -> Iterator[str]:
    name, file = preset.name, preset.file
    yield f"{name}: {file.title}"
    yield ""
    promises = promise_rows(file.channels, file.promises)
    yield from _aligned([*promises, ("documentation", file.documentation)])
    if (address := _registered_at(file)) is not None:
        yield from ("", f"reports to {address}: register it at the provider")
    if file.notes:
        yield from ("", "notes")
        yield from (f"  {note}" for note in file.notes)
    yield from ("", "keys")
    yield from _aligned([(key, _needed(each), each.description) for key, each in file.keys.items()])
    if file.secrets:
        yield from ("", "secrets, each a file")
        yield from _aligned(
            [
                (key, "required" if each.required else "", each.description)
                for key, each in file.secrets.items()
            ]
        )
    yield from ("", "to copy", "")
    yield from (f"  {line}" for line in example_lines(name, file))
    yield from ("", "the tables behind it", "")
    yield from (f"  {line}".rstrip() for line in _table_lines(file))
    yield from ("", "sources")
    yield from (f"  {each.fact}: {each.source}" for each in file.sources)


def promise_rows(sends: Sequence[str], promises: Promises) -> list[tuple[str, str]]:
    """Return what a provider promises, as labels and texts."""
    rows = [
        ("sends", ", ".join(sends)),
        ("receipts", "yes" if promises.receipts else "no"),
        ("repeats", KEY_MEANINGS[promises.key]),
        ("doubts", DOUBT_MEANINGS[promises.settles_doubt]),
    ]
    bounds = (("at least", promises.validity_min), ("at most", promises.validity))
    if described := [f"{words} {format_duration(value)}" for words, value in bounds if value is not None]:
        rows.append(("validity", ", ".join(described)))
    return rows


def example_lines(name: str, file: PresetFile) -> Iterator[str]:
    """Return tables of the configuration to copy; what may be left out is a comment."""
    required = examples(file, only_required=True)
    if "receipt" in file.table:
        yield from ("[receipts]", 'public_url = "https://receipts.example.com"', "")
    yield f"[channels.{file.channels[0]}]"
    yield f"adapter = {toml_value(name)}"
    for key, each in file.keys.items():
        if key in required:
            yield f"{key} = {toml_value(required[key])}    # {each.description}"
    secrets = {key: _secret_file(name, key) for key in required.get("secrets", {})}
    if secrets:
        yield f"secrets = {toml_value(secrets)}"
    for key, each in file.keys.items():
        if key not in required:
            yield f"# {key} = {toml_value(each.example)}    # {each.description}"
    for key, secret in file.secrets.items():
        if not secret.required:
            yield f"# add to secrets: {key} = {toml_value(_secret_file(name, key))}    # {secret.description}"


def _registered_at(file: PresetFile) -> str | None:
    """Return the address to register at the provider; None: requests name it, or it reports nothing."""
    table = {"table": file.table, "blocks": file.blocks}
    if "receipt" not in file.table or any("{receipt.url" in text for _, text in texts_in(table)):
        return None
    signature = file.table["receipt"].get("signature", {})
    at, secret = signature.get("at", ""), str(signature.get("secret", "")).upper()
    token = f"/{secret}" if at == "path" else f"?{at.removeprefix('query:')}={secret}"
    is_in_address = signature.get("scheme") in ("token", "event-grid") and not at.startswith("header:")
    return f"PUBLIC_URL/receipts/CHANNEL{token if is_in_address else ''}"


def _secret_file(name: str, secret: str) -> str:
    return f"/run/credentials/deliveryd.service/{name}-{secret}"


def _table_lines(file: PresetFile) -> Iterator[str]:
    yield from toml_lines(file.table)
    for block, own in file.blocks.items():
        yield from ("", f"# instead, for the block {block}")
        yield from toml_lines(own)


def _needed(key: PresetKey) -> str:
    if key.required:
        return "required"
    return "" if key.default is None else toml_value(key.default)


def _fields(options: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    return [(field.alias or name, field) for name, field in options.model_fields.items() if not field.exclude]


def _default(field: FieldInfo) -> Mapping[str, object]:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return {"required": True}
    plain = default is None or isinstance(default, str | int | float)
    return {"required": False, "default": default if plain else None}


def _written_default(field: FieldInfo) -> str:
    default = _default(field)
    if default["required"]:
        return "required"
    value = default["default"]
    return "" if value is None else toml_value(value)


def _about(options: type[BaseModel]) -> str:
    return " ".join((inspect.getdoc(options) or "").split())


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows as lines in columns; a column that is empty takes no room."""
    used = [any(column) for column in zip(*rows, strict=True)]
    cells = [[cell for cell, is_used in zip(row, used, strict=True) if is_used] for row in rows]
    widths = widths_of(cells)
    return (f"  {aligned(row, widths)}" for row in cells)


channels = CommandGroup(
    no_args_is_help=True,
    help="Show what a channel can be.\n\n"
    "A preset is the http adapter with the tables of one provider filled in.",
)

PresetsOf = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Include the presets that this configuration file adds.",
        envvar="DELIVERYD_CONFIG",
        readable=False,
    ),
]


@channels.command("list")
def list_adapters(
    *, config: PresetsOf = None, presets_dir: PresetsDirOption = None, as_data: AsData = False
) -> None:
    """List adapters and presets.

    For presets: whether the provider reports deliveries, what it does with repeats, and what settles a doubt.
    """
    rows = adapter_rows(_catalogue(config, presets_dir))
    if as_data:
        print_json([row._asdict() for row in rows])
    else:
        print_lines(*row_lines(rows))


@channels.command("show")
def show_adapter(
    *,
    config: PresetsOf = None,
    presets_dir: PresetsDirOption = None,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an adapter or a preset.")],
    as_data: AsData = False,
) -> None:
    """Show an adapter or a preset.

    Prints its keys. For a preset also what the provider promises, a table to copy, the tables behind it, and
    a source for each fact.
    """
    catalogue = _catalogue(config, presets_dir)
    if as_data:
        print_json(describe_adapter(catalogue, name))
    else:
        print_lines(*adapter_lines(catalogue, name))


@channels.command("test")
def try_answer(
    *,
    config: ConfigOption = USUAL_CONFIG,
    channel: TriedChannel = None,
    provider: ProviderOption = None,
    preset: PresetOption = None,
    keys: KeysOption = None,
    secrets: SecretsOption = None,
    presets_dir: PresetsDirOption = None,
    answer: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help='A raw HTTP answer of the provider, its body up to the end; "-": standard input.',
        ),
    ],
    at: AtOption = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address that answered; left out: that of the provider."),
    ] = None,
    as_data: AsData = False,
) -> None:
    """Show what an answer of a provider means.

    Sends and records nothing.
    """
    choice = ProviderChoice(config, channel, provider, preset, keys or (), secrets or (), presets_dir)
    verdict, decided_by = verdict_on(
        offline_provider(choice), read_message(answer), answer, instant_of(at), url
    )
    if as_data:
        print_json({**verdict_data(verdict), "decided_by": decided_by})
    else:
        print_lines(*verdict_lines(verdict, decided_by))


def _catalogue(config: Path | None, presets_dir: Path | None) -> Catalogue:
    """Return the presets of the package, and of a folder or a configuration file. Raises ConfigError."""
    if presets_dir is not None:
        catalogue = Catalogue(presets_dir)
        if problems := list(catalogue.problems()):
            raise ConfigError([f"--presets-dir: {problem}" for problem in problems])
        return catalogue
    if config is None:
        return Catalogue()
    return Catalogue(examine(config).usable().channels.presets_dir)
