"""A provider to try things with, from a configuration or from a preset alone; nothing is sent or recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.options import ProviderConfig, ProviderTable
from deliveryd.channels.presets.catalogue import PACKAGED, Catalogue, Preset, check_tables
from deliveryd.channels.presets.table import expand
from deliveryd.config import Config, load
from deliveryd.errors import ConfigError, DeliverydError, UsageError
from deliveryd.options.suggestion import suggestion


class ProviderChoice(NamedTuple):
    """What names a provider on the command line: a configuration and its channel, or a preset.

    `keys` and `secrets` belong to a preset: KEY=VALUE, NAME=FILE; `presets_dir` is a folder of further ones.
    """

    config: Path
    channel: str | None = None
    provider: str | None = None
    preset: str | None = None
    keys: Sequence[str] = ()
    secrets: Sequence[str] = ()
    presets_dir: Path | None = None


class OfflineProvider(NamedTuple):
    """A provider whose adapter speaks HTTP, with its options read. A preset alone has no `config`."""

    provider: ProviderConfig
    options: HttpChannelOptions
    config: Config | None


def offline_provider(choice: ProviderChoice) -> OfflineProvider:
    """Read the options of a provider. Raises ConfigError, DeliverydError, UsageError."""
    if choice.preset is not None:
        provider, config = _of_preset(choice, choice.preset), None
    elif choice.channel is None:
        raise UsageError("name a provider with --channel, or a preset with --preset")
    elif choice.keys or choice.secrets or choice.presets_dir:
        raise UsageError(
            "--set, --secret and --presets-dir belong to --preset; the configuration has its own"
        )
    else:
        config = load(choice.config)
        provider = configured_provider(config, choice.channel, choice.provider)
    options = provider.options
    if not isinstance(options, HttpChannelOptions):
        raise DeliverydError(f"{provider.identity}: the adapter {provider.common.adapter} doesn't speak HTTP")
    return OfflineProvider(provider, options, config)


def split_identity(channel: str, name: str | None = None) -> tuple[str, str | None]:
    """Return the channel and the provider that CHANNEL or CHANNEL/PROVIDER names. Raises DeliverydError."""
    channel, slash, named = channel.partition("/")
    if slash and name not in (None, named):
        raise UsageError(f"--channel {channel}/{named} and --provider {name} name two providers")
    return channel, named if slash else name


def configured_provider(config: Config, channel: str, name: str | None) -> ProviderConfig:
    """Return a provider of a channel; without a name, its only one. `channel` may be an identity.

    Raises DeliverydError.
    """
    channel, name = split_identity(channel, name)
    channels = config.channels.configured
    if channel not in channels:
        raise UsageError(f"there is no channel {channel}{_known(channel, channels)}")
    providers = channels[channel].providers
    if name is None:
        if len(providers) > 1:
            raise UsageError(f"name one of {channel}'s providers with --provider: {', '.join(providers)}")
        return next(iter(providers.values()))
    if name not in providers:
        raise UsageError(f"{channel} has no provider {name}{_known(name, providers)}")
    return providers[name]


def _known(name: str, names: Mapping[str, object]) -> str:
    return suggestion(name, names) or f"; there are: {', '.join(names)}"


def _of_preset(choice: ProviderChoice, name: str) -> ProviderConfig:
    if choice.channel is not None or choice.provider is not None:
        raise UsageError("--preset can't be combined with --channel and --provider")
    catalogue = Catalogue(choice.presets_dir)
    if problems := list(catalogue.problems()):
        raise ConfigError([f"--presets-dir: {problem}" for problem in problems])
    preset = catalogue.find(name)
    if preset is None:
        hint = suggestion(name, catalogue.names())
        remark = "" if hint or choice.presets_dir else "; --presets-dir names a folder of your own"
        raise UsageError(f"there is no preset {name}{hint}{remark}")
    if preset.path.parent != PACKAGED:
        check_tables(preset, ProviderTable)
    given = {"adapter": name, **_keys(preset, choice.keys), "secrets": _pairs("--secret", choice.secrets)}
    block = preset.file.channels[0]
    made = expand(preset.file, given, block, ProviderTable.model_fields)
    if made.problems:
        raise ConfigError([f"{_option(key)}: {text}" for key, text in made.problems])
    own = {key: value for key, value in made.table.items() if key not in ProviderTable.model_fields}
    try:
        common = ProviderTable.model_validate(made.table)
        options = HttpChannelOptions.model_validate(own, context={"base_dir": Path.cwd()})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise ConfigError([f"--preset {name}: {problem}" for problem in problems]) from None
    return ProviderConfig(
        identity=block, name=block, channel=block, block=block, place=f"--preset {name}",
        common=common, options=options,
    )  # fmt: skip


def _keys(preset: Preset, keys: Sequence[str]) -> dict[str, Any]:
    """Return the values of keys in their types."""
    given = _pairs("--set", keys)
    return {name: _typed(preset.file.keys[name].type, value) if name in preset.file.keys else value
            for name, value in given.items()}  # fmt: skip


def _typed(kind: str, value: str) -> Any:
    if kind == "integer" and value.removeprefix("-").isdecimal():
        return int(value)
    if kind == "boolean" and value in ("true", "false"):
        return value == "true"
    return value


def _pairs(option: str, values: Sequence[str]) -> dict[str, Any]:
    pairs = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise UsageError(f"{option} {value}: expected NAME=VALUE")
        pairs[name] = text
    return pairs


def _option(key: str) -> str:
    name = key.removeprefix("secrets.")
    return f"--secret {name}" if name != key else f"--set {key}"
