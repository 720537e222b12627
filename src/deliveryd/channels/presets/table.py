"""Expands a preset by an operator's keys into the table of the http adapter."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from deliveryd.channels.mapping import texts_in
from deliveryd.channels.presets.file import KEY_USE, NEEDS, SECRET_USE, KeyValue, PresetFile
from deliveryd.options.connections import ProxyOptions
from deliveryd.options.suggestion import suggestion

OVERRIDES = frozenset({*ProxyOptions.model_fields, "auth", "http2", "mail", "tls", "traceparent"})
"""Keys of the http adapter that an operator sets beside those of the preset."""


_BASE = "base_url"
_FOUND, _FINDING = "from_environment", ("sigv4", "google")
"""The key with which these ways of `auth` use the credentials that the machine has."""


class _LeftOut(Enum):
    """The type of `_LEFT_OUT`: a member that has no value, since the operator left its key out."""

    LEFT_OUT = "left out"


_LEFT_OUT: Final = _LeftOut.LEFT_OUT


class Expansion(NamedTuple):
    """What a preset and an operator's keys make.

    `table` is that of the http adapter and of the provider. `written_at` has the operator's keys by the keys
    of `table` that they fill. `problems` are those of the operator's keys, by key.
    """

    table: dict[str, Any]
    written_at: Mapping[str, str]
    problems: list[tuple[str, str]]


def expand(preset: PresetFile, given: Mapping[str, Any], block: str, provider: Collection[str]) -> Expansion:
    """Fill a preset's table for this block. `provider` are the keys that every provider has."""
    own = {name: value for name, value in given.items() if name in preset.keys}
    overrides = {
        name: value for name, value in given.items() if name not in own and name in (*provider, *OVERRIDES)
    }
    problems = list(_problems(preset, given, block, (*provider, *OVERRIDES)))
    values = _Values(preset, key_values(preset, own), _given_secrets(given))
    raw = {**preset.table, **preset.blocks.get(block, {})}
    if "auth" in overrides:  # it is one way or another
        raw.pop("auth", None)
    filled = _fill(raw, values)
    table = {} if filled is _LEFT_OUT else filled
    if "secrets" in given:
        table["secrets"] = given["secrets"]
    for name, value in overrides.items():
        below = table.get(name)
        table[name] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return Expansion({**table, "adapter": "http"}, dict(_written_at(raw, own)), problems)


def examples(preset: PresetFile, *, only_required: bool) -> dict[str, Any]:
    """Return an operator's table with the examples of all keys, or of the required and the advised ones."""
    keys = {
        name: key.example
        for name, key in preset.keys.items()
        if key.required or key.advised or not only_required
    }
    secrets = {
        name: f"{name.replace('_', '-')}-file"
        for name, secret in preset.secrets.items()
        if secret.required or not only_required
    }
    return {**keys, **({"secrets": secrets} if secrets else {})}


class _Values(NamedTuple):
    preset: PresetFile
    keys: Mapping[str, KeyValue]
    secrets: Collection[str]

    def lacks_secret(self, name: str) -> bool:
        """Whether the operator left this secret of the preset out."""
        return name in self.preset.secrets and name not in self.secrets


def key_values(preset: PresetFile, own: Mapping[str, Any]) -> dict[str, KeyValue]:
    """Return the values of the keys; the example stands in for a faulty one, which is reported."""
    found: dict[str, KeyValue] = {}
    for name, key in preset.keys.items():
        value = own.get(name, key.example if key.required else key.default)
        if value is not None:
            found[name] = value if key.problem(value) is None else key.example
    for name in preset.keys_with_keys() - own.keys():
        found[name] = KEY_USE.sub(lambda match: str(found[match[1]]), str(found[name]))
    if isinstance(base := found.get(_BASE), str):  # portals show addresses with a slash at the end
        found[_BASE] = base.rstrip("/")
    return found


def _given_secrets(given: Mapping[str, Any]) -> Collection[str]:
    secrets = given.get("secrets", {})
    return secrets.keys() if isinstance(secrets, dict) else ()


def _fill(value: Any, values: _Values) -> Any:
    if isinstance(value, str):
        return _fill_text(value, values)
    if isinstance(value, Mapping):
        signed = value.get("secret")
        if isinstance(signed, str) and values.lacks_secret(signed):
            return _LEFT_OUT
        if any(values.keys.get(name, False) is False for name in value.get(NEEDS, ())):
            return _LEFT_OUT
        members = ((name, _fill(each, values)) for name, each in value.items() if name != NEEDS)
        filled = {name: got for name, got in members if got is not _LEFT_OUT}
        return filled if filled or not value else _LEFT_OUT
    if isinstance(value, list):
        items = [got for each in value if (got := _fill(each, values)) is not _LEFT_OUT]
        return items if items or not value else _LEFT_OUT
    return value


def _fill_text(text: str, values: _Values) -> Any:
    if any(values.lacks_secret(name) for name in SECRET_USE.findall(text)):
        return _LEFT_OUT
    if whole := KEY_USE.fullmatch(text):
        return values.keys.get(whole[1], _LEFT_OUT)
    return KEY_USE.sub(lambda match: str(values.keys[match[1]]), text)


def _written_at(raw: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of the table with the key that the operator gave, the first where a text has several."""
    for place, text in texts_in(raw):
        given = [name for name in KEY_USE.findall(text) if name in own]
        if given:
            yield place, given[0]


def _missing(preset: PresetFile, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    of_auth = keys_of_auth(preset) if "auth" in given else frozenset()
    for name, key in preset.keys.items():
        if key.required and name not in given and name not in of_auth:
            yield name, f"is missing: {key.description}, such as {key.example!r}"
        if name in given and key.only_with is not None and key.only_with not in given:
            yield name, f"has no effect without {key.only_with}: set that, or remove this"


def keys_of_auth(preset: PresetFile) -> frozenset[str]:
    """Return the keys that only the preset's `auth` needs, and another `auth` of the operator doesn't."""
    others = {name: value for name, value in preset.table.items() if name != "auth"}
    defaults = [key.default for key in preset.keys.values()]
    return _used_in(preset.table.get("auth", {})) - _used_in([others, preset.blocks, defaults])


def _beside_auth(preset: PresetFile, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys that an `auth` of the operator makes useless, or contradicts."""
    if "auth" not in given:
        return
    for name in sorted(keys_of_auth(preset) & given.keys()):
        yield name, f"has no effect beside auth: remove {name}, or remove auth"
    own = dict(texts_in(given["auth"]))
    for place, text in texts_in(preset.table.get("auth", {})):
        if (use := KEY_USE.fullmatch(text)) is None or use[1] in keys_of_auth(preset):
            continue
        name = use[1]
        if name in given and place in own and own[place] != given[name]:
            yield name, f"differs from auth.{place}: set both alike"


def _auth_instead(preset: PresetFile, given: Mapping[str, Any]) -> str | None:
    """Return the `auth` by which this machine's own credentials replace files of keys, if they can."""
    for way, table in preset.table.get("auth", {}).items():
        if way in _FINDING and isinstance(table, Mapping):
            files = keys_of_auth(preset)
            texts = {key: text for key, text in texts_in(table) if not _used_in(text) & files}
            members = "".join(f'{key} = "{_filled(text, preset, given)}", ' for key, text in texts.items())
            instead = f"auth = {{ {way} = {{ {members}{_FOUND} = true }} }}"
            return f"; set {instead} instead of {', '.join(sorted(files & given.keys()) or sorted(files))}"
    return None


def _filled(text: str, preset: PresetFile, given: Mapping[str, Any]) -> str:
    return KEY_USE.sub(lambda match: str(given.get(match[1], preset.keys[match[1]].example)), text)


def _used_in(value: object) -> frozenset[str]:
    return frozenset(name for _, text in texts_in(value) for name in KEY_USE.findall(text))


def missing_alternatives(preset: PresetFile, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lists of keys of which a configuration must set one, and doesn't, by their first key."""
    for names in preset.any_of:
        if not any(name in given for name in names):
            yield names[0], f"is missing: set {' or '.join(names)}"


def _problems(
    preset: PresetFile, given: Mapping[str, Any], block: str, beside: Collection[str]
) -> Iterator[tuple[str, str]]:
    if block not in preset.channels:
        yield "adapter", f"can't send the block {block}; it sends {', '.join(preset.channels)}"
    yield from _missing(preset, given)
    yield from _beside_auth(preset, given)
    for name, key in preset.keys.items():
        if name in given and (problem := key.problem(given[name])) is not None:
            yield name, f"{problem}, such as {key.example!r} ({key.description})"
    known = [*preset.keys, "secrets", "adapter", *beside]
    for name in given:
        if name not in known:
            in_auth = _auth_instead(preset, given) if name == _FOUND else None
            yield name, f"unknown key{in_auth or suggestion(name, known)}"
    secrets = given.get("secrets", {})
    if isinstance(secrets, dict):
        yield from _secret_problems(preset, secrets)


def _secret_problems(preset: PresetFile, secrets: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, secret in preset.secrets.items():
        if secret.required and name not in secrets:
            yield f"secrets.{name}", f"is missing: a file that holds it ({secret.description})"
    for name in secrets:
        if name not in preset.secrets:
            yield f"secrets.{name}", f"unknown secret{suggestion(name, preset.secrets)}"
