"""The models of configuration tables, and how those are checked that most configurations leave out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema
from pydantic_core.core_schema import with_info_plain_validator_function

_Model = TypeVar("_Model", bound=BaseModel)


class Table(BaseModel):
    """A table of the configuration: an unknown key is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def raise_all(problems: Iterable[str]) -> None:
    """Raise ValueError with the problems, if there are any."""
    if text := "; ".join(problems):
        raise ValueError(text)


class _BuiltOnUse:
    """Validates with a model of its own instead of a part of the outer one; problems keep their places.

    pydantic builds a model together with all models below it, which would be a third of the time of a start.
    """

    def __get_pydantic_core_schema__(
        self, model: type[BaseModel], _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def validate(value: Any, info: ValidationInfo) -> BaseModel:
            return model.model_validate(value, context=info.context)

        return with_info_plain_validator_function(validate)


OnUse = Annotated[_Model, _BuiltOnUse()]
"""A table that most configurations leave out: its model is built where it is given."""


class LoadedOnUse:
    """Validates with a model whose module is loaded where the table is given."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def __get_pydantic_core_schema__(self, _type: object, _handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any, info: ValidationInfo) -> BaseModel:
            return self.load().model_validate(value, context=info.context)

        return with_info_plain_validator_function(validate)

    def load(self) -> type[BaseModel]:
        """Return the model."""
        model: type[BaseModel] = getattr(import_module(self._module), self._name)
        return model


def leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield the single values below a table, each with its key: also those of lists and mappings in it.

    Of a whole configuration all but the channels and the customers, whose tables are models of their own.
    """
    match value:
        case BaseModel():
            for name, field in type(value).model_fields.items():
                if not field.exclude:
                    yield from leaves(getattr(value, name), f"{key}.{name}".lstrip("."))
        case dict():
            for each in value.values():
                yield from leaves(each, key)
        case list() | tuple() | set() | frozenset():
            for each in value:
                yield from leaves(each, key)
        case _:
            yield key, value
