"""Groups of commands: with plain help, and options that belong together as one value."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

_Function = TypeVar("_Function", bound=Callable[..., Any])
_TYPE = re.compile(r" <[^>]*>$")


class PlainCommand(TyperCommand):
    """A command with plain help: `NAME`, not `NAME <list[str]>`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options; typer would add the type to each argument."""
        records = [(each.param_type_name, each.get_help_record(ctx)) for each in self.get_params(ctx)]
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            rows = [(_TYPE.sub("", name[0]), name[1]) for of, name in records if of == kind and name]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class CommandGroup(typer.Typer):
    """Registers functions as plain commands.

    A parameter whose type is a NamedTuple stands for the options that are its fields.
    """

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """Return the decorator that registers a function as a command."""
        register = super().command(name, **{"cls": PlainCommand, **settings})

        def decorate(function: _Function) -> _Function:
            register(_with_single_options(function))
            return function

        return decorate


def _with_single_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a parameter for each option of those that stand for several."""
    signature = inspect.signature(function, eval_str=True)
    groups: Mapping[str, Any] = {
        name: each.annotation
        for name, each in signature.parameters.items()
        if isinstance(each.annotation, type) and hasattr(each.annotation, "_fields")
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        group = groups.get(name)
        if group is None:
            parameters.append(parameter)
            continue
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            parameter.replace(
                name=field, annotation=hints[field], default=group._field_defaults.get(field, parameter.empty)
            )
            for field in group._fields
        ]

    @wraps(function)
    def call(**given: Any) -> Any:
        for name, group in groups.items():
            given[name] = group(*(given.pop(field) for field in group._fields))
        return function(**given)

    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect reads it
    return call
