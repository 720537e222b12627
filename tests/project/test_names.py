"""One name for one thing: what a module defines doesn't have its name in a second module too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import deliveryd

SOURCE = Path(deliveryd.__file__).parent


def defined_in(module: ast.Module) -> Iterator[str]:
    """Every class, private ones too, and the public functions and constants of a module's body."""
    for node in module.body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if not name.startswith("_"):
                yield name
            case ast.Assign(value=ast.Call(func=ast.Name("TypeVar"))):
                pass  # generic modules have one of the usual name each
            case ast.Assign(targets=targets):
                yield from _public(targets)
            case ast.AnnAssign(target=target):
                yield from _public([target])


def _public(targets: list[ast.expr]) -> Iterator[str]:
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and not node.id.startswith("_"):
                yield node.id


def shared_names(modules: Mapping[str, str]) -> Mapping[str, list[str]]:
    """The names that several modules define, with these modules; `modules` maps names to sources."""
    found: dict[str, list[str]] = {}
    for module, source in modules.items():
        for name in set(defined_in(ast.parse(source))):
            found.setdefault(name, []).append(module)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def test_no_name_is_defined_in_two_modules() -> None:
    modules = {
        str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8")
        for path in sorted(SOURCE.rglob("*.py"))
    }
    assert shared_names(modules) == {}


def test_all_kinds_of_definitions_are_found() -> None:
    """Classes, private ones too, functions and constants; not imports, private functions, members."""
    source = """
from somewhere import imported
class Public:
    member = 1
class _Private: ...
def function(): ...
async def coroutine(): ...
def _helper(): ...
CONSTANT = 1
FIRST, SECOND = 1, 2
Alias: object = int
_hidden = 1
"""
    names = {"Public", "_Private", "function", "coroutine", "CONSTANT", "FIRST", "SECOND", "Alias"}
    assert shared_names({"one": source, "other": source}) == {name: ["one", "other"] for name in names}
