"""Customer directories that need no network: none at all, and a file that changes under way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from deliveryd.directory.base import Directory, DirectoryAnswer, NoDirectory, find_customer
from deliveryd.directory.file import FileDirectory
from deliveryd.errors import ConfigError
from deliveryd.field_lists import members_of
from deliveryd.model import Customer

pytestmark = pytest.mark.anyio


@dataclass
class Watched:
    """A directory that looks for changes at every look-up, its file, and what it had to say."""

    path: Path
    problems: list[str] = field(default_factory=list)

    def load(self, check_interval: float = 0.0) -> FileDirectory:
        return FileDirectory.load(self.path, self.problems.append, check_interval)

    def replace(self, contents: str) -> None:
        """Put a new file in place of the old one, as a careful operator does."""
        new = self.path.with_suffix(".new")
        new.write_text(contents)
        new.replace(self.path)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    """A file of one customer called Ann."""
    watched = Watched(tmp_path / "customers.jsonl")
    watched.path.write_text('{"id": 1, "name": "Ann"}\n')
    return watched


async def look_up(directory: Directory, *ids: int) -> dict[int, DirectoryAnswer]:
    """What a directory says of these."""
    found: dict[int, DirectoryAnswer] = {}

    async def keep(answers: Mapping[int, DirectoryAnswer]) -> None:
        found.update(answers)

    await directory.look_up(ids, keep)
    return found


async def names(directory: Directory, *ids: int) -> dict[int, str | None]:
    """Who is known by which name."""
    found = await look_up(directory, *ids)
    return {id_: customer.name for id_, customer in found.items() if isinstance(customer, Customer)}


def problems_of(path: Path) -> list[str]:
    """What is wrong with a file, without the folder it stands in."""
    with pytest.raises(ConfigError) as caught:
        FileDirectory.load(path, pytest.fail)
    return [problem.replace(f"{path.parent}/", "") for problem in caught.value.problems]


async def test_no_directory_knows_nobody() -> None:
    """Without a directory every customer is unknown."""
    directory = NoDirectory()
    assert directory.at_hand([1, 2]) == {1: None, 2: None}
    assert await look_up(directory, 1, 2) == {1: None, 2: None}
    await directory.aclose()


@dataclass(frozen=True)
class Sample:
    """A file in one of the formats, and what it says of the customers 12 and 7."""

    file: str
    contents: str
    ann: Mapping[str, str]
    bob: Mapping[str, str]


JSON_LINES = Sample(
    "c.jsonl",
    """\
{"id": 12, "name": "Ann", "language": "de", "phone": "+4915112345", "email": "ann@example.com", "tier": "A"}

{"id": "7", "name": "Bob\\nBobson \\u00e9", "points": 10.50, "since": 2019, "vip": true}
{"id": -3, "phone": null, "email": " "}
""",
    ann={"name": "Ann", "language": "de", "phone": "+4915112345", "email": "ann@example.com", "tier": "A"},
    bob={"name": "Bob\nBobson é", "points": "10.50", "since": "2019", "vip": "true"},
)
CSV = Sample(
    "c.csv",
    """\
id,name, tier ,phone
12,Ann,A,

 7 ,"Bob, called ""B"", é", ,+49
-3,,,
""",
    ann={"name": "Ann", "tier": "A"},
    bob={"name": 'Bob, called "B", é', "phone": "+49"},
)


ONCE = "columns need names, and id, name, language, phone and email are unique"


@pytest.mark.parametrize("sample", [JSON_LINES, CSV], ids=["json lines", "csv"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "with byte order mark"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["lf", "crlf"])
async def test_formats(tmp_path: Path, sample: Sample, mark: str, line_end: str) -> None:
    """Every field that isn't blank comes out as its text, whichever way the file is written."""
    path = tmp_path / sample.file
    path.write_bytes((mark + sample.contents).replace("\n", line_end).encode())
    found = await look_up(FileDirectory.load(path, pytest.fail), 7, 8, 12, -3, 7, 2**70)
    known = {12: Customer(12, sample.ann), 7: Customer(7, sample.bob), -3: Customer(-3, {})}
    assert found == {**known, 8: None, 2**70: None}


async def test_a_value_of_csv_may_have_lines(tmp_path: Path) -> None:
    """A quoted line break belongs to its value, and the customers after it are found."""
    path = tmp_path / "c.csv"
    path.write_text('id,name\n2,"Ann\n\nBo"\n1,Bob\n')
    assert await names(FileDirectory.load(path, pytest.fail), 1, 2) == {1: "Bob", 2: "Ann\n\nBo"}


@pytest.mark.parametrize("file", ["c.json", "c.ndjson", "C.JSONL"])
async def test_names_of_json_lines(tmp_path: Path, file: str) -> None:
    """JSON Lines go by several endings; a last line needs no line break."""
    path = tmp_path / file
    path.write_text('{"id": 9223372036854775807, "name": "Ann"}')
    assert await names(FileDirectory.load(path, pytest.fail), 2**63 - 1) == {2**63 - 1: "Ann"}


async def test_many_customers_in_any_order(tmp_path: Path) -> None:
    """Each of thousands is found, wherever in the file they stand."""
    ids = [number * 7919 % 5003 for number in range(5003)]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"id": number, "name": f"N{number}"}) + "\n" for number in ids))
    found = await names(FileDirectory.load(path, pytest.fail), *ids, 5003)
    assert found == {number: f"N{number}" for number in ids}


@pytest.mark.parametrize(
    ("file", "contents", "expected"),
    [
        pytest.param("c.jsonl", b'{"id":1}\n{"name":"Ann"}', ["c.jsonl:2: no id"], id="json: no id"),
        pytest.param("c.jsonl", b'{"id":null}', ["c.jsonl:1: no id"], id="json: null id"),
        pytest.param("c.jsonl", b'{"id":1.0}', ["c.jsonl:1: the id isn't an integer"], id="json: fraction"),
        pytest.param(
            "c.jsonl", b'{"id":true}', ["c.jsonl:1: the id isn't an integer"], id="json: boolean id"
        ),
        pytest.param(
            "c.jsonl",
            '{"id":"٣"}'.encode(),
            ["c.jsonl:1: the id isn't an integer"],
            id="json: digits of another script",
        ),
        pytest.param(
            "c.jsonl",
            b'{"id":9223372036854775808}',
            ["c.jsonl:1: the id has more than 64 bits"],
            id="json: big id",
        ),
        pytest.param(
            "c.jsonl",
            b'{"id":' + b"1" * 9999 + b"}",
            ["c.jsonl:1: the id has more than 64 bits"],
            id="json: huge id",
        ),
        pytest.param(
            "c.jsonl",
            b'{"id":1}\n{"id":2}\n{"id":1}\n{"id":1}',
            ["c.jsonl:3: duplicate id, first on line 1", "c.jsonl:4: duplicate id, first on line 3"],
            id="json: id again",
        ),
        pytest.param("c.jsonl", b"[1]", ["c.jsonl:1: expected one JSON object per line"], id="json: list"),
        pytest.param(
            "c.jsonl",
            b'\n{"id":1,"name":"Ann}',
            ["c.jsonl:2: not JSON: Unterminated string starting at (column 16)"],
            id="json: cut off",
        ),
        pytest.param(
            "c.jsonl",
            b'{"id":1,"a":NaN}',
            ["c.jsonl:1: not JSON: NaN and Infinity aren't numbers"],
            id="json: not a number",
        ),
        pytest.param(
            "c.jsonl",
            b'{"id":1,"id":1}',
            ["c.jsonl:1: duplicate key in an object"],
            id="json: key twice",
        ),
        pytest.param(
            "c.jsonl",
            b'{"id":1,"name":{"first":"Ann"}}',
            ["c.jsonl:1: 'name': expected a string or a number, not a list or an object"],
            id="json: nested",
        ),
        pytest.param(
            "c.jsonl",
            b'{"id":1,"a":' + b"[" * 200_000,
            ["c.jsonl:1: nested too deeply"],
            id="json: nested deep",
        ),
        pytest.param(
            "c.jsonl", b'{"id":1}\n\xff\n', ["c.jsonl:2: bytes that are not UTF-8"], id="json: bytes"
        ),
        pytest.param("c.jsonl", b"", ["c.jsonl: empty"], id="json: empty"),
        pytest.param("c.csv", b"", ["c.csv: empty"], id="csv: empty"),
        pytest.param(
            "c.csv",
            b"name;id\n",
            ["c.csv: expected a first row of column names, separated by commas, with id among them"],
            id="csv: no id column",
        ),
        pytest.param("c.csv", b"id,name,name\n", [f"c.csv: {ONCE}"], id="csv: two names"),
        pytest.param("c.csv", b"id,\n", [f"c.csv: {ONCE}"], id="csv: nameless column"),
        pytest.param(
            "c.csv", b"id\xff\n", ["c.csv: bytes that are not UTF-8"], id="csv: bytes in the header"
        ),
        pytest.param(
            "c.csv",
            b'id,name\n1,"A\nnn"\n2\n3,a,b\n',
            ["c.csv:4: expected 2 columns, found 1", "c.csv:5: expected 2 columns, found 3"],
            id="csv: columns",
        ),
        pytest.param("c.csv", b"id,name\n,Ann\n", ["c.csv:2: no id"], id="csv: no id"),
        pytest.param(
            "c.csv", b"id,name\nAnn,1\n", ["c.csv:2: the id isn't an integer"], id="csv: not an integer"
        ),
        pytest.param("c.csv", b"id\n1\n01\n", ["c.csv:3: duplicate id, first on line 2"], id="csv: id again"),
        pytest.param(
            "c.csv",
            b"id,name\n1,\xff\n2,b\n3,\xfe\n",
            ["c.csv:2: bytes that are not UTF-8", "c.csv:4: bytes that are not UTF-8"],
            id="csv: bytes",
        ),
        pytest.param("c.csv", b'id,name\n1,"Ann', ["c.csv:2: unexpected end of data"], id="csv: cut off"),
        pytest.param(
            "c.txt",
            b"1",
            ["c.txt: the file's name must end in one of .jsonl, .ndjson, .json, .csv"],
            id="unknown ending",
        ),
    ],
)
async def test_mistakes_are_named_by_line(
    tmp_path: Path, file: str, contents: bytes, expected: list[str]
) -> None:
    """A file with mistakes can't be loaded, and each is told by its place, not by whom it is about."""
    path = tmp_path / file
    path.write_bytes(contents)
    assert problems_of(path) == expected


async def test_mistakes_are_told_all_at_once_up_to_twenty(tmp_path: Path) -> None:
    """A file that is wrong from top to bottom is told of in the order of its lines, briefly."""
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": 1}\n' * 2 + "nonsense\n" * 30)
    problems = problems_of(path)
    assert problems[0] == "c.jsonl:2: duplicate id, first on line 1"
    assert problems[1] == "c.jsonl:3: not JSON: Expecting value (column 1)"
    assert problems[20:] == ["and 11 more"]


async def test_a_missing_file_cannot_be_loaded(tmp_path: Path) -> None:
    """At start a directory that isn't there is a mistake of the configuration."""
    assert problems_of(tmp_path / "c.csv") == ["c.csv: No such file or directory"]


async def test_a_replaced_file_is_read_anew(watched: Watched) -> None:
    """The first look-up after the file was replaced sees what is in the new one."""
    directory = watched.load()
    assert await names(directory, 1, 2) == {1: "Ann"}
    watched.replace('{"id": 1, "name": "Ada"}\n{"id": 2, "name": "Bob"}\n')
    assert await names(directory, 1, 2) == {1: "Ada", 2: "Bob"}
    assert watched.problems == []


async def test_a_file_of_the_same_size_and_time_is_read_anew(watched: Watched) -> None:
    """A change counts even where a copying tool set the old time on a file of the old size."""
    directory = watched.load()
    before = watched.path.stat()
    watched.path.write_text('{"id": 1, "name": "Ada"}\n')
    os.utime(watched.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await names(directory, 1) == {1: "Ada"}


async def test_a_file_that_is_rewritten_in_place_counts_when_it_is_whole(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must be the same at two looks a second apart; until then the customers known before stay known."""
    lines = iter(['{"id": 2, "name": "Bob"}\n', '{"id": 3, "name": "Cy"}\n'])
    pauses: list[float] = []

    def write_on(pause: float) -> None:
        pauses.append(pause)
        with watched.path.open("a") as file:
            file.write(next(lines, ""))

    monkeypatch.setattr("deliveryd.directory.file.time.sleep", write_on)
    directory = watched.load()
    watched.path.write_text('{"id": 1, "name": "Ada"}\n')
    for _ in range(2):
        assert await names(directory, 1, 2, 3) == {1: "Ann"}
    assert await names(directory, 1, 2, 3) == {1: "Ada", 2: "Bob", 3: "Cy"}
    assert (watched.problems, pauses) == ([], [0.0] * 3)


def crowd(count: int) -> str:
    return "".join(f'{{"id": {id_}, "name": "Of {count}"}}\n' for id_ in range(1, count + 1))


@pytest.mark.parametrize(
    ("count", "used", "told"),
    [
        pytest.param(100, True, [], id="as many"),
        pytest.param(80, True, [], id="a fifth less"),
        pytest.param(79, True, ["79 customers instead of 100"], id="more than a fifth less"),
        pytest.param(50, True, ["50 customers instead of 100"], id="half"),
        pytest.param(
            49,
            False,
            ["49 customers instead of 100: the former ones stay in use; run deliveryd reload --accept"],
            id="less than half",
        ),
    ],
)
async def test_a_file_that_shrinks(watched: Watched, count: int, used: bool, told: list[str]) -> None:
    """A loss is told once; one of more than half isn't believed until somebody accepts it."""
    watched.replace(crowd(100))
    directory = watched.load()
    watched.replace(crowd(count))
    for _ in range(2):
        assert await names(directory, 1) == {1: f"Of {count if used else 100}"}
    assert watched.problems == [f"{watched.path}: {each}" for each in told]
    accept = await directory.read_to_accept()
    assert accept() == count
    assert await names(directory, 1, 100) == {1: f"Of {count}"} | ({100: "Of 100"} if count == 100 else {})
    watched.replace("nonsense")
    with pytest.raises(ConfigError):
        await directory.read_to_accept()


BREAKAGES = {
    "half written": (lambda path: path.write_text('{"id": 1, "na'), "customers.jsonl:1: not JSON: "),
    "cut to nothing": (lambda path: path.write_text(""), "customers.jsonl: empty"),
    "gone": (lambda path: path.unlink(), "customers.jsonl: No such file or directory"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "customers.jsonl: Is a directory"),
}


@pytest.mark.parametrize(("spoil", "problem"), BREAKAGES.values(), ids=BREAKAGES.keys())
async def test_a_spoilt_file_changes_nothing(
    watched: Watched, spoil: Callable[[Path], object], problem: str
) -> None:
    """The customers known before stay known, and the problem is told once."""
    directory = watched.load()
    spoil(watched.path)
    for _ in range(3):
        assert await names(directory, 1) == {1: "Ann"}
    assert [told.replace(f"{watched.path.parent}/", "")[: len(problem)] for told in watched.problems] == [
        problem
    ]


async def test_each_new_breakage_is_told(watched: Watched) -> None:
    """A file that is spoilt, mended and spoilt again is told of twice, and its good state is used."""
    directory = watched.load()
    watched.replace("nonsense")
    assert await names(directory, 1) == {1: "Ann"}
    watched.replace('{"id": 1, "name": "Ada"}')
    assert await names(directory, 1) == {1: "Ada"}
    watched.replace("nonsense")
    assert await names(directory, 1) == {1: "Ada"}
    assert len(watched.problems) == 2


async def test_a_file_that_comes_back_may_go_again(watched: Watched) -> None:
    """Going away is told each time it happens, coming back with the same contents isn't."""
    directory = watched.load()
    aside = watched.path.with_suffix(".aside")
    for _ in range(2):
        watched.path.rename(aside)
        assert await names(directory, 1) == {1: "Ann"}
        aside.rename(watched.path)
        assert await names(directory, 1) == {1: "Ann"}
    assert len(watched.problems) == 2


async def test_problems_of_a_reload_name_no_values(watched: Watched) -> None:
    """What is told of a broken file doesn't hold what is known of its customers."""
    directory = watched.load()
    watched.replace('{"id": "Secret"}\n{"id": 2, "name": "Secret}\n{"id": 3, "name": ["Secret"]}\n')
    await find_customer(directory, 1)
    assert len(watched.problems) == 1
    assert "Secret" not in watched.problems[0]
    assert watched.problems[0].count(str(watched.path)) == 3


async def test_the_file_is_not_looked_at_more_often_than_asked(watched: Watched) -> None:
    """Within the interval a look-up costs no look at the disk."""
    directory = watched.load(check_interval=3600.0)
    assert directory.at_hand([1]) == {}
    assert await names(directory, 1) == {1: "Ann"}
    watched.replace('{"id": 1, "name": "Ada"}\n')
    assert directory.at_hand([1, 2]) == {1: Customer(1, {"name": "Ann"}), 2: None}
    assert await names(directory, 1) == {1: "Ann"}


async def test_other_look_ups_go_on_while_the_file_is_read(watched: Watched) -> None:
    """Only the look-up that found the change waits for it; the others are answered from what was known."""
    directory = watched.load()
    watched.path.unlink()
    os.mkfifo(watched.path)  # reading it lasts until somebody has written to it
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(find_customer, directory, 1)
        await anyio.wait_all_tasks_blocked()
        assert await names(directory, 1) == {1: "Ann"}
        await anyio.to_thread.run_sync(watched.path.write_text, '{"id": 1, "name": "Ada"}\n')
    assert watched.problems == []


async def test_a_look_up_can_be_cancelled_while_the_file_is_read(watched: Watched) -> None:
    """A stuck disk doesn't hold up a shutdown, and the next look-up tries again."""
    directory = watched.load()
    watched.path.unlink()
    os.mkfifo(watched.path)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(find_customer, directory, 1)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    await anyio.to_thread.run_sync(watched.path.write_text, "")  # lets the abandoned thread go
    watched.replace('{"id": 1, "name": "Ada"}\n')
    assert await names(directory, 1) == {1: "Ada"}
    await directory.aclose()


@pytest.mark.parametrize(
    ("file", "contents"),
    [
        ("c.jsonl", b'{"id":1,"tokens":["a",null,"","b","7"]}'),
        ("c.csv", b"id,tokens,tokens,tokens,tokens\n1,a,,b,7\n"),
        ("c.csv", b'id,tokens\n1,"[""a"",""b"",""7""]"\n'),
    ],
    ids=["a JSON array", "columns of one name", "a JSON array in a column"],
)
async def test_a_field_may_hold_a_list(tmp_path: Path, file: str, contents: bytes) -> None:
    """Empty members are left out; an object is kept as its JSON text."""
    path = tmp_path / file
    path.write_bytes(contents)
    found = await find_customer(FileDirectory.load(path, pytest.fail), 1)
    assert found == Customer(1, {"tokens": '["a","b","7"]'})
    assert isinstance(found, Customer)
    assert members_of(found.fields["tokens"]) == ("a", "b", "7")


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("one", ("one",)),
        ("", ()),
        ("[]", ()),
        ('["a", "a", " ", null, "b"]', ("a", "b")),
        ('[{"endpoint": "https://p.example"}, 12]', ('{"endpoint":"https://p.example"}', "12")),
        ("[broken", ("[broken",)),
    ],
)
def test_members_of_a_list(text: str, members: tuple[str, ...]) -> None:
    assert members_of(text) == members
