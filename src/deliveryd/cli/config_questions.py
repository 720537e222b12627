"""The questions of `deliveryd config init`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from deliveryd.channels.preset_catalogue import Catalogue
from deliveryd.channels.preset_file import PresetFile
from deliveryd.cli.output import print_lines
from deliveryd.errors import DeliverydError
from deliveryd.inspection.new_configuration import put
from deliveryd.model import BLOCKS


def ask_for_answers(file: Path) -> dict[str, Any]:
    """Ask on the terminal. Secrets that are typed go into files beside `file`. Raises DeliverydError."""
    if os.path.lexists(file):
        raise DeliverydError(f"{file} is there already; name another file, or remove it")
    folder = file.absolute().parent
    tables: dict[str, Any] = {}
    put(tables, "service.base_url", _address("Address of the service"))
    if typer.confirm("Does the service require a bearer token?", default=True):
        put(tables, "service.auth.token_file", _secret(folder, "service-token", "token of the service"))
    source = typer.prompt(
        "File with the customers, JSON Lines or CSV; empty: none", default="", show_default=False
    )
    if source:
        put(tables, "customers.source", "file")
        put(tables, "customers.path", source)
    while True:
        _ask_for_channel(tables, folder)
        if not typer.confirm("Another channel?", default=False):
            break
    journal = typer.prompt("File of the journal", default="/var/lib/deliveryd/journal.db")
    put(tables, "journal.url", f"sqlite:///{journal}")
    cache = typer.prompt("Folder of the cache", default="/var/cache/deliveryd/settings")
    put(tables, "settings.cache_dir", cache)
    return tables


def _ask_for_channel(tables: dict[str, Any], folder: Path) -> None:
    there = tables.get("channels", {})
    block = _choice("Channel", [each for each in BLOCKS if each not in there])
    catalogue = Catalogue()
    presets = {
        name: preset.file
        for name in catalogue.names()
        if (preset := catalogue.find(name)) is not None and block in preset.file.channels
    }
    adapters = [*presets, "http", *(["smtp"] if block == "email" else [])]
    adapter = _choice("Provider", adapters)
    place = f"channels.{block}"
    put(tables, f"{place}.adapter", adapter)
    if adapter in presets:
        _ask_for_preset(tables, folder, place, adapter, presets[adapter])
    elif adapter == "smtp":
        put(tables, f"{place}.host", typer.prompt("Mail server"))
        put(tables, f"{place}.sender", typer.prompt("Address of the sender"))
    else:
        put(tables, f"{place}.url", _address("Address of the gateway"))
        put(tables, f"{place}.json", {"to": "{customer.phone}", "text": _text_of(block)})
        print_lines(f"  {place}.json says what is sent; see deliveryd config example")


def _text_of(block: str) -> str:
    return {"email": "{content.body}", "inApp": "{content.description}"}.get(block, "{content.text}")


def _ask_for_preset(
    tables: dict[str, Any], folder: Path, place: str, adapter: str, preset: PresetFile
) -> None:
    if "{receipt.url}" in str(preset.table) and "receipts" not in tables:
        put(tables, "receipts.public_url", _address("Public address for receipts"))
    for name, key in preset.keys.items():
        if key.required or key.advised:
            put(tables, f"{place}.{name}", typer.prompt(f"{name} ({key.description})"))
    for name, secret in preset.secrets.items():
        if secret.required:
            path = _secret(folder, f"{adapter}-{name}", secret.description)
            put(tables, f"{place}.secrets.{name}", path)


def _choice(question: str, choices: list[str]) -> str:
    answer = ""
    while answer not in choices:
        if answer:
            print_lines(f"  {answer!a} isn't one of them")
        answer = typer.prompt(f"{question} ({', '.join(choices)})").strip()
    return answer


def _address(question: str) -> str:
    while True:
        answer: str = typer.prompt(f"{question} (https://…)").strip()
        if answer.startswith(("http://", "https://")):
            return answer
        print_lines(f"  {answer!a} doesn't begin with https:// or http://")


def _secret(folder: Path, name: str, description: str) -> str:
    """Ask for a secret's file; if it isn't there, ask for the secret and write it."""
    path = Path(typer.prompt(f"File with the secret {name} ({description})", default=str(folder / name)))
    if not path.exists():
        text = typer.prompt(
            f"  {path} isn't there; the secret to write into it (isn't shown)", hide_input=True
        )
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{text}\n")
        except OSError as error:
            raise DeliverydError(f"{path} can't be written: {error.strerror}") from None
    return str(path)
