"""Runs the cases of presets offline: `deliveryd presets test`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import anyio

from deliveryd.channels.base import Channel, Dispatch, Found, Refused, Verdict
from deliveryd.channels.http.adapter import open_http_channel
from deliveryd.channels.http.options import HttpChannelOptions
from deliveryd.channels.options import ProviderTable
from deliveryd.channels.presets.catalogue import (
    PACKAGED,
    Preset,
    check_tables,
    name_problem,
    preset_names,
    read_preset,
)
from deliveryd.commands.providers.answers import answer_reader, row_text
from deliveryd.commands.providers.preset_cases import (
    AnswerCase,
    Case,
    CaseBody,
    CaseFile,
    Given,
    LookupCase,
    ReceiptCase,
    RequestCase,
    SignatureCase,
    read_cases,
)
from deliveryd.commands.providers.preset_differences import (
    SentRequest,
    lookup_differences,
    reply_differences,
    report_differences,
    request_differences,
    verdict_differences,
)
from deliveryd.commands.providers.preset_given import (
    USUAL_INSTANT,
    block_of,
    dispatch_of,
    expanded,
    merged,
    micros,
    of_first_request,
    written_body,
)
from deliveryd.commands.providers.receipt_trial import ReceiptTable, ReceiptTrial, try_receipts
from deliveryd.errors import ConfigError, DeliverydError
from deliveryd.http.wire import BeforeSend, Headers, Target, WireResponse
from deliveryd.options.file import ConfigFile

_ORIGIN = "http://127.0.0.1:1"
"""Stands for the provider's host; nothing is connected."""
_PUBLIC = "https://receipts.example"
_LARGEST = 1 << 20


class DifferingCase(NamedTuple):
    """A case that differs. `decided_by` is the row of `answers` that decided, where one was looked for."""

    kind: str
    number: int
    says: str
    differences: Sequence[str]
    decided_by: str | None


class Trial(NamedTuple):
    """The cases of one preset. `missing` is the case file if there is none.

    `rows_without_case` are rows of `answers`, from 1, that decided no case. `kinds_without_case` are those of
    which there is none, though the preset has what they show.
    """

    preset: str
    cases: int
    failures: Sequence[DifferingCase]
    missing: Path | None = None
    rows_without_case: Sequence[int] = ()
    kinds_without_case: Sequence[str] = ()

    @property
    def is_good(self) -> bool:
        """Whether there are cases, and none differs."""
        return bool(self.cases) and not self.failures


def try_presets(folder: Path, cases: Path, names: Sequence[str]) -> list[Trial]:
    """Run the cases of these presets of a folder, or of all. Nothing is sent.

    Raises ConfigError with the mistakes in presets and case files.
    """
    if not os.path.lexists(folder):
        raise DeliverydError(f"no such folder: {folder}")
    if os.path.isfile(folder):  # noqa: PTH113  # Path.is_file raises PermissionError
        raise DeliverydError(f"{folder} is a file: name its folder, then the preset")
    there = preset_names(folder)
    if not there:
        raise DeliverydError(f"{folder}: there are no presets in it")
    problems = [f"{folder}: there is no preset {name}" for name in names if name not in there]
    if not names and cases.is_dir():
        problems += [f"{path}: there is no preset of this name" for path in sorted(cases.glob("*.toml"))
                     if path.stem not in there]  # fmt: skip
    opened: list[tuple[Preset, CaseFile | None]] = []
    for name in names or there:
        try:
            if name in there:
                problems += _name_problems(folder, name)
                opened.append(_opened(folder, cases, name))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return [
        Trial(preset.name, 0, (), cases / f"{preset.name}.toml") if file is None else _tried(preset, file)
        for preset, file in opened
    ]


def _name_problems(folder: Path, name: str) -> Iterator[str]:
    """Yield why a configuration can't use a preset of this folder, unless it is the package's."""
    if folder.resolve() != PACKAGED.resolve() and (problem := name_problem(name)) is not None:
        yield f"{folder / name}.toml: {problem}; rename the file"


def _opened(folder: Path, cases: Path, name: str) -> tuple[Preset, CaseFile | None]:
    path = folder / f"{name}.toml"
    keys = ConfigFile(path, {}, ()).tables.keys()
    if "table" not in keys and keys & {"given", "request", "receipt"}:
        raise ConfigError(
            [f"{path}: looks like a file of cases; it belongs in the folder cases beside the preset"]
        )
    preset = read_preset(path)
    check_tables(preset, ProviderTable)
    path = cases / f"{name}.toml"
    return preset, read_cases(path) if path.exists() else None


def _tried(preset: Preset, file: CaseFile) -> Trial:
    failures = []
    rows = set()
    cases = list(file.cases())
    for kind, number, case in cases:
        with TemporaryDirectory() as folder:
            running = _Running(preset, file, Path(folder))
            try:
                differences = list(running.differences(case))
            except ConfigError as error:
                differences = list(error.problems)
            except DeliverydError as error:
                differences = [str(error)]
        rows.add(running.row)
        if differences:
            failures.append(DifferingCase(kind, number, case.says, differences, running.decided_by))
    numbers = range(1, len(preset.file.table.get("answers", ())) + 1) if file.answer else ()
    without = [number for number in numbers if number not in rows]
    return Trial(preset.name, len(cases), failures, None, without, list(_kinds_without_case(preset, file)))


def _kinds_without_case(preset: Preset, file: CaseFile) -> Iterator[str]:
    table = preset.file.table
    needed = ["request", "answer", *(kind for kind in ("lookup", "receipt") if kind in table)]
    if "signature" in table.get("receipt", ()):
        needed.append("signature")
    return (kind for kind in needed if not getattr(file, kind))


class _Offline:
    """A wire that answers every request at once, and keeps the last."""

    def __init__(self, answer: WireResponse) -> None:
        self._answer = answer
        self.sent: SentRequest | None = None

    async def exchange(
        self,
        method: str,
        target: Target,
        headers: Headers,
        body: bytes,
        *,
        deadline: float,
        max_body: int,
        check: BeforeSend | None = None,
    ) -> WireResponse:
        """Keep the request and return the answer."""
        del deadline, max_body
        if check is not None:
            check()
        named = {name.decode().lower(): value.decode("latin-1") for name, value in headers}
        self.sent = SentRequest(method, target.path.decode("ascii"), named, body)
        return self._answer

    async def aclose(self) -> None:
        """Release nothing."""


class _Running:
    """Runs one case; its secrets are files in `folder`."""

    def __init__(self, preset: Preset, file: CaseFile, folder: Path) -> None:
        self._preset = preset
        self._file = file
        self._folder = folder
        self.decided_by: str | None = None
        self.row: int | None = None
        """The row of `table.answers` that decided, from 1."""

    def differences(self, case: Case) -> Iterator[str]:
        """Yield how what happens differs from what the case says."""
        match case:
            case RequestCase():
                return self._request(case)
            case AnswerCase():
                return self._answer(case)
            case LookupCase():
                return self._lookup(case)
            case ReceiptCase():
                return self._receipt(case)
            case SignatureCase():
                return self._signature(case)

    def _options(self, given: Given) -> HttpChannelOptions:
        table = expanded(self._preset, given, self._folder, _ORIGIN)
        own = {name: value for name, value in table.items() if name not in ProviderTable.model_fields}
        file = ConfigFile(self._preset.path, {}, ())
        options = file.validate(HttpChannelOptions, own, "table")
        if options is None:
            raise ConfigError(file.problems)
        signature = options.receipt.signature if options.receipt is not None else None
        if signature is not None and signature.secret is not None:
            least = signature.least_secret
            if any(len(value) < least for value in given.secrets.get(signature.secret, ())):
                raise DeliverydError(f"given.secrets.{signature.secret}: at least {least} characters")
        return options

    def _request(self, case: RequestCase) -> Iterator[str]:
        given = merged(self._file.given, case)
        dispatch, wire = dispatch_of(self._preset, given), _Offline(WireResponse(200, {}, b""))
        is_reached, verdict = anyio.run(_sent, self._provider(given), dispatch, wire)
        if case.unreachable or not is_reached:
            if case.unreachable != (not is_reached):
                yield f"reaches the customer: {is_reached}"
        elif case.unfit:
            if not isinstance(verdict, Refused) or wire.sent is not None:
                yield f"not refused before the request: {verdict}"
        elif wire.sent is None:
            yield f"no request was made: {getattr(verdict, 'reason', verdict)}"
        elif case.expect is not None:
            yield from request_differences(case.expect, wire.sent)

    def _provider(self, given: Given) -> _Provider:
        return _Provider(block_of(self._preset, given), self._options(given))

    def _answer(self, case: AnswerCase) -> Iterator[str]:
        given = of_first_request(self._file, case.given)
        options = self._options(given)
        reader = answer_reader(options, options.url, micros(given.at or USUAL_INSTANT))
        answer = _response(case.status, case.headers, case)
        position = reader.row(answer)
        self.decided_by = row_text(options, position)
        own = self._preset.file.blocks.get(block_of(self._preset, given), {})
        if position is not None and "answers" not in own:
            self.row = position + 1
        yield from verdict_differences(case, reader.verdict(answer))

    def _lookup(self, case: LookupCase) -> Iterator[str]:
        given = of_first_request(self._file, case.given)
        wire = _Offline(_response(case.status, case.headers, case))
        found = anyio.run(_found, self._provider(given), dispatch_of(self._preset, given), wire)
        yield from lookup_differences(case, found, wire.sent)

    def _receipt(self, case: ReceiptCase) -> Iterator[str]:
        given = merged(self._file.given, case.given)
        options = self._options(given).receipt
        if options is None:
            yield "the preset has no [table.receipt]"
            return
        path = f"/receipts/{block_of(self._preset, given)}"
        query = urlencode(case.query, doseq=True)
        raw = _raw_request(case, f"{path}{'?' if query else ''}{query}", _PUBLIC)
        now = micros(given.at or USUAL_INSTANT)
        table = ReceiptTable(options.model_copy(update={"signature": None}), _LARGEST, (path,), _PUBLIC)
        trial = try_receipts(table, raw, "the request", now)
        yield from report_differences(case, trial.reading.reports, now)
        yield from reply_differences(case, trial.reply.status, trial.reply.text)

    def _signature(self, case: SignatureCase) -> Iterator[str]:
        given = merged(self._file.given, case.given)
        options = self._options(given).receipt
        if options is None or options.signature is None:
            yield "the preset has no [table.receipt] with a signature"
            return
        called = urlsplit(case.url)
        raw = _raw_request(case, called._replace(scheme="", netloc="").geturl(), case.url)
        trial = try_receipts(
            ReceiptTable(options, _LARGEST), raw, "the request", micros(given.at or USUAL_INSTANT), case.url
        )
        if trial.signature != case.expect:
            yield f"signature: expected {case.expect}, got {_because(trial)}"


class _Provider(NamedTuple):
    """A provider that a preset makes."""

    block: str
    options: HttpChannelOptions

    def open(self, wire: _Offline) -> Channel:
        """Open it over a wire."""
        options = self.options.reporting_to(f"{_PUBLIC}/receipts/{self.block}")
        return open_http_channel(self.block, self.block, options, 5.0, wire)


async def _sent(provider: _Provider, dispatch: Dispatch, wire: _Offline) -> tuple[bool, Verdict | None]:
    channel = provider.open(wire)
    if not channel.reaches(dispatch.customer):
        return False, None
    return True, await channel.send(dispatch)


async def _found(provider: _Provider, dispatch: Dispatch, wire: _Offline) -> Found:
    return await provider.open(wire).look_up(dispatch)


def _because(trial: ReceiptTrial) -> str:
    return trial.signature if trial.reason is None else f"{trial.signature}: {trial.reason}"


def _with_kind(headers: Mapping[str, str], kind: str | None) -> dict[str, str]:
    return {**({"Content-Type": kind} if kind else {}), **headers}


def _response(status: int, headers: Mapping[str, str], case: CaseBody) -> WireResponse:
    body, kind = written_body(case)
    named = {name.lower(): value for name, value in _with_kind(headers, kind).items()}
    return WireResponse(status, named, body)


def _raw_request(case: ReceiptCase | SignatureCase, target: str, url: str) -> bytes:
    """Return a request as it would go over the wire."""
    body, kind = written_body(case)
    headers = _with_kind(case.headers, kind if case.method == "POST" else None)
    if "host" not in map(str.lower, headers):
        headers["Host"] = urlsplit(url).netloc
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{case.method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def trial_rows(trials: Iterable[Trial]) -> list[Mapping[str, object]]:
    """Return trials as JSON has them."""
    return [
        {
            "preset": trial.preset,
            "cases": trial.cases,
            "missing": None if trial.missing is None else str(trial.missing),
            "failures": [each._asdict() for each in trial.failures],
            "rows_without_case": list(trial.rows_without_case),
            "kinds_without_case": list(trial.kinds_without_case),
        }
        for trial in trials
    ]


def trials_lines(trials: Sequence[Trial]) -> Iterator[str]:
    """Return trials for people: each case that differs below its preset, the same differences once."""
    width = max((len(each.preset) for each in trials), default=0)
    for trial in trials:
        failed = len(trial.failures)
        count = f"{trial.cases} case{'' if trial.cases == 1 else 's'}"
        told = f"{count}, {failed} differ{'' if failed != 1 else 's'}"
        if not trial.cases:
            told = f"no cases; they belong in {trial.missing}" if trial.missing else "no cases in its file"
        yield f"{trial.preset:{width}}  {told}"
        if trial.cases and (without := "; ".join(_without_case(trial))):
            yield f"  {without}"
        shown: dict[tuple[str, ...], str] = {}
        for each in trial.failures:
            yield f"  {each.kind} {each.number}{': ' if each.says else ''}{each.says}"
            first = shown.setdefault(tuple(each.differences), f"{each.kind} {each.number}")
            if first != f"{each.kind} {each.number}":
                yield f"    as in {first}"
                continue
            yield from (f"    {difference}" for difference in each.differences)
            if each.decided_by is not None:
                yield f"    decided by {each.decided_by}"


def _without_case(trial: Trial) -> Iterator[str]:
    if trial.rows_without_case:
        yield f"rows of answers without a case: {', '.join(map(str, trial.rows_without_case))}"
    yield from (f"no [[{kind}]]" for kind in trial.kinds_without_case)
