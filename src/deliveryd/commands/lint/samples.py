"""The variables that placeholders are compared with: given messages, or what the journal has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from deliveryd.commands.lint.subject import Sample
from deliveryd.commands.render.preview_request import read_json, read_variables
from deliveryd.errors import DeliverydError
from deliveryd.journal.opening import open_reader
from deliveryd.journal.place import JournalPlace
from deliveryd.journal.reader import NamesSeen


class GivenMessage(NamedTuple):
    """A message that was given as an example; `settings_id` None: for all settings."""

    settings_id: int | None
    variables: Mapping[str, str]


def messages_in(path: Path) -> list[GivenMessage]:
    """Read a message, or a list of them, as the queue has them (interface 2.1). Raises DeliverydError."""
    given = read_json(path)
    elements = given if isinstance(given, list) else [given]
    if not elements:
        raise DeliverydError(f"{path}: holds no message")
    return [_message(path, element) for element in elements]


def _message(path: Path, element: object) -> GivenMessage:
    if not isinstance(element, dict) or not isinstance(element.get("variables"), dict):
        raise DeliverydError(f"{path}: expected a message with variables, or a list of them")
    settings_id = element.get("settingsId")
    wrong = [key for key, value in element["variables"].items() if not isinstance(value, str)]
    if wrong:
        raise DeliverydError(f"{path}: expected a string or a number: {', '.join(wrong)}")
    is_id = isinstance(settings_id, str) and settings_id.removeprefix("-").isdecimal()
    return GivenMessage(int(str(settings_id)) if is_id else None, element["variables"])


def given_variables(text: str) -> GivenMessage:
    """Read `--variables`: JSON or a file. Raises DeliverydError."""
    return GivenMessage(None, read_variables(text))


def sample_of(messages: Sequence[GivenMessage], settings_id: int | None) -> Sample | None:
    """Return the sample for settings; None: no message is meant for them."""
    meant = [
        each
        for each in messages
        if None in (each.settings_id, settings_id) or each.settings_id == settings_id
    ]
    if not meant:
        return None
    names = [frozenset(each.variables) for each in meant]
    source = "the sample message" if len(meant) == 1 else f"the {len(meant)} sample messages"
    return Sample(source, frozenset.intersection(*names), frozenset().union(*names), meant[0].variables)


def samples_of_journal(place: JournalPlace, settings_ids: Collection[int]) -> Mapping[int, Sample]:
    """Return samples of the journal's messages, by settings ID. Raises JournalError."""
    return {id_: _sample(seen) for id_, seen in open_reader(place).names_seen(settings_ids).items()}


def _sample(seen: NamesSeen) -> Sample:
    source = (
        "the only message in the journal"
        if seen.messages == 1
        else f"{seen.messages:,} messages in the journal"
    )
    return Sample(source, seen.always, seen.ever)
