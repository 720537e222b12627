"""Tables whose models are built where they are given: they read as parts of the outer model would."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from deliveryd.options.tables import OnUse


class Inner(BaseModel):
    """A table that may be left out."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    size: int = Field(1, ge=1)
    folder: str = ""

    @field_validator("folder")
    @classmethod
    def _below(cls, folder: str, info: ValidationInfo) -> str:
        return f"{(info.context or {}).get('base_dir', '')}{folder}"


class Plain(BaseModel):
    """A model with parts as pydantic builds them."""

    one: Inner | None = None
    several: list[Inner] = []


class Outer(BaseModel):
    """The same with parts that are built on use."""

    one: OnUse[Inner] | None = None
    several: list[OnUse[Inner]] = []


def test_a_table_that_is_left_out_is_not_built() -> None:
    assert Outer.model_validate({}).one is None
    assert not Inner.__pydantic_complete__


def test_a_table_is_read_in_the_context_of_the_file() -> None:
    table = {"one": {"folder": "a"}, "several": [{"size": 2}]}
    read = Outer.model_validate(table, context={"base_dir": "/etc/"})
    assert read.one == Inner(folder="/etc/a")
    assert read.model_dump() == {
        "one": {"size": 1, "folder": "/etc/a"},
        "several": [{"size": 2, "folder": ""}],
    }


@pytest.mark.parametrize(
    "table",
    [
        {"one": {"size": 0}},
        {"one": {"size": "x", "colour": 1}},
        {"one": 5},
        {"several": [{}, {"size": 0}, {"folder": 7}]},
        {"several": ["x"]},
    ],
)
def test_mistakes_have_the_places_and_texts_of_a_part(table: dict[str, Any]) -> None:
    found = []
    for model in (Plain, Outer):
        with pytest.raises(ValidationError) as error:
            model.model_validate(table)
        problems = error.value.errors(include_url=False, include_input=False)
        found.append([(problem["loc"], problem["type"], problem["msg"]) for problem in problems])
    assert found[0] == found[1]
