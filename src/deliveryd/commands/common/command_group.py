"""A group of commands whose help names no types of the program: `NAME`, not `NAME <list[str]>`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

_Function = TypeVar("_Function", bound=Callable[..., Any])
_TYPE = re.compile(r" <[^>]*>$")


class PlainCommand(TyperCommand):
    """A command with plain help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options; typer would add the type to each argument."""
        records = [(each.param_type_name, each.get_help_record(ctx)) for each in self.get_params(ctx)]
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            rows = [(_TYPE.sub("", name[0]), name[1]) for of, name in records if of == kind and name]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class CommandGroup(typer.Typer):
    """Registers functions as plain commands."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """Return the decorator that registers a function as a command."""
        return super().command(name, **{"cls": PlainCommand, **settings})
