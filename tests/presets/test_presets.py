"""Every preset against its cases, on real sockets: what goes out, what answers and receipts mean."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from deliveryd.channels.options import ProviderTable
from deliveryd.channels.presets.catalogue import PACKAGED, Catalogue, Preset, check_tables
from deliveryd.commands.providers.preset_cases import Case
from deliveryd.options.file import Opened
from presets.cases import SheetCases, case_files, load_cases
from presets.running import differences, labelled
from presets.table import figures_of, table_lines
from support.presets import postbox

NAMES = Catalogue().names()


@pytest.fixture
def anyio_backend() -> str:
    """The loop of the receipts server."""
    return "asyncio"


def all_cases() -> Iterator[object]:
    """Every case of every file; a file that can't be read is one case that says so."""
    for name, path in case_files().items():
        try:
            file = load_cases(path)
        except ValueError as error:
            yield pytest.param(name, None, error, id=f"{name}-file")
            continue
        for label, case in labelled(file):
            yield pytest.param(name, file, case, id=f"{name}-{label}")


@pytest.mark.slow  # a thousand cases, each with sockets of its own
@pytest.mark.anyio
@pytest.mark.parametrize(("name", "file", "case"), list(all_cases()))
async def test_case(name: str, file: SheetCases | None, case: Case | ValueError, tmp_path: Path) -> None:
    if file is None or isinstance(case, ValueError):
        pytest.fail(str(case))
    preset = Catalogue().find(name)
    assert preset is not None
    assert await differences(preset, file, case, tmp_path) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_sound_for_all_of_its_blocks(name: str) -> None:
    preset = Catalogue().find(name)
    assert preset is not None
    check_tables(preset, ProviderTable)


def test_every_preset_has_cases() -> None:
    assert sorted(case_files()) == NAMES


def test_no_other_files_are_among_the_presets() -> None:
    """But the modules that read them."""
    assert {path.suffix for path in PACKAGED.iterdir() if path.is_file()} <= {".toml", ".py"}


# the runner itself

POSTBOX_CASES = """
sheet = "none.md"
rows = { 2 = 2, 3 = 0, 4 = 0 }
skipped = [{ row = "2/2", reason = "a remark about prices" }]
[given]
keys = { account = "A01", sender = "Acme" }
secrets = { token = "t0k" }
customer = { phone = "+447700900123" }
content = { text = "Hi" }

[[request]]
row = "1/1"
[request.expect]
path = "/A01/messages"
headers = { Authorization = "Bearer t0k" }
json = { to = "+447700900123", text = "Hi", from = "Acme", options = { rank = 1 } }

[[request]]
row = "1/2"
customer = { email = "a@example.com" }
unreachable = true

[[answer]]
row = "2/1"
status = 503
headers = { Retry-After = "7" }
verdict = "try_again"
after = 7
"""


def postbox_cases(old: str = "", new: str = "") -> SheetCases:
    assert old in POSTBOX_CASES
    return SheetCases.model_validate(tomllib.loads(POSTBOX_CASES.replace(old, new, 1)))


async def all_differences(file: SheetCases, folder: Path) -> list[str]:
    path = folder / "postbox.toml"
    path.touch()
    preset = Preset("postbox", path, postbox(), Opened(path, path.stat()))
    return [told for _, case in labelled(file) for told in await differences(preset, file, case, folder)]


@pytest.mark.anyio
async def test_good_cases_have_no_differences(tmp_path: Path) -> None:
    assert await all_differences(postbox_cases(), tmp_path) == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('path = "/A01/messages"', 'path = "/A02/messages"', "path: expected '/A02/messages'"),
        ("Bearer t0k", "Bearer other", "header Authorization: expected 'Bearer other', got 'Bearer t0k'"),
        ("rank = 1", "rank = 2", "json: expected"),
        ("rank = 1 } }", "rank = 1 } }\nquery = { a = '1' }", "query: expected {'a': ['1']}, got {}"),
        ('email = "a@example.com"', 'phone = "+447700900124"', "reaches the customer: True"),
        ("try_again", "refused", "verdict: expected 'refused', got 'try_again'"),
        ("after = 7\n", "after = 9\n", "after: expected 9.0, got 7.0"),
        ("after = 7\n", "", "after: expected None, got 7.0"),
        ("after = 7\n", 'after = 7\nprovider_id = "p1"', "provider_id: expected 'p1', got None"),
    ],
)
async def test_a_difference_is_found(tmp_path: Path, old: str, new: str, told: str) -> None:
    found = await all_differences(postbox_cases(old, new), tmp_path)
    assert len(found) == 1
    assert found[0].startswith(told)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("2 = 2", "2 = 3", "neither a case nor skipped: 2/3"),
        ("2 = 2", "2 = 1", "the sheet has no row 2/2"),
        ('skipped = [{ row = "2/2"', 'skipped = [{ row = ["2/1", "2/2"]', "a case and skipped: 2/1"),
        (", 4 = 0", "", "rows needs the counts of sections 2, 3 and 4"),
        ("a remark about prices", "", "at least 10 characters"),
    ],
)
def test_a_row_without_a_case_makes_the_file_invalid(old: str, new: str, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        postbox_cases(old, new)
    assert told in str(caught.value)


def test_the_table_counts_rows_and_cases() -> None:
    lines = list(table_lines([figures_of("postbox", postbox_cases(), 0)]))
    assert [line.split() for line in lines] == [
        [
            "preset",
            "rows",
            "cased",
            "skipped",
            "request",
            "answer",
            "lookup",
            "receipt",
            "signature",
            "failed",
        ],
        ["postbox", "2", "1", "1", "2", "1", "0", "0", "0", "0"],
        ["all", "2", "1", "1", "2", "1", "0", "0", "0", "0"],
    ]
