"""`deliveryd resume`: let go on what is paused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from deliveryd.commands.common.command_group import CommandGroup
from deliveryd.commands.common.configuration import load_journal_as_owner
from deliveryd.commands.common.conventions import USUAL_CONFIG
from deliveryd.commands.common.options import AsData, ConfigOption, WhyOption
from deliveryd.commands.orders.orders import carry_out, report_reply
from deliveryd.commands.orders.pause import AnyMessageIds, ChannelNames, ProviderNames, SettingsIds
from deliveryd.config import Config
from deliveryd.journal.opening import open_reader
from deliveryd.journal.orders import Action, ItemKind
from deliveryd.journal.pauses import INTAKE

resume = CommandGroup(
    no_args_is_help=True,
    help="Resume what deliveryd pause paused.\n\n"
    "Its messages continue in portions, beside all other due ones. A running worker acts at once.",
)


@resume.command("all")
def resume_all(
    *, config: ConfigOption = USUAL_CONFIG, why: WhyOption = None, as_data: AsData = False
) -> None:
    """Resume all that is paused."""
    loaded = load_journal_as_owner(config)
    wanted: defaultdict[ItemKind, list[str]] = defaultdict(list)
    for found in open_reader(loaded.journal.place).pauses():
        wanted[ItemKind(found.pause.kind)].append(found.pause.key)
    _resume(loaded, wanted, why, as_data=as_data)


@resume.command("intake")
def resume_intake(
    *, config: ConfigOption = USUAL_CONFIG, why: WhyOption = None, as_data: AsData = False
) -> None:
    """Take messages from the queue again."""
    _resume(load_journal_as_owner(config), {ItemKind.INTAKE: [INTAKE]}, why, as_data=as_data)


@resume.command("channel")
def resume_channel(
    *,
    config: ConfigOption = USUAL_CONFIG,
    names: ChannelNames,
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Send on channels again."""
    _resume(load_journal_as_owner(config), {ItemKind.CHANNEL: names}, why, as_data=as_data)


@resume.command("provider")
def resume_provider(
    *,
    config: ConfigOption = USUAL_CONFIG,
    names: ProviderNames,
    why: WhyOption = None,
    as_data: AsData = False,
) -> None:
    """Send to providers again."""
    _resume(load_journal_as_owner(config), {ItemKind.PROVIDER: names}, why, as_data=as_data)


@resume.command("settings")
def resume_settings(
    *, config: ConfigOption = USUAL_CONFIG, ids: SettingsIds, why: WhyOption = None, as_data: AsData = False
) -> None:
    """Send messages with these settings again."""
    _resume(load_journal_as_owner(config), {ItemKind.SETTINGS: list(map(str, ids))}, why, as_data=as_data)


@resume.command("message")
def resume_message(
    *, config: ConfigOption = USUAL_CONFIG, ids: AnyMessageIds, why: WhyOption = None, as_data: AsData = False
) -> None:
    """Send single messages again."""
    _resume(load_journal_as_owner(config), {ItemKind.MESSAGE: list(map(str, ids))}, why, as_data=as_data)


def _resume(
    config: Config, wanted: Mapping[ItemKind, Sequence[str]], why: str | None, *, as_data: bool
) -> None:
    keys = {kind: list(dict.fromkeys(each)) for kind, each in wanted.items()}
    report_reply("resumed", carry_out(config, Action.RESUME, keys, why), as_data=as_data)
