"""The form of a case file: what a preset must send, and what answers and reports mean."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlencode

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from deliveryd.errors import ConfigError
from deliveryd.options.file import ConfigFile
from deliveryd.receipts.reading import Consent, Meaning


def _list(value: object) -> object:
    return [value] if isinstance(value, str) else value


CaseRows = Annotated[list[Annotated[str, Field(pattern=r"^[0-9]+(/[0-9]+)?$")]], BeforeValidator(_list)]
_Secrets = dict[str, Annotated[list[str], BeforeValidator(_list)]]
_Verdict = Literal["accepted", "refused", "stopped", "try_again", "in_doubt", "misconfigured"]


class _CaseTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Given(_CaseTable):
    """The configuration and the message, in parts; a case overrides the file's part by part."""

    block: str | None = Field(None, description="the block; left out: the preset's first")
    keys: dict[str, str | bool | int] = Field({}, description="keys of the preset")
    secrets: _Secrets = Field({}, description="secrets, as values; a list during a rotation")
    table: dict[str, Any] = Field({}, description="keys that override the preset's, such as `timeout`")
    at: datetime | None = Field(None, description="the clock; left out: 2026-11-21T18:40:00Z")
    message: dict[str, Any] = Field(
        {}, description="id, customerId, settingsId, key, expiresAt; 12, 7, 3, m-12-1 and none if left out"
    )
    customer: dict[str, str] = Field({}, description="fields of the customer")
    content: dict[str, str] = Field({}, description="fields of the rendered block")
    variables: dict[str, str] = Field({}, description="variables of the message")

    def over(self, shared: Given) -> Given:
        """Return `shared`, overridden: keys, secrets, table and message one by one, the others as a whole."""
        parts = {name: getattr(self, name) or getattr(shared, name) for name in Given.model_fields}
        for name in ("keys", "secrets", "table", "message"):
            parts[name] = {**getattr(shared, name), **getattr(self, name)}
        return Given(**parts)


class CaseBody(_CaseTable):
    """A body in one of four forms; `json` and `form` also set the content type."""

    json_body: Any = Field(None, alias="json", description="body as JSON")
    form: dict[str, str | list[str]] | None = Field(None, description="body as a form")
    body: str | None = Field(None, description="body as text")
    body_base64: str | None = Field(None, description="body as bytes in Base64")

    @model_validator(mode="after")
    def _one(self) -> Self:
        forms = (self.json_body, self.form, self.body, self.body_base64)
        if sum(each is not None for each in forms) > 1:
            raise ValueError("a body has one form: json, form, body or body_base64")
        return self

    def written(self, headers: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
        """Return these headers and the body; a form that is read names the content type first."""
        if self.json_body is not None:
            body = json.dumps(self.json_body, ensure_ascii=False).encode()
            return {"Content-Type": "application/json", **headers}, body
        if self.form is not None:
            body = urlencode(self.form, doseq=True).encode()
            return {"Content-Type": "application/x-www-form-urlencoded", **headers}, body
        if self.body_base64 is not None:
            return {**headers}, base64.b64decode(self.body_base64)
        return {**headers}, (self.body or "").encode()


class ExpectedRequest(CaseBody):
    """A request that must go out. Headers: those named; everything else exactly."""

    method: str = Field("POST", description="method")
    path: str = Field(description="path of the address")
    query: dict[str, str | list[str]] = Field({}, description="exactly these; a list: a name several times")
    headers: dict[str, str] = Field({}, description="at least these")
    basic: tuple[str, str] | None = Field(None, description="Authorization as user name and password")


class Named(_CaseTable):
    """What every case has."""

    row: CaseRows = Field([], description="rows of the fact sheet that it shows; of the package's presets")
    says: str = Field("", description="what the case shows, for the output")


class RequestCase(Named, Given):
    """A message, and the request that must go out; the first is the one that `answer` cases answer."""

    expect: ExpectedRequest | None = Field(None, description="the request")
    unreachable: bool = Field(False, description="instead: the channel doesn't reach this customer")
    unfit: bool = Field(False, description="instead: the message is refused before anything is sent")

    @model_validator(mode="after")
    def _one_outcome(self) -> Self:
        if sum((self.expect is not None, self.unreachable, self.unfit)) != 1:
            raise ValueError("a request has one of: expect, unreachable = true, unfit = true")
        return self


class Exchanged(Named, CaseBody):
    """What the provider sends, in a case of any kind but a request."""

    given: Given = Field(Given(), description="what differs from the file's `[given]`")
    headers: dict[str, str] = Field({}, description="its headers")


class AnswerCase(Exchanged):
    """An answer of the provider, and what it means."""

    status: int = Field(description="status of the answer")
    verdict: _Verdict = Field(description="what the answer means")
    provider_id: str | None = Field(None, description="the provider's id of the message; left out: none")
    after: float | None = Field(None, description="seconds before the next attempt; left out: none")
    only_this: bool | None = Field(None, description="concerns this recipient alone; compared if given")
    words: str | None = Field(None, description="the provider's own words; compared if given")


class LookupCase(Exchanged):
    """An answer to the question whether the provider has a message in doubt."""

    status: int = Field(description="status of the answer")
    verdict: Literal["taken", "not_taken", "unknown"] = Field(description="what the answer means")
    provider_id: str | None = Field(None, description="the provider's id of the message; left out: none")
    expect: ExpectedRequest | None = Field(None, description="the request that asks; compared if given")


class ExpectedReport(_CaseTable):
    """A report read from a receipt. `at` left out: the time of arrival."""

    provider_id: str | None = Field(None, description="the provider's id of the message; left out: none")
    reference: str | None = Field(None, description="our reference; left out: none")
    word: str | None = Field(None, description="the provider's word; compared if given")
    meaning: Meaning = Field(description="what the word means for the message; none: nothing")
    consent: Consent | None = Field(
        None, description="what it reports about the recipient; left out: nothing"
    )
    recipient: str | None = Field(None, description="the recipient's address; compared if given")
    at: datetime | None = Field(None, description="when it happened; left out: at the time of arrival")


class ExpectedReply(_CaseTable):
    """The answer to a receipt."""

    status: int = Field(200, description="status")
    body: str = Field("", description="body")


class ReceiptCase(Exchanged):
    """A request of the provider, and the reports in it. Signatures aren't verified."""

    method: Literal["POST", "GET"] = Field("POST", description="method")
    query: dict[str, str | list[str]] = Field({}, description="its query")
    reports: list[ExpectedReport] = Field(description="the reports in it, in order; empty: none")
    answer: ExpectedReply = Field(ExpectedReply(), description="what the provider gets in return")


class SignatureCase(Exchanged):
    """A signed request of the provider, and whether its signature holds."""

    source: str = Field(description="where the signed request is from; never made by deliveryd")
    method: Literal["POST", "GET"] = Field("POST", description="method")
    url: str = Field(description="the public address that the provider called")
    expect: Literal["valid", "invalid"] = Field(description="whether it must be accepted")


class Skipped(_CaseTable):
    """A row of the fact sheet that no case shows."""

    row: CaseRows = Field(description="the row or rows")
    reason: Annotated[str, Field(min_length=10)] = Field(description="why there is no case")


Case = RequestCase | AnswerCase | LookupCase | ReceiptCase | SignatureCase


class CaseFile(_CaseTable):
    """All cases of one preset. `sheet`, `rows` and `skipped` are for the presets of the package."""

    sheet: str = Field("", description="fact sheet that the rows are of")
    rows: dict[Literal["2", "3", "4"], int] = Field({}, description="how many rows its sections have")
    given: Given = Field(Given(), description="what all cases share")
    request: list[RequestCase] = Field([], description="what goes out")
    answer: list[AnswerCase] = Field([], description="what answers mean")
    lookup: list[LookupCase] = Field([], description="how a doubt is settled by asking")
    receipt: list[ReceiptCase] = Field([], description="what comes back")
    signature: list[SignatureCase] = Field([], description="who sent it")
    skipped: list[Skipped] = Field([], description="rows without a case")

    @model_validator(mode="after")
    def _answered(self) -> Self:
        if (self.answer or self.lookup) and not self.request:
            raise ValueError("answers need a request: that of the first [[request]] is answered")
        return self

    def given_to(self, case: Case) -> Given:
        """Return what a case is given; answers concern the message of the first request."""
        if isinstance(case, RequestCase):
            return case.over(self.given)
        answers = isinstance(case, AnswerCase | LookupCase)
        return case.given.over(self.request[0].over(self.given) if answers else self.given)

    def cases(self) -> Iterator[tuple[str, int, Case]]:
        """Yield all cases: the kind of each, its number among them, and the case."""
        kinds: Sequence[tuple[str, Sequence[Case]]] = (
            ("request", self.request),
            ("answer", self.answer),
            ("lookup", self.lookup),
            ("receipt", self.receipt),
            ("signature", self.signature),
        )
        for kind, cases in kinds:
            for number, case in enumerate(cases, 1):
                yield kind, number, case


def _json_hint(path: Path, problem: str) -> str:
    """Return what to do about JSON where TOML is expected, if the line of a problem has it."""
    if (place := _INVALID.search(problem)) is None:
        return ""
    line = path.read_text(encoding="utf-8-sig").splitlines()[int(place[1]) - 1]
    return "; JSON goes into body = '''...'''" if _JSON.search(line) else ""


_INVALID = re.compile(r"invalid TOML: .*\(at line (\d+)")
_JSON = re.compile(r'^json\s*=|"\s*:|\bnull\b')


def read_cases(path: Path) -> CaseFile:
    """Read a case file. Raises ConfigError with all mistakes, each as `file:key: what`."""
    try:
        file = ConfigFile(path, {}, ())
    except ConfigError as error:
        raise ConfigError([f"{each}{_json_hint(path, each)}" for each in error.problems]) from None
    found = file.validate(CaseFile, file.tables)
    if found is None:
        raise ConfigError(file.problems)
    return found
