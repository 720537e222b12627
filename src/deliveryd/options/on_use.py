"""Tables that most configurations leave out: their models are built where such a table is given.

pydantic builds a model together with all models below it, which would be a third of the time of a start.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema
from pydantic_core.core_schema import with_info_plain_validator_function

_Model = TypeVar("_Model", bound=BaseModel)


class _BuiltOnUse:
    """Validates with a model of its own instead of a part of the outer one; problems keep their places."""

    def __get_pydantic_core_schema__(
        self, model: type[BaseModel], _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def validate(value: Any, info: ValidationInfo) -> BaseModel:
            return model.model_validate(value, context=info.context)

        return with_info_plain_validator_function(validate)


OnUse = Annotated[_Model, _BuiltOnUse()]
