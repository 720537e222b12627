"""The form of a case file; README.md beside it explains it."""

from __future__ import annotations

import tomllib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

HERE = Path(__file__).parent
COUNTED = ("2", "3", "4")
"""The sections of a fact sheet whose rows must all be cases, or skipped with a reason."""


def _list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Rows = Annotated[list[Annotated[str, Field(pattern=r"^[0-9]+(/[0-9]+)?$")]], BeforeValidator(_list)]
Secrets = dict[str, Annotated[list[str], BeforeValidator(_list)]]
Verdict = Literal["accepted", "refused", "stopped", "try_again", "in_doubt", "misconfigured"]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Given(_Table):
    """The configuration and the message, in parts; a case overrides the file's part by part."""

    block: str | None = None
    keys: dict[str, str | bool | int] = {}
    secrets: Secrets = {}
    table: dict[str, Any] = {}
    at: datetime | None = None
    message: dict[str, Any] = {}
    customer: dict[str, str] = {}
    content: dict[str, str] = {}
    variables: dict[str, str] = {}


class Body(_Table):
    """A body in one of four forms; `json` and `form` also set the content type."""

    json_body: Any = Field(None, alias="json")
    form: dict[str, str | list[str]] | None = None
    body: str | None = None
    body_base64: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        forms = (self.json_body, self.form, self.body, self.body_base64)
        if sum(each is not None for each in forms) > 1:
            raise ValueError("a body has one form: json, form, body or body_base64")
        return self


class ExpectedRequest(Body):
    """A request that must go out. Headers: those named; everything else exactly."""

    method: str = "POST"
    path: str
    query: dict[str, str | list[str]] = {}
    headers: dict[str, str] = {}
    basic: tuple[str, str] | None = None


class RequestCase(Given):
    row: Rows
    says: str = ""
    expect: ExpectedRequest | None = None
    unreachable: bool = False
    unfit: bool = False

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        if sum((self.expect is not None, self.unreachable, self.unfit)) != 1:
            raise ValueError("a request has one of: expect, unreachable = true, unfit = true")
        return self


class AnswerCase(Body):
    row: Rows
    says: str = ""
    given: Given = Given()
    status: int
    headers: dict[str, str] = {}
    verdict: Verdict
    provider_id: str | None = None
    after: float | None = None
    only_this: bool | None = None
    words: str | None = None


class LookupCase(Body):
    row: Rows
    says: str = ""
    given: Given = Given()
    status: int
    headers: dict[str, str] = {}
    verdict: Literal["taken", "not_taken", "unknown"]
    provider_id: str | None = None
    expect: ExpectedRequest | None = None


class Report(_Table):
    """A report read from a receipt. `at` left out: the time of arrival."""

    provider_id: str | None = None
    reference: str | None = None
    word: str | None = None
    meaning: Literal["delivered", "failed", "intermediate", "stopped", "resumed", "none"]
    recipient: str | None = None
    at: datetime | None = None


class Answer(_Table):
    status: int = 200
    body: str = ""


class ReceiptCase(Body):
    row: Rows
    says: str = ""
    given: Given = Given()
    method: Literal["POST", "GET"] = "POST"
    query: dict[str, str | list[str]] = {}
    headers: dict[str, str] = {}
    reports: list[Report]
    answer: Answer = Answer()


class SignatureCase(Body):
    row: Rows
    says: str = ""
    source: str
    given: Given = Given()
    method: Literal["POST", "GET"] = "POST"
    url: str
    headers: dict[str, str] = {}
    expect: Literal["valid", "invalid"]


class Skipped(_Table):
    row: Rows
    reason: Annotated[str, Field(min_length=10)]


class CaseFile(_Table):
    """All cases of one preset."""

    sheet: str
    rows: dict[Literal["2", "3", "4"], int]
    given: Given
    request: Annotated[list[RequestCase], Field(min_length=1)]
    answer: Annotated[list[AnswerCase], Field(min_length=1)]
    lookup: list[LookupCase] = []
    receipt: list[ReceiptCase] = []
    signature: list[SignatureCase] = []
    skipped: list[Skipped] = []

    @model_validator(mode="after")
    def _complete(self) -> Self:
        rows = {
            f"{section}/{number}" for section, count in self.rows.items() for number in range(1, count + 1)
        }
        cased = self.covered()
        passed_over = {row for each in self.skipped for row in each.row}
        problems = []
        if tuple(sorted(self.rows)) != COUNTED:
            problems.append("rows needs the counts of sections 2, 3 and 4")
        if missing := sorted(rows - cased - passed_over):
            problems.append(f"neither a case nor skipped: {', '.join(missing)}")
        if both := sorted(cased & passed_over):
            problems.append(f"a case and skipped: {', '.join(both)}")
        if unknown := sorted(_counted(cased | passed_over) - rows):
            problems.append(f"the sheet has no row {', '.join(unknown)}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def cases(self) -> list[RequestCase | AnswerCase | LookupCase | ReceiptCase | SignatureCase]:
        """Return all cases of the file, in its order of kinds."""
        return [*self.request, *self.answer, *self.lookup, *self.receipt, *self.signature]

    def covered(self) -> set[str]:
        """Return the rows that have a case."""
        return {row for case in self.cases() for row in case.row}


def _counted(rows: set[str]) -> set[str]:
    return {row for row in rows if row.partition("/")[0] in COUNTED}


def load_cases(path: Path) -> CaseFile:
    """Read a case file. Raises ValueError, also for a row of the sheet without a case."""
    with path.open("rb") as file:
        return CaseFile.model_validate(tomllib.load(file))


def case_files() -> dict[str, Path]:
    """Return the case files by the names of their presets."""
    return {path.stem: path for path in sorted(HERE.glob("*.toml"))}
